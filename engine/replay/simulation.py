"""One replay: the real scheduler and the real memory, a clock that is only counted, and nothing that computes.

    calls by arrival ─▶ Scheduler.plan() ─▶ Pace: how long it would take ─▶ Scheduler.commit() ─▶ tallies

What an output says, and when it ends, is what it said in the trace, as far as the limits of this replay let it.
"""

from collections.abc import Iterable, Sequence

from engine.memory.manager import KVMemory
from engine.policy import PolicyUpdate, TenantPolicy
from engine.replay.eviction import CountingOrder, UnjudgedOrder
from engine.replay.lengths import CoarseLengths
from engine.replay.pace import Pace
from engine.replay.script import END, Part, coarse_output
from engine.replay.setting import Setting, unlimited
from engine.replay.story import Call
from engine.replay.tally import Tally
from engine.replay.task import Figures, Outcome
from engine.request import FinishReason, GenerationRequest, Priority, RequestId, SamplingParams, SequenceId, TenantId
from engine.scheduler.outputs import Refusal, RequestOutput
from engine.scheduler.plan import Scheduler
from engine.scheduler.sizing import size
from engine.step import CacheShape, SequenceStep, StepPlan, StepResult

_STOP = frozenset({END})
_LEAST_PAUSE = 1e-4  # seconds without a step: whatever the scheduler waits for, time goes on
_SAME_MOMENT = 1e-6  # seconds: as exact as unix time in a float is


