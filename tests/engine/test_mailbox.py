"""Frames to messages and back, over a real socket pair."""

import time
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
import zmq

from engine import ipc
from engine.loop import Applied, Cancel, Submit
from engine.mailbox import FrameMailbox
from engine.policy import PolicyUpdate
from engine.request import BeamParams, FinishReason, Priority, RefusalCode, SequenceId, TenantId
from engine.scheduler.outputs import Refusal, RequestOutput
from engine.scheduler.session_calls import (
    Prefetch,
    SessionAction,
    SessionAnswer,
    SessionChange,
    SessionQuery,
    SessionView,
)
from tests.engine.test_core import policy_frame, submit_frame


@pytest.fixture
def sockets() -> Iterator[tuple[zmq.Socket[bytes], zmq.Socket[bytes]]]:
    """A connected pair: the front's end and the core's."""
    with zmq.Context() as context, context.socket(zmq.PAIR) as front, context.socket(zmq.PAIR) as core:
        for socket in (front, core):
            socket.set(zmq.LINGER, 0)
            socket.set(zmq.SNDHWM, 0)
            socket.set(zmq.RCVHWM, 0)
        front.bind("inproc://link")
        core.connect("inproc://link")
        yield front, core


Sockets = tuple[zmq.Socket[bytes], zmq.Socket[bytes]]


def test_reads_every_kind_of_message_in_order(sockets: Sockets) -> None:
    """One receive returns all that has come, translated."""
    front, core = sockets
    frames = (policy_frame(version=4), submit_frame(9, priority="batch", seed=-1), ipc.CancelFrame([9], "stop"))
    for frame in frames:
        front.send(ipc.encode(frame))
    policy, submit, cancel = FrameMailbox(core).receive(5.0)
    assert isinstance(policy, PolicyUpdate)
    assert (policy.version, policy.tenants[0].max_running) == (4, 4)
    assert isinstance(submit, Submit)
    assert (submit.sequence, submit.request.priority, submit.request.sampling.seed) == (9, Priority.BATCH, -1)
    assert cancel == Cancel((SequenceId(9),), FinishReason.STOP)


def test_a_submit_carries_what_concerns_its_outputs(sockets: Sockets) -> None:
    """Their number, log-probabilities, and beam search where there is a width."""
    front, core = sockets
    front.send(ipc.encode(submit_frame(1, n=3, num_logprobs=2)))
    front.send(ipc.encode(submit_frame(2, n=2, beam_width=4, length_penalty=0.5, early_stopping=True)))
    several, beams = FrameMailbox(core).receive(5.0)
    assert isinstance(several, Submit)
    assert isinstance(beams, Submit)
    assert (several.request.n, several.request.sampling.num_logprobs, several.request.beams) == (3, 2, None)
    assert beams.request.beams == BeamParams(width=4, length_penalty=0.5, early_stopping=True)
    assert (beams.request.n, beams.request.sampling.num_logprobs) == (2, -1)


def test_a_deadline_in_unix_seconds_becomes_the_cores_own(sockets: Sockets) -> None:
    """Clocks differ between processes; what is left of the deadline does not."""
    front, core = sockets
    front.send(ipc.encode(submit_frame(1, deadline=time.time() + 30.0)))
    front.send(ipc.encode(submit_frame(2, deadline=time.time() - 30.0)))
    front.send(ipc.encode(submit_frame(3)))
    later, past, none = FrameMailbox(core).receive(5.0)
    assert isinstance(later, Submit)
    assert isinstance(past, Submit)
    assert isinstance(none, Submit)
    assert later.request.deadline - time.monotonic() == pytest.approx(30.0, abs=20.0)
    assert past.request.deadline == past.request.arrived_at
    assert none.request.deadline == 0.0


def test_waits_no_longer_than_it_is_told(sockets: Sockets) -> None:
    """Without a frame an idle receive returns nothing after its time, and a busy one at once."""
    mailbox = FrameMailbox(sockets[1])
    start = time.monotonic()
    assert list(mailbox.receive(0.05)) == []
    assert 0.04 < time.monotonic() - start < 5.0
    assert list(mailbox.receive(0)) == []


def test_a_flood_leaves_time_for_steps(sockets: Sockets) -> None:
    """However much has come, one receive reads a bounded part of it and leaves the rest for the next."""
    front, core = sockets
    for number in range(5000):
        front.send(ipc.encode(ipc.CancelFrame([number])))
    mailbox = FrameMailbox(core)
    first = list(mailbox.receive(5.0))
    assert 0 < len(first) < 5000
    assert len(first) + len(list(mailbox.receive(0))) == 5000


def test_writes_a_steps_outputs_in_one_frame(sockets: Sockets) -> None:
    """Tokens, ends and refusals arrive as they were reported."""
    front, core = sockets
    refusal = Refusal(RefusalCode.KV_LIMIT, "too large", "max_tokens")
    outputs = [
        RequestOutput(SequenceId(1), (5,), 2.5, 1, admitted_max_tokens=7, queue_seconds=0.5),
        RequestOutput(SequenceId(2), finish_reason=FinishReason.LENGTH, message="deadline"),
        RequestOutput(SequenceId(3), refusal=refusal),
        RequestOutput(SequenceId(4), (6, 7), logprobs=(-0.5, -1.5), unseen_tokens=4, score=-1.0),
    ]
    FrameMailbox(core).outputs(11, outputs)
    frame = ipc.decode_to_front(front.recv())
    assert isinstance(frame, ipc.StepFrame)
    assert frame.step == 11
    tokens, end, refused, beams = frame.outputs
    assert tokens == ipc.Output(
        handle=1, token_ids=[5], kv_byte_seconds=2.5, num_preemptions=1, admitted_max_tokens=7, queue_seconds=0.5
    )
    assert (end.finish_reason, end.message) == ("length", "deadline")
    assert beams == ipc.Output(handle=4, token_ids=[6, 7], logprobs=[-0.5, -1.5], unseen_tokens=4, score=-1.0)
    assert (refused.refusal_code, refused.message, refused.field) == ("kv_limit", "too large", "max_tokens")


