"""Erasing what was somebody's from every tier, and knowing when it is gone.

    copies of it end ─▶ what nobody has written to yet is overwritten: blocks, slabs, whatever they held ─▶ done
    the disk overwrites its own (engine/disk) ──────────────────────────────────────────────────────────┘

A block that was given up long ago may hold what it held until somebody writes to it, and nobody knows any more whose
that was. So all that is free is overwritten, once: what was overwritten and not used since is left alone. What others
use meanwhile is theirs, and holds nothing of an earlier owner: a block that a plan hands out is overwritten before its
step writes to it, unless that fills it whole, as copies do (`StepPlan.unfilled`). Until then it holds what it held: so
an erasure also waits for the steps that were launched when it began, and for copies beside them to such blocks.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from itertools import islice

from engine.memory.eviction.base import BlockKey
from engine.memory.pool import OPEN
from engine.memory.supply import Supply
from engine.memory.tiers.host import HostTier
from engine.memory.tiers.mover import Mover
from engine.request import BlockId
from engine.step import StepPlan

_STEPS = 2  # after that many more, the step that is about to be launched is over, and all before it
_MOST_DONE = 4096  # tickets, if nobody asks for them


class Erasure:
    """One erasure that somebody waits for."""

    __slots__ = ("disk_tickets", "keys", "ticket", "waits_for_copies")

    def __init__(self, ticket: int, keys: Sequence[BlockKey], disk_tickets: set[int]) -> None:
        self.ticket = ticket
        self.keys = keys
        self.disk_tickets = disk_tickets  # what is still to be done there
        self.waits_for_copies = True


class Wiper:
    """Overwrites what is free on the device and in host memory, bit by bit."""

    def __init__(self, supply: Supply, mover: Mover, host: HostTier) -> None:
        self._supply, self._mover, self._host = supply, mover, host
        self._pending: list[Erasure] = []
        self._done: deque[int] = deque(maxlen=_MOST_DONE)
        self._blocks: dict[BlockId, None] = {}  # that nobody writes to yet, to be overwritten
        self._filling: set[BlockId] = set()  # that copies beside the steps overwrite, and have not yet
        self._num_steps = 0  # that may be under way still which were when this began
        self._is_clean = bytearray(supply.pool.num_blocks)  # 1: overwritten, and not used since
        self._has_begun = False

    @property
    def is_busy(self) -> bool:
        """Whether anything is being erased."""
        return bool(self._pending)

    def add(self, erasure: Erasure) -> None:
        """Take an erasure in; the blocks themselves are given up already, in each tier."""
        self._pending.append(erasure)

    def take_blocks(self, plan: StepPlan | None, limit: int) -> list[BlockId]:
        """Return blocks to overwrite before a plan is launched: up to `limit`, and those that it has allocated."""
        allocated = plan.poison if plan is not None else ()
        self._begin({move.block for move in plan.stores} if plan is not None else set())
        clean = self._is_clean
        due = [block for block in dict.fromkeys(allocated) if self._blocks.pop(block, 0) is None]
        for block in list(islice(self._blocks, max(0, limit - len(due)))):
            del self._blocks[block]
            due.append(block)
        for block in due:
            clean[block] = 1
        return due

    def used(self, blocks: Iterable[BlockId]) -> None:
        """Note that a plan writes to these blocks from here on; those that were to be overwritten are by now."""
        if self._has_begun:
            clean = self._is_clean
            for block in blocks:
                clean[block] = 0

    def filled(self, blocks: Iterable[BlockId]) -> None:
        """Note that a copy beside the steps fills these blocks whole, from now on until it ends."""
        if self._has_begun:
            for block in blocks:
                self._is_clean[block] = 0
                if block in self._blocks:
                    del self._blocks[block]
                    self._filling.add(block)

    def erased_on_disk(self, ticket: int) -> None:
        """Note that the disk has done its part of something."""
        for erasure in self._pending:
            erasure.disk_tickets.discard(ticket)

    def settle(self) -> None:
        """Note what is done by now; called once a step, before that is planned."""
        self._num_steps = max(0, self._num_steps - 1)
        if self._filling:
            self._filling.intersection_update(block for block, _ in self._mover.arriving())
        if self._pending and self._is_clear:
            self._done += [one.ticket for one in self._pending if not one.waits_for_copies and not one.disk_tickets]
            self._pending = [one for one in self._pending if one.waits_for_copies or one.disk_tickets]

    def take_done(self) -> list[int]:
        """Return the tickets of what is done, each once."""
        done = list(self._done)
        self._done.clear()
        return done

    @property
    def _is_clear(self) -> bool:
        """Whether nothing is left of what lay there when this began."""
        return not (self._blocks or self._filling or self._num_steps) and self._host.slabs.is_clean

    def _begin(self, stored: set[BlockId]) -> None:
        """Start to overwrite for those erasures whose blocks nothing copies any more.

        What is still to be stored, by the plan to be launched or the one after it, is another's. Those that come
        meanwhile wait until this is over: else it might never be, while there are always more.
        """
        if not self._is_clear:
            return
        ready = [one for one in self._pending if one.waits_for_copies and not self._mover.is_copying(one.keys)]
        if not ready:
            return
        for erasure in ready:
            erasure.waits_for_copies = False
        waiting = stored | self._host.next.stored_blocks()
        pool = self._supply.pool
        given = (block for block in self._supply.touched if pool.state(block) == OPEN)  # and in no plan yet
        unwritten = (block for block in (*pool.free_blocks(), *given) if block not in waiting)
        self._blocks |= {block: None for block in unwritten if not self._is_clean[block]}
        self._filling = {block for block, _ in self._mover.arriving()}
        self._num_steps = _STEPS
        self._host.soil()
        self._has_begun = True
