"""Both replays of a recorded trace, as the helper process answers."""

import os
import time
from pathlib import Path

import msgspec
import pytest

from engine.ipc import PolicyTenant
from engine.replay.compare import answer, in_play
from engine.replay.frames import read_frame, write_frame
from engine.replay.task import GroupLimits, Report, Task
from engine.request import Priority
from tests.engine.replay.recorded import Arrival, Recording
from tests.engine.replay.test_simulation import stem, traffic
from tests.engine.world import BLOCK_BYTES


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Recording:
    """A crowded pool."""
    made = Recording(tmp_path_factory.mktemp("trace") / "trace", num_blocks=260)
    made.policy("whale", blocks=240)
    made.policy("orca", blocks=240)
    made.policy("minnow", blocks=120, soft=40, priority=Priority.INTERACTIVE)
    return made.serve(traffic())


def task(recording: Recording, *proposed: PolicyTenant, **more: object) -> Task:
    """Return a task with time enough on any machine."""
    fields: dict[str, object] = {"seconds": 0.0, "groups": [], "answer_seconds": 60.0, "patience_seconds": 90.0}
    return Task(
        trace=str(recording.path),
        now=recording.story().calls[-1].at + 10.0,
        tenants=recording.policies,
        proposed=list(proposed),
        **(fields | more),  # type: ignore[arg-type]
    )


def ask(recording: Recording, *proposed: PolicyTenant, **more: object) -> Report:
    """Return the answer."""
    return answer(task(recording, *proposed, **more), time.monotonic())


def lowered(recording: Recording, blocks: int) -> PolicyTenant:
    """Return the whale's policy with a lower ceiling."""
    whale = next(policy for policy in recording.policies if policy.tenant == "whale")
    return msgspec.structs.replace(whale, kv_hard_bytes=blocks * BLOCK_BYTES)


def test_limits_as_they_are_make_no_difference(recording: Recording) -> None:
    """Not one figure differs, and all of the trace was replayed."""
    report = ask(recording, lowered(recording, 240))
    assert report.before is not None
    assert report.before == report.after
    assert report.num_events == sum(call.num_blocks(16) for call in recording.story().calls)
    assert report.before.tenants["whale"].num_requests == 30
    assert 0.0 < report.before.hit_rate < 1.0
    assert 0.0 <= report.before.pressure <= 1.0


def test_a_lower_ceiling_says_who_pays_and_who_gains(recording: Recording) -> None:
    """The whale waits and loses its cache; fewer blocks of the others are given up for it."""
    report = ask(recording, lowered(recording, 60))
    assert report.before is not None
    assert report.after is not None
    before, after = report.before.tenants, report.after.tenants
    assert after["whale"].ttft_p99_seconds > before["whale"].ttft_p99_seconds
    assert after["whale"].cached_tokens < before["whale"].cached_tokens
    assert after["orca"].evicted_blocks < before["orca"].evicted_blocks
    assert report.after.hit_rate < report.before.hit_rate


def test_a_tenant_that_asked_for_nothing_is_in_the_answer(recording: Recording) -> None:
    """With no requests: nothing can be said of it."""
    idle = msgspec.structs.replace(lowered(recording, 60), tenant="idle")
    report = ask(recording, idle)
    assert report.before is not None
    assert report.after is not None
    assert report.before.tenants["idle"].num_requests == 0
    assert report.before == report.after


def test_only_the_asked_time_is_replayed(recording: Recording) -> None:
    """From now back."""
    whole, part = ask(recording, lowered(recording, 60)), ask(recording, lowered(recording, 60), seconds=15.0)
    assert part.seconds <= 15.0 < whole.seconds
    assert 0 < part.num_events < whole.num_events


def test_an_answer_that_would_be_late_is_of_less(recording: Recording) -> None:
    """Both replays stop at the same mark, so that they can still be compared."""
    report = ask(recording, lowered(recording, 240), answer_seconds=0.0, patience_seconds=0.0)
    assert report.problem or (report.before == report.after and report.num_events > 0)


def test_registered_prefixes_are_shared_again(tmp_path: Path) -> None:
    """What a share group pays for counts on its account, and a group without room is everybody's own affair."""
    recording = Recording(tmp_path / "trace", num_blocks=200)
    prefix = stem(7, 64)
    recording.world.share("bank", prefix, blocks=16, soft=16)
    for tenant in ("minnow", "whale"):
        recording.policy(tenant, blocks=100, share_groups=("bank",))
    arrivals = [
        Arrival(number * 0.5, ("minnow", "whale")[number % 2], [*prefix, *stem(number, 30)], 5) for number in range(8)
    ]
    recording.serve(arrivals)
    group = GroupLimits(name="bank", kv_soft_bytes=16 * BLOCK_BYTES, kv_hard_bytes=16 * BLOCK_BYTES)
    minnow = recording.policies[0]
    shared = ask(recording, minnow, groups=[group])
    alone = ask(recording, minnow)
    assert shared.before is not None
    assert alone.before is not None
    measured = sum(served.cached_tokens for served in recording.served.values())
    assert sum(figures.cached_tokens for figures in shared.before.tenants.values()) == measured == 7 * 64
    assert sum(figures.cached_tokens for figures in alone.before.tenants.values()) == 6 * 64


def test_frames_are_read_as_they_were_written() -> None:
    """In any pieces, to the end."""
    source, sink = os.pipe()
    messages = [b"", b"a", b"x" * 30_000]
    for message in messages:
        write_frame(sink, message)
    os.close(sink)
    assert [read_frame(source) for _ in messages] == messages
    assert read_frame(source) is None
    os.close(source)


def test_who_asked_for_nothing_still_keeps_what_is_guaranteed(recording: Recording) -> None:
    """A thousand idle tenants are one account in a replay, and others may not have their guarantees all the same."""
    idle = [
        msgspec.structs.replace(lowered(recording, 240), tenant=f"idle-{number}", kv_soft_bytes=BLOCK_BYTES)
        for number in range(1000)
    ]
    asked = task(recording, lowered(recording, 240))
    many = msgspec.structs.replace(asked, tenants=[*asked.tenants, *idle])
    policies = in_play(many, recording.story())
    assert len(policies) == 4
    assert sum(policy.kv_soft_bytes for policy in policies) == (1000 + 40) * BLOCK_BYTES
    report = answer(many, time.monotonic())
    assert report.before is not None
    assert report.before.tenants.keys() == {"whale", "orca", "minnow"}
