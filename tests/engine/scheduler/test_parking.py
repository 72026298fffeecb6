"""Sessions at work: turns that end are parked, found again, listed, pinned, brought up, and erased from every tier."""

import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.request import BeamParams, FinishReason, TenantId
from engine.scheduler.session_calls import SessionAction, SessionChange
from tests.engine.costs import set_costs
from tests.engine.parked import Core
from tests.engine.world import BLOCK_BYTES

ERASE, PIN, UNPIN, PREFETCH = SessionAction.ERASE, SessionAction.PIN, SessionAction.UNPIN, SessionAction.PREFETCH
SIZE = 4  # tokens of a block


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    """Where a core keeps its blocks."""
    return tmp_path / "disk"


@pytest.fixture
def core(disk: Path) -> Iterator[Core]:
    """A core with all tiers and two tenants."""
    made = Core(disk)
    made.policy("a", "b")
    yield made
    made.close()


def words(seed: int, count: int = 20) -> list[int]:
    """Return a prompt of its own."""
    return [(seed * 97 + place * 31) % 1000 for place in range(count)]


def num_kept(tokens: list[int]) -> int:
    """Return how many tokens of a finished turn are kept: whole blocks, and its last token has no KV."""
    return (len(tokens) - 1) // SIZE * SIZE


def is_anywhere(core: Core, disk: Path | None, tokens: list[int]) -> bool:
    """Say whether a block's tokens lie in any block, slab or file."""
    pattern = struct.pack(f"<{len(tokens)}q", *tokens)
    if pattern in core.world.runner.contents():
        return True
    return disk is not None and any(pattern in path.read_bytes() for path in disk.rglob("*") if path.is_file())


def test_a_turn_is_kept_until_the_next_one(core: Core) -> None:
    """It goes to host memory and to disk; the next turn needs to compute only what is new."""
    tokens = core.turn("a", "chat", words(1))
    found = core.get("a", "chat")
    assert (found.num_tokens, found.num_turns, found.pinned, found.active) == (num_kept(tokens), 1, False, False)
    core.park("a", "chat", "device", "host", "disk")
    again = core.world.submit("a", [*tokens, 7, 8, 9], 4, session="chat")
    core.finish(again)
    assert core.world.cached_tokens[again] == num_kept(tokens)
    assert core.get("a", "chat").num_turns == 2


def test_the_device_may_be_needed_meanwhile(core: Core) -> None:
    """What has left the device comes back from host memory."""
    tokens = core.turn("a", "chat", words(1, 40))
    core.park("a", "chat", "host")
    core.push_out("a")
    assert core.get("a", "chat").device_bytes == 0
    again = core.world.submit("a", [*tokens, 7, 8, 9], 4, session="chat")
    core.finish(again)
    assert core.world.cached_tokens[again] == num_kept(tokens)


def test_a_cancelled_turn_is_kept_as_far_as_it_came(core: Core) -> None:
    """The client may go on from what it has seen."""
    sequence = core.world.submit("a", words(1), 100, session="chat")
    core.until(lambda: len(core.world.tokens[sequence]) >= 10, "ten tokens")
    core.world.cancel(sequence)
    core.step()
    assert core.get("a", "chat").num_tokens == num_kept([*words(1), *core.world.tokens[sequence]])


def test_a_request_that_never_ran_leaves_no_session(core: Core) -> None:
    """Refused, or cancelled in the queue."""
    core.world.policy("a", blocks=64, max_running=1, slabs=64)
    running = core.world.submit("a", words(1), 30)
    waiting = core.world.submit("a", words(2), 4, session="chat")
    core.world.submit("a", words(3), 10_000, session="refused")
    core.step()
    core.world.cancel(waiting)
    core.finish(running)
    assert not core.list("a")


