"""A scheduler over the fake runner and a clock that tests turn by hand."""

from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import replace

from engine.constraints.base import Grammars
from engine.memory.eviction.base import BlockKey
from engine.memory.manager import KVMemory
from engine.memory.pool import OPEN
from engine.policy import PolicyUpdate, SharedPrefix, ShareGroup, TenantPolicy
from engine.request import (
    BeamParams,
    FinishReason,
    GenerationRequest,
    Priority,
    RequestId,
    SamplingParams,
    SequenceId,
    TenantId,
)
from engine.scheduler.enforce import BLOCKS_A_PLAN
from engine.scheduler.outputs import OutputExtras, Refusal, RequestOutput
from engine.scheduler.plan import Scheduler
from engine.scheduler.predict import OutputLengths
from engine.scheduler.roster import fork_key
from engine.scheduler.sizing import Limits
from engine.step import CacheShape, SequenceStep, StepPlan, TokenLogprobs
from tests.engine.alternating import Alternating
from tests.engine.beam_reference import Found, reference
from tests.engine.fake_runner import FakeRunner, Identity, Launched, embedding, expected_tokens, prompt_scores

Output = SequenceId | tuple[SequenceId, int]  # the first output of a request goes by its id alone

BLOCK_BYTES = 100
VOCAB_SIZE = 1000


class ShortOutputs(OutputLengths):
    """Predicts that every output ends with its next token: more is admitted than will fit."""

    def predict(self, generated: int = 0) -> int:
        """Return the least that can be."""
        return generated + 1


