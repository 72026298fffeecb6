"""Sessions: which blocks a conversation's next turn will ask for, until when they are kept, and whose they are.

    turn ends ──▶ kept ── next turn ──▶ kept, its time anew ── time is over, or room is needed ──▶ blocks like any other
                   │ pinned: no time                        └── erased ──▶ no tier has its bytes

A session knows the keys of its last turn's blocks (its chain) and of branches that earlier turns left behind (strays):
an erasure must find them all. The registry finds no block for anybody: the next turn finds them by what they hold, as
any request does. It says what is worth keeping (`keeps`), what could come back, and what has to go.

The keys that are kept are bounded, 200 bytes each at most: who has most of them gives up first.
"""

import heapq
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise

from engine.errors import InvariantError
from engine.memory.eviction.base import BlockKey
from engine.request import TenantId

MAX_SESSIONS = 10_000  # of one tenant
MAX_STRAYS = 256  # keys of left branches that a session remembers at least; it may remember as many as its chain has
DEFAULT_SECONDS = 3600.0
MAX_SECONDS = 30 * 86400.0
_TICK = 1e-6  # between two uses of a tenant's sessions: what was last used when is an order


class Session:
    """One conversation of a tenant. Only `Sessions` changes it; others read. Times are unix seconds."""

    __slots__ = (
        "created_at",
        "expires_at",
        "keys",
        "last_used_at",
        "name",
        "num_head",
        "num_turns",
        "pinned",
        "seconds",
        "strays",
        "tenant",
        "timer",
    )

    def __init__(self, tenant: TenantId, name: str, now: float) -> None:
        self.tenant = tenant
        self.name = name
        self.keys: list[BlockKey] = []  # of the last turn's full blocks, in order
        self.num_head = 0  # of them, leading ones that belong to a share group
        self.strays: dict[BlockKey, None] = {}  # of turns that the last one does not continue, the oldest first
        self.num_turns = 0
        self.created_at = self.last_used_at = now
        self.seconds = DEFAULT_SECONDS  # that it is kept after a turn
        self.expires_at = now + DEFAULT_SECONDS
        self.pinned = False
        self.timer = 0.0  # of its entry among the timers; 0: it has none

    @property
    def own_keys(self) -> Iterator[BlockKey]:
        """The keys of the tenant's own blocks, those of left branches too."""
        yield from self.keys[self.num_head :]
        yield from self.strays

    @property
    def num_keys(self) -> int:
        """Keys that it has."""
        return len(self.keys) + len(self.strays)


class _Tenant:
    """One tenant's sessions."""

    __slots__ = ("by_name", "latest", "num_keys")

    def __init__(self) -> None:
        self.by_name: OrderedDict[str, Session] = OrderedDict()  # the least recently used first
        self.num_keys = 0
        self.latest = 0.0  # when one of them was last used