def test_a_session_is_active_while_a_request_of_it_is_here(core: Core) -> None:
    """From its arrival on; its time does not end meanwhile."""
    core.turn("a", "chat", words(1), seconds=60.0)
    sequence = core.world.submit("a", words(1), 40, session="chat", session_seconds=60.0)
    assert core.get("a", "chat").active
    core.world.now += 1000.0
    core.step()
    assert core.get("a", "chat").active
    core.finish(sequence)
    assert not core.get("a", "chat").active
    core.world.now += 61.0
    core.step()
    assert not core.list("a")


def test_two_turns_at_once(core: Core) -> None:
    """Both go on; the later end is what is kept, and an erasure finds both."""
    base = core.turn("a", "chat", words(1))
    one = core.world.submit("a", [*base, *words(2, 8)], 20, session="chat")
    two = core.world.submit("a", [*base, *words(3, 8)], 4, session="chat")
    core.finish(one, two)
    assert core.get("a", "chat").num_turns == 3
    kept = [*base, *words(2, 8), *core.world.tokens[one]]
    assert core.get("a", "chat").num_tokens == num_kept(kept)
    assert core.change("a", "chat", ERASE)
    for left in (words(2, 8), words(3, 8)):
        assert not is_anywhere(core, None, left[:SIZE])


@pytest.mark.parametrize("kind", ["n", "beams"])
def test_several_outputs_are_one_turn_and_are_erased_together(core: Core, disk: Path, kind: str) -> None:
    """Whatever branch the client goes on with is there; an erasure finds all of them."""
    beams = BeamParams(width=3) if kind == "beams" else None
    sequence = core.world.submit("a", words(1), 12, session="chat", n=3, beams=beams)
    outputs = [sequence, (sequence, 1), (sequence, 2)]
    core.until(lambda: all(one in core.world.finished for one in outputs), "all outputs")
    assert core.get("a", "chat").num_turns == 1
    core.step()
    assert core.change("a", "chat", ERASE)
    assert not is_anywhere(core, disk, words(1)[:SIZE])
    for output in outputs:
        assert not is_anywhere(core, disk, core.world.tokens[output][SIZE : 2 * SIZE])


def test_an_end_in_time_leaves_an_ordinary_cache(core: Core) -> None:
    """A session that is over is not listed; what it kept is found while nobody needs the room."""
    tokens = core.turn("a", "chat", words(1), seconds=60.0)
    core.world.now += 59.0
    core.step()
    assert core.list("a")
    core.world.now += 2.0
    core.step()
    assert not core.list("a")
    again = core.world.submit("a", [*tokens, 1], 2)
    core.finish(again)
    assert core.world.cached_tokens[again] == num_kept(tokens)


def test_a_pinned_session_stays(core: Core) -> None:
    """However long; unpinned, its time runs anew."""
    core.turn("a", "chat", words(1), seconds=60.0)
    pinned = core.change("a", "chat", PIN)
    assert pinned is not None
    assert (pinned.pinned, pinned.expires_at) == (True, 0.0)
    core.world.now += 1e6
    core.step()
    unpinned = core.change("a", "chat", UNPIN)
    assert unpinned is not None
    assert unpinned.expires_at == pytest.approx(core.world.now + 60.0, abs=1.0)
    core.world.now += 62.0
    core.step()
    assert core.change("a", "chat", PIN) is None


def test_a_prefetch_brings_blocks_back_to_the_device(core: Core) -> None:
    """From host memory and from the disk, before any request; said in passing, or asked for."""
    tokens = core.turn("a", "chat", words(1, 40))
    core.park("a", "chat", "host", "disk")
    for say in (lambda: core.prefetch("a", "chat"), lambda: core.change("a", "chat", PREFETCH)):
        core.push_out("a")
        assert core.get("a", "chat").device_bytes == 0
        say()
        core.park("a", "chat", "device")
    core.prefetch("a", "unknown")
    again = core.world.submit("a", [*tokens, 1], 2)
    core.finish(again)
    assert core.world.cached_tokens[again] == num_kept(tokens)