class World:
    """Everything one core has but sockets and a model. `step` audits all bookkeeping each time."""

    def __init__(
        self,
        *,
        num_blocks: int = 64,
        block_size: int = 4,
        max_rows: int = 16,
        budget: int = 32,
        max_context: int = 256,
        eos: Sequence[int] = (),
        audit: bool = True,
        token_seconds: float = 0.0,
        ahead: bool = False,
        num_slabs: int = 0,
        blocks_a_plan: int = BLOCKS_A_PLAN,
        streams: bool = False,
        lateness: Callable[[], bool] = lambda: False,
        grammars: Grammars | None = None,
    ) -> None:
        """Start a core. `lateness`: asked whether a transfer is still under way, each time somebody looks."""
        columns = -(-max_context // block_size)
        self.shape = CacheShape(
            num_blocks=num_blocks,
            block_size=block_size,
            block_bytes=BLOCK_BYTES,
            max_rows=max_rows,
            max_columns=columns,
            num_slabs=num_slabs,
            streams=streams,
        )
        self.now = 100.0
        self.runner = FakeRunner(
            self.shape, vocab_size=VOCAB_SIZE, identify=self._identify, held_back=ahead, lateness=lateness
        )
        self._identities: dict[object, int] = {}
        limits = Limits(
            vocab_size=VOCAB_SIZE,
            max_context=max_context,
            num_blocks=num_blocks,
            block_size=block_size,
            block_bytes=BLOCK_BYTES,
            num_slabs=num_slabs if streams else 0,
        )
        self.scheduler = Scheduler(
            KVMemory(self.shape),
            limits,
            max_batched_tokens=budget,
            eos_token_ids=eos,
            blocks_a_plan=blocks_a_plan,
            clock=lambda: self.now,
            grammars=grammars,
        )
        self.requests: dict[SequenceId, GenerationRequest] = {}
        self.tokens: dict[Output, list[int]] = defaultdict(list)
        self.logprobs: dict[Output, list[float]] = defaultdict(list)
        self.tops: dict[Output, list[tuple[tuple[int, float], ...]]] = defaultdict(list)
        self.prompt_scores: dict[SequenceId, list[TokenLogprobs]] = defaultdict(list)
        self.embeddings: dict[SequenceId, tuple[float, ...]] = {}
        self.scores: dict[Output, float] = {}  # of beam searches
        self.unseen: dict[SequenceId, int] = defaultdict(int)  # tokens of theirs
        self._found: dict[SequenceId, tuple[list[Found], int]] = {}
        self._eos = frozenset(eos)
        self.granted: dict[SequenceId, int] = {}
        self.cached_tokens: dict[SequenceId, int] = {}
        self.finished: dict[Output, FinishReason] = {}
        self.refused: dict[SequenceId, Refusal] = {}
        self.outputs: dict[Output, list[RequestOutput]] = defaultdict(list)
        self.held_seconds: dict[SequenceId, float] = defaultdict(float)  # Σ distinct blocks of a request · seconds
        self.plan: StepPlan | None = None  # the last one
        self.ahead = ahead  # a step is planned and launched before the one before it is committed
        self._launched: deque[tuple[StepPlan, Launched]] = deque()
        self._contents: dict[BlockKey, list[int]] = {}  # of every block that was ever in the tree
        self._policies: dict[str, TenantPolicy] = {}
        self._version = 0
        self._audit = audit
        self._token_seconds = token_seconds  # of each token in a step, beside the step's own time

    def policy(self, tenant: str, *, blocks: int = 64, soft: int = 0, slabs: int = 0, **changes: object) -> None:
        """Set a tenant's policy: hard and soft limit in blocks, and the ceiling in host memory."""
        fields: dict[str, object] = {
            "weight": 1.0,
            "max_running": 8,
            "max_queued": 100,
            "max_context_tokens": 256,
            "max_output_tokens": 256,
            "priority": Priority.STANDARD,
        } | changes
        self._policies[tenant] = TenantPolicy(
            tenant=TenantId(tenant),
            kv_soft_bytes=soft * BLOCK_BYTES,
            kv_hard_bytes=blocks * BLOCK_BYTES,
            host_bytes=slabs * BLOCK_BYTES,
            **fields,  # type: ignore[arg-type]
        )
        self.update((self._policies[tenant],))

    def share(self, group: str, *prefixes: Sequence[int], blocks: int = 16, soft: int = 16) -> None:
        """Register prefixes for a share group; none takes the group away."""
        namespace = f"secret of {group}".encode()
        shared = tuple(SharedPrefix(group=group, namespace=namespace, token_ids=tuple(one)) for one in prefixes)
        limits = {"kv_soft_bytes": soft * BLOCK_BYTES, "kv_hard_bytes": blocks * BLOCK_BYTES}
        groups = (ShareGroup(name=group, prefixes=shared, **limits),) if prefixes else ()
        self._version += 1
        self.scheduler.apply(
            PolicyUpdate(
                version=self._version,
                epoch=0,
                snapshot=False,
                tenants=(),
                share_groups=groups,
                removed_share_groups=() if prefixes else (group,),
            )
        )

    def update(self, tenants: tuple[TenantPolicy, ...] = (), *, removed: tuple[str, ...] = ()) -> None:
        """Apply a policy delta with the next version."""
        self._version += 1
        names = tuple(TenantId(name) for name in removed)
        self.scheduler.apply(
            PolicyUpdate(version=self._version, epoch=0, snapshot=False, tenants=tenants, removed=names)
        )

    def submit(
        self,
        tenant: str,
        prompt: Sequence[int] | int,
        max_tokens: int = 8,
        *,
        priority: Priority = Priority.STANDARD,
        deadline: float = 0.0,
        policy_version: int = 0,
        namespace: bytes | None = None,
        n: int = 1,
        beams: BeamParams | None = None,
        session: str = "",
        session_seconds: float = 0.0,
        embed: bool = False,
        **sampling: object,
    ) -> SequenceId:
        """Submit a prompt, or one of so many tokens, and return its id; the seed is the id."""
        sequence = SequenceId(len(self.requests) + 1)
        if isinstance(prompt, int):
            prompt = [(sequence * 31 + place * 7) % VOCAB_SIZE for place in range(prompt)]
        fields: dict[str, object] = {"max_tokens": max_tokens, "seed": int(sequence)} | sampling
        request = GenerationRequest(
            request_id=RequestId(f"request-{sequence}"),
            tenant=TenantId(tenant),
            namespace=tenant.encode() if namespace is None else namespace,
            n=n,
            beams=beams,
            prompt=prompt,
            sampling=SamplingParams(**fields),  # type: ignore[arg-type]
            priority=priority,
            deadline=deadline,
            arrived_at=self.now,
            policy_version=policy_version,
            session=session,
            session_seconds=session_seconds,
            embed=embed,
        )
        self.requests[sequence] = request
        self.scheduler.submit(sequence, request)
        return sequence

    def cancel(self, *sequences: SequenceId) -> None:
        """Cancel requests."""
        self.scheduler.cancel(sequences)

    def step(self, seconds: float = 0.01) -> bool:
        """Run one step and let time pass; return whether there was one to run.

        Where steps are planned ahead, the one that is planned here is committed in the next call.
        """
        tiers = self.scheduler.memory.tiers
        tiers.collect(self.runner, self.now)
        plan = self.plan = self.scheduler.plan()
        self._check()
        tiers.before_launch(self.runner, plan)
        if plan is not None:
            self._check_writes(plan)
            self._launched.append((plan, self.runner.launch(plan)))
        wipes = self.scheduler.take_wipes()
        if wipes:
            self.runner.wipe(wipes)
        tiers.start(self.runner)
        if plan is None and not self._launched:
            roster = self.scheduler.roster
            could_run = (roster.running or roster.waiting) and not self.scheduler.enforcement.is_due
            could_run = could_run and not self._is_moving() and not self.scheduler.num_late
            assert not could_run, "something could run, and nothing does"
        is_busy = bool(self._launched) or self.scheduler.enforcement.is_due or self._is_moving()
        while len(self._launched) > (self.ahead and plan is not None):
            self._commit(*self._launched.popleft(), seconds)
        for output in self.scheduler.take_outputs():
            self._take(output)
        return is_busy

    def _is_moving(self) -> bool:
        """Say whether tiers have something to do soon; a disk that has failed is looked at now and then for ever."""
        look = self.scheduler.memory.tiers.next_look(self.now)
        return look is not None and look < self.now + 0.2

    def _commit(self, plan: StepPlan, step: Launched, seconds: float) -> None:
        result = step.wait()
        took = seconds + plan.num_tokens * self._token_seconds + result.store_seconds + result.load_seconds
        self._meter(took)
        result = replace(result, seconds=took)
        self.now += took
        for output in self.scheduler.commit(plan, result):
            self._take(output)
        self._check()
        self._check_content()

    def run(self, limit: int = 2000) -> int:
        """Step until nothing can run; return the number of steps."""
        for count in range(limit):
            if not self.step():
                return count
        raise AssertionError(f"still running after {limit} steps")

    def metered(self, sequence: SequenceId) -> float:
        """Return the block·seconds that a request's outputs have reported together."""
        outputs: list[Output] = [sequence, *((sequence, index) for index in range(1, self.requests[sequence].n))]
        return sum(self.outputs[one][-1].kv_byte_seconds for one in outputs if one in self.outputs) / BLOCK_BYTES

    def held(self, tenant: str) -> int:
        """Return the blocks that the tenant's sequences use."""
        account = self.scheduler.memory.accounts.get(TenantId(tenant))
        return account.used if account is not None else 0

    def cached(self, tenant: str) -> int:
        """Return the blocks that are cached on the tenant's account."""
        account = self.scheduler.memory.accounts.get(TenantId(tenant))
        return account.cached if account is not None else 0

    def running(self) -> list[SequenceId]:
        """Return the ids of the running sequences."""
        return [sequence.id for sequence in self.scheduler.roster.running]

    def expected(self, output: Output, count: int) -> list[int]:
        """Return the first `count` tokens that this output of a request would get alone."""
        sequence, index = output if isinstance(output, tuple) else (output, 0)
        request = self.requests[sequence]
        assert request.sampling.seed is not None
        stops, grammar = request.sampling.stop_token_ids, request.sampling.grammar
        stops = stops if request.sampling.ignore_eos else stops | self._eos
        return expected_tokens(
            list(request.prompt),
            count,
            random_key=fork_key(request.sampling.seed, index),
            vocab_size=VOCAB_SIZE,
            sampling=request.sampling,
            stop_ids=stops,
            constraint=None if grammar is None else Alternating(grammar.text, stops),
        )

    def assert_exact(self, output: Output) -> None:
        """Check an output's tokens, all of them, against what it would get alone."""
        sequence, index = output if isinstance(output, tuple) else (output, 0)
        request = self.requests[sequence]
        self._assert_scored(request, sequence)
        if request.beams is not None:
            if output in self.finished:
                self._assert_found(sequence, index)
            return
        if request.embed:
            is_whole = self.finished.get(sequence) is FinishReason.STOP
            assert self.embeddings.get(sequence, ()) == (embedding(list(request.prompt)) if is_whole else ())
        assert self.tokens[output] == self.expected(output, len(self.tokens[output]))

    def _assert_scored(self, request: GenerationRequest, sequence: SequenceId) -> None:
        """Check the log-probabilities of a request's prompt: all of them if there is a token, none twice."""
        told, asked = self.prompt_scores[sequence], request.sampling.prompt_logprobs
        expected = prompt_scores(list(request.prompt), asked, vocab_size=VOCAB_SIZE) if asked >= 0 else []
        is_whole = self.tokens[sequence] or self.unseen[sequence]
        assert told == (expected if is_whole else expected[: len(told)])

    def found(self, sequence: SequenceId) -> tuple[list[Found], int]:
        """Return what a request's beam search finds alone, and in how many steps."""
        request = self.requests[sequence]
        assert request.beams is not None
        if sequence not in self._found:
            stops = request.sampling.stop_token_ids
            self._found[sequence] = reference(
                list(request.prompt),
                request.beams,
                n=request.n,
                stop_ids=stops if request.sampling.ignore_eos else stops | self._eos,
                max_tokens=self.granted[sequence],
                vocab_size=VOCAB_SIZE,
            )
        return self._found[sequence]

    def _assert_found(self, sequence: SequenceId, index: int) -> None:
        """Check one output of a beam search that has ended; one that was cut short has come less far."""
        output: Output = (sequence, index) if index else sequence
        request, reason = self.requests[sequence], self.finished[output]
        assert request.beams is not None
        if reason in (FinishReason.CANCELLED, FinishReason.ERROR):
            assert not self.tokens[output]
            return
        if self.outputs[output][-1].message:
            most = self.granted.get(sequence, 0)
            assert len(self.tokens[output]) <= most
            assert self.unseen[sequence] <= request.beams.width * most
            return
        hypotheses, num_steps = self.found(sequence)
        assert self.tokens[output] == hypotheses[index].tokens
        assert abs(self.scores[output] - hypotheses[index].score) < 1e-9 * max(1.0, abs(hypotheses[index].score))
        assert self.unseen[sequence] == request.beams.width * num_steps

    def assert_empty(self) -> None:
        """Check that nothing is left: no request, no block in use, no promise."""
        memory = self.scheduler.memory
        self.scheduler.audit()
        assert not self.scheduler.roster.sequences
        assert not self.scheduler.roster.groups
        assert not self.scheduler.roster.searches
        assert memory.pool.num_free + memory.pool.num_cached == self.shape.num_blocks
        assert memory.supply.reserved == 0
        assert memory.num_free_rows == self.shape.max_rows

    def _identify(self, part: SequenceStep) -> Identity:
        """Let sequences of one namespace read each other's slots, and nobody else's."""
        sequence = self.scheduler.roster.sequences[part.sequence]
        own = self._identities.setdefault(sequence.request.namespace or sequence.handle, len(self._identities) + 1)
        chain = sequence.chain
        if chain is None or chain.head is None:
            return Identity(own)
        head = self._identities.setdefault(chain.head.namespace, len(self._identities) + 1)
        return Identity(own, head, chain.head.num_blocks * self.shape.block_size)

    def _meter(self, seconds: float) -> None:
        """Count what each request holds while a step runs: blocks change hands before it and after it."""
        blocks: dict[SequenceId, set[int]] = defaultdict(set)
        for one in self.scheduler.roster.running:
            assert one.table is not None
            blocks[one.handle].update(one.table.blocks[one.table.num_hosted :])
        for sequence, held in blocks.items():
            self.held_seconds[sequence] += len(held) * seconds

    def _check_writes(self, plan: StepPlan) -> None:
        """Check that no step writes to a block that is full or that somebody else holds too."""
        pool, size = self.scheduler.memory.pool, self.shape.block_size
        for part in plan.sequences:
            table = self.scheduler.roster.sequences[part.sequence].table
            assert table is not None
            end = part.start + len(part.token_ids)
            for block in table.blocks[part.start // size : -(-end // size)]:
                assert (pool.state(block), pool.users(block)) == (OPEN, 1), "a shared block is written"

    def _check(self) -> None:
        if self._audit:
            self.scheduler.audit()  # also that no account is above its hard limit
        self.scheduler.enforcement.audit()

    def _check_content(self) -> None:
        """Check that device and host have in each findable block what the block's key says, but for copies to come."""
        if not self._audit:
            return
        tree, host = self.scheduler.memory.tree, self.scheduler.memory.host
        launched = [plan for plan, _ in self._launched]
        loading = {move.block for plan in launched for move in plan.loads}
        for block in tree.blocks():
            key, _, tokens = tree.content(block)
            self._contents[key] = tokens
            if block not in loading and not host.next.is_loading(block):
                assert self.runner.stored(block) == tokens, "a full block was written over"
        for key, slab in host.blocks():
            if key in self._contents:
                assert self.runner.swapped(slab) == self._contents[key], "a slab holds something else"

    def _take(self, output: RequestOutput) -> None:
        sequence, index = output.sequence, output.output_index
        if index:
            self._take_other(output)
            return
        assert sequence not in self.finished, "news after the end"
        assert sequence not in self.refused, "news after the end"
        self.outputs[sequence].append(output)
        self._take_tokens(sequence, output)
        if output.admitted_max_tokens:
            assert sequence not in self.granted, "admitted twice"
            self.granted[sequence] = output.admitted_max_tokens
            self.cached_tokens[sequence] = output.cached_tokens
        if output.finish_reason is not None:
            self.finished[sequence] = output.finish_reason
        if output.refusal is not None:
            self.refused[sequence] = output.refusal

    def _take_other(self, output: RequestOutput) -> None:
        """Take news of an output that is not its request's first."""
        key = (output.sequence, output.output_index)
        assert key not in self.finished, "news after the end"
        assert output.refusal is None, "a request is refused as a whole"
        self.outputs[key].append(output)
        self._take_tokens(key, output)
        if output.finish_reason is not None:
            self.finished[key] = output.finish_reason

    def _take_tokens(self, key: Output, output: RequestOutput) -> None:
        asks = self.requests[output.sequence].sampling.num_logprobs >= 0
        assert len(output.logprobs) == (len(output.token_ids) if asks else 0), "one for each token of who asks"
        if self.requests[output.sequence].beams is not None:
            assert not output.token_ids or output.finish_reason is not None, "hypotheses come whole"
            self.unseen[output.sequence] += output.unseen_tokens
            self.scores[key] = output.score
        else:
            assert not output.unseen_tokens, "only beams are not seen"
        self.tokens[key] += output.token_ids
        self.logprobs[key] += output.logprobs
        if output.extras is not None:
            self._take_extras(key, output, output.extras)

    def _take_extras(self, key: Output, output: RequestOutput, extras: OutputExtras) -> None:
        assert len(extras.top) in (0, len(output.token_ids)), "one for each token"
        self.tops[key] += extras.top
        if extras.prompt:
            assert not (output.token_ids or output.output_index), "news of their own"
            every = [(output.sequence, index) for index in range(1, self.requests[output.sequence].n)]
            assert not any(self.tokens[one] for one in (output.sequence, *every)), "before any token"
            self.prompt_scores[output.sequence] += extras.prompt
        if extras.embedding:
            assert output.finish_reason is FinishReason.STOP
            self.embeddings[output.sequence] = extras.embedding
