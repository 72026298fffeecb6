"""Which worker a tenant's limits are needed on: shares of its limits that follow what it uses and what waits. Pure.

    stats of workers ──▶ observe ──▶ a need for each (tenant, worker): rises at once, falls by half each HALF_LIFE
    needs ──▶ target: FLOOR of a limit by the pools, the rest by the needs ──▶ moves, damped ──▶ ledger ──▶ pushes

Need, in bytes: what the tenant's requests hold, a little of what is only cached, and for what waits as much as a
request of the tenant holds on average; more the longer it waits, and more than all that is granted where nothing can
start. In places: what runs and what waits. A tenant that needs nothing anywhere has its limits by the pools.

A share moves when something waits on a worker and the move helps (WAITING), when a worker is about to be short (SHORT),
when the shares are far from the needs (FAR), or a little off for long (NEAR). Between two moves of a tenant lies a
pause, the longer the less it matters, so that noise moves nothing.

Guarantees follow as far as there is room: what all guarantees on one worker may come to is its pool's low watermark,
and each owner's part by the pools stays free for it there, so that a guarantee can always go home.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from gateway.controller.grants import Shares
from gateway.controller.holders import Amounts
from tenants.contracts import PolicyView
from tenants.reports import TenantUse
from tenants.rules.policy import LOW_WATERMARK

FLOOR = 1 / 8  # of bytes and places, by the pools whatever is needed: what comes to a quiet worker starts at once
QUEUE_FLOOR = 1 / 2  # of places in the queue: a burst is refused for want of them, not delayed
CACHED = 1 / 8  # of what is only cached counts as needed
HALF_LIFE = 0.7  # seconds
AGEING = 2.0  # seconds of waiting that count as one more request
MOST_AGEING = 8.0
ONE = 1 << 20  # shares are whole parts of it

WAITING, WAITING_PAUSE = 0.02, 0.5  # change of a share, and seconds since the last move of this tenant
SHORT, SHORT_PAUSE = 0.1, 1.0
FAR, FAR_PAUSE = 0.15, 2.0
NEAR, NEAR_PAUSE = 0.08, 10.0


@dataclass(slots=True)
class _Need:
    """What one tenant needs on one worker."""

    num_bytes: float = 0.0  # held, or needed lately
    waits: float = 0.0  # requests that wait; more the longer they do
    places: float = 0.0
    running: int = 0
    at: float = 0.0

    def take(self, num_bytes: float, places: float, now: float) -> None:
        """Rise at once, fall slowly."""
        fade = 0.5 ** (max(0.0, now - self.at) / HALF_LIFE)
        self.num_bytes = max(num_bytes, _faded(self.num_bytes * fade, least=1.0))
        self.places = max(places, _faded(self.places * fade, least=0.01))
        self.at = now


@dataclass(slots=True)
class _Tenant:
    """A tenant's needs, and the shares that it has."""

    needs: dict[str, _Need] = field(default_factory=dict)
    num_bytes: dict[str, float] = field(default_factory=dict)  # its share of bytes by worker, together 1; empty: pools
    places: dict[str, float] = field(default_factory=dict)
    soft_follows: float = 0.0  # how far its guarantee follows its bytes, 0 to 1
    moved_at: float = -math.inf  # or first seen


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """Those who hold limits, and the workers among which these are divided."""

    policies: Mapping[str, PolicyView]  # by tenant
    reserved: int  # guarantees that do not move, those of share groups, in bytes
    pools: Mapping[str, int]  # in bytes, by worker

    def home(self) -> dict[str, float]:
        """Return each worker's part of all pools; nothing where there is nothing to divide among."""
        if len(self.pools) < 2 or not any(self.pools.values()):
            return {}
        return _normal({worker: float(size) for worker, size in self.pools.items()})


