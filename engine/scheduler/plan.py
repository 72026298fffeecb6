"""Scheduler: plan() says which sequences get how many tokens in the next step, commit() takes the step's result in.

A plan, from the top:
    1. enforce   tenants whose limits were lowered give back what is above them, newest sequences first
    2. secure    every decode gets a slot for its token; where memory is short, somebody is preempted
    3. share     as many tokens as the decodes' targets allow (chunks.py) go to prefill chunks, of running and of newly
                 started sequences, tenant by tenant in the order of fairness.py
    4. build     decodes first (written down as they are secured), then chunks; block table cells to write
"""

import heapq
import time
from collections.abc import Callable, Iterable, Sequence

from engine.memory.manager import KVMemory
from engine.memory.supply import Shortage
from engine.policy import PolicyUpdate, ShareGroup
from engine.request import FinishReason, GenerationRequest, SequenceId
from engine.scheduler.admission import Admission, Verdict, evict
from engine.scheduler.chunks import ChunkBudget
from engine.scheduler.commit import Commit
from engine.scheduler.enforce import enforce, enforce_groups
from engine.scheduler.fairness import effective_rank, first_waiting
from engine.scheduler.intake import Intake
from engine.scheduler.outputs import RequestOutput
from engine.scheduler.pressure import group_victim, newest, pool_victim
from engine.scheduler.roster import Roster
from engine.scheduler.sequence import SequenceState
from engine.scheduler.sizing import Limits
from engine.scheduler.step_time import StepWork, chunk_pairs
from engine.scheduler.targets import EVERY_STEPS, INTER_TOKEN_SECONDS, MIN_CHUNK_TOKENS
from engine.scheduler.tenant import Tenant
from engine.step import SequenceStep, StepPlan, StepResult

Prefills = dict[Tenant, list[SequenceState]]

_new = tuple.__new__


