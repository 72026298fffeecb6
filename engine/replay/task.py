"""What the front asks of the helper process, and what it gets: one msgpack message each, on stdin and stdout."""

import msgspec

from engine.ipc import PolicyTenant


class GroupLimits(msgspec.Struct, frozen=True, kw_only=True):
    """A share group's account on this worker, as it is in force."""

    name: str
    kv_soft_bytes: int
    kv_hard_bytes: int


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """Replay the trace twice: under the limits in force, and with those of some tenants replaced."""

    trace: str  # path of the ring file
    now: float  # unix seconds; the trace is replayed up to here
    seconds: float  # from now back; 0: all that is kept
    tenants: list[PolicyTenant]  # in force
    groups: list[GroupLimits]
    proposed: list[PolicyTenant]
    answer_seconds: float = 1.8  # how long the answer should take; what does not fit is cut off at the old end
    patience_seconds: float = 7.0  # how long it may take where the machine leaves this process little time


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """What a tenant got; as `PreviewFigures` of the protocol."""

    num_requests: int = 0
    num_refused: int = 0
    num_preemptions: int = 0
    evicted_blocks: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    kv_peak_bytes: int = 0
    above_soft_seconds: float = 0.0
    ttft_p50_seconds: float = 0.0
    ttft_p99_seconds: float = 0.0
    queue_p99_seconds: float = 0.0


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What came of one replay."""

    hit_rate: float
    pressure: float  # mean score over the time
    tenants: dict[str, Figures]


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """Both replays. `problem`: why nothing could be replayed, else empty."""

    seconds: float = 0.0
    num_events: int = 0
    before: Outcome | None = None
    after: Outcome | None = None
    problem: str = ""


encode = msgspec.msgpack.Encoder().encode
decode_task = msgspec.msgpack.Decoder(Task).decode
decode_report = msgspec.msgpack.Decoder(Report).decode
