"""Moves grants to where they are needed: what workers tell of their tenants' use, into shares for the ledger."""

import asyncio
import time
from collections.abc import Callable

import structlog
from django.db import Error

from gateway.controller.demand import Demand, Fleet
from gateway.controller.grants import Shares
from gateway.controller.holders import tenant
from gateway.controller.ledger import Ledger
from gateway.controller.notes import Notes
from gateway.controller.threads import DatabaseThreads
from tenants import selectors
from tenants.reports import WorkerStats
from tenants.services.grants import record_shares

LOOK_SECONDS = 0.25  # as often as workers tell their use

log = structlog.get_logger("controller")


class Balance:
    """Owned by the fleet's loop.

    What each worker may come to hold is noted in Postgres before a grant moves, for a successor that cannot reach it.
    While Postgres is away nothing moves.

    Args:
        ledger: gets the shares.
        threads: where the database is written.
        moved: called when pushes may be due.
    """

    def __init__(self, ledger: Ledger, threads: DatabaseThreads, moved: Callable[[], None]) -> None:
        self._ledger = ledger
        self._threads = threads
        self._moved = moved
        self._demand = Demand()
        self._notes: Notes | None = None  # until predecessors' are read
        self._waiting: dict[str, Shares] = {}  # moves that are not noted yet

    def take(self, stats: WorkerStats) -> None:
        """Take a worker's newest statistics."""
        if stats.core_ready:
            self._demand.observe(stats.worker_id, stats.tenants, time.monotonic())

    def lose_sight(self, worker_id: str) -> None:
        """A worker's stream is gone."""
        self._demand.lose_sight(worker_id)

    async def begin(self) -> None:
        """Go on from what predecessors have noted and workers hold, so that nothing moves that need not move.

        Call it once all that could be met have told what they hold, and before the ledger plans anything.

        Raises:
            Error: Postgres is away.
        """
        noted = await self._threads.call(selectors.grant_shares)
        self._ledger.note({tenant(name): parts for name, parts in noted.items()})
        held = {name: self._ledger.held_by_all(tenant(name)) for name in self._ledger.tenants}
        self._waiting = self._demand.adopt(held, self._fleet())
        notes = Notes(noted)
        await self._set(notes)
        self._notes = notes

    async def run(self) -> None:
        """Follow demand until cancelled."""
        is_away = False
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            if self._notes is None:
                continue
            self._waiting |= self._demand.moves(self._fleet(), time.monotonic())
            try:
                if await self._set(self._notes):
                    self._moved()
            except Error as error:
                if not is_away:
                    log.warning("grants_stay", reason=str(error).strip())
                is_away = True
            else:
                is_away = False

    async def _set(self, notes: Notes) -> bool:
        """Note the moves that wait, and let them be; tell whether there were any."""
        ledger = self._ledger
        moves = {name: shares for name, shares in self._waiting.items() if name in ledger.tenants}
        if not moves:
            return False
        noted = {
            name: notes.most(name, shares, ledger.pools, is_settled=ledger.is_settled(tenant(name)))
            for name, shares in moves.items()
        }
        await self._threads.call(record_shares, term=ledger.term, shares=noted)
        for name, shares in moves.items():
            notes.move(name, shares, noted[name])
        self._waiting = {}
        ledger.set_shares({tenant(name): shares for name, shares in moves.items()})
        log.debug("grants_move", tenants=len(moves))
        return True

    def _fleet(self) -> Fleet:
        ledger = self._ledger
        return Fleet(policies=ledger.tenants, reserved=ledger.group_guarantees, pools=ledger.pools)
