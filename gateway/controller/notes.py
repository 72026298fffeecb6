"""The most that each worker may hold of tenants' limits: noted before grants move, for a successor. Pure."""

from collections.abc import Collection, Mapping

from gateway.controller.demand import ONE
from gateway.controller.grants import Shares
from tenants.services.grants import Parts


class Notes:
    """What is in Postgres, and how limits are divided now.

    Args:
        noted: what predecessors have left, by tenant id.
    """

    def __init__(self, noted: Mapping[str, Parts]) -> None:
        self.noted: dict[str, Parts] = dict(noted)
        self._in_force: dict[str, Parts] = {}

    def most(self, tenant_id: str, shares: Shares, workers: Collection[str], *, is_settled: bool) -> Parts:
        """Return what to note before these shares come into force.

        It is the most of the new parts and those before; where a move before has not come to its end, or a
        predecessor's, what was noted for that still counts. `is_settled` tells that it has.
        """
        known = [_parts(shares), self._in_force.get(tenant_id, {})]
        if tenant_id not in self._in_force or not is_settled:
            known.append(self.noted.get(tenant_id, {}))
        return {
            worker: (
                max(parts[worker][0] for parts in known if worker in parts),
                max(parts[worker][1] for parts in known if worker in parts),
            )
            for worker in sorted(set().union(*known) & set(workers))
        }

    def move(self, tenant_id: str, shares: Shares, noted: Parts) -> None:
        """These shares are in force from now on, and this is noted."""
        self.noted[tenant_id] = noted
        self._in_force[tenant_id] = _parts(shares)


def _parts(shares: Shares) -> Parts:
    return {worker: (part / ONE, shares.running[worker] / ONE) for worker, part in shares.hard.items()}
