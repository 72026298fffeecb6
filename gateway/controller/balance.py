"""Moves grants to where they are needed: what workers tell of their tenants' use, into shares for the ledger."""

import asyncio
import time
from collections.abc import Callable, Mapping

import structlog

from gateway.controller.demand import Demand, Fleet
from gateway.controller.grants import Shares
from gateway.controller.holders import tenant
from gateway.controller.ledger import Ledger
from tenants.contracts import WorkerStats

LOOK_SECONDS = 0.25  # as often as workers tell their use

log = structlog.get_logger("controller")


class Balance:
    """Owned by the fleet's loop.

    Args:
        ledger: gets the shares.
        moved: called when pushes may be due.
    """

    def __init__(self, ledger: Ledger, moved: Callable[[], None]) -> None:
        self._ledger = ledger
        self._moved = moved
        self._demand = Demand()

    def take(self, stats: WorkerStats) -> None:
        """Take a worker's newest statistics."""
        if stats.core_ready:
            self._demand.observe(stats.worker_id, stats.tenants, time.monotonic())

    def lose_sight(self, worker_id: str) -> None:
        """A worker's stream is gone."""
        self._demand.lose_sight(worker_id)

    def adopt(self) -> None:
        """Go on from what the workers hold, so that a new leader moves nothing that need not move."""
        held = {name: self._ledger.held_by_all(tenant(name)) for name in self._ledger.tenants}
        self._set(self._demand.adopt(held, self._fleet()))

    async def run(self) -> None:
        """Follow demand until cancelled."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            self._follow()

    def _follow(self) -> None:
        moves = self._demand.moves(self._fleet(), time.monotonic())
        if moves:
            log.debug("grants_move", tenants=len(moves))
            self._set(moves)
            self._moved()

    def _set(self, shares: Mapping[str, Shares]) -> None:
        self._ledger.set_shares({tenant(name): part for name, part in shares.items()})

    def _fleet(self) -> Fleet:
        ledger = self._ledger
        return Fleet(policies=ledger.tenants, reserved=ledger.group_guarantees, pools=ledger.pools)
