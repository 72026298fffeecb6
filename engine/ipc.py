"""Frames between front and core: msgpack over one pyzmq PAIR socket, one frame a message.

    front -> core   SubmitFrame CancelFrame PolicyFrame DrainFrame StopFrame
                    PrefetchFrame SessionQueryFrame SessionChangeFrame
    core -> front   ReadyFrame StepFrame AppliedFrame SettledFrame StatsFrame SessionsFrame

The core sends one StepFrame per step that changed anything, whatever the number of sequences in it.
"""

import msgspec


class SubmitFrame(msgspec.Struct, tag="submit", frozen=True, kw_only=True):
    """A new request. `handle` is the front's own number for it, never reused."""

    handle: int
    request_id: str
    tenant: str
    namespace: bytes
    session: str
    priority: str
    deadline: float  # unix seconds; 0: none
    policy_version: int
    prompt: list[int]
    max_tokens: int
    temperature: float
    top_p: float
    top_k: int
    seed: int | None
    stop_token_ids: list[int]
    ignore_eos: bool
    n: int = 1  # outputs of the one prompt
    num_logprobs: int = -1  # as in SamplingParams
    beam_width: int = 0  # > 0: beam search, as `engine.request.BeamParams`
    length_penalty: float = 1.0
    early_stopping: bool = False
    session_seconds: float = 0.0  # 0: the worker's default
    prompt_logprobs: int = -1  # this and all below: as in SamplingParams
    min_p: float = 0.0
    min_tokens: int = 0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: list[tuple[int, float]] = []
    grammar_kind: str = ""  # empty: there is none
    grammar: str = ""
    embed: bool = False  # as in GenerationRequest


class CancelFrame(msgspec.Struct, tag="cancel", frozen=True):
    """End these requests within one step and free their blocks; unknown handles are ignored.

    `reason` is `cancelled` when the client left, `stop` when the front found a stop string.
    """

    handles: list[int]
    reason: str = "cancelled"
    index: int = -1  # of requests with several outputs, only this one; -1: all


