"""Scheduler: plan() says which sequences get how many tokens in the next step, commit() takes the step's result in.

A plan, from the top:
    1. enforce   tenants whose limits were lowered give back what is above them, newest sequences first (enforce.py)
    2. secure    every decode gets a slot for its token; where memory is short, somebody is preempted (decodes.py)
                 a streamed one whose blocks in host memory take too long to read sits out (streaming_turns.py),
                 and one whose grammar takes long to say what may come next (constraining.py)
                 who has been given tokens without a step computes them with the last one, as a short chunk
    3. share     as many tokens as the decodes' targets allow (chunks.py) go to prefill chunks, of running and of newly
                 started sequences (portions.py), tenant by tenant in the order of fairness.py
    4. build     decodes first (written down as they are secured), then chunks; block table cells to write

A plan may be made ahead, while the step before it is in flight (flight.py). It goes on from where that one ends, with
placeholders for the tokens that it samples, and leaves out for one step
    what certainly ends with its token, or needs the result on the host (SequenceState.needs_result)
    what would have to preempt others for a token that may yet be its last
    what was preempted in this plan: its token is still to come
"""

import time
from collections.abc import Callable, Iterable

from engine.constraints.base import Grammars
from engine.errors import InvariantError
from engine.memory.manager import KVMemory
from engine.policy import PolicyUpdate, ShareGroup
from engine.request import FinishReason, GenerationRequest, SequenceId, SlabId
from engine.scheduler.admission import Admission
from engine.scheduler.chunks import ChunkBudget
from engine.scheduler.commit import Commit
from engine.scheduler.constraining import LOOK_SECONDS, Constraining
from engine.scheduler.decodes import Decodes
from engine.scheduler.enforce import AT_ONCE, BLOCKS_A_PLAN, PLAN_SECONDS, Enforcement
from engine.scheduler.flight import Flight, audit_flights
from engine.scheduler.intake import Intake
from engine.scheduler.options import options_of
from engine.scheduler.outputs import RequestOutput
from engine.scheduler.portions import Portions, Prefills
from engine.scheduler.roster import Roster
from engine.scheduler.sequence import SequenceState
from engine.scheduler.session_calls import SessionCall
from engine.scheduler.sizing import Limits
from engine.scheduler.step_time import StepTimeModel, StepWork, chunk_pairs
from engine.scheduler.streaming_turns import StreamingTurns
from engine.scheduler.targets import EVERY_STEPS, MIN_CHUNK_TOKENS, StepTarget
from engine.scheduler.unfilled import unfilled
from engine.step import SequenceStep, StepPlan, StepResult

WIPED_BYTES = 32 << 20  # in a step: some milliseconds

_LEAST_TARGET = 1e-6  # seconds: no step is so short


