"""Traffic that a scheduler over the fake runner really serves, token by token, while a recorder keeps its trace.

What was measured on the way is what a replay of the trace has to come to.
"""

import math
import time
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from engine.ipc import PolicyTenant
from engine.replay.compare import policy_of
from engine.replay.script import render
from engine.replay.setting import Setting
from engine.replay.simulation import Simulation
from engine.replay.story import Story, read_story
from engine.replay.task import Outcome
from engine.request import Priority, SequenceId
from engine.scheduler.step_time import StepTimeModel, StepWork
from engine.trace.recorder import MeasuredSpeed, Recorder
from engine.trace.records import Machine
from engine.trace.ring import RingWriter
from tests.engine.world import BLOCK_BYTES, World

BLOCK_SIZE = 16
STEP_SECONDS, TOKEN_SECONDS = 0.004, 0.0002
LIMITS = {"max_context_tokens": 4096, "max_output_tokens": 1024, "max_queued": 1000}


class ServedModel(StepTimeModel):
    """Knows how long the world's steps take: so much each, and so much for each token."""

    def __init__(self) -> None:
        super().__init__()
        self.num_observed = 1

    @property
    def weights(self) -> tuple[float, ...]:
        """Seconds for a step, a decode, context, a chunk token, a pair."""
        return (STEP_SECONDS, TOKEN_SECONDS, 0.0, TOKEN_SECONDS, 0.0)

    def predict(self, work: StepWork) -> float:
        """Return the seconds of a step."""
        return STEP_SECONDS + TOKEN_SECONDS * (work.num_decodes + work.prefill_tokens)


@dataclass
class Arrival:
    """A request to come."""

    at: float  # seconds from the beginning
    tenant: str
    prompt: list[int]
    max_tokens: int
    more: dict[str, object] = field(default_factory=dict)


@dataclass
class Served:
    """What a tenant's requests were measured to get."""

    num_requests: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    ttft: list[float] = field(default_factory=list)


class Recording:
    """A world with a trace."""

    def __init__(self, path: Path, *, num_blocks: int, budget: int = 128, max_rows: int = 32) -> None:
        self.path = path
        self.world = World(
            num_blocks=num_blocks,
            block_size=BLOCK_SIZE,
            max_rows=max_rows,
            budget=budget,
            max_context=4096,
            eos=(5, 6, 7),
            audit=False,
            token_seconds=TOKEN_SECONDS,
        )
        self.machine = Machine(
            num_blocks=num_blocks,
            block_size=BLOCK_SIZE,
            block_bytes=BLOCK_BYTES,
            max_rows=max_rows,
            max_context=4096,
            max_batched_tokens=budget,
        )
        self.served: dict[str, Served] = defaultdict(Served)
        self.num_evicted: dict[str, int] = {}
        self._policies: list[PolicyTenant] = []
        self._recorder = Recorder(
            RingWriter(path, 1 << 20), self.machine, MeasuredSpeed(ServedModel()), clock=lambda: self.world.now
        )
        self.began = time.time()
        self.world.scheduler.roster.watcher = self._recorder

    def policy(self, tenant: str, *, blocks: int, soft: int = 0, slabs: int = 0, **changes: object) -> None:
        """Set a tenant's policy before anything comes."""
        self.world.policy(tenant, blocks=blocks, soft=soft, slabs=slabs, **(LIMITS | {"max_running": 16} | changes))
        self._policies.append(limits(tenant, blocks=blocks, soft=soft, host_bytes=slabs * BLOCK_BYTES, **changes))

    @property
    def policies(self) -> list[PolicyTenant]:
        """The policies in force."""
        return list(self._policies)

    def serve(self, arrivals: Iterable[Arrival]) -> "Recording":
        """Serve everything that comes, to its end, and close the trace."""
        world, start = self.world, self.world.now
        waiting: dict[SequenceId, float] = {}  # since when: a request is taken in between two steps
        coming = sorted(arrivals, key=lambda arrival: -arrival.at)
        while coming or world.scheduler.roster.sequences:
            while coming and start + coming[-1].at <= world.now:
                arrival = coming.pop()
                sequence = world.submit(arrival.tenant, arrival.prompt, arrival.max_tokens, **arrival.more)
                waiting[sequence] = world.now
            if not world.step(STEP_SECONDS) and coming:
                world.now = max(world.now, start + coming[-1].at)
            for sequence in [one for one in waiting if world.tokens[one]]:
                self.served[world.requests[sequence].tenant].ttft.append(world.now - waiting.pop(sequence))
        self._measure()
        self._recorder.close()
        return self

    def story(self) -> Story:
        """Return what can be read of it."""
        return read_story(self.path, 0.0, 1_000_000)

    def replay(self, policies: list[PolicyTenant], grain: int) -> Outcome:
        """Replay all of it under some policies."""
        story = self.story()
        heads = frozenset((call.group, tuple(call.symbols[: call.num_head])) for call in story.calls if call.num_head)
        setting = Setting(story.machine, story.speed, (), grain, story.num_symbols, heads)
        parts = [render(call, BLOCK_SIZE, grain) for call in story.calls]
        simulation = Simulation(setting, [policy_of(policy) for policy in policies], parts)
        simulation.run(self.began + self.world.now + 1000.0)
        return simulation.outcome([policy.tenant for policy in policies])

    def _measure(self) -> None:
        world = self.world
        for sequence, request in world.requests.items():
            served = self.served[request.tenant]
            served.num_requests += 1
            if sequence in world.cached_tokens:
                served.prompt_tokens += len(request.prompt)
                served.cached_tokens += world.cached_tokens[sequence]
            served.output_tokens += sum(
                len(tokens)
                for output, tokens in world.tokens.items()
                if (output[0] if isinstance(output, tuple) else output) == sequence
            )


def limits(tenant: str, *, blocks: int, soft: int = 0, **changes: object) -> PolicyTenant:
    """Return a policy as a task names it."""
    fields = {"weight": 1.0, "max_running": 16, "priority": Priority.STANDARD} | LIMITS | changes
    return PolicyTenant(
        tenant=tenant,
        kv_soft_bytes=soft * BLOCK_BYTES,
        kv_hard_bytes=blocks * BLOCK_BYTES,
        **fields,  # type: ignore[arg-type]
    )


def rank(values: list[float], share: float) -> float:
    """Return the nearest-rank percentile."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]