def test_an_erased_session_is_in_no_tier(core: Core, disk: Path) -> None:
    """Not a block of it, nor its name in a file; a second erasure finds nothing."""
    tokens = core.turn("a", "secret-name", words(1, 40))
    core.park("a", "secret-name", "device", "host", "disk")
    assert is_anywhere(core, disk, tokens[:SIZE])
    gone = core.change("a", "secret-name", ERASE)
    assert gone is not None
    assert (gone.device_bytes, gone.host_bytes, gone.disk_bytes, gone.num_turns) == (0, 0, 0, 1)
    for start in range(0, len(tokens) - SIZE, SIZE):
        assert not is_anywhere(core, disk, tokens[start : start + SIZE])
    assert not any(b"secret-name" in path.read_bytes() for path in disk.rglob("*") if path.is_file())
    assert not core.list("a")
    assert core.change("a", "secret-name", ERASE) is None
    again = core.world.submit("a", tokens, 2)
    core.finish(again)
    assert core.world.cached_tokens[again] == 0


def test_what_was_given_up_before_the_erasure_is_gone_too(core: Core, disk: Path) -> None:
    """Blocks that have left the device or host memory long ago leave nothing in their places."""
    tokens = core.turn("a", "chat", words(1, 40))
    core.park("a", "chat", "host", "disk")
    core.push_out("a")
    core.world.policy("a", slabs=0, disk_bytes=1 << 19)
    core.step()
    assert core.get("a", "chat").host_bytes == 0
    assert core.change("a", "chat", ERASE)
    for start in range(0, len(tokens) - SIZE, SIZE):
        assert not is_anywhere(core, disk, tokens[start : start + SIZE])


def test_what_another_session_shares_stays(core: Core, disk: Path) -> None:
    """The common beginning is found by the other one; what only the erased one had is gone."""
    system = words(5, 24)
    one, two = core.turn("a", "one", [*system, *words(6, 12)]), core.turn("a", "two", [*system, *words(7, 12)])
    core.park("a", "one", "host", "disk")
    core.park("a", "two", "host", "disk")
    assert core.change("a", "one", ERASE)
    assert not is_anywhere(core, disk, one[24 : 24 + SIZE])
    found = core.get("a", "two")
    assert found.num_tokens == num_kept(two)
    assert found.disk_bytes * SIZE == found.num_tokens * BLOCK_BYTES
    again = core.world.submit("a", [*two, 1], 2, session="two")
    core.finish(again)
    assert core.world.cached_tokens[again] == num_kept(two)


def test_what_a_live_request_reads_stays(core: Core) -> None:
    """A request of no session, or of another tenant's with the same name, goes on undisturbed."""
    tokens = core.turn("a", "chat", words(1, 24))
    core.turn("b", "chat", words(1, 24))
    reader = core.world.submit("a", [*tokens, 1, 2, 3], 40)
    core.until(lambda: len(core.world.tokens[reader]) > 2, "some tokens")
    assert core.change("a", "chat", ERASE)
    core.finish(reader)
    assert core.world.cached_tokens[reader] == num_kept(tokens)
    assert core.get("b", "chat").num_tokens > 0


def test_an_erasure_ends_the_sessions_requests(core: Core, disk: Path) -> None:
    """Those that run and those that wait, those of its very first turn too."""
    core.world.policy("a", max_running=1, slabs=64, disk_bytes=1 << 19)
    running = core.world.submit("a", words(1, 24), 100, session="chat")
    waiting = core.world.submit("a", words(2, 24), 100, session="chat")
    core.until(lambda: len(core.world.tokens[running]) > 8, "some tokens")
    assert core.change("a", "chat", ERASE) is not None
    assert [core.world.finished[one] for one in (running, waiting)] == [FinishReason.CANCELLED] * 2
    assert not is_anywhere(core, disk, words(1, 24)[:SIZE])
    assert not core.list("a")