def test_says_what_was_applied_and_what_has_settled(sockets: Sockets) -> None:
    """Each with its time in unix seconds."""
    front, core = sockets
    mailbox = FrameMailbox(core)
    mailbox.applied(Applied(version=7, epoch=2, step=9, over_bytes=4096, settle_seconds=0.5))
    mailbox.settled(7, 2)
    applied, settled = (ipc.decode_to_front(front.recv()) for _ in range(2))
    assert isinstance(applied, ipc.AppliedFrame)
    assert isinstance(settled, ipc.SettledFrame)
    told = (applied.version, applied.epoch, applied.step, applied.over_bytes, applied.settle_seconds)
    assert told == (7, 2, 9, 4096, 0.5)
    assert (settled.version, settled.epoch) == (7, 2)
    assert time.time() - 60 < applied.at <= settled.at <= time.time()


@pytest.mark.parametrize("wrong", [{"host_bytes": -1}, {"shadow": ipc.ShadowLimits(max_running=-1)}])
def test_a_policy_with_a_limit_below_zero_is_left(sockets: Sockets, wrong: dict[str, Any]) -> None:
    """Whichever limit it is; the next frame is read."""
    front, core = sockets
    frame = policy_frame(version=4)
    tenant = msgspec.structs.replace(frame.tenants[0], **wrong)
    front.send(ipc.encode(msgspec.structs.replace(frame, tenants=[tenant])))
    front.send(ipc.encode(policy_frame(version=5)))
    (policy,) = FrameMailbox(core).receive(5.0)
    assert isinstance(policy, PolicyUpdate)
    assert policy.version == 5


def test_reads_calls_about_sessions(sockets: Sockets) -> None:
    """Each with its number; one that asks for what cannot be done is left, and the next is read."""
    front, core = sockets
    for frame in (
        ipc.PrefetchFrame(tenant="a", session="s"),
        ipc.SessionQueryFrame(number=7, tenant="a", limit=5, before=2.5),
        ipc.SessionChangeFrame(number=8, tenant="a", session="s", action="forget"),
        ipc.SessionChangeFrame(number=9, tenant="a", session="s", action="erase"),
    ):
        front.send(ipc.encode(frame))
    tenant = TenantId("a")
    assert list(FrameMailbox(core).receive(5.0)) == [
        Prefetch(tenant=tenant, session="s"),
        SessionQuery(number=7, tenant=tenant, limit=5, before=2.5),
        SessionChange(number=9, tenant=tenant, session="s", action=SessionAction.ERASE),
    ]


def test_writes_answers_about_sessions(sockets: Sockets) -> None:
    """With all that is known of each session."""
    front, core = sockets
    fields = {
        "session": "s",
        "num_tokens": 48,
        "device_bytes": 1,
        "host_bytes": 2,
        "disk_bytes": 3,
        "num_turns": 4,
        "created_at": 5.0,
        "last_used_at": 6.0,
        "expires_at": 7.0,
        "pinned": True,
        "active": True,
    }
    view = SessionView(**fields)  # type: ignore[arg-type]
    FrameMailbox(core).sessions(SessionAnswer(number=3, sessions=(view,), num_sessions=12))
    frame = ipc.decode_to_front(front.recv())
    assert frame == ipc.SessionsFrame(number=3, sessions=[ipc.SessionState(**fields)], num_sessions=12)  # type: ignore[arg-type]


def test_a_submit_says_how_long_its_session_is_kept(sockets: Sockets) -> None:
    """A time that is none refuses the request."""
    front, core = sockets
    for handle, seconds in ((1, 90.0), (2, float("nan")), (3, -1.0)):
        front.send(ipc.encode(submit_frame(handle, session="s", session_seconds=seconds)))
    (submit,) = FrameMailbox(core).receive(5.0)
    assert isinstance(submit, Submit)
    assert (submit.request.session, submit.request.session_seconds) == ("s", 90.0)
    refused = [ipc.decode_to_front(front.recv()) for _ in range(2)]
    assert all(
        isinstance(frame, ipc.StepFrame) and frame.outputs[0].refusal_code == RefusalCode.INVALID for frame in refused
    )


def test_a_disk_secret_is_taken_over_and_shows_nowhere(sockets: Sockets, caplog: pytest.LogCaptureFixture) -> None:
    """Nor does one of another length, with which the policy is left."""
    front, core = sockets
    secret = b"0123456789abcdef0123456789abcdef"
    frame = policy_frame(version=4)
    for wrong in (secret, secret[:-1]):
        tenant = msgspec.structs.replace(frame.tenants[0], disk_secret=wrong, disk_locked=wrong == secret)
        front.send(ipc.encode(msgspec.structs.replace(frame, tenants=[tenant])))
    (policy,) = FrameMailbox(core).receive(5.0)
    assert isinstance(policy, PolicyUpdate)
    assert (policy.tenants[0].disk_secret, policy.tenants[0].disk_locked) == (secret, True)
    assert "0123456789abcdef" not in repr(policy)
    assert "is not of 32 bytes" in caplog.records[-1].error  # type: ignore[attr-defined]
    assert not any("0123456789" in str(vars(record)) for record in caplog.records)