class Scheduler:
    """Continuous batching over many tenants. Plans are committed in their order; one may be made ahead of a commit."""

    def __init__(
        self,
        memory: KVMemory,
        limits: Limits,
        *,
        max_batched_tokens: int,
        eos_token_ids: Iterable[int] = (),
        blocks_a_plan: int = BLOCKS_A_PLAN,
        clock: Callable[[], float] = time.monotonic,
        grammars: Grammars | None = None,
    ) -> None:
        self.memory = memory
        self._chunks = ChunkBudget(minimum=min(MIN_CHUNK_TOKENS, max_batched_tokens), maximum=max_batched_tokens)
        self._target = StepTarget(self._chunks.model)
        self.roster = Roster(memory, max_batched_tokens, self._chunks.model)
        self.step = 0  # number of the last plan
        self._clock = clock
        self._budget = max_batched_tokens
        self._commit = Commit(self.roster)
        self._constraining = Constraining(self.roster, self._commit, grammars)
        self._intake = Intake(self.roster, limits, eos_token_ids, self._constraining)
        self._admission = Admission(self.roster, limits, self._intake.shared, self._constraining)
        self.enforcement = Enforcement(self.roster, self._intake, blocks_a_plan=blocks_a_plan)
        self._portions = Portions(self._admission, self.roster.pressure, self.roster.streaming)
        self._attempt = 0  # at a plan: what one attempt preempts does not come back in the same one
        self._decodes = Decodes(self.roster, self._constraining, max_batched_tokens)
        self._flights: list[Flight] = []  # not yet committed: two at most
        self._unread: list[tuple[int, list[SlabId]]] = []  # slabs, and the last step that may read them
        self._turns = StreamingTurns(self._chunks.model, self._target)

    @property
    def prompt_tokens(self) -> int:
        """Prompt tokens computed so far, recomputed ones included."""
        return self._commit.prompt_tokens

    @property
    def output_tokens(self) -> int:
        """Tokens sampled so far."""
        return self._commit.output_tokens

    @property
    def prefix_tokens(self) -> tuple[int, int]:
        """Prompt tokens of all admitted requests so far, and how many of them were cached."""
        return self._admission.asked_tokens, self._admission.found_tokens

    @property
    def step_time(self) -> StepTimeModel:
        """What is known of how long steps take."""
        return self._chunks.model

    @property
    def over_bytes(self) -> int:
        """Device KV that was above the limits of the policy in force when it came."""
        return self.enforcement.over_blocks * self.memory.shape.block_bytes

    @property
    def settle_seconds(self) -> float:
        """How long it takes at most until nobody is above them, by what is known of steps; 0: nobody was."""
        running = self.roster.running
        context = sum(sequence.computed for sequence in running)
        longest = max((sequence.computed for sequence in running), default=0)
        fullest = StepWork(len(running), context, self._budget, chunk_pairs(longest, self._budget))
        return self.enforcement.num_plans * (self.step_time.predict(fullest) + PLAN_SECONDS)

    @property
    def share_groups(self) -> list[ShareGroup]:
        """Return the share groups that are registered on this worker."""
        return self._intake.shared.groups()

    @property
    def num_late(self) -> int:
        """Sequences whose masks are still being made: no plan has them until they are."""
        return len(self._constraining.late)

    @property
    def now(self) -> float:
        """The time by the scheduler's clock."""
        return self._clock()

    # ------------------------------------------------------------ between steps

    def submit(self, sequence: SequenceId, request: GenerationRequest) -> None:
        """Take a request in; see `Intake.submit`."""
        self._intake.submit(sequence, request, self._clock())

    def cancel(
        self,
        sequences: Iterable[SequenceId],
        reason: FinishReason = FinishReason.CANCELLED,
        output_index: int | None = None,
    ) -> None:
        """End requests at once, or one output of each, and free their blocks; unknown ids are ignored."""
        self._intake.cancel(sequences, reason, self._clock(), output_index)

    def apply(self, update: PolicyUpdate) -> tuple[int, int]:
        """Take a policy over; the next plan enforces it. Returns the version and epoch in force."""
        return self._intake.apply(update, self._clock())

    def take_call(self, call: SessionCall) -> None:
        """Take in what is asked of sessions; see `Parking.take`."""
        self.roster.parking.take(call, self._clock())

    def drain(self, draining: bool) -> None:
        """Refuse new requests, or take them again; what is here goes on."""
        self._intake.draining = draining

    def next_timer(self) -> float | None:
        """Return the clock time at which something ends if nothing else happens, or None."""
        timer = self.roster.timers.next()
        if not (self._constraining.num_waiting or self._constraining.late):
            return timer
        look = self._clock() + LOOK_SECONDS
        return look if timer is None else min(timer, look)

    def take_outputs(self) -> list[RequestOutput]:
        """Return the news that no commit has returned; call it when there is no plan."""
        return self.roster.take_events()

    def take_wipes(self) -> list[SlabId]:
        """Return slabs that the runner must wipe after the steps that were launched, and before the next."""
        return self.memory.host.take_dirty(max(1, WIPED_BYTES // self.memory.shape.block_bytes))

    def audit(self) -> None:
        """Prove all bookkeeping from scratch. Raises InvariantError."""
        self.roster.audit()
        self.enforcement.audit()
        audit_flights(self._flights, self.roster.running)

    # ------------------------------------------------------------ a step

    def plan(self) -> StepPlan | None:
        """Plan the next step, or return None when nothing can run. One step may be in flight.

        Raises:
            InvariantError: two steps are in flight.
        """
        now = self._clock()
        self._let_unread_go(self._flights[0].plan.number - 1 if self._flights else self.step)
        self.roster.pressure.refresh(now)
        self.roster.parking.advance(now)
        plan = self._plan(now)
        self.memory.accounts.settle(now)
        return plan

    def _plan(self, now: float) -> StepPlan | None:
        self._attempt = number = self._attempt + 1
        self._look_ahead()
        if self._constraining.num_waiting:
            self._intake.take_prepared(now)
        if self._constraining.late:
            self._constraining.take_masks(now)
        self._intake.expire(now)
        if self.roster.fetching.num_fetching:
            self.roster.fetching.turn(now)
        self._admission.begin(number, now)
        streaming = self.roster.streaming
        streaming.begin(number, now, in_flight=bool(self._flights))
        if self.enforcement.is_due:
            self.enforcement.enforce(number if self._flights else AT_ONCE, now)
        if not self.roster.running and not self.roster.waiting:
            return None
        if streaming.running:
            self._decodes.resting = self._turns.resting(streaming.running, self.roster.running, number, now)
        parts, num_decodes = self._fill(number, now)
        if not parts and self._decodes.resting:  # nobody is there for whom they would have to rest
            self._decodes.resting = ()
            parts, num_decodes = self._fill(number, now)
        self._decodes.resting = ()
        for tenant in self._intake.on_trial:
            if tenant.trial is not None:
                tenant.trial.look(tenant)
        if not parts:
            return None
        self.step += 1
        writes, poison, copies = self.memory.take_writes(now)
        moves = self.memory.take_moves(now)
        self.roster.swapping.planned(moves)
        stale = unfilled(
            self.memory.supply.pool,
            poison,
            zip(self._decodes.planned[num_decodes:], parts[num_decodes:], strict=True),
            block_size=self.memory.shape.block_size,
            loads=moves.loads,
            copies=copies,
        )
        plan = StepPlan(
            number=self.step,
            sequences=tuple(parts),
            table_writes=writes,
            poison=poison,
            unfilled=stale,
            copies=copies,
            stores=moves.stores,
            loads=moves.loads,
        )
        num_hosted = sum(len(part.hosted) for part in parts) if streaming.running else 0
        self._flights.append(
            Flight(plan, self._decodes.planned, num_decodes, num_hosted, self.roster.interference.take_again())
        )
        self._keep_unread()
        return plan

    def commit(self, plan: StepPlan, result: StepResult) -> list[RequestOutput]:
        """Take the step's tokens in: seal full blocks, end what is finished, report all news since the last commit.

        Raises:
            InvariantError: it is not the oldest step in flight, or the result is not one of it.
        """
        if not self._flights or self._flights[0].plan is not plan:
            raise InvariantError(f"step {plan.number} is committed twice, or before an older one")
        flight = self._flights.pop(0)
        if flight.num_decodes < len(flight.planned) or flight.num_hosted or plan.number % EVERY_STEPS == 0:
            seconds, work = result.seconds - result.store_seconds - result.load_seconds, flight.work()
            if flight.num_hosted:
                seconds = self._turns.observe(work, flight.num_hosted, seconds)
            self._chunks.observe(work, seconds)
        now = self._clock()
        outputs = self._commit.take(flight, result, now)
        if self._constraining.is_used:
            outputs += self._constraining.follow(flight.planned, now)
        if flight.again.tokens:
            copies = result.store_seconds + result.load_seconds
            self.roster.swapping.computed_again(flight.again, flight.work(), result.seconds - copies)
        self.memory.accounts.settle(now)
        if plan.stores or plan.loads:
            self.memory.host.landed(plan.stores, plan.loads)
            self.roster.swapping.done(plan, result)
            self.memory.tiers.count_steps(plan, result)
        self._let_unread_go(plan.number)
        self.roster.pressure.copied(result.store_seconds + result.load_seconds)
        return outputs

    # ------------------------------------------------------------ parts of a plan

    def _look_ahead(self) -> None:
        """Note where the tokens to come will be."""
        if len(self._flights) > 1:
            raise InvariantError("a third step is planned while two are in flight")
        self._decodes.places = self._flights[0].places() if self._flights else {}

    def _fill(self, number: int, now: float) -> tuple[list[SequenceStep], int]:
        """Return the steps of a plan, and how many of them are decodes, which come first."""
        streaming = self.roster.streaming
        num_moved = streaming.num_moved
        parts, prefills = self._decodes.secure(number, now)
        num_preempted = self.roster.num_preemptions
        chunks = self._decodes.short | self._portions.share(self._chunk_tokens(prefills, now), prefills, now)
        if num_preempted != self.roster.num_preemptions:
            parts = self._decodes.without_preempted(parts)
        if streaming.running:
            streaming.recall(now)
        if num_moved != streaming.num_moved:
            parts = self._decodes.as_hosted(parts)
        num_decodes = len(parts)
        self._add_chunks(parts, chunks)
        return parts, num_decodes

    def _keep_unread(self) -> None:
        """Keep slabs that no table names any more until the steps are done that may read them."""
        slabs = self.memory.take_unread()
        if slabs:
            self._unread.append((self.step, slabs))

    def _let_unread_go(self, last: int) -> None:
        """Let slabs go that are read by no step after the last one that is done, nor by one that is in flight."""
        if not self._flights:
            self._keep_unread()
        while self._unread and (self._unread[0][0] <= last or not self._flights):
            for slab in self._unread.pop(0)[1]:
                self.memory.host.let_go(slab)

    def _chunk_tokens(self, prefills: Prefills, now: float) -> int:
        """Return the tokens that prefills may have, so that nobody waits longer for the step's end than is right."""
        decodes = self._decodes.planned
        budget = self._budget - len(decodes) - self._decodes.num_short
        if not (prefills or self.roster.waiting):
            return budget
        self._target.see(prefills, self.roster.waiting.values(), now)
        target = self._target.seconds(decodes, now)
        context = sum(sequence.computed for sequence in decodes)
        first = max((one for some in prefills.values() for one in some), key=_computed, default=None)
        if self.roster.streaming.running:
            reading = self._turns.seconds(decodes if first is None else [*decodes, first])
            target = max(target - reading, _LEAST_TARGET)
        start = 0 if first is None else first.computed
        return min(budget, self._chunks.tokens(len(decodes), context, target, start))

    def _add_chunks(self, parts: list[SequenceStep], chunks: dict[SequenceState, int]) -> None:
        """Write the chunks down, without those that were preempted after they had been given tokens."""
        interference = self.roster.interference
        for sequence, num_tokens in chunks.items():
            if sequence.table is None:
                continue
            self._decodes.planned.append(sequence)
            start, end = sequence.computed, sequence.computed + num_tokens
            if interference.has_losses:
                interference.computed(sequence, start, end)
            parts.append(
                SequenceStep(
                    sequence=sequence.id,
                    row=sequence.table.row,
                    start=start,
                    token_ids=tuple(sequence.tokens[start:end]),
                    sampling=sequence.sampling if end == len(sequence.tokens) and not sequence.request.embed else None,
                    position=sequence.generated,
                    random_key=sequence.random_key,
                    hosted=sequence.table.hosted,
                    options=options_of(sequence, start, num_tokens) if sequence.is_special else None,
                )
            )
            sequence.computed = end


def _computed(sequence: SequenceState) -> int:
    return sequence.computed
