"""The engine: one loop, one thread. START HERE: `step`.

    inbox ─▶ Scheduler.plan() ─▶ Runner.launch().wait() ─▶ Scheduler.commit() ─▶ outbox

All that comes from outside is taken in between two plans, so that a cancel or a policy is in force in the next one.

Where the device computes beside the host (`ahead`), one step is kept in flight: the next one is planned and launched
before its result is waited for, so that the device has its next work when it is done.

    step t     ──launch──▶ ░░░░░░ device ░░░░░░│
    host                   take in, plan t + 1, launch, then wait for t and commit it
    step t + 1                                 │░░░░░░ device ░░░░░░
"""

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from engine.errors import ProtocolError
from engine.policy import PolicyUpdate
from engine.request import FinishReason, GenerationRequest, SequenceId
from engine.scheduler.outputs import RequestOutput
from engine.scheduler.plan import Scheduler
from engine.scheduler.session_calls import Prefetch, SessionAnswer, SessionCall, SessionChange, SessionQuery
from engine.stats import EngineStats, collect
from engine.step import Runner, StepHandle, StepPlan

STATS_SECONDS = 0.25

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Submit:
    """Take a request."""

    sequence: SequenceId
    request: GenerationRequest


@dataclass(frozen=True, slots=True)
class Cancel:
    """End requests."""

    sequences: tuple[SequenceId, ...]
    reason: FinishReason
    output_index: int | None = None  # only this output of each; None: all


@dataclass(frozen=True, slots=True)
class Drain:
    """Take nothing new, or take again."""

    draining: bool


@dataclass(frozen=True, slots=True)
class Stop:
    """Leave the loop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    """A policy is in force from step `step` on. Whoever is above its limits gives back until it has settled."""

    version: int
    epoch: int
    step: int
    over_bytes: int  # device KV above the limits when it came
    settle_seconds: float  # predicted until nothing is; 0: nothing was


Message = Submit | Cancel | PolicyUpdate | Drain | Stop | SessionCall


class Mailbox(Protocol):
    """The loop's two ways out: what comes in, what goes out. Sends never wait."""

    def receive(self, timeout: float | None) -> Iterable[Message]:
        """Return all that has come; wait for something up to `timeout` seconds, None for ever, 0 not at all."""
        ...

    def outputs(self, step: int, outputs: Sequence[RequestOutput]) -> None:
        """Send what a step did."""
        ...

    def applied(self, applied: Applied) -> None:
        """Say which policy is in force, and what it asks back."""
        ...

    def settled(self, version: int, epoch: int) -> None:
        """Say that nobody is above the limits of this policy any more."""
        ...

    def sessions(self, answer: SessionAnswer) -> None:
        """Answer a call about sessions."""
        ...

    def stats(self, stats: EngineStats) -> None:
        """Send the counters."""
        ...


class EngineLoop:
    """Drives scheduler and runner until it is told to stop. An exception of the runner ends it: a new core starts."""

    def __init__(
        self,
        scheduler: Scheduler,
        runner: Runner,
        mailbox: Mailbox,
        *,
        ahead: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Start with nothing in flight.

        Args:
            scheduler: plans and commits.
            runner: computes.
            mailbox: where messages come from and outputs go.
            ahead: plan and launch a step before the result of the one before it is waited for.
            clock: the scheduler's.
        """
        self._scheduler = scheduler
        self._runner = runner
        self._mailbox = mailbox
        self._ahead = ahead
        self._clock = clock
        self._stats_at = clock()
        self._launched: deque[tuple[StepPlan, StepHandle]] = deque()  # not yet committed: between two steps one at most
        self._busy = False
        self._stopping = False

    def run(self) -> None:
        """Step until a Stop comes; what is in flight then is committed and reported."""
        while not self._stopping:
            self.step()
        self._commit()

    def stop(self) -> None:
        """Leave `run` after the current step; safe to call from a signal handler."""
        self._stopping = True

    def step(self) -> None:
        """Take in what came, plan and launch a step if there is anything to run, take in and report what is done."""
        updated = self._take_in(self._mailbox.receive(self._patience()))
        tiers = self._scheduler.memory.tiers
        tiers.collect(self._runner, self._clock())
        plan = self._scheduler.plan()
        if updated is not None:  # in force in this plan; where there was nothing to run, in the next one
            self._tell_applied(*updated, self._scheduler.step if plan else self._scheduler.step + 1)
        settled = self._scheduler.enforcement.take_settled()
        if settled is not None:
            self._mailbox.settled(*settled)
        tiers.before_launch(self._runner, plan)
        if plan is not None:
            self._launched.append((plan, self._runner.launch(plan)))
        wipes = self._scheduler.take_wipes()
        if wipes:
            self._runner.wipe(wipes)
        tiers.start(self._runner)
        parking = self._scheduler.roster.parking
        for answer in parking.take_answers():
            self._mailbox.sessions(answer)
        self._busy = bool(self._launched or wipes or self._scheduler.enforcement.is_due or parking.is_busy)
        self._commit(num_left=1 if self._ahead and plan is not None else 0)
        if self._clock() >= self._stats_at:
            self._send_stats()

    def _commit(self, num_left: int = 0) -> None:
        """Wait for all launched steps but the last `num_left`, commit and report them, and all other news."""
        while len(self._launched) > num_left:
            plan, handle = self._launched.popleft()
            outputs = self._scheduler.commit(plan, handle.wait())
            if outputs:
                self._mailbox.outputs(plan.number, outputs)
        outputs = self._scheduler.take_outputs()
        if outputs:
            self._mailbox.outputs(self._scheduler.step, outputs)

    def _take_in(self, messages: Iterable[Message]) -> tuple[int, int] | None:
        """Hand messages to the scheduler; return the policy in force if one came."""
        updated = None
        for message in messages:
            match message:
                case Submit(sequence, request):
                    self._submit(sequence, request)
                case Cancel(sequences, reason, output_index):
                    self._scheduler.cancel(sequences, reason, output_index)
                case PolicyUpdate():
                    updated = self._scheduler.apply(message)
                case Prefetch() | SessionQuery() | SessionChange():
                    self._scheduler.take_call(message)
                case Drain(draining):
                    self._scheduler.drain(draining)
                case Stop():
                    self._stopping = True
        return updated

    def _tell_applied(self, version: int, epoch: int, step: int) -> None:
        over_bytes, seconds = self._scheduler.over_bytes, self._scheduler.settle_seconds
        self._mailbox.applied(
            Applied(version=version, epoch=epoch, step=step, over_bytes=over_bytes, settle_seconds=seconds)
        )

    def _submit(self, sequence: SequenceId, request: GenerationRequest) -> None:
        try:
            self._scheduler.submit(sequence, request)
        except ProtocolError as error:  # the front's mistake must not end everybody's requests
            log.error("submit_ignored", extra={"error": str(error)})

    def _patience(self) -> float:
        """Return how long the loop may sleep: not at all while requests run, else until the next thing to do."""
        if self._busy:
            return 0.0
        wake = self._stats_at
        for timer in (self._scheduler.next_timer(), self._scheduler.memory.tiers.next_look(self._clock())):
            if timer is not None:
                wake = min(wake, timer)
        return max(0.0, wake - self._clock())

    def _send_stats(self) -> None:
        now = self._clock()
        self._stats_at = max(self._stats_at + STATS_SECONDS, now)  # no burst after a long step
        self._mailbox.stats(collect(self._scheduler))
