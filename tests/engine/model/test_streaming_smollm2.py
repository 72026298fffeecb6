"""The real model in float32, in a pool a quarter of its context: the tokens that a large one gives. Poison is on."""

import pytest
from tokenizers import Tokenizer
from transformers import PreTrainedModel

from engine.config import EngineConfig
from engine.model import arrivals, streaming
from engine.model.folder import ModelFolder
from engine.model.lanes import HostLane, Lanes
from engine.model.link import Link
from engine.model.runner import ModelRunner
from engine.request import SamplingParams
from tests.engine.model.checkpoints import assert_greedy
from tests.engine.model.device_like import device_like
from tests.engine.model.driver import GREEDY, Drive, generate
from tests.engine.model.hosting import Host, Hosting

pytestmark = pytest.mark.xdist_group("exact")  # one worker holds the two copies of the weights

BLOCK_BYTES = 30 * 2 * 3 * 16 * 64 * 4
TEXT = (
    "The harbour was quiet that morning. {n} boats lay at their moorings, and on the quay a woman counted crates of "
    "oranges, writing each number twice. 'If the {n}th is short again,' she said, 'we shall have to ask the captain.' "
)
SAMPLINGS = [GREEDY, SamplingParams(temperature=0.8, top_p=0.95)]
NUM_TOKENS = 12


@pytest.fixture(scope="module")
def prompts(smollm2: ModelFolder) -> list[list[int]]:
    """A context of 800 tokens, and a short one beside it."""
    tokenizer = Tokenizer.from_str(smollm2.tokenizer_json.decode())
    ids = [tokenizer.encode("".join(TEXT.format(n=31 * k + 7 * j) for j in range(16))).ids for k in range(2)]
    return [ids[0][:800], ids[1][:70]]


def make_runner(folder: ModelFolder, num_blocks: int, link: Link | None = None) -> ModelRunner:
    """Return a float32 runner of so many blocks."""
    config = EngineConfig(
        dtype="float32",
        poison=True,
        kv_bytes=num_blocks * BLOCK_BYTES,
        host_bytes=80 * BLOCK_BYTES,
        max_running=4,
        max_batched_tokens=128,
        threads=1,
    )
    return ModelRunner(config, folder, link)


@pytest.fixture(scope="module")
def expected(smollm2: ModelFolder, prompts: list[list[int]]) -> list[list[int]]:
    """What a large pool gives."""
    return generate(make_runner(smollm2, 64), prompts, Drive(num_tokens=NUM_TOKENS, chunk=100), SAMPLINGS)


@pytest.mark.parametrize("kind", ["host", "device"])
def test_four_times_the_pool(
    smollm2: ModelFolder,
    smollm2_oracle: PreTrainedModel,
    prompts: list[list[int]],
    expected: list[list[int]],
    kind: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Greedy and seeded, in place and by staging buffers, with loads and transfers beside the steps."""
    monkeypatch.setattr(streaming, "STAGE_BYTES", 16 * BLOCK_BYTES // 30)
    monkeypatch.setattr(arrivals, "WORTH_BYTES", 0)
    beside = Link(Lanes(HostLane), side=None, capture=None, spare=True)
    runner = make_runner(smollm2, 12, beside if kind == "host" else device_like())
    host = Host(runner, Hosting(num_tokens=NUM_TOKENS, chunk=48, resident=5, spare=1, comes_back=0.2))
    found = host.run(prompts, SAMPLINGS)
    runner.close()
    assert len(prompts[0]) + NUM_TOKENS > 4 * runner.shape.num_blocks * 16
    assert host.num_ahead and host.num_loaded
    assert found[0] == expected[0] or kind == "device"
    assert_greedy(smollm2_oracle, prompts[0], found[0])
    assert found[1] == expected[1]