class Demand:
    """Needs and shares of all tenants. Owned by the fleet's loop; `now` is any clock that only goes forward."""

    def __init__(self) -> None:
        self._tenants: dict[str, _Tenant] = {}

    def observe(self, worker: str, uses: Iterable[TenantUse], now: float) -> None:
        """Take what tenants use on one worker now; who is not named uses nothing there."""
        named = set()
        for use in uses:
            named.add(use.tenant_id)
            _take(self._tenants.setdefault(use.tenant_id, _Tenant(moved_at=now)), worker, use, now)
        for tenant_id, tenant in self._tenants.items():
            if tenant_id not in named and (need := tenant.needs.get(worker)) is not None:
                need.waits, need.running = 0.0, 0
                need.take(0.0, 0.0, now)

    def lose_sight(self, worker: str) -> None:
        """A worker says nothing any more: what it held it may hold still, what waited there draws no more to it."""
        for tenant in self._tenants.values():
            if worker in tenant.needs:
                tenant.needs[worker].waits = 0.0

    def adopt(self, held: Mapping[str, Mapping[str, Amounts]], fleet: Fleet) -> dict[str, Shares]:
        """Go on from what tenants' workers hold ({tenant id: {worker: amounts}}), as a predecessor has divided it.

        Returns:
            The shares of those whose limits are not just divided by the pools.
        """
        self._forget_gone(fleet)  # workers may have told of their use already
        home = fleet.home()
        moved = set()
        for tenant_id, by_worker in held.items():
            num_bytes = {worker: float(amounts.kv_hard_bytes) for worker, amounts in by_worker.items()}
            places = {worker: float(amounts.max_running) for worker, amounts in by_worker.items()}
            if not any(num_bytes.values()) or not any(places.values()):
                continue  # nobody has granted it anything yet
            tenant = _Tenant(num_bytes=_normal(num_bytes), places=_normal(places))
            self._tenants[tenant_id] = tenant
            if home and _change(tenant.num_bytes, home) >= WAITING:
                moved.add(tenant_id)
        return self._shares(moved, fleet, home)

    def moves(self, fleet: Fleet, now: float) -> dict[str, Shares]:
        """Return the new shares of the tenants whose limits move now; `now` in seconds."""
        self._forget_gone(fleet)
        home = fleet.home()
        if not home:
            return {}
        moved = {
            tenant_id
            for tenant_id, tenant in self._tenants.items()
            if _move(tenant, fleet.policies[tenant_id], home, now)
        }
        return self._shares(moved, fleet, home)

    def _forget_gone(self, fleet: Fleet) -> None:
        for tenant_id in self._tenants.keys() - fleet.policies.keys():
            del self._tenants[tenant_id]

    def _shares(self, moved: set[str], fleet: Fleet, home: Mapping[str, float]) -> dict[str, Shares]:
        if not moved and not any(tenant.soft_follows for tenant in self._tenants.values()):
            return {}
        for tenant_id in moved:
            self._tenants[tenant_id].soft_follows = 0.0
        room = _Room(self._tenants, fleet, home)
        return {tenant_id: room.shares(tenant_id) for tenant_id in sorted(moved | room.send_home())}


def _move(tenant: _Tenant, policy: PolicyView, home: Mapping[str, float], now: float) -> bool:
    """Bring a tenant's shares to what it needs; tell whether they have moved."""
    for worker in tenant.needs.keys() - home.keys():
        del tenant.needs[worker]
    is_other_fleet = bool(tenant.num_bytes) and tenant.num_bytes.keys() != home.keys()
    if is_other_fleet:
        tenant.num_bytes, tenant.places = {}, {}
    wants = _target(tenant, policy, home)
    has = (tenant.num_bytes or home, tenant.places or home)
    if not is_other_fleet and not _is_due(tenant, policy, wants, has, now):
        return False
    (tenant.num_bytes, tenant.places), tenant.moved_at = wants, now
    return True


class _Room:
    """How far guarantees may follow: the sum on a worker stays under its low watermark."""

    def __init__(self, tenants: Mapping[str, _Tenant], fleet: Fleet, home: Mapping[str, float]) -> None:
        self._tenants, self._policies, self._home = tenants, fleet.policies, home
        guaranteed = fleet.reserved + sum(policy.kv_soft_bytes for policy in fleet.policies.values())
        self._left = {worker: fleet.pools[worker] * LOW_WATERMARK - guaranteed * part for worker, part in home.items()}
        for tenant_id, tenant in tenants.items():
            self._spend(tenant_id, tenant.soft_follows)

    def send_home(self) -> set[str]:
        """Send guarantees home from workers that have no room; return the tenants whose shares that changes."""
        sent = set()
        for tenant_id, tenant in self._tenants.items():
            if tenant.soft_follows and any(self._left[worker] < 0 for worker in self._gains(tenant_id)):
                self._spend(tenant_id, -tenant.soft_follows)
                tenant.soft_follows = 0.0
                sent.add(tenant_id)
        return sent

    def shares(self, tenant_id: str) -> Shares:
        """Return a tenant's shares, its guarantee following as far as there is room now."""
        tenant = self._tenants[tenant_id]
        gains = self._gains(tenant_id)
        tenant.soft_follows = min((max(0.0, self._left[worker]) / gain for worker, gain in gains.items()), default=0.0)
        tenant.soft_follows = follows = min(1.0, tenant.soft_follows)
        self._spend(tenant_id, follows)
        has, places = tenant.num_bytes or self._home, tenant.places or self._home
        soft = {worker: part + follows * (has[worker] - part) for worker, part in self._home.items()}
        more = 1 - (1 - QUEUE_FLOOR) / (1 - FLOOR)
        queued = {worker: part + more * (self._home[worker] - part) for worker, part in places.items()}
        return Shares(soft=_whole(soft), hard=_whole(has), running=_whole(places), queued=_whole(queued))

    def _gains(self, tenant_id: str) -> dict[str, float]:
        """Return by how many bytes a guarantee that follows wholly passes its part by the pools, by worker."""
        soft, has = self._policies[tenant_id].kv_soft_bytes, self._tenants[tenant_id].num_bytes
        more = {worker: soft * (has.get(worker, part) - part) for worker, part in self._home.items()}
        return {worker: gain for worker, gain in more.items() if gain > 0}

    def _spend(self, tenant_id: str, follows: float) -> None:
        for worker, gain in self._gains(tenant_id).items():
            self._left[worker] -= gain * follows


