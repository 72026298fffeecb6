"""Sessions between two steps: turns that end are parked, calls are answered, what is over is let go.

    a sequence of a session ends ─▶ its chain of keys into the registry ─▶ blocks to host memory soon, to disk behind
    the next turn                   finds its blocks by what they hold, as any request does
    its time is over                its blocks are the least valuable ones of every tier, and gone before any other
    erase                           its requests end first; then no tier keeps what nobody else needs

Calls that look at many blocks are answered bit by bit, so that no step waits for a list. Times of sessions are unix
seconds: they outlive the process.
"""

import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple, Protocol

from engine.errors import InvariantError
from engine.memory.eviction.base import BlockKey
from engine.memory.eviction.returns import Returns
from engine.memory.sessions import Session, Sessions
from engine.memory.sessions_record import to_record
from engine.policy import TenantPolicy
from engine.request import FinishReason, TenantId
from engine.scheduler.restoring import Restoring
from engine.scheduler.sequence import SequenceState
from engine.scheduler.session_calls import (
    Prefetch,
    SessionAction,
    SessionAnswer,
    SessionCall,
    SessionChange,
    SessionQuery,
    SessionView,
)

if TYPE_CHECKING:
    from engine.scheduler.roster import Roster

_EXPIRED_A_STEP = 16  # sessions let go in one step
_MIN_KEYS = 1 << 16  # that all sessions may keep, however little there is to keep blocks in
_KEYS_A_BLOCK = 4  # the same for each block that a tier has room for: sessions share blocks, and some are gone
_GUESSES_A_STEP = 4  # sessions brought up because they are likely to go on soon
_MOST_UNREAD = 1024  # erasures that wait for a tenant's sessions to be read
_KEYS_A_STEP = 1024  # looked up for lists in one step: one or two milliseconds


class Tiers(Protocol):
    """Where blocks are, as sessions see it. Every call returns at once."""

    def park(self, keys: Sequence[BlockKey]) -> None:
        """Have blocks copied to host memory soon, and to disk behind that, as far as their owner's ceilings allow."""
        ...

    def prefetch(self, owner: TenantId, keys: Sequence[BlockKey]) -> None:
        """Bring a chain's blocks up, as far as that takes nothing from anybody who needs it more."""
        ...

    def demote(self, keys: Sequence[BlockKey]) -> None:
        """Make blocks the first to go, in host memory and on disk."""
        ...

    def erase(self, owner: TenantId, keys: Sequence[BlockKey], session: str = "") -> int:
        """Drop blocks from all tiers, but those that a live request holds, and a session's record.

        Returns a ticket for `take_erased`.
        """
        ...

    def take_erased(self) -> list[int]:
        """Return the tickets whose bytes have been overwritten everywhere, each once."""
        ...

    def where(self, key: BlockKey) -> tuple[bool, bool, bool]:
        """Say whether device, host memory and disk have a block."""
        ...

    def put_session(self, owner: TenantId, session: str, record: bytes) -> None:
        """Keep a session's record on disk, if there is one for the owner."""
        ...

    def drop_session(self, owner: TenantId, session: str) -> None:
        """Let a session's record go."""
        ...

    def sessions(self, owner: TenantId) -> list[tuple[str, bytes]] | None:
        """Return the records that an earlier process has left; None while the disk cannot be read."""
        ...

    def may_have_left(self, owner: TenantId) -> bool:
        """Say whether an earlier process may have left anything of an owner's."""
        ...


class Place(NamedTuple):
    """Where a session's blocks are; a block may be in several tiers."""

    length: int = 0  # leading blocks of which none is missing
    device: int = 0
    host: int = 0
    disk: int = 0


class _Erasure(NamedTuple):
    """A call whose answer waits for bytes to be overwritten."""

    call: SessionChange
    view: SessionView


@dataclass(slots=True)
class _Listing:
    """A list that is being made."""

    number: int
    tenant: TenantId
    left: deque[Session]  # to be looked at, in order
    made: list[SessionView]


