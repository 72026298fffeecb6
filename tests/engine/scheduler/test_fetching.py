"""Requests whose beginning is on the disk: who waits for it, for how long, and what else goes on meanwhile."""

import errno
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from engine.memory.eviction.base import BlockKey
from engine.request import FinishReason, RefusalCode, SequenceId, TenantId
from engine.scheduler.sequence import State
from tests.engine.costs import set_costs
from tests.engine.disk.stores import DEADLINE, extents
from tests.engine.tiered import TieredWorld

PROMPT = [31 * place % 900 + 50 for place in range(40)]  # ten blocks


class Shop:
    """Cores one after the other over one disk, with two tenants that may have all of every tier."""

    def __init__(self, folder: Path, *, share: float = 1.0, ahead: bool = False) -> None:
        self._folder, self._share, self._ahead = folder, share, ahead
        self.world = self._open(None)

    def _open(self, before: TieredWorld | None) -> TieredWorld:
        world = TieredWorld(
            self._folder, before=before, num_blocks=32, budget=64, num_slabs=48, ahead=self._ahead, max_context=128
        )
        set_costs(world, self._share)
        for tenant in ("minnow", "whale"):
            world.policy(tenant, blocks=32, slabs=48, disk_bytes=world.disk_bytes)
        return world

    def keys(self, tenant: str, tokens: list[int]) -> list[BlockKey]:
        """Return the keys of a prompt's full blocks."""
        memory = self.world.scheduler.memory
        account = memory.accounts.get(TenantId(tenant))
        assert account is not None
        chain = memory.lookup.chain(account, tenant.encode())
        assert chain is not None
        chain.extend(tokens, len(tokens) // 4)
        return chain.keys

    def put_on_disk(self, tenant: str = "whale") -> None:
        """Let a request with the prompt end, and its blocks reach the disk."""
        world = self.world
        done = world.submit(tenant, PROMPT, 4)
        self.until(lambda: done in world.finished)
        keys = self.keys(tenant, PROMPT)
        world.scheduler.memory.tiers.park(keys)
        self.until(lambda: all(key in world.store for key in keys))

    def restart(self) -> TieredWorld:
        """Let all end, stop, and start again: the disk alone knows what was."""
        self.run()
        self.world.close()
        self.world = self._open(self.world)
        return self.world

    def until(self, condition: Callable[[], object]) -> None:
        """Step until something is so."""
        end = time.monotonic() + DEADLINE
        while not condition():
            assert time.monotonic() < end, "it never is"
            self.world.step()

    def read_all(self) -> None:
        """Take in what the disk brings, with no step meanwhile, until it has brought all."""
        tiers, end = self.world.scheduler.memory.tiers, time.monotonic() + DEADLINE
        assert tiers.disk is not None
        while tiers.disk.is_reading:
            assert time.monotonic() < end, "a read never ends"
            tiers.collect(self.world.runner, self.world.now)

    def run(self) -> None:
        """Step until nothing is left to do, in any tier, and check all tokens."""
        end = time.monotonic() + DEADLINE
        while self.world.step():
            assert time.monotonic() < end, "something never ends"
        for output in self.world.tokens:
            self.world.assert_exact(output)

    def is_fetching(self, sequence: SequenceId) -> bool:
        """Say whether a request waits for the disk."""
        one = self.world.scheduler.roster.sequences.get(sequence)
        return one is not None and one.state is State.FETCHING

    def assert_idle(self) -> None:
        """Check that nothing waits for anything any more, and that nobody holds a slab."""
        memory = self.world.scheduler.memory
        self.world.assert_empty()
        assert self.world.scheduler.roster.fetching.num_fetching == 0
        assert sum(account.num_claims for account in memory.host.accounts()) == 0
        assert memory.host.slabs.num_leaving == 0
        assert sum(account.num_idle for account in memory.host.accounts()) == memory.host.num_used


@contextmanager
def shop(folder: Path, **options: bool | float) -> Iterator[Shop]:
    """Open a shop whose disk has the prompt of the whale, and whose core knows nothing."""
    one = Shop(folder, **options)  # type: ignore[arg-type]  # the same ones
    try:
        one.put_on_disk()
        one.restart()
        yield one
        one.run()
        one.assert_idle()
    finally:
        one.world.close()


@pytest.mark.parametrize("ahead", [False, True])
def test_a_restarted_core_fetches_what_the_disk_knows(tmp_path: Path, ahead: bool) -> None:
    """Ten blocks come from the disk to slabs and with one plan to the device; what is computed is the rest."""
    with shop(tmp_path, ahead=ahead) as one:
        world, roster = one.world, one.world.scheduler.roster
        again = world.submit("whale", [*PROMPT, 1, 2, 3], 4)
        one.until(lambda: again in world.finished)
        assert world.cached_tokens[again] == len(PROMPT)
        assert roster.fetching.num_chosen == 1
        assert roster.fetching.num_late == 0
        assert roster.fetching.stall_seconds > 0
        assert world.scheduler.memory.tiers.hit_tokens == {"device": 0, "host": 0, "disk": len(PROMPT)}


def test_another_tenants_same_prompt_is_not_fetched(tmp_path: Path) -> None:
    """Keys have the namespace in them, on the disk too."""
    with shop(tmp_path) as one:
        other = one.world.submit("minnow", PROMPT, 2)
        one.until(lambda: other in one.world.finished)
        assert one.world.cached_tokens[other] == 0
        assert one.world.scheduler.roster.fetching.num_chosen == 0


def test_what_is_cheaper_to_compute_is_computed(tmp_path: Path) -> None:
    """The disk is not asked where that would take longer."""
    with shop(tmp_path, share=0.0) as one:
        again = one.world.submit("whale", [*PROMPT, 1], 2)
        one.until(lambda: again in one.world.finished)
        assert one.world.cached_tokens[again] == 0
        assert one.world.scheduler.roster.fetching.num_chosen == 0


def test_a_slow_disk_is_not_waited_for_longer_than_computing_takes(tmp_path: Path) -> None:
    """The request starts without it; what comes later is kept for the next one."""
    with shop(tmp_path) as one:
        world, host = one.world, one.world.scheduler.memory.host
        world.files.hold("read")
        again = world.submit("whale", [*PROMPT, 1, 2, 3], 4)
        one.until(lambda: one.is_fetching(again))
        one.until(lambda: again in world.finished)
        assert world.cached_tokens[again] == 0
        assert world.scheduler.roster.fetching.num_late == 1
        assert world.scheduler.roster.fetching.stall_seconds >= 1.0, "as long as computing is said to take"
        world.files.release()
        one.until(lambda: all(host.get(key) is not None for key in one.keys("whale", PROMPT)[:8]))


def test_a_failing_disk_is_not_waited_for(tmp_path: Path) -> None:
    """A read that fails sends the request on at once, and is no longer on anybody's mind."""
    with shop(tmp_path) as one:
        world = one.world
        world.files.fail("read", code=errno.EIO)
        again = world.submit("whale", [*PROMPT, 1, 2, 3], 4)
        one.until(lambda: again in world.finished)
        assert world.cached_tokens[again] == 0
        assert world.scheduler.roster.fetching.stall_seconds < 1.0
        world.files.failing.clear()


def test_a_torn_block_ends_what_is_found(tmp_path: Path) -> None:
    """What is in front of it is used; itself and what follows are computed again."""
    with shop(tmp_path) as one:
        one.run()
        one.world.close()
        for path in extents(tmp_path):
            data = bytearray(path.read_bytes())
            stride = one.world.disk_bytes // 200
            data[5 * stride : 5 * stride + 4] = b"torn"
            path.write_bytes(data)
        one.world = one._open(one.world)
        again = one.world.submit("whale", [*PROMPT, 1, 2, 3], 4)
        one.until(lambda: again in one.world.finished)
        assert one.world.cached_tokens[again] < len(PROMPT)
        assert one.world.scheduler.roster.fetching.num_late == 1


def test_who_fetches_is_in_nobodys_way(tmp_path: Path) -> None:
    """Its tenant's next request, and everybody else's, run meanwhile; no block of the device is kept for it."""
    with shop(tmp_path) as one:
        world = one.world
        world.files.hold("read")
        first = world.submit("whale", [*PROMPT, 1], 4)
        others = [world.submit("whale", 20, 3), world.submit("minnow", 20, 3)]
        one.until(lambda: one.is_fetching(first))
        held = world.held("whale")
        one.until(lambda: all(other in world.finished for other in others))
        assert one.is_fetching(first)
        assert held <= 6, "the other one's blocks"
        world.files.release()
        one.until(lambda: first in world.finished)


def test_who_has_fetched_is_at_its_place_again(tmp_path: Path) -> None:
    """Where one may run at a time, the one that came first does, as soon as it is back."""
    with shop(tmp_path) as one:
        world = one.world
        world.policy("whale", blocks=32, slabs=48, disk_bytes=world.disk_bytes, max_running=1)
        world.files.hold("read")
        first = world.submit("whale", [*PROMPT, 1], 3)
        second, third = world.submit("whale", 20, 6), world.submit("whale", 20, 6)
        one.until(lambda: second in world.running())
        world.files.release()
        one.read_all()
        one.until(lambda: first in world.finished)
        assert third not in world.finished


def test_a_cancelled_fetch_leaves_nothing(tmp_path: Path) -> None:
    """Its reads end by themselves, and what they bring is anybody's."""
    with shop(tmp_path) as one:
        world, memory = one.world, one.world.scheduler.memory
        world.files.hold("read")
        again = world.submit("whale", [*PROMPT, 1], 3)
        one.until(lambda: one.is_fetching(again))
        world.cancel(again)
        world.step()
        assert world.finished[again] is FinishReason.CANCELLED
        assert sum(account.num_claims for account in memory.host.accounts()) == 0
        world.files.release()


def test_a_deadline_holds_for_who_fetches(tmp_path: Path) -> None:
    """It ends as anybody does who waits in line."""
    with shop(tmp_path) as one:
        world = one.world
        world.files.hold("read")
        again = world.submit("whale", [*PROMPT, 1], 3, deadline=world.now + 0.05)
        one.until(lambda: again in world.refused)
        assert world.refused[again].code is RefusalCode.UNAVAILABLE
        world.files.release()


def test_a_removed_policy_ends_fetches(tmp_path: Path) -> None:
    """Who fetched waits for a policy, and finds that nothing of its tenant's is left, in any tier."""
    with shop(tmp_path) as one:
        world = one.world
        world.files.hold("read")
        again = world.submit("whale", [*PROMPT, 1], 3)
        one.until(lambda: one.is_fetching(again))
        world.update(removed=("whale",))
        assert not one.is_fetching(again)
        world.step()
        assert world.scheduler.memory.host.used(TenantId("whale")) == 0
        world.files.release()
        one.until(lambda: world.store.used("whale") == 0)
        world.policy("whale", blocks=32, slabs=48, disk_bytes=world.disk_bytes)
        one.until(lambda: again in world.finished)
        assert world.cached_tokens[again] == 0


def test_two_requests_read_a_block_once(tmp_path: Path) -> None:
    """The second waits for what the first has asked for."""
    with shop(tmp_path) as one:
        world = one.world
        both = [world.submit("whale", [*PROMPT, number], 3) for number in (1, 2)]
        one.until(lambda: all(again in world.finished for again in both))
        assert world.store.stats().reads.slabs == len(PROMPT) // 4
        assert all(world.cached_tokens[again] == len(PROMPT) for again in both)


def test_outputs_fork_from_what_was_fetched(tmp_path: Path) -> None:
    """One of a request's outputs fetches for all of them."""
    with shop(tmp_path) as one:
        world = one.world
        again = world.submit("whale", [*PROMPT, 1], 3, n=3)
        one.until(lambda: all(end in world.finished for end in (again, (again, 1), (again, 2))))
        assert world.cached_tokens[again] == len(PROMPT)
        assert world.scheduler.roster.fetching.num_chosen == 1


def test_without_room_in_host_memory_it_is_computed(tmp_path: Path) -> None:
    """A tenant fetches no more than it may have there at once."""
    with shop(tmp_path) as one:
        world = one.world
        world.policy("whale", blocks=32, slabs=3, disk_bytes=world.disk_bytes)
        again = world.submit("whale", [*PROMPT, 1], 3)
        one.until(lambda: again in world.finished)
        assert world.cached_tokens[again] == 12


def test_a_preempted_sequence_comes_back_from_the_disk(tmp_path: Path) -> None:
    """Where host memory has lost what it waits for, the disk has it still, bit by bit the same."""
    with shop(tmp_path) as one:
        world = one.world
        running = world.submit("whale", [*PROMPT, 1], 20)
        one.until(lambda: len(world.tokens[running]) > 3)
        world.policy("whale", blocks=1, slabs=0, disk_bytes=world.disk_bytes)
        one.until(lambda: not world.running() and world.cached("whale") <= 1)
        world.policy("whale", blocks=32, slabs=48, disk_bytes=world.disk_bytes)
        one.until(lambda: running in world.finished)
        assert world.outputs[running][-1].num_preemptions == 1
        assert world.scheduler.roster.fetching.num_chosen == 2
