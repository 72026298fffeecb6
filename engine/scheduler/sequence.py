"""A request on its way through the scheduler."""

from enum import Enum

from engine.constraints.base import Constraint
from engine.memory.keys import KeyChain
from engine.memory.table import BlockTable, SharedMeter
from engine.request import GenerationRequest, SequenceId
from engine.scheduler.beam_group import BeamGroup
from engine.scheduler.history import History
from engine.scheduler.outputs import Refusal
from engine.scheduler.tenant import Tenant


class State(Enum):
    """Where a sequence is. Only RUNNING holds blocks."""

    HELD = "held"  # its tenant's policy has not come yet
    WAITING = "waiting"  # in its tenant's line, new or preempted
    FETCHING = "fetching"  # its beginning is on its way from the disk: in no line meanwhile (fetching.py)
    PARKED = "parked"  # cannot fit under the limits as they are; a change of policy wakes it
    RUNNING = "running"
    ENDED = "ended"


class SequenceGroup:
    """The outputs of one request with `n` > 1 that have not ended.

    One of them computes the prompt: the first, unless it is gone. The others fork from any that has it.
    """

    __slots__ = ("members", "meter")

    def __init__(self, first: "SequenceState") -> None:
        self.members = [first]
        self.meter = SharedMeter()  # of those that run


class SequenceState:
    """Everything the scheduler keeps of one request, or of one output or beam of it.

    `tokens` is prompt and output together: a preempted sequence computes them again, whatever they are.
    `len(tokens) - computed` is what is left to compute: 1 for a decode, 0 while its token is to come (flight.py).
    """

    __slots__ = (
        "admitted",
        "announced",
        "beams",
        "cached_tokens",
        "chain",
        "chain_stamp",
        "charged",
        "computed",
        "constraint",
        "evictions",
        "group",
        "handle",
        "history",
        "id",
        "index",
        "is_special",
        "join_until",
        "kv_block_seconds",
        "max_length",
        "num_preemptions",
        "num_prompt",
        "number",
        "policy_stamp",
        "preempted_in",
        "queue_seconds",
        "random_key",
        "rank",
        "refusal",
        "request",
        "sampling",
        "state",
        "stop_ids",
        "streams",
        "table",
        "tenant",
        "timer",
        "tokens",
        "turn",
        "unscored",
        "waiting_since",
    )

    def __init__(self, sequence: SequenceId, request: GenerationRequest, tenant: Tenant, number: int) -> None:
        self.id = sequence
        self.handle = sequence  # the request's, in reports; all outputs of a request have the same
        self.index = 0  # which output of the request
        self.group: SequenceGroup | None = None  # with the request's other outputs, once it has run
        self.beams: BeamGroup | None = None  # with the request's other beams, of a beam search
        self.chain: KeyChain | None = None  # keys of its blocks, for the prefix tree
        self.chain_stamp = (-1, -1)  # the tenant's policy and the registered prefixes under which it was made
        self.cached_tokens = 0  # of the prompt, when it was first admitted
        self.join_until = 0  # number of the plan until which it waits for another's prefill; 0: has not begun to
        self.request = request
        self.tenant = tenant
        self.number = number  # order of arrival, kept for life: a preempted sequence keeps its place
        self.rank = 0  # service class, 0 is first
        self.state = State.HELD
        self.tokens: list[int] = list(request.prompt)
        self.num_prompt = len(self.tokens)
        self.max_length = self.num_prompt  # tokens of prompt and output, all limits applied
        self.stop_ids: frozenset[int] = frozenset()
        self.sampling = request.sampling
        self.constraint: Constraint | None = None  # what its output must be, as far as it has come
        self.history: History | None = None  # what bias and penalties make of its tokens, once it was asked for
        self.unscored = 1 if self.sampling.prompt_logprobs >= 0 else self.num_prompt  # the first token of the prompt
        # whose log-probability is asked for and not yet reported
        sampling = self.sampling
        asks = sampling.min_tokens or sampling.logit_bias or sampling.prompt_logprobs >= 0 or request.embed
        self.is_special = bool(asks or sampling.looks_back)  # its steps have options
        self.random_key = 0
        self.table: BlockTable | None = None
        self.streams = False  # it runs, and its oldest blocks go to host memory (streaming.py)
        self.turn = 0  # number of the plan that read its blocks in host memory last (streaming_turns.py)
        self.computed = 0  # tokens whose KV is in the table once all planned steps are done
        self.charged = 0  # tokens whose computation the tenant has paid for; recomputation is free
        self.admitted = False  # has run at least once
        self.announced = False  # the admission has been reported
        self.queue_seconds = 0.0
        self.num_preemptions = 0  # all of them
        self.evictions = 0  # those for want of memory: after three it runs on reserved blocks
        self.waiting_since = request.arrived_at  # or since it was preempted last
        self.preempted_in = -1  # number of the plan that preempted it last: it does not come back in the same one
        self.kv_block_seconds = 0.0  # of tables given back
        self.policy_stamp = 0  # the tenant's policy under which `max_tokens` was worked out
        self.timer = 0.0  # when it ends if nothing happens before; 0: never
        self.refusal: Refusal | None = None  # why it is parked

    @property
    def max_tokens(self) -> int:
        """Output tokens that it may have, all limits applied."""
        return self.max_length - self.num_prompt

    @max_tokens.setter
    def max_tokens(self, granted: int) -> None:
        self.max_length = self.num_prompt + granted

    @property
    def generated(self) -> int:
        """Output tokens so far."""
        return len(self.tokens) - self.num_prompt

    @property
    def reusable(self) -> int:
        """How many of its first tokens need not be computed where they are known, never the last: it makes the logits.

        Nor those whose own logits are asked for. A request to embed needs the hidden states of all.
        """
        if self.request.embed:
            return 0
        return self.unscored - 1 if self.unscored < self.num_prompt else len(self.tokens) - 1

    @property
    def needs_result(self) -> bool:
        """Whether its next step can only be planned when the token before it is known on the host.

        Such a sequence is never in a plan that is made ahead of its token: the beams of a search, and those whose
        choice depends on the tokens before it.
        """
        return self.beams is not None or self.sampling.looks_back

    @property
    def num_places(self) -> int:
        """Running sequences that it will come to: all beams of a search that has not begun."""
        return 1 if self.beams is None else 1 + self.beams.num_to_come

    @property
    def num_asked(self) -> int:
        """How many it counts for in the tenant's queue: its outputs or beams until they are sequences of their own."""
        return 1 if self.admitted else max(self.request.n, self.num_places)

    def held(self, now: float) -> float:
        """Return the block·seconds metered so far; those of a search are its group's to count."""
        if self.table is None or (self.beams is not None and self.beams.search is not None):
            return self.kv_block_seconds
        return self.kv_block_seconds + self.table.held(now)

    @property
    def remaining(self) -> int:
        """Tokens left to compute before the next one can be sampled."""
        return len(self.tokens) - self.computed