class Parking:
    """The registry of sessions at work: told by the roster what begins and ends, asked from outside."""

    def __init__(self, roster: "Roster", tiers: Tiers, *, wall: Callable[[], float] = time.time) -> None:
        """Start without sessions.

        Args:
            roster: whose requests end when their session is erased.
            tiers: where blocks are kept.
            wall: unix seconds.
        """
        shape = roster.memory.shape
        self.sessions = Sessions(_MIN_KEYS)
        self.make_room(shape.num_blocks + shape.num_slabs)
        self.wall = wall
        self._roster = roster
        self._tiers = tiers
        self._restoring = Restoring(self.sessions, tiers)
        self._returns: Returns[tuple[TenantId, str]] = Returns()
        self._active: dict[tuple[TenantId, str], dict[SequenceState, None]] = {}
        self._deferred: list[SessionCall] = []  # until their tenant's sessions are restored
        self._unread: dict[tuple[TenantId, str], SessionChange] = {}  # erasures, until these can be read at all
        self._listings: deque[_Listing] = deque()
        self._erasures: dict[int, _Erasure] = {}  # by ticket
        self._num_erasing: Counter[TenantId] = Counter()  # of them
        self._answers: list[SessionAnswer] = []

    @property
    def is_busy(self) -> bool:
        """Whether the next step has work here, even if nothing runs."""
        return bool(self._listings or self._answers or self._restoring.is_busy)

    @property
    def is_waiting(self) -> bool:
        """Whether an erasure is under way, which ends by itself."""
        return bool(self._erasures)

    def make_room(self, num_blocks: int) -> None:
        """Let sessions keep more: a tier has come that has room for so many blocks."""
        self.sessions.max_keys += _KEYS_A_BLOCK * num_blocks

    # ------------------------------------------------------------ from the roster and from policies

    def entered(self, sequence: SequenceState) -> None:
        """Note that a sequence is here; one of a session keeps that from ending."""
        request = sequence.request
        if not request.session:
            return
        self._active.setdefault((request.tenant, request.session), {})[sequence] = None
        self._returns.began((request.tenant, request.session), self.wall())
        session = self.sessions.get(request.tenant, request.session)
        if session is not None:
            self.sessions.touch(session, self.wall())

    def set_aside(self, sequence: SequenceState) -> None:
        """Note what a preempted sequence has computed; call it while it still has its table.

        What it computes when it is back may be in other blocks: a prefix may have been registered meanwhile.
        """
        if sequence.request.session and sequence.tenant.policy is not None:
            self._note(sequence, self.wall())

    def left(self, sequence: SequenceState) -> None:
        """Park what a sequence leaves behind; call it while it still has its table."""
        request = sequence.request
        if not request.session:
            return
        active = self._active[request.tenant, request.session]
        del active[sequence]
        if not active:
            del self._active[request.tenant, request.session]
        if sequence.tenant.policy is None:  # all that is its tenant's is being given up
            return
        if sequence.admitted:
            self._park(sequence)
            self._await(request.tenant, request.session)
        elif (session := self.sessions.get(request.tenant, request.session)) is not None:
            self._write_down(session)  # its time has run anew

    def adopted(self, policy: TenantPolicy) -> None:
        """Bring back what an earlier process has left of a tenant's sessions, once its disk may be read."""
        if policy.disk_bytes and not policy.disk_locked:
            self._restoring.begin(policy.tenant)

    def forget(self, tenant: TenantId) -> None:
        """Forget a tenant's sessions: its blocks and records are gone, or on their way."""
        self._restoring.forget(tenant)
        self._listings = deque(one for one in self._listings if one.tenant != tenant)
        self.sessions.forget(tenant)

    # ------------------------------------------------------------ calls

    def take(self, call: SessionCall, now: float) -> None:
        """Take a call in; see `take_answers`."""
        if self._restoring.has(call.tenant):
            self._deferred.append(call)
            return
        if isinstance(call, SessionChange) and call.action is SessionAction.ERASE and self._is_unread(call.tenant):
            self._erase_later(call, now)
            return
        match call:
            case Prefetch():
                self._prefetch(self.sessions.get(call.tenant, call.session))
            case SessionQuery():
                self._query(call)
            case SessionChange():
                self._change(call, now)

    def advance(self, now: float) -> None:
        """Do what is due between two steps."""
        wall = self.wall()
        self._restoring.advance(wall)
        if self._deferred:
            calls, self._deferred = self._deferred, []
            for call in calls:
                self.take(call, now)
        for session in self.sessions.take_expired(wall, _EXPIRED_A_STEP, self._is_active):
            self._let_go(session)
        for tenant, name in self._returns.candidates(wall, _GUESSES_A_STEP):
            self._prefetch(self.sessions.get(tenant, name))
        if self._listings:
            self._look()
        self._hear_of_erasures()
        for known in [one for one in self._unread if not (self._is_unread(one[0]) or self._num_erasing[one[0]])]:
            self.take(self._unread.pop(known), now)

    def take_answers(self) -> list[SessionAnswer]:
        """Return the answers since the last call."""
        answers, self._answers = self._answers, []
        return answers

    # ------------------------------------------------------------ parts

    def _is_unread(self, tenant: TenantId) -> bool:
        """Say whether a disk that is away or locked may have sessions of a tenant that nobody here knows of yet.

        To erase one of them then would leave its blocks where they are, under names that nobody knows any more.
        """
        if self._restoring.has_begun(tenant) or not self._tiers.may_have_left(tenant):
            return False
        known = self._roster.tenants.get(tenant)
        policy = None if known is None else known.policy
        return policy is None or policy.disk_bytes > 0

    def _park(self, sequence: SequenceState) -> None:
        """End a sequence's part in its session's turn, and have the session's blocks copied down."""
        request, now = sequence.request, self.wall()
        is_whole = sequence.beams is None or sequence is sequence.beams.leader
        if is_whole and sequence.index == 0:
            self.sessions.ensure(request.tenant, request.session, now).num_turns += 1
        session = self._note(sequence, now)
        self._tiers.park(session.keys[session.num_head :])

    def _note(self, sequence: SequenceState, now: float) -> Session:
        """Add a sequence's sealed blocks to its session, and write that down."""
        request, table = sequence.request, sequence.table
        keys: list[BlockKey] = []
        num_head = 0
        if table is not None and table.chain is not None:
            keys, num_head = table.chain.keys[: table.num_sealed], min(table.num_head, table.num_sealed)
        session = self.sessions.ensure(request.tenant, request.session, now)
        lost = self.sessions.take_turn(session, keys, num_head, seconds=request.session_seconds, now=now)
        if lost:
            self._tiers.erase(request.tenant, lost)
        while (excess := self.sessions.find_excess(request.tenant)) is not None:
            self._let_go(excess)
        self._write_down(session)
        return session

    def _await(self, tenant: TenantId, name: str) -> None:
        """Have a session that nothing runs of wait for its next turn."""
        session = self.sessions.get(tenant, name)
        if session is not None and not self._is_active(session):
            self._returns.ended((tenant, name), session.num_turns, self.wall())

    def _let_go(self, session: Session) -> None:
        """Keep a session no longer: what it alone has kept is the first to go."""
        self._returns.forget((session.tenant, session.name))
        own = self.sessions.remove(session)
        self._tiers.demote(own)
        self._tiers.drop_session(session.tenant, session.name)

    def _write_down(self, session: Session) -> None:
        if self.sessions.get(session.tenant, session.name) is session:
            self._tiers.put_session(session.tenant, session.name, to_record(session))

    def _prefetch(self, session: Session | None) -> None:
        if session is not None:
            self._tiers.prefetch(session.tenant, session.keys[session.num_head :])

    def _query(self, query: SessionQuery) -> None:
        if query.session:
            session = self.sessions.get(query.tenant, query.session)
            found = deque([session] if session is not None else [])
        else:
            found = deque(islice(self.sessions.newest(query.tenant, query.before), query.limit))
        self._listings.append(_Listing(query.number, query.tenant, found, []))

    def _change(self, change: SessionChange, now: float) -> None:
        if change.action is SessionAction.ERASE:
            self._cancel(change, now)
        session = self.sessions.get(change.tenant, change.session)
        if session is None:
            if change.action is SessionAction.ERASE and self._num_erasing[change.tenant]:
                self._erase_later(change, now)  # who asks again is not told that it is gone before it is
            else:
                self._answer(change.number, change.tenant, ())
            return
        match change.action:
            case SessionAction.ERASE:
                self._erase(change, session)
                return
            case SessionAction.PIN:
                self.sessions.pin(session)
                self._write_down(session)
            case SessionAction.UNPIN:
                self.sessions.unpin(session, self.wall())
                self._write_down(session)
            case SessionAction.PREFETCH:
                self._prefetch(session)
        self._listings.append(_Listing(change.number, change.tenant, deque([session]), []))

    def _cancel(self, change: SessionChange, now: float) -> None:
        """End all requests of a session."""
        while active := self._active.get((change.tenant, change.session)):
            sequence = next(iter(active))
            leader = sequence if sequence.beams is None else sequence.beams.leader
            self._roster.finish(leader, FinishReason.CANCELLED, now)

    def _erase(self, change: SessionChange, session: Session) -> None:
        view = self._view(session, Place())
        own = self.sessions.remove(session)
        self._returns.forget((session.tenant, session.name))
        for listing in self._listings:  # those that were asked for before
            if session in listing.left:
                listing.left.remove(session)
        ticket = self._tiers.erase(change.tenant, own, session.name)
        self._erasures[ticket] = _Erasure(change, view)
        self._num_erasing[change.tenant] += 1

    def _erase_later(self, change: SessionChange, now: float) -> None:
        """Erase what is known of a session, and the rest when it can be read; the answer comes after that."""
        self._cancel(change, now)
        session = self.sessions.get(change.tenant, change.session)
        if session is not None:
            self._returns.forget((session.tenant, session.name))
            self._tiers.erase(change.tenant, self.sessions.remove(session))  # its record stays: it names the rest
        if len(self._unread) < _MOST_UNREAD:  # who is not answered asks again
            self._unread[change.tenant, change.session] = change

    def _hear_of_erasures(self) -> None:
        for ticket in self._tiers.take_erased():
            erasure = self._erasures.pop(ticket, None)
            if erasure is not None:
                self._num_erasing -= Counter((erasure.call.tenant,))
                self._answer(erasure.call.number, erasure.call.tenant, (erasure.view,))

    def _look(self) -> None:
        """Go on with the lists, up to so many keys."""
        left = _KEYS_A_STEP
        while self._listings:
            listing = self._listings[0]
            while listing.left and left > 0:
                session = listing.left.popleft()
                left -= 1 + len(session.keys)
                if self.sessions.get(session.tenant, session.name) is session:
                    listing.made.append(self._view(session, self._place(session)))
            if listing.left:
                return
            self._listings.popleft()
            self._answer(listing.number, listing.tenant, tuple(listing.made))

    def _place(self, session: Session) -> Place:
        """Look up where a session's blocks are."""
        where = self._tiers.where
        device = host = disk = 0
        length, is_whole = 0, True
        for key in session.keys:
            on_device, in_host, on_disk = where(key)
            device, host, disk = device + on_device, host + in_host, disk + on_disk
            is_whole = is_whole and (on_device or in_host or on_disk)
            length += is_whole
        return Place(length, device, host, disk)

    def _view(self, session: Session, place: Place) -> SessionView:
        shape = self._roster.memory.shape
        return SessionView(
            session=session.name,
            num_tokens=place.length * shape.block_size,
            device_bytes=place.device * shape.block_bytes,
            host_bytes=place.host * shape.block_bytes,
            disk_bytes=place.disk * shape.block_bytes,
            num_turns=session.num_turns,
            created_at=session.created_at,
            last_used_at=session.last_used_at,
            expires_at=0.0 if session.pinned else session.expires_at,
            pinned=session.pinned,
            active=self._is_active(session),
        )

    def _is_active(self, session: Session) -> bool:
        return (session.tenant, session.name) in self._active

    def _answer(self, number: int, tenant: TenantId, views: tuple[SessionView, ...]) -> None:
        self._answers.append(SessionAnswer(number=number, sessions=views, num_sessions=self.sessions.count(tenant)))

    def audit(self) -> None:
        """Check the registry, and that exactly the sessions of sequences that are here are active."""
        self.sessions.audit()
        active: dict[tuple[TenantId, str], set[int]] = {}
        for sequence in self._roster.sequences.values():
            request = sequence.request
            if request.session:
                active.setdefault((request.tenant, request.session), set()).add(sequence.id)
        if {name: {one.id for one in own} for name, own in self._active.items()} != active:
            raise InvariantError("a session is active without a request, or the other way round")