def _take(tenant: _Tenant, worker: str, use: TenantUse, now: float) -> None:
    need = tenant.needs.setdefault(worker, _Need(at=now))
    is_active = use.running > 0 or use.queued > 0 or use.output_tokens_per_second > 0
    cached = min(use.kv_cached_bytes, use.kv_bytes)
    holds = max(use.kv_bytes, use.kv_peak_bytes) if is_active else use.kv_bytes - cached + cached * CACHED
    need.running = use.running
    need.waits = use.queued * min(MOST_AGEING, 1 + use.oldest_wait_seconds / AGEING)
    need.take(holds, max(use.running, float(is_active)), now)


def _target(
    tenant: _Tenant, policy: PolicyView, home: Mapping[str, float]
) -> tuple[dict[str, float], dict[str, float]]:
    """Return the shares of bytes and of places that fit what the tenant needs."""
    running = sum(need.running for need in tenant.needs.values())
    held = sum(need.num_bytes for need in tenant.needs.values() if need.running)
    usual = min(held / running, policy.kv_hard_bytes) if running and held else policy.kv_hard_bytes / 8
    num_bytes, places = {}, {}
    for worker in home:
        need = tenant.needs.get(worker, _Need())
        num_bytes[worker] = need.num_bytes + need.waits * usual
        if need.waits and not need.running:  # nothing can start: what is granted does not do
            num_bytes[worker] = max(num_bytes[worker], 2 * policy.kv_hard_bytes * (tenant.num_bytes or home)[worker])
        places[worker] = need.places + need.waits
    return _blend(num_bytes, home), _blend(places, home)


def _blend(needs: Mapping[str, float], home: Mapping[str, float]) -> dict[str, float]:
    if not any(needs.values()):
        return dict(home)
    return {worker: FLOOR * home[worker] + (1 - FLOOR) * part for worker, part in _normal(needs).items()}


def _is_due(
    tenant: _Tenant,
    policy: PolicyView,
    wants: tuple[Mapping[str, float], Mapping[str, float]],
    has: tuple[Mapping[str, float], Mapping[str, float]],
    now: float,
) -> bool:
    paused = now - tenant.moved_at
    change = max(_change(want, have) for want, have in zip(wants, has, strict=True))
    if (change >= FAR and paused >= FAR_PAUSE) or (change >= NEAR and paused >= NEAR_PAUSE):
        return True
    for worker, need in tenant.needs.items():
        gain = max(want[worker] - have[worker] for want, have in zip(wants, has, strict=True))
        if need.waits and gain >= WAITING and paused >= WAITING_PAUSE:
            return True
        is_short = _is_short(need, policy, has[0][worker], has[1][worker])
        if is_short and gain >= SHORT and paused >= SHORT_PAUSE:
            return True
    return False


def _change(wants: Mapping[str, float], has: Mapping[str, float]) -> float:
    return max(abs(want - has[worker]) for worker, want in wants.items())


def _is_short(need: _Need, policy: PolicyView, num_bytes: float, places: float) -> bool:
    """Tell whether a worker soon has no more bytes or places for the tenant."""
    return need.num_bytes > 0.8 * policy.kv_hard_bytes * num_bytes or need.places > 0.8 * policy.max_running * places


def _faded(amount: float, *, least: float) -> float:
    return amount if amount >= least else 0.0


def _normal(parts: Mapping[str, float]) -> dict[str, float]:
    total = sum(parts.values())
    return {worker: part / total for worker, part in parts.items()}


def _whole(shares: Mapping[str, float]) -> dict[str, int]:
    return {worker: round(part * ONE) for worker, part in shares.items()}