class Sessions:
    """All sessions of a worker. Every call costs what it changes, whatever the number of sessions."""

    def __init__(self, max_keys: int, *, max_sessions: int = MAX_SESSIONS) -> None:
        """Start without any.

        Args:
            max_keys: that all sessions may keep together; keys of blocks that no tier could hold are no use.
            max_sessions: of one tenant.
        """
        self.max_keys = max_keys
        self._max_sessions = max_sessions
        self._tenants: dict[TenantId, _Tenant] = {}
        self._users: dict[BlockKey, int] = {}  # sessions that have a key
        self._timers: list[tuple[float, int, Session]] = []  # a heap
        self._number = 0  # of the last timer: sessions have no order of their own
        self.num_sessions = 0
        self.num_keys = 0  # of all of them

    def __iter__(self) -> Iterator[Session]:
        for tenant in self._tenants.values():
            yield from tenant.by_name.values()

    def count(self, tenant: TenantId) -> int:
        """Return how many sessions a tenant has."""
        known = self._tenants.get(tenant)
        return 0 if known is None else len(known.by_name)

    def get(self, tenant: TenantId, name: str) -> Session | None:
        """Return a session, or None."""
        known = self._tenants.get(tenant)
        return None if known is None else known.by_name.get(name)

    def newest(self, tenant: TenantId, before: float = 0.0) -> Iterator[Session]:
        """Iterate over a tenant's sessions, the last used first; only those last used before a moment, if it is given.

        Not over a change of the registry.
        """
        known = self._tenants.get(tenant)
        for session in reversed(known.by_name.values()) if known is not None else ():
            if not before or session.last_used_at < before:
                yield session

    def keeps(self, key: BlockKey) -> bool:
        """Say whether a session's next turn may ask for a block."""
        return key in self._users

    # ------------------------------------------------------------ turns

    def ensure(self, tenant: TenantId, name: str, now: float) -> Session:
        """Return a session, new if it was not known. Call `find_excess` once its first turn has been taken in."""
        return self.get(tenant, name) or self._add(Session(tenant, name, now))

    def take_turn(
        self, session: Session, keys: Sequence[BlockKey], num_head: int, *, seconds: float, now: float
    ) -> list[BlockKey]:
        """Note what a turn has left. Where another turn has kept more of the same meanwhile, that stays.

        Args:
            session: whose turn it was.
            keys: of the full blocks of prompt and output.
            num_head: how many of them belong to a share group.
            seconds: how long it is kept from now on; 0: `DEFAULT_SECONDS`.
            now: unix seconds.

        Returns:
            Keys of its own that it remembers no longer: nothing would find their blocks at an erasure.
        """
        session.seconds = min(seconds or DEFAULT_SECONDS, MAX_SECONDS)
        self._follow(session, keys, num_head)
        self.touch(session, now)
        return self._forget_strays(session)

    def touch(self, session: Session, now: float) -> None:
        """Note that a session is in use: it is the last used one, and its time runs anew."""
        tenant = self._tenants[session.tenant]
        tenant.by_name.move_to_end(session.name)
        session.last_used_at = tenant.latest = max(now, tenant.latest + _TICK)
        self._run_anew(session, now)

    def pin(self, session: Session) -> None:
        """Let a session's time never end."""
        session.pinned = True

    def unpin(self, session: Session, now: float) -> None:
        """Let a session's time run, from now on."""
        session.pinned = False
        self._run_anew(session, now)

    def restore(self, session: Session, keys: Sequence[BlockKey], strays: Iterable[BlockKey]) -> Session:
        """Add a session of an earlier process, as the least recently used one.

        Where it has begun anew meanwhile, what the earlier one knew is added to that. Returns the one that is there.
        """
        known = self.get(session.tenant, session.name)
        if known is not None:
            known.num_turns += session.num_turns
            known.created_at = min(known.created_at, session.created_at)
            self._hold_strays(known, [*strays, *keys[session.num_head :]])
            return known
        others = self._tenants.get(session.tenant)
        if others is not None:
            oldest = next(iter(others.by_name.values()))
            session.last_used_at = min(session.last_used_at, oldest.last_used_at - _TICK)
        self._add(session)
        tenant = self._tenants[session.tenant]
        tenant.by_name.move_to_end(session.name, last=False)
        tenant.latest = max(tenant.latest, session.last_used_at)
        self._follow(session, keys, session.num_head)
        self._hold_strays(session, strays)
        self._set_timer(session)
        return session

    # ------------------------------------------------------------ ends

    def take_expired(self, now: float, limit: int, is_active: Callable[[Session], bool]) -> list[Session]:
        """Return up to `limit` sessions whose time is over, to be removed; that of an active one runs anew."""
        expired: list[Session] = []
        while self._timers and self._timers[0][0] <= now and len(expired) < limit:
            at, _, session = heapq.heappop(self._timers)
            if session.timer != at:
                continue  # gone, or it has an earlier timer
            session.timer = 0.0
            if session.pinned:
                continue
            if session.expires_at > now:
                self._set_timer(session)
            elif is_active(session):
                self._run_anew(session, now)
            else:
                expired.append(session)
        return expired

    def find_excess(self, tenant: TenantId) -> Session | None:
        """Return a session that has to be removed for others to have room; None when all have.

        A tenant with too many loses the least recently used one that is not pinned, or that is. So does, while there
        are too many keys, the tenant that has most.
        """
        if self.count(tenant) <= self._max_sessions:
            if self.num_keys <= self.max_keys:
                return None
            tenant = max(self._tenants, key=lambda one: self._tenants[one].num_keys)
        sessions = self._tenants[tenant].by_name.values()
        return next((one for one in sessions if not one.pinned), None) or next(iter(sessions))

    def remove(self, session: Session) -> list[BlockKey]:
        """Remove a session; return the keys of its own that no other session has."""
        tenant = self._tenants[session.tenant]
        if tenant.by_name.pop(session.name, None) is not session:
            raise InvariantError(f"session {session.name} of {session.tenant} is removed twice")
        own = [key for key in session.own_keys if self._users[key] == 1]
        for key in (*session.keys, *session.strays):
            self._let_go(session, key)
        session.timer = 0.0
        self.num_sessions -= 1
        if not tenant.by_name:
            del self._tenants[session.tenant]
        return own

    def forget(self, tenant: TenantId) -> None:
        """Remove all sessions of a tenant."""
        for session in list(self.newest(tenant)):
            self.remove(session)

    # ------------------------------------------------------------ parts

    def _add(self, session: Session) -> Session:
        tenant = self._tenants.get(session.tenant)
        if tenant is None:
            tenant = self._tenants[session.tenant] = _Tenant()
        tenant.by_name[session.name] = session
        self.num_sessions += 1
        return session

    def _follow(self, session: Session, keys: Sequence[BlockKey], num_head: int) -> None:
        """Let a session's chain be what a turn has left, unless it is a part of the chain that is there."""
        common = _num_common(session.keys, keys)
        if common == len(keys):
            return
        left, own = session.keys[common:], max(0, session.num_head - common)
        del session.keys[common:]
        for key in left[:own]:
            self._let_go(session, key)
        session.strays.update(dict.fromkeys(left[own:]))
        for key in keys[common:]:
            if key in session.strays:
                del session.strays[key]
            else:
                self._hold(session, key)
            session.keys.append(key)
        session.num_head = num_head

    def _hold_strays(self, session: Session, keys: Iterable[BlockKey]) -> None:
        """Remember keys of branches that a session has left."""
        chain = set(session.keys)
        for key in keys:
            if key not in chain and key not in session.strays:
                self._hold(session, key)
                session.strays[key] = None

    def _forget_strays(self, session: Session) -> list[BlockKey]:
        """Forget a session's oldest strays above the limit; return those that no other session has."""
        lost: list[BlockKey] = []
        for _ in range(len(session.strays) - max(MAX_STRAYS, len(session.keys))):
            key = next(iter(session.strays))
            del session.strays[key]
            if self._users[key] == 1:
                lost.append(key)
            self._let_go(session, key)
        return lost

    def _hold(self, session: Session, key: BlockKey) -> None:
        """Count a key for a session."""
        self._users[key] = self._users.get(key, 0) + 1
        self._tenants[session.tenant].num_keys += 1
        self.num_keys += 1

    def _let_go(self, session: Session, key: BlockKey) -> None:
        self._users[key] -= 1
        if not self._users[key]:
            del self._users[key]
        self._tenants[session.tenant].num_keys -= 1
        self.num_keys -= 1

    def _run_anew(self, session: Session, now: float) -> None:
        session.expires_at = now + session.seconds
        self._set_timer(session)

    def _set_timer(self, session: Session) -> None:
        """Have a timer that is not too late for a session; one that is too early is put off when it comes."""
        if session.pinned or (session.timer and session.timer <= session.expires_at):
            return
        session.timer = session.expires_at
        self._push_timer(session)
        if len(self._timers) > 2 * self.num_sessions + 64:  # timers of sessions that are gone must not pile up
            kept = [session for at, _, session in self._timers if session.timer == at]
            self._timers.clear()
            for one in kept:
                self._push_timer(one)

    def _push_timer(self, session: Session) -> None:
        self._number += 1
        heapq.heappush(self._timers, (session.timer, self._number, session))

    # ------------------------------------------------------------ proof

    def audit(self) -> None:
        """Recount keys, sessions and timers. Raises InvariantError."""
        users: Counter[BlockKey] = Counter()
        for name, tenant in self._tenants.items():
            sessions = list(tenant.by_name.values())
            if not 0 < len(sessions) <= self._max_sessions:
                raise InvariantError(f"{name} has {len(sessions)} sessions")
            if sum(session.num_keys for session in sessions) != tenant.num_keys:
                raise InvariantError(f"{name} counts {tenant.num_keys} keys of sessions, and has others")
            uses = [*(session.last_used_at for session in sessions), tenant.latest + _TICK]
            if any(later <= earlier for earlier, later in pairwise(uses)):
                raise InvariantError(f"sessions of {name} are not in the order of their use")
            for session in sessions:
                held = {*session.keys, *session.strays}
                if len(held) != session.num_keys:
                    raise InvariantError(f"session {session.name} of {name} has a key twice")
                users.update(held)
        if users != self._users:
            raise InvariantError("a key has more sessions, or fewer, than count it")
        if self.num_keys != users.total() or self.num_sessions != len(list(self)):
            raise InvariantError("sessions or their keys are counted wrong")
        timed = {id(session) for at, _, session in self._timers if session.timer == at}
        if any(not session.pinned and id(session) not in timed for session in self):
            raise InvariantError("a session's time never ends")


def _num_common(some: Sequence[BlockKey], others: Sequence[BlockKey]) -> int:
    """Return how many leading keys two chains have in common: where one key is the same, so are all before it."""
    low, high = 0, min(len(some), len(others))
    while low < high:
        middle = (low + high + 1) // 2
        if some[middle - 1] == others[middle - 1]:
            low = middle
        else:
            high = middle - 1
    return low