def test_a_preempted_turn_is_erased_as_well(core: Core, disk: Path) -> None:
    """What it had computed before it was set aside is its session's, though it never came back."""
    set_costs(core.world, 1.0)
    sequence = core.world.submit("a", words(1, 24), 100, session="chat")
    core.until(lambda: len(core.world.tokens[sequence]) > 8, "some tokens")
    core.policy("a", blocks=0)
    core.until(lambda: not core.world.running(), "its preemption")
    core.policy("a", blocks=1)
    core.world.cancel(sequence)
    core.step()
    assert core.scheduler.memory.host.num_used
    assert core.change("a", "chat", ERASE) is not None
    assert not is_anywhere(core, disk, words(1, 24)[:SIZE])


def test_blocks_that_were_named_anew_are_erased_under_both_names(core: Core, disk: Path) -> None:
    """A prefix is registered between two turns: what the first one had computed of it was the tenant's own."""
    tokens = core.turn("a", "chat", words(1, 24))
    core.world.share("bank", words(1, 12))
    core.step()
    core.turn("a", "chat", [*tokens, 1, 2, 3])
    assert core.change("a", "chat", ERASE)
    assert not is_anywhere(core, disk, words(1, 24)[12 : 12 + SIZE])
    core.world.share("bank")
    core.step()
    again = core.world.submit("a", tokens, 2)
    core.finish(again)
    assert core.world.cached_tokens[again] == 0


def test_the_next_turn_may_begin_while_its_session_is_erased(core: Core) -> None:
    """It computes everything anew, and is a session again."""
    tokens = core.turn("a", "chat", words(1, 40))
    core.park("a", "chat", "host", "disk")
    erasing = core.change
    sequence = core.world.submit("a", words(3), 4, session="other")
    assert erasing("a", "chat", ERASE)
    again = core.world.submit("a", tokens, 4, session="chat")
    core.finish(sequence, again)
    assert core.world.cached_tokens[again] == 0
    assert core.get("a", "chat").num_turns == 1


def test_sessions_of_a_tenant_that_is_removed_are_gone(core: Core, disk: Path) -> None:
    """In every tier, and for the next core too."""
    tokens = core.turn("a", "chat", words(1, 40))
    core.park("a", "chat", "host", "disk")
    core.world.update(removed=("a",))
    assert core.store is not None
    store = core.store
    core.until(lambda: not store.pending_erasures and not core.scheduler.memory.tiers.next_look(0.0), "the end of it")
    core.step()
    assert not is_anywhere(core, disk, tokens[:SIZE])
    assert not core.list("a")
    core.close()
    again = Core(disk, now=core.world.now)
    again.policy("a")
    assert not again.list("a")
    again.close()


def test_pages_of_many_sessions(core: Core) -> None:
    """A long list is made bit by bit, and none is missing or twice."""
    for number in range(30):
        core.turn("a", f"chat-{number}", words(number, 8), 2)
    assert [one.session for one in core.list("a")] == [f"chat-{number}" for number in range(29, -1, -1)]
    seen: list[str] = []
    before = 0.0
    while page := core.list("a", limit=7, before=before):
        seen += [one.session for one in page]
        before = page[-1].last_used_at
    assert seen == [f"chat-{number}" for number in range(29, -1, -1)]
    assert not core.list("b")


def test_sessions_outlive_the_core(core: Core, disk: Path) -> None:
    """The next one lists them with their blocks on disk, in their order, and goes on with them."""
    tokens = {name: core.turn("a", name, words(seed, 40)) for seed, name in enumerate(["one", "two", "three"])}
    for name in tokens:
        core.park("a", name, "host", "disk")
    core.change("a", "two", PIN)
    core.change("a", "one", ERASE)
    before = core.list("a")
    core.close()
    again = Core(disk, now=core.world.now)
    again.policy("b", "a")
    after = again.list("a")
    assert [one.session for one in after] == ["three", "two"]
    for old, new in zip(before, after, strict=True):
        assert (new.device_bytes, new.host_bytes, new.disk_bytes) == (0, 0, old.disk_bytes)
        for field in ("num_tokens", "num_turns", "created_at", "last_used_at", "expires_at", "pinned"):
            assert getattr(new, field) == getattr(old, field), field
    again.prefetch("a", "two")
    again.until(lambda: again.is_ready("a", "two"), "the disk")
    sequence = again.world.submit("a", [*tokens["two"], 1, 2], 4, session="two")
    again.finish(sequence)
    assert again.world.cached_tokens[sequence] == num_kept(tokens["two"])
    assert again.get("a", "two").num_turns == 2
    again.close()


