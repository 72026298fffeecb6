"""The real model over all tiers: no host memory, host memory, the disk too, and a worker that starts again.

Greedy, seeded, several outputs, beams: the text is the same, float32 to the bit, whichever tier a block came from.
"""

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.config import EngineConfig
from engine.core import make_scheduler, open_disk
from engine.model.folder import ModelFolder, resolve_model
from engine.model.link import Link
from engine.model.runner import ModelRunner
from engine.policy import PolicyUpdate, TenantPolicy
from engine.request import TenantId
from tests.engine.costs import Costs
from tests.engine.model.device_like import device_like
from tests.engine.test_exact_ahead import Driver, submit
from tests.engine.test_exact_under_pressure import PROMPTS, TENANTS
from tests.engine.tiny_model import make_tiny_model
from tests.engine.world import ShortOutputs

NUM_BLOCKS, NUM_SLABS, BLOCK_TOKENS = 26, 40, 8
DEADLINE = 60.0


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> ModelFolder:
    """A tiny checkpoint."""
    return resolve_model(EngineConfig(model=str(make_tiny_model(tmp_path_factory.mktemp("model") / "tiny", seed=2))))


class Engine(Driver):
    """A worker's core without its sockets: steps, and what moves bytes beside them."""

    def __init__(self, folder: ModelFolder, disk: Path | None, *, slabs: int, blocks: int, link: Link | None) -> None:
        shape = ModelRunner(EngineConfig(dtype="float32", block_size=BLOCK_TOKENS, threads=1), folder).shape
        config = EngineConfig(
            dtype="float32",
            kv_bytes=blocks * shape.block_bytes,
            host_bytes=slabs * shape.block_bytes,
            disk_bytes=(4 << 20) if disk is not None else 0,
            disk_dir=str(disk) if disk is not None else "",
            block_size=BLOCK_TOKENS,
            max_batched_tokens=16,
            max_running=8,
            threads=1,
            poison=True,
        )
        self.runner = ModelRunner(config, folder, link)
        self.scheduler = make_scheduler(config, folder, self.runner)
        self.store = open_disk(config, folder, self.runner, self.scheduler)
        self._version = 0
        super().__init__(self.scheduler, self.runner, ahead=link is not None)
        self.scheduler.roster.swapping.cost = Costs(1.0)
        self.limit(blocks)
        for name in TENANTS:
            self.scheduler.roster.tenant(TenantId(name)).lengths = ShortOutputs()  # admit more than will fit

    def limit(self, blocks: int) -> None:
        """Give both tenants so much of the device, and all there is below it."""
        shape = self.scheduler.memory.shape
        self._version += 1
        policies = tuple(
            TenantPolicy(
                tenant=TenantId(name),
                kv_hard_bytes=blocks * shape.block_bytes,
                host_bytes=shape.num_slabs * shape.block_bytes,
                disk_bytes=4 << 20,
                max_running=8,
                max_queued=100,
                max_context_tokens=2048,
                max_output_tokens=2048,
            )
            for name in TENANTS
        )
        self.scheduler.apply(PolicyUpdate(version=self._version, epoch=0, snapshot=True, tenants=policies))

    def run(self, steps: int = 100_000) -> None:
        """Step until nothing is left to do, in any tier, or for so many steps."""
        tiers, end = self.scheduler.memory.tiers, time.monotonic() + DEADLINE
        for _ in range(steps):
            assert time.monotonic() < end, "something never ends"
            tiers.collect(self.runner, self.scheduler.now)
            plan = self.scheduler.plan()
            self.scheduler.audit()
            tiers.before_launch(self.runner, plan)
            if plan is not None:
                self._launched.append((plan, self.runner.launch(plan)))
            tiers.start(self.runner)
            if plan is None and not self._launched:
                if tiers.next_look(self.scheduler.now) is None:
                    return
                threading.Event().wait(0.001)
            while len(self._launched) > (self._ahead and plan is not None):
                self._commit(*self._launched.popleft())

    def tell_story(self) -> None:
        """Run all prompts with limits that move, and park what they leave."""
        for number in range(len(PROMPTS)):
            submit(self.scheduler, number, frozenset(range(number, 300, 11)))
            self.run(steps=3)
        for blocks in (6, 24, 5, 20, 6, NUM_BLOCKS) if self.scheduler.memory.shape.num_blocks == NUM_BLOCKS else ():
            self.limit(blocks)
            self.run(steps=12)
        self.run()
        assert not self.scheduler.roster.sequences
        self.park()
        self.run()

    def park(self) -> None:
        """Have all that is cached kept below."""
        memory = self.scheduler.memory
        for block in list(memory.tree.blocks()):
            memory.tiers.park([memory.tree.key(block)])

    def close(self) -> None:
        """Stop, as a core does."""
        self.runner.close()
        if self.store is not None:
            self.store.close(DEADLINE)


@pytest.fixture(scope="module")
def alone(folder: ModelFolder) -> Iterator[Engine]:
    """What all get where nobody has to go, and nothing is kept."""
    engine = Engine(folder, None, slabs=0, blocks=96, link=None)
    engine.tell_story()
    assert engine.scheduler.roster.num_preemptions == 0
    yield engine
    engine.close()


@pytest.mark.parametrize("on_device", [False, True])
@pytest.mark.parametrize("with_disk", [False, True])
def test_tokens_are_the_same_in_all_tiers(
    folder: ModelFolder, alone: Engine, tmp_path: Path, with_disk: bool, on_device: bool
) -> None:
    """Squeezed, swapped, copied out and back beside the steps; the second time from what the first has left."""
    disk = tmp_path / "disk" if with_disk else None
    link = device_like() if on_device else None
    engine = Engine(folder, disk, slabs=NUM_SLABS, blocks=NUM_BLOCKS, link=link)
    engine.tell_story()
    assert engine.scheduler.roster.num_preemptions > 0
    assert engine.scheduler.memory.mover.stored_blocks > 0
    assert (engine.tokens, engine.ends) == (alone.tokens, alone.ends)
    engine.close()
    if not with_disk:
        return
    again = Engine(folder, disk, slabs=NUM_SLABS, blocks=NUM_BLOCKS, link=device_like() if on_device else None)
    again.tell_story()
    assert again.scheduler.memory.host.num_from_disk > 0, "a restarted worker finds what is on the disk"
    assert (again.tokens, again.ends) == (alone.tokens, alone.ends)
    again.close()
