"""The real model with contexts of four times the pool: the text of a large pool, greedy and seeded, float32 exact."""

import pytest

from engine.config import EngineConfig
from engine.model.folder import ModelFolder, resolve_model
from engine.model.link import Link
from engine.request import GenerationRequest, RequestId, SamplingParams, SequenceId, TenantId
from tests.engine.model.checkpoints import make_other
from tests.engine.model.device_like import device_like
from tests.engine.test_exact_tiers import BLOCK_TOKENS, Engine
from tests.engine.test_exact_under_pressure import TENANTS
from tests.engine.tiny_model import make_tiny_model

NUM_BLOCKS = 14
LENGTHS = (380, 17, 300, 9, 410, 30)  # prompts, of both tenants in turn
NUM_TOKENS = 40


@pytest.fixture(scope="module", params=["tiny", "fallback"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ModelFolder:
    """A tiny checkpoint of a family of ours, and one that a class of transformers computes."""
    path = tmp_path_factory.mktemp("model")
    if request.param == "fallback":
        return make_other(path, "gpt_neox")
    return resolve_model(EngineConfig(model=str(make_tiny_model(path / "tiny", seed=2))))


def run(folder: ModelFolder, *, blocks: int, slabs: int, link: Link | None = None) -> Engine:
    """Return an engine that has answered all prompts, with its limits moved meanwhile where it is small."""
    engine = Engine(folder, None, slabs=slabs, blocks=blocks, link=link)
    for number, length in enumerate(LENGTHS):
        tenant = TENANTS[number % 2]
        request = GenerationRequest(
            request_id=RequestId(str(number)),
            tenant=TenantId(tenant),
            namespace=tenant.encode(),
            prompt=[(place * 7 + number * 13) % 250 for place in range(length)],
            sampling=SamplingParams(
                max_tokens=NUM_TOKENS, temperature=0.8 * (number % 4 > 1), top_k=20, seed=number, ignore_eos=True
            ),
        )
        engine.scheduler.submit(SequenceId(number), request)
    if blocks == NUM_BLOCKS:
        for limit in (NUM_BLOCKS, 7, NUM_BLOCKS, 9):
            engine.run(steps=40)
            engine.limit(limit)
    engine.run()
    assert not engine.scheduler.roster.sequences
    engine.close()
    return engine


@pytest.fixture(scope="module")
def alone(folder: ModelFolder) -> Engine:
    """What all get in a large pool."""
    return run(folder, blocks=400, slabs=0)


@pytest.mark.parametrize("on_device", [False, True])
def test_text_is_that_of_a_large_pool(folder: ModelFolder, alone: Engine, on_device: bool) -> None:
    """Several that are streamed, and small ones between them; limits move, steps are planned ahead with lanes."""
    assert max(LENGTHS) + NUM_TOKENS >= 4 * NUM_BLOCKS * BLOCK_TOKENS
    engine = run(folder, blocks=NUM_BLOCKS, slabs=300, link=device_like() if on_device else None)
    assert engine.scheduler.roster.streaming.offloaded_blocks > 100
    assert {len(tokens) for tokens in engine.tokens.values()} == {NUM_TOKENS}
    assert engine.tokens == alone.tokens