class Simulation:
    """A worker that only counts, under the policies given; time starts at the first arrival it is fed."""

    def __init__(self, setting: Setting, policies: Iterable[TenantPolicy], parts: Sequence[Part]) -> None:
        machine, grain = setting.machine, setting.grain
        self.now = self._began = parts[0].call.at if parts else 0.0
        self._grain = grain
        self._block_bytes = machine.block_bytes
        self._policies = {policy.tenant: policy for policy in policies}
        self._limits = setting.limits(1)
        limits = setting.limits(grain)
        shape = CacheShape(
            num_blocks=machine.num_blocks,
            block_size=limits.block_size,
            block_bytes=machine.block_bytes,
            max_rows=machine.max_rows,
            max_columns=machine.num_blocks,
            num_slabs=machine.num_slabs,
        )
        is_coarsest = grain == machine.block_size > 1  # then time is short
        self._memory = KVMemory(shape, make_order=UnjudgedOrder if is_coarsest else CountingOrder)
        self._scheduler = Scheduler(
            self._memory, limits, max_batched_tokens=machine.max_batched_tokens, clock=lambda: self.now
        )
        self._pace = Pace(setting.speed, machine, grain)
        self._parts = parts
        self._next = 0  # of the parts to come
        self._leaving: list[tuple[float, int]] = []  # when clients give up, latest first
        self._granted: dict[int, int] = {}  # tokens of the model that each request may generate, by its number
        self._unheard: set[int] = set()  # requests without a first token
        self._unstarted: set[int] = set()  # of them, those that have never run
        self._grain_waits: dict[int, float] = {}  # seconds that only the grain adds to a request's wait
        self._last_step = (self.now, 0.0)  # when it began, seconds of one machine step in it
        self._pressure_seconds = 0.0
        self._tallies: dict[str, Tally] = {}
        self._apply(setting)

    def run(self, until: float) -> None:
        """Go on until a moment, at which what is unfinished stays so."""
        scheduler = self._scheduler
        while self.now < until:
            self._feed()
            plan = scheduler.plan()
            if plan is not None:
                self._step(plan)
                continue
            self._take(scheduler.take_outputs())
            moments = [until]
            if self._next < len(self._parts):
                moments.append(self._parts[self._next].call.at)
            if self._leaving:
                moments.append(self._leaving[-1][0])
            timer = scheduler.next_timer()
            if timer is not None:
                moments.append(timer)
            self._pass(max(_LEAST_PAUSE, min(moments) - self.now))

    def audit(self) -> None:
        """Prove scheduler and memory from scratch. Raises InvariantError."""
        self._scheduler.audit()
        self._memory.audit()

    @property
    def num_stored_blocks(self) -> int:
        """Blocks of preempted sequences that went to host memory."""
        return self._scheduler.roster.swapping.counts.stored_blocks

    def outcome(self, names: Iterable[str] = ()) -> Outcome:
        """Return what came of it so far, for each tenant that has asked for anything and for those named."""
        late: dict[str, list[float]] = {}  # waits for a first token that have not ended
        for number in self._unheard:
            call = self._parts[number].call
            late.setdefault(call.tenant, []).append(self.now - call.at)
        queued: dict[str, list[float]] = {}
        for number in self._unstarted:
            call = self._parts[number].call
            queued.setdefault(call.tenant, []).append(self.now - call.at)
        tenants = {
            name: self._figures(name, late.get(name, []), queued.get(name, [])) for name in {*self._tallies, *names}
        }
        asked = sum(figures.prompt_tokens for figures in tenants.values())
        cached = sum(figures.cached_tokens for figures in tenants.values())
        seconds = self.now - self._began
        return Outcome(
            hit_rate=cached / asked if asked else 0.0,
            pressure=self._pressure_seconds / seconds if seconds > 0 else 0.0,
            tenants=tenants,
        )

    # ------------------------------------------------------------ what comes in

    def _apply(self, setting: Setting) -> None:
        """Put policies and share groups in force."""
        self._scheduler.apply(
            PolicyUpdate(
                version=1,
                epoch=0,
                snapshot=True,
                tenants=tuple(unlimited(policy) for policy in self._policies.values()),
                share_groups=setting.share_groups(),
            )
        )
        for tenant in self._scheduler.roster.tenants.values():
            tenant.lengths = CoarseLengths(self._grain)

    def _feed(self) -> None:
        """Submit what has come by now, and let go who has left."""
        now = self.now + _SAME_MOMENT
        while self._next < len(self._parts) and self._parts[self._next].call.at <= now:
            self._submit(self._next, self._parts[self._next])
            self._next += 1
        while self._leaving and self._leaving[-1][0] <= self.now:
            _, number = self._leaving.pop()
            if number in self._unstarted:
                self._scheduler.cancel([SequenceId(number)])

    def _submit(self, number: int, part: Part) -> None:
        call = part.call
        tally = self._tallies.get(call.tenant)
        if tally is None:
            tally = self._tallies[call.tenant] = Tally()
        tally.num_requests += 1
        granted = self._grant(call)
        if granted is None:
            tally.num_refused += 1
            return
        self._unheard.add(number)
        self._unstarted.add(number)
        self._grain_waits[number] = self._grain_wait(call.at)
        self._granted[number] = granted
        self._scheduler.submit(
            SequenceId(number),
            GenerationRequest(
                request_id=RequestId(str(number)),
                tenant=TenantId(call.tenant),
                namespace=f"tenant {call.tenant}".encode(),
                prompt=part.prompt,
                sampling=SamplingParams(
                    max_tokens=coarse_output(call.num_prompt, granted, self._grain), stop_token_ids=_STOP
                ),
                priority=Priority(call.priority),
                deadline=call.at + call.deadline_seconds if call.deadline_seconds else 0.0,
                arrived_at=call.at,
                n=call.num_outputs,
            ),
        )
        if call.gave_up_after is not None:
            self._leaving.append((call.at + call.gave_up_after, number))
            self._leaving.sort(reverse=True)

    def _grant(self, call: Call) -> int | None:
        """Return the tokens that a request may generate, or None where it could never be served."""
        policy = self._policies.get(TenantId(call.tenant))
        if policy is None:
            return None
        request = GenerationRequest(
            request_id=RequestId(""),
            tenant=TenantId(call.tenant),
            namespace=b"",
            prompt=range(call.num_prompt),
            sampling=SamplingParams(max_tokens=call.max_tokens),
        )
        granted = size(request, policy, self._limits)
        return None if isinstance(granted, Refusal) else granted

    def _grain_wait(self, at: float) -> float:
        """Return the seconds that a request waits because a coarse step is long: the machine's next one is sooner."""
        began, each = self._last_step
        if each <= 0.0 or at <= began:
            return 0.0
        return max(0.0, self.now - (began + each * -(-(at - began) // each)))

    # ------------------------------------------------------------ a step

    def _step(self, plan: StepPlan) -> None:
        sequences = self._scheduler.roster.sequences
        began = self.now
        rank = min((sequences[part.sequence].rank for part in plan.sequences), default=0)
        step = self._pace.step(plan, self._pace.target_seconds(rank))
        self._note_first_tokens(step.first_tokens, began)
        tokens = tuple(self._say(part) for part in plan.sequences if part.sampling is not None)
        self._pass(step.seconds)
        self._last_step = (began, step.seconds / step.num_steps)
        result = StepResult(
            token_ids=tokens,
            seconds=step.observed,
            store_seconds=step.store_seconds,
            load_seconds=step.load_seconds,
        )
        self._take(self._scheduler.commit(plan, result))

    def _say(self, part: SequenceStep) -> int:
        number, index = int(part.sequence), 0
        if number < 0:
            sequence = self._scheduler.roster.sequences[part.sequence]
            number, index = int(sequence.handle), sequence.index
        return self._parts[number].token(index, part.position)

    def _note_first_tokens(self, first_tokens: dict[int, float], began: float) -> None:
        for number, seconds in first_tokens.items():
            if number in self._unheard:
                self._unheard.remove(number)
                call = self._parts[number].call
                waited = began + seconds - call.at - self._grain_waits[number]
                self._tallies[call.tenant].ttft.append(max(seconds, waited))

    def _pass(self, seconds: float) -> None:
        self._pressure_seconds += self._scheduler.roster.pressure.score * seconds
        self.now += seconds

    def _take(self, outputs: Iterable[RequestOutput]) -> None:
        """Count what has begun and what has ended."""
        for output in outputs:
            if output.admitted_max_tokens:
                call = self._parts[output.sequence].call
                tally = self._tallies[call.tenant]
                tally.queue.append(max(0.0, output.queue_seconds - self._grain_waits[output.sequence]))
                self._unstarted.discard(output.sequence)
                tally.prompt_tokens += call.num_prompt
                tally.cached_tokens += min(output.cached_tokens * self._grain, call.num_prompt)
            if output.refusal is not None:
                self._tallies[self._parts[output.sequence].call.tenant].num_refused += 1
            elif output.finish_reason is not None:
                self._correct(output)
            else:
                continue
            self._unheard.discard(output.sequence)
            self._unstarted.discard(output.sequence)

    def _correct(self, output: RequestOutput) -> None:
        """Take off what coarse tokens make an output longer than it is."""
        if output.message or output.finish_reason not in (FinishReason.STOP, FinishReason.LENGTH):
            return  # cut off: it is as long as it had become
        call = self._parts[output.sequence].call
        num_tokens = self._granted[output.sequence]
        told = call.outputs.get(output.output_index)
        if told is not None and told.num_tokens is not None:
            num_tokens = min(num_tokens, max(1, told.num_tokens))
        longer = coarse_output(call.num_prompt, num_tokens, self._grain) * self._grain - num_tokens
        self._tallies[call.tenant].output_tokens -= longer

    # ------------------------------------------------------------ what came of it

    def _figures(self, name: str, late: list[float], queued: list[float]) -> Figures:
        tenant = self._scheduler.roster.tenants.get(TenantId(name))
        account = self._memory.accounts.get(TenantId(name))
        tally = self._tallies.get(name) or Tally()
        num_output = tally.output_tokens + (tenant.output_tokens * self._grain if tenant else 0)
        return tally.figures(
            late=late,
            queued=queued,
            output_tokens=max(0, num_output),
            num_preemptions=tenant.num_preemptions if tenant else 0,
            evicted_blocks=self._num_evicted(account.index) if account else 0,
            kv_peak_bytes=account.peak * self._block_bytes if account else 0,
            above_soft_seconds=account.seconds_above(self.now) if account else 0.0,
        )

    def _num_evicted(self, account: int) -> int:
        order = self._memory.supply.reclaim.of(account).order
        assert isinstance(order, CountingOrder | UnjudgedOrder), "made by this memory"
        return order.num_evicted