class Scheduler:
    """Continuous batching over many tenants. Synchronous: a plan is committed before the next one is made."""

    def __init__(
        self,
        memory: KVMemory,
        limits: Limits,
        *,
        max_batched_tokens: int,
        eos_token_ids: Iterable[int] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.memory = memory
        self.roster = Roster(memory, max_batched_tokens)
        self.step = 0  # number of the last plan
        self._clock = clock
        self._budget = max_batched_tokens
        self._intake = Intake(self.roster, limits, eos_token_ids)
        self._admission = Admission(self.roster, limits, self._intake.shared)
        self._chunks = ChunkBudget(minimum=min(MIN_CHUNK_TOKENS, max_batched_tokens), maximum=max_batched_tokens)
        self._attempt = 0  # at a plan: what one attempt preempts does not come back in the same one
        self._planned: list[SequenceState] = []  # of the last plan, in its order
        self._num_decodes = 0  # the first of them
        self._commit = Commit(self.roster)

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
    def share_groups(self) -> list[ShareGroup]:
        """Return the share groups that are registered on this worker."""
        return self._intake.shared.groups()

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

    def drain(self, draining: bool) -> None:
        """Refuse new requests, or take them again; what is here goes on."""
        self._intake.draining = draining

    def next_timer(self) -> float | None:
        """Return the clock time at which something ends if nothing else happens, or None."""
        return self.roster.timers.next()

    def take_outputs(self) -> list[RequestOutput]:
        """Return the news that no commit has returned; call it when there is no plan."""
        return self.roster.take_events()

    def audit(self) -> None:
        """Prove all bookkeeping from scratch. Raises InvariantError."""
        self.roster.audit()

    # ------------------------------------------------------------ a step

    def plan(self) -> StepPlan | None:
        """Plan the next step, or return None when nothing can run."""
        now = self._clock()
        self._intake.expire(now)
        self._attempt = number = self._attempt + 1
        self._admission.begin(number, now)
        if self._intake.changed:
            enforce(self.roster, self._intake, now)
        if self._intake.shared.changed:
            enforce_groups(self.roster, self._intake.shared, now)
        if not self.roster.running and not self.roster.waiting:
            return None
        parts, prefills = self._secure(number, now)
        num_preempted = self.roster.num_preemptions
        chunks = self._share(self._chunk_tokens(prefills), prefills, now)
        if num_preempted != self.roster.num_preemptions:
            parts = self._without_preempted(parts)
        self._num_decodes = len(parts)
        self._add_chunks(parts, chunks)
        if not parts:
            return None
        self.step += 1
        writes, poison, copies = self.memory.take_writes(now)
        return StepPlan(number=self.step, sequences=tuple(parts), table_writes=writes, poison=poison, copies=copies)

    def commit(self, plan: StepPlan, result: StepResult) -> list[RequestOutput]:
        """Take the step's tokens in: seal full blocks, end what is finished, report all news since the last commit."""
        planned, self._planned = self._planned, []
        if self._num_decodes < len(planned) or self.step % EVERY_STEPS == 0:
            self._chunks.observe(_work(plan.sequences, self._num_decodes), result.seconds)
        return self._commit.take(planned, plan.sequences, result, num_decodes=self._num_decodes, now=self._clock())

    # ------------------------------------------------------------ parts of a plan

    def _secure(self, number: int, now: float) -> tuple[list[SequenceStep], Prefills]:
        """Give each decode a slot for its token, oldest sequences first; return their steps and unfinished prefills.

        The hot loop of a plan: one pass, and no call for a decode that has its slot.
        """
        num_preempted = self.roster.num_preemptions
        parts: list[SequenceStep] = []
        planned = self._planned = []
        prefills: Prefills = {}
        for sequence in self.roster.running.copy():
            table = sequence.table
            if table is None:  # preempted for an older one in this loop
                continue
            tokens, computed = sequence.tokens, sequence.computed
            if len(tokens) - computed != 1:
                prefills.setdefault(sequence.tenant, []).append(sequence)
                continue
            if computed >= table.capacity and not self._make_room(sequence, number, now):
                continue
            planned.append(sequence)
            position = computed + 1 - sequence.num_prompt
            token_ids = (tokens[computed],)  # all tokens but this one are computed
            # In the order of SequenceStep's fields: a call of SequenceStep takes twice as long.
            step = (sequence.id, table.row, computed, token_ids, sequence.sampling, position, sequence.random_key)
            parts.append(_new(SequenceStep, step))
        if num_preempted != self.roster.num_preemptions:
            parts = self._without_preempted(parts)
        return parts, prefills

    def _without_preempted(self, parts: list[SequenceStep]) -> list[SequenceStep]:
        """Take those out of the plan that were preempted after they had been given a slot."""
        kept = [pair for pair in zip(self._planned, parts, strict=True) if pair[0].table is not None]
        self._planned = [sequence for sequence, _ in kept]
        return [part for _, part in kept]

    def _make_room(self, sequence: SequenceState, number: int, now: float) -> bool:
        """Grow a sequence by one block, preempting where needed; False when it was itself the one to give way."""
        table = sequence.table
        assert table is not None, "only a running sequence grows"
        while True:
            alone = len(self.roster.running) == 1  # then only idle caches within guarantees can be in its way
            shortage = self.memory.grow(table, sequence.computed + 1, now, last_resort=alone)
            if shortage is None:
                return True
            victim = self._victim(sequence, shortage)
            evict(self.roster, victim, number, now)
            if victim is sequence:
                return False

    def _victim(self, sequence: SequenceState, shortage: Shortage) -> SequenceState:
        """Return who gives way for this sequence's next block; the sequence itself when nobody else may be asked."""
        own = sequence.tenant.running
        if shortage is Shortage.ACCOUNT:
            return newest(own) or newest((one for one in own if one.beams is None), protected=True) or sequence
        account = sequence.tenant.account
        assert account is not None, "a running sequence has an account"
        busy = self.roster.busy.values()
        victim = pool_victim(busy)
        if victim is None and account.blocks < account.soft:
            others = [tenant for tenant in busy if tenant is not sequence.tenant]
            victim = pool_victim(others, protected=True)
            victim = victim or group_victim(one for tenant in others for one in tenant.running)
        return victim or newest(own) or sequence

    def _chunk_tokens(self, prefills: Prefills) -> int:
        """Return the tokens that prefills may have, so that no decode waits longer than its class may."""
        decodes = self._planned
        budget = self._budget - len(decodes)
        if not decodes or not (prefills or self.roster.waiting):
            return budget
        target = INTER_TOKEN_SECONDS[min(sequence.rank for sequence in decodes)]
        context = sum(sequence.computed for sequence in decodes) + len(decodes)
        start = max((one.computed for some in prefills.values() for one in some), default=0)
        return min(budget, self._chunks.tokens(len(decodes), context, target, start))

    def _share(self, budget: int, prefills: Prefills, now: float) -> dict[SequenceState, int]:
        """Share the budget out in prefill chunks: best class first, then the tenant that has had least service."""
        chunks: dict[SequenceState, int] = {}
        blocked: set[Tenant] = set()
        heap: list[tuple[int, float, int, int, Tenant]] = []  # on a tie, what is sooner done goes first

        def push(tenant: Tenant) -> None:
            candidate = self._candidate(tenant, prefills, blocked, now)
            if candidate is not None:
                rank = effective_rank(candidate, now)
                heapq.heappush(heap, (rank, tenant.counter, candidate.remaining, candidate.number, tenant))

        for tenant in {*prefills, *self._admission.contenders()}:
            push(tenant)
        while heap and budget > 0:
            tenant = heapq.heappop(heap)[-1]
            sequence = self._candidate(tenant, prefills, blocked, now)
            if sequence is None:
                continue
            if sequence.table is not None:
                prefills[tenant].remove(sequence)
            elif self._admission.try_start(sequence, now) is Verdict.BLOCKED:
                blocked.add(tenant)
            if sequence.table is not None:
                chunks[sequence] = size = min(budget, sequence.remaining)
                budget -= size
                self._charge(sequence, size, now)
            push(tenant)
        return chunks

    def _candidate(self, tenant: Tenant, prefills: Prefills, blocked: set[Tenant], now: float) -> SequenceState | None:
        """Return what the tenant would compute next: an unfinished prefill or the head of its line."""
        best: SequenceState | None = None
        running = prefills.get(tenant)
        if running:
            alive = (sequence for sequence in running if sequence.table is not None)
            best = min(alive, key=lambda one: (effective_rank(one, now), one.number), default=None)
        if tenant in blocked or tenant.num_waiting == 0:
            return best
        waiting = first_waiting(tenant, now)
        if best is None or waiting is None:
            return best or waiting
        return min(best, waiting, key=lambda one: (effective_rank(one, now), one.number))

    @staticmethod
    def _charge(sequence: SequenceState, num_tokens: int, now: float) -> None:
        """Charge a chunk to its tenant, except for tokens that it has paid for before a preemption."""
        end = sequence.computed + num_tokens
        paid = max(sequence.charged, sequence.computed)  # what the cache held costs nothing
        if end > paid:
            sequence.tenant.counter += (end - paid) * sequence.tenant.prefill_cost
            sequence.charged = end
        sequence.tenant.lines[sequence.rank].served_at = now

    def _add_chunks(self, parts: list[SequenceStep], chunks: dict[SequenceState, int]) -> None:
        """Write the chunks down, without those that were preempted after they had been given tokens."""
        for sequence, num_tokens in chunks.items():
            if sequence.table is None:
                continue
            self._planned.append(sequence)
            end = sequence.computed + num_tokens
            parts.append(
                SequenceStep(
                    sequence=sequence.id,
                    row=sequence.table.row,
                    start=sequence.computed,
                    token_ids=tuple(sequence.tokens[sequence.computed : end]),
                    sampling=sequence.sampling if end == len(sequence.tokens) else None,
                    position=sequence.generated,
                    random_key=sequence.random_key,
                )
            )


def _work(parts: Sequence[SequenceStep], num_decodes: int) -> StepWork:
    """Return what a step computes, for the model of how long steps take."""
    chunks = parts[num_decodes:]
    return StepWork(
        num_decodes=num_decodes,
        context_tokens=sum(part.start for part in parts[:num_decodes]) + num_decodes,
        prefill_tokens=sum(len(part.token_ids) for part in chunks),
        prefill_pairs=sum(chunk_pairs(part.start, len(part.token_ids)) for part in chunks),
    )