@pytest.mark.parametrize("state", ["no policy", "locked", "away"])
@pytest.mark.parametrize("is_used", [False, True], ids=["as it was left", "used again"])
def test_what_a_disk_that_is_not_read_yet_may_have_is_erased_before_that_is_said(
    core: Core, disk: Path, state: str, is_used: bool
) -> None:
    """Nobody is told that there is no such session, to find it there once its tenant's disk is open again."""
    tokens = core.turn("a", "chat", words(1, 40))
    core.park("a", "chat", "host", "disk")
    core.close()
    again = Core(disk, now=core.world.now)
    assert again.store is not None
    if state == "away":
        again.store._bypass("read", "a test")
        again.policy("a")
    elif state == "locked":
        again.world.policy("a", slabs=64, disk_bytes=1 << 19, disk_locked=True)
    new = []
    if is_used and state != "no policy":
        new = again.turn("a", "chat", words(2, 40))
    for number in (1000, 1001):  # who was not answered asks again
        again.box.inbox.append(SessionChange(number=number, tenant=TenantId("a"), session="chat", action=ERASE))
        again.step()
    assert not again.box.answers  # nobody is answered before all is gone
    assert not new or not again.list("a")
    again.policy("a")
    again.until(lambda: 1001 in again.box.answers, "the disk")
    assert not again.list("a")
    for start in range(0, len(tokens) - SIZE, SIZE):
        assert not is_anywhere(again, disk, tokens[start : start + SIZE])
        assert not new or not is_anywhere(again, disk, new[start : start + SIZE])
    again.close()


def test_who_asks_again_for_an_erasure_is_not_told_before_it_is_over(
    core: Core, disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the disk is away the session is unknown already, and its bytes are still there."""
    tokens = core.turn("a", "chat", words(1, 40))
    core.park("a", "chat", "host", "disk")
    assert core.store is not None
    core.store._bypass("read", "a test")
    monkeypatch.setattr(core.store, "_try_to_open", lambda now: None)
    for number in (1000, 1001):
        core.box.inbox.append(SessionChange(number=number, tenant=TenantId("a"), session="chat", action=ERASE))
        for _ in range(5):
            core.step()
    assert not core.box.answers.keys() & {1000, 1001}
    assert core.change("b", "chat", ERASE) is None  # nobody else waits for that
    monkeypatch.undo()
    core.until(lambda: core.box.answers.keys() >= {1000, 1001}, "the disk")
    assert len(core.box.answers[1000].sessions) == 1
    assert not core.box.answers[1001].sessions
    assert not is_anywhere(core, disk, tokens[:SIZE])


def test_an_unknown_session_of_a_tenant_without_a_disk_is_unknown_at_once(disk: Path) -> None:
    """Whatever the disk of others may have, and be it away."""
    core = Core(disk)
    assert core.store is not None
    core.store._bypass("read", "a test")
    core.world.policy("a", slabs=64)
    assert core.change("a", "chat", ERASE) is None
    core.close()


def test_without_slabs_and_disk_sessions_are_lists(tmp_path: Path) -> None:
    """Blocks stay on the device as long as nobody needs their room; all calls are answered."""
    core = Core(None, num_slabs=0)
    core.policy("a")
    tokens = core.turn("a", "chat", words(1))
    assert core.get("a", "chat").num_tokens == num_kept(tokens)
    assert core.change("a", "chat", PREFETCH)
    assert core.change("a", "chat", ERASE)
    assert not is_anywhere(core, None, tokens[:SIZE])
    assert not core.list("a")
