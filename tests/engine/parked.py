"""A core with all tiers and no model: the real loop, scheduler, memory and disk over the fake runner."""

import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from engine.disk.store import open_store
from engine.loop import Applied, EngineLoop, Message
from engine.request import SequenceId, TenantId
from engine.scheduler.outputs import RequestOutput
from engine.scheduler.session_calls import (
    Prefetch,
    SessionAction,
    SessionAnswer,
    SessionCall,
    SessionChange,
    SessionQuery,
    SessionView,
)
from engine.stats import EngineStats
from tests.engine.world import BLOCK_BYTES, World

DEADLINE_SECONDS = 60.0
DISK_BYTES = 1 << 20
_TICK = 0.001  # seconds of the world's clock that pass with every look into the mailbox


class Box:
    """A mailbox of lists. Whoever looks into it lets a moment pass."""

    def __init__(self, world: World) -> None:
        self.inbox: deque[Message] = deque()
        self.answers: dict[int, SessionAnswer] = {}
        self.counters: EngineStats | None = None  # the last ones
        self._world = world

    def receive(self, timeout: float | None) -> Iterable[Message]:
        """Return all that has come."""
        self._world.now += _TICK
        messages = list(self.inbox)
        self.inbox.clear()
        return messages

    def outputs(self, step: int, outputs: Sequence[RequestOutput]) -> None:
        """Give outputs to the world."""
        for output in outputs:
            self._world._take(output)

    def applied(self, applied: Applied) -> None:
        """Policies are not what is tested here."""

    def settled(self, version: int, epoch: int) -> None:
        """Nor is when they have settled."""

    def sessions(self, answer: SessionAnswer) -> None:
        """Keep an answer."""
        assert answer.number not in self.answers, "a call is answered twice"
        self.answers[answer.number] = answer

    def stats(self, stats: EngineStats) -> None:
        """Keep counters."""
        self.counters = stats


class Core:
    """One core from start to end. All bookkeeping is audited in every step."""

    def __init__(
        self, folder: Path | None, *, now: float = 1000.0, num_slabs: int = 64, ahead: bool = False, **options: int
    ) -> None:
        """Start a core, on the disk that an earlier one has left in `folder`; None: without a disk."""
        self.world = World(num_slabs=num_slabs, audit=False, ahead=ahead, **options)
        self.world.now = now
        # The same in every core: their slots come back from the disk.
        self.world._identities.update({b"a": 1, b"b": 2, b"secret of bank": 3})
        self.scheduler = self.world.scheduler
        self.parking = self.scheduler.roster.parking
        self.parking.wall = lambda: self.world.now
        self.box = Box(self.world)
        self.loop = EngineLoop(self.scheduler, self.world.runner, self.box, ahead=ahead, clock=lambda: self.world.now)
        self.store = None
        if folder is not None:
            self.store = open_store(folder, self.world.runner.slab_bytes, DISK_BYTES, "model")
            self.scheduler.memory.tiers.attach(self.store, self.world.runner)
        self._number = 0

    def step(self) -> None:
        """Run one step of the loop."""
        self.loop.step()
        self.scheduler.audit()

    def until(self, condition: Callable[[], object], what: str) -> None:
        """Step until something is so."""
        end = time.monotonic() + DEADLINE_SECONDS
        while not condition():
            assert time.monotonic() < end, f"waited {DEADLINE_SECONDS} s for {what}"
            self.step()

    def finish(self, *sequences: SequenceId) -> None:
        """Step until requests have ended, and check their tokens."""
        self.until(lambda: all(one in self.world.finished for one in sequences), "the end of requests")
        for one in sequences:
            self.world.assert_exact(one)

    def policy(self, *tenants: str, blocks: int = 64) -> None:
        """Give tenants room in every tier."""
        for tenant in tenants:
            self.world.policy(
                tenant,
                blocks=blocks,
                soft=blocks // 2,
                slabs=self.world.shape.num_slabs,
                disk_bytes=DISK_BYTES // 2,
                share_groups=("bank",),
            )

    def push_out(self, tenant: str) -> None:
        """Let a tenant's cached blocks leave the device."""
        self.policy(tenant, blocks=0)
        self.until(lambda: not self.world.cached(tenant), "an empty cache")
        self.policy(tenant)

    def turn(
        self, tenant: str, session: str, prompt: Sequence[int], max_tokens: int = 6, *, seconds: float = 0.0
    ) -> list[int]:
        """Let a turn of a session run to its end; return prompt and output."""
        sequence = self.world.submit(tenant, list(prompt), max_tokens, session=session, session_seconds=seconds)
        self.finish(sequence)
        return [*prompt, *self.world.tokens[sequence]]

    # ------------------------------------------------------------ calls

    def call(self, make: Callable[[int], SessionCall]) -> SessionAnswer:
        """Make a call with a number of its own and return the answer to it."""
        self._number = number = self._number + 1
        self.box.inbox.append(make(number))
        self.until(lambda: number in self.box.answers, "an answer")
        return self.box.answers[number]

    def list(self, tenant: str, session: str = "", *, limit: int = 1000, before: float = 0.0) -> list[SessionView]:
        """Return sessions."""
        answer = self.call(
            lambda number: SessionQuery(
                number=number, tenant=TenantId(tenant), session=session, limit=limit, before=before
            )
        )
        return list(answer.sessions)

    def get(self, tenant: str, session: str) -> SessionView:
        """Return a session."""
        (found,) = self.list(tenant, session)
        return found

    def change(self, tenant: str, session: str, action: SessionAction) -> SessionView | None:
        """Change a session and return it; None: it is unknown."""
        answer = self.call(
            lambda number: SessionChange(number=number, tenant=TenantId(tenant), session=session, action=action)
        )
        return answer.sessions[0] if answer.sessions else None

    def prefetch(self, tenant: str, session: str) -> None:
        """Say that a session's next turn is about to come."""
        self.box.inbox.append(Prefetch(tenant=TenantId(tenant), session=session))
        self.step()

    def is_in(self, tenant: str, session: str, *tiers: str) -> bool:
        """Say whether all blocks of a session are in these tiers."""
        found = self.get(tenant, session)
        size = self.world.shape.block_size
        return all(getattr(found, f"{tier}_bytes") * size == found.num_tokens * BLOCK_BYTES for tier in tiers)

    def is_ready(self, tenant: str, session: str) -> bool:
        """Say whether all blocks of a session are in host memory, to be loaded by a plan."""
        found = self.parking.sessions.get(TenantId(tenant), session)
        assert found is not None
        return self.scheduler.memory.host.find(found.keys, 0, len(found.keys)) == len(found.keys)

    def park(self, tenant: str, session: str, *tiers: str) -> None:
        """Step until all blocks of a session are in these tiers."""
        self.until(lambda: self.is_in(tenant, session, *tiers), f"{session} in {tiers}")

    def close(self) -> None:
        """End the core as a clean stop does."""
        if self.store is not None:
            self.store.close(5.0)