class ShadowLimits(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """As `engine.policy.ShadowLimits`."""

    kv_hard_bytes: int | None = None
    max_running: int | None = None
    max_queued: int | None = None
    max_context_tokens: int | None = None
    max_output_tokens: int | None = None


class PolicyTenant(msgspec.Struct, frozen=True, kw_only=True):
    """One tenant's grant, as `engine.policy.TenantPolicy`."""

    tenant: str
    weight: float
    kv_soft_bytes: int
    kv_hard_bytes: int
    max_running: int
    max_queued: int
    max_context_tokens: int
    max_output_tokens: int
    priority: str
    share_groups: list[str] = []
    host_bytes: int = 0
    disk_bytes: int = 0
    shadow: ShadowLimits | None = None
    fleet_hard_bytes: int = 0
    fleet_max_running: int = 0
    disk_secret: bytes = b""
    disk_locked: bool = False


class PolicyShareGroup(msgspec.Struct, frozen=True, kw_only=True):
    """A share group's account and prefixes, as `engine.policy.ShareGroup`."""

    name: str
    namespace: bytes
    kv_soft_bytes: int
    kv_hard_bytes: int
    prefixes: list[list[int]]  # token ids of each


class PolicyFrame(msgspec.Struct, tag="policy", frozen=True, kw_only=True):
    """As `engine.policy.PolicyUpdate`."""

    version: int
    epoch: int
    snapshot: bool
    tenants: list[PolicyTenant]
    removed: list[str]
    share_groups: list[PolicyShareGroup] = []
    removed_share_groups: list[str] = []


class DrainFrame(msgspec.Struct, tag="drain", frozen=True):
    """Take nothing new (or take again); what runs goes on."""

    draining: bool


class StopFrame(msgspec.Struct, tag="stop", frozen=True):
    """Exit cleanly."""


class PrefetchFrame(msgspec.Struct, tag="prefetch", frozen=True, kw_only=True):
    """The next turn of a session is about to come."""

    tenant: str
    session: str


class SessionQueryFrame(msgspec.Struct, tag="session_query", frozen=True, kw_only=True):
    """Ask for sessions of a tenant, the last used first; answered by a SessionsFrame with the same `number`."""

    number: int
    tenant: str
    session: str = ""  # only this one; empty: all
    limit: int = 100
    before: float = 0.0  # last used before this moment, unix seconds; 0: from the newest on


class SessionChangeFrame(msgspec.Struct, tag="session_change", frozen=True, kw_only=True):
    """Change one session; answered by a SessionsFrame with the same `number`: the session, or none if it is unknown."""

    number: int
    tenant: str
    session: str
    action: str  # pin, unpin, prefetch, erase


class ReadyFrame(msgspec.Struct, tag="ready", frozen=True, kw_only=True):
    """The model is loaded and the pool allocated."""

    num_blocks: int
    block_size: int
    block_bytes: int
    dtype: str
    device: str
    kernel_backend: str
    pid: int
    embedding_size: int = 0  # numbers; 0: the model tells neither embeddings nor log-probabilities of a prompt


class Output(msgspec.Struct, frozen=True, kw_only=True, array_like=True, omit_defaults=True):
    """What a step did for one output of a request. A refusal ends the request, a finish reason this output alone."""

    handle: int
    admitted_max_tokens: int = 0  # > 0 once: the request has been admitted and may generate at most this many
    token_ids: list[int] = []
    finish_reason: str = ""  # a FinishReason ends the request
    refusal_code: str = ""  # a RefusalCode ends the request; message and field explain
    message: str = ""
    field: str = ""  # also with the reason `error`, where that is the request's own fault
    cached_tokens: int = 0  # with admission: prompt tokens that needed no prefill
    queue_seconds: float = 0.0  # with the first scheduled step
    kv_byte_seconds: float = 0.0  # device KV held so far: byte·seconds, cumulative, with every output
    num_preemptions: int = 0  # cumulative
    index: int = 0  # which of the request's `n` outputs
    logprobs: list[float] = []  # one for each of `token_ids` where the request asks for any
    unseen_tokens: int = 0  # beam search: tokens generated in this step; `token_ids` come whole, at the end
    score: float = 0.0  # beam search, with the end: what the outputs are ranked by, best first by index
    top: list[list[tuple[int, float]]] = []  # beside each of `logprobs`: likely tokens, best first
    # Of more of the prompt's tokens, from the second on, in order; all of them before the first of `token_ids`:
    prompt_scores: list[tuple[float, list[tuple[int, float]]]] = []
    embedding: list[float] = []  # with the end of a request to embed


class StepFrame(msgspec.Struct, tag="step", frozen=True, kw_only=True):
    """Outputs of one step."""

    step: int
    outputs: list[Output]


class AppliedFrame(msgspec.Struct, tag="applied", frozen=True, kw_only=True):
    """The policy is in force from step `step` on. `at` is unix seconds."""

    version: int
    epoch: int
    at: float
    step: int
    over_bytes: int = 0  # device KV above the new limits at that moment
    settle_seconds: float = 0.0  # predicted time until nothing is


class SettledFrame(msgspec.Struct, tag="settled", frozen=True, kw_only=True):
    """Nobody whom the policy of this version changed is above its limits any more. `at` is unix seconds."""

    version: int
    epoch: int
    at: float


class SessionState(msgspec.Struct, frozen=True, kw_only=True):
    """A session now, as in the protocol. Times are unix seconds."""

    session: str
    num_tokens: int
    device_bytes: int
    host_bytes: int
    disk_bytes: int
    num_turns: int
    created_at: float
    last_used_at: float
    expires_at: float  # 0: it is pinned
    pinned: bool
    active: bool


class SessionsFrame(msgspec.Struct, tag="sessions", frozen=True, kw_only=True):
    """The answer to a SessionQueryFrame or a SessionChangeFrame."""

    number: int
    sessions: list[SessionState]
    num_sessions: int = 0  # of the tenant, in all


class TierTraffic(msgspec.Struct, frozen=True, kw_only=True):
    """Blocks copied from tier to tier since the core started, as in the protocol."""

    source: str  # device, host, disk
    target: str
    blocks: int
    bytes: int
    seconds: float
    latencies: list[int]  # 13 counts; the bounds are in the protocol


class TenantUse(msgspec.Struct, frozen=True, kw_only=True):
    """One tenant's account now; `kv_peak_bytes` is the highest at any step since the last StatsFrame."""

    tenant: str
    kv_bytes: int
    kv_peak_bytes: int
    kv_cached_bytes: int = 0  # of `kv_bytes`
    running: int
    queued: int
    output_tokens: int  # since the core started
    kv_borrowed_bytes: int = 0  # of `kv_bytes`, above the soft limit
    host_bytes: int = 0
    above_soft_seconds: float = 0.0  # this and the next four: since the core started
    service: float = 0.0  # weighted tokens, before the division by weight
    num_preemptions: int = 0
    recomputed_tokens: int = 0
    shadow: list["ShadowCount"] = []
    oldest_wait_seconds: float = 0.0  # now; 0: nobody waits
    weight: float = 1.0
    disk_bytes: int = 0
    num_sessions: int = 0


class ShadowCount(msgspec.Struct, frozen=True, kw_only=True):
    """Requests that a limit on trial would have refused or delayed. `limit`: a field of ShadowLimits."""

    limit: str
    refused: int = 0
    delayed: int = 0


class Pressure(msgspec.Struct, frozen=True, kw_only=True):
    """How short memory is, and what makes it so: each 0 to 1."""

    score: float
    use: float
    borrowed: float
    wait: float
    swap: float


class Interference(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """What one account's need has cost another since the core started; as in the protocol."""

    by: str
    of: str
    cached_blocks: int
    num_preemptions: int
    recomputed_tokens: int
    swapped_bytes: int


class ShareGroupUse(msgspec.Struct, frozen=True, kw_only=True):
    """One share group's account now, as TenantUse. `prefix_tokens` are registered, in whole blocks."""

    name: str
    kv_bytes: int
    kv_peak_bytes: int
    kv_cached_bytes: int
    num_prefixes: int
    prefix_tokens: int


class StatsFrame(msgspec.Struct, tag="stats", frozen=True, kw_only=True):
    """The core's counters, at 4 Hz while it lives, also when idle."""

    at: float
    step: int
    blocks_total: int
    blocks_free: int
    blocks_open: int
    blocks_sealed: int
    blocks_cached: int = 0  # findable, held by no request
    running: int
    queued: int
    prompt_tokens: int  # computed since the core started
    output_tokens: int
    num_preemptions: int
    prefix_asked_tokens: int = 0  # of prompts when they were first admitted, since the core started
    prefix_found_tokens: int = 0  # of them, those that were cached
    num_evicted_blocks: int = 0  # cached blocks that were given up
    tenants: list[TenantUse]
    share_groups: list[ShareGroupUse] = []
    pressure: Pressure | None = None
    host_bytes_total: int = 0
    host_bytes_used: int = 0
    swapped_out_bytes: int = 0  # since the core started, as the next one
    swapped_in_bytes: int = 0
    interference: list[Interference] = []  # pairs that changed since the last StatsFrame
    disk_bytes_total: int = 0
    disk_bytes_used: int = 0
    disk_problem: str = ""  # why the disk is bypassed; empty: it is not
    disk_errors: int = 0  # this and all below: since the core started
    traffic: list[TierTraffic] = []
    tier_hits: dict[str, int] = {}  # prompt tokens found, by tier
    tier_stall_seconds: float = 0.0
    prefetched_blocks: int = 0
    prefetched_used_blocks: int = 0
    num_sessions: int = 0  # now
    swap_chosen: int = 0
    recompute_chosen: int = 0


ToCore = (
    SubmitFrame
    | CancelFrame
    | PolicyFrame
    | DrainFrame
    | StopFrame
    | PrefetchFrame
    | SessionQueryFrame
    | SessionChangeFrame
)
ToFront = ReadyFrame | StepFrame | AppliedFrame | SettledFrame | StatsFrame | SessionsFrame

encode = msgspec.msgpack.Encoder().encode
decode_to_core = msgspec.msgpack.Decoder(ToCore).decode
decode_to_front = msgspec.msgpack.Decoder(ToFront).decode
