"""Every request and tenant of this worker, and the moves between a request's states.

    HELD ──▶ WAITING ──▶ RUNNING ──▶ ENDED        any state may go to ENDED
               │  ▲        │
               ▼  └────────┘ preempted, keeps tokens and place
             PARKED ──▶ WAITING on a change of policy
             FETCHING ──▶ WAITING at its place, when the disk has answered

The roster moves; it decides nothing.
"""

from engine.memory.accounts import AccountOwner, ShareGroupId
from engine.memory.manager import KVMemory
from engine.memory.table import BlockTable
from engine.request import FinishReason, GenerationRequest, SequenceId, TenantId
from engine.scheduler.audit import audit
from engine.scheduler.beam_group import BeamGroup
from engine.scheduler.fairness import lift
from engine.scheduler.fetching import Fetching
from engine.scheduler.interference import Interference
from engine.scheduler.joining import Prefills
from engine.scheduler.outputs import OutputExtras, Refusal, RequestOutput
from engine.scheduler.parking import Parking
from engine.scheduler.pressure_score import PressureGauge
from engine.scheduler.searching import gather, report_end
from engine.scheduler.sequence import SequenceGroup, SequenceState, State
from engine.scheduler.step_time import StepTimeModel
from engine.scheduler.streaming import Streaming
from engine.scheduler.swap_cost import Swapping
from engine.scheduler.tenant import Tenant
from engine.scheduler.timers import Timers
from engine.scheduler.watcher import RequestWatcher

_STREAM = 0x9E3779B97F4A7C15  # distance of the random streams of a request's outputs
_KEY_MASK = (1 << 64) - 1


def fork_key(key: int, index: int) -> int:
    """Return the random stream of a request's output `index`, given the request's own: that of output 0."""
    return (key + index * _STREAM) & _KEY_MASK


class Roster:
    """Owner of all sequences' and tenants' states."""

    def __init__(self, memory: KVMemory, budget: int, step_time: StepTimeModel) -> None:
        self.memory = memory
        self.tenants: dict[TenantId, Tenant] = {}
        self.busy: dict[TenantId, Tenant] = {}  # with at least one request
        self.waiting: dict[TenantId, Tenant] = {}  # with at least one request in line
        self.sequences: dict[SequenceId, SequenceState] = {}
        self.groups: dict[SequenceId, SequenceGroup] = {}  # of requests with several outputs, by handle
        self.searches: dict[SequenceId, BeamGroup] = {}  # beam searches that run, by handle
        self.running: list[SequenceState] = []  # in order of admission
        self.num_embeds = 0  # of them, those of requests to embed
        self.max_running = min(memory.shape.max_rows, budget)  # sequences: every decode moves in every step
        self.held: dict[SequenceId, SequenceState] = {}
        self.timers = Timers()
        self.num_preemptions = 0
        self.prefills = Prefills(memory.shape.block_size, budget)
        self.interference = Interference(self._is_here)
        self.pressure = PressureGauge(memory)
        self.swapping = Swapping(memory, step_time, self.interference)
        self.fetching = Fetching(self)
        self.parking = Parking(self, memory.tiers)
        self.streaming = Streaming(self)
        self.watcher: RequestWatcher | None = None  # who is told of each request's turns
        self._events: list[RequestOutput] = []
        self._next_number = 0
        self._next_fork = -1  # id of the next output that forks; requests have positive ids
        self._floor = 0.0  # counter of the last tenant that fell idle

    def tenant(self, name: TenantId) -> Tenant:
        """Return the tenant, new if it was not known."""
        tenant = self.tenants.get(name)
        if tenant is None:
            tenant = self.tenants[name] = Tenant(name)
        return tenant

    def enter(self, sequence: SequenceId, request: GenerationRequest) -> SequenceState:
        """Take a request in, HELD; its tenant wakes with its first one."""
        tenant = self.tenant(request.tenant)
        if tenant.num_live == 0:
            lift(tenant, self.busy.values(), self._floor)
            self.busy[tenant.name] = tenant
        tenant.num_live += 1
        state = SequenceState(sequence, request, tenant, self._next_number)
        self._next_number += request.n  # its other outputs stand right behind it
        if request.beams is not None:
            state.beams = BeamGroup(state, self.memory.shape.block_size)
        self.sequences[sequence] = state
        self.parking.entered(state)
        if self.watcher is not None:
            self.watcher.submitted(state)
        self._hold(state)
        self.timers.set(state, request.deadline)
        return state

    def hold(self, sequence: SequenceState, until: float) -> None:
        """Keep a request out of the lines until its tenant has a policy, at most until `until`."""
        self._leave(sequence)
        sequence.state = State.HELD
        self._hold(sequence)
        self._limit(sequence, until)

    def queue(self, sequence: SequenceState) -> None:
        """Put a request in its tenant's line, at the place that its arrival gives it."""
        self._leave(sequence)
        sequence.state = State.WAITING
        sequence.tenant.lines[sequence.rank].add(sequence)
        sequence.tenant.num_ahead += sequence.num_asked - 1
        self.waiting[sequence.tenant.name] = sequence.tenant
        self.timers.set(sequence, sequence.request.deadline)

    def park(self, sequence: SequenceState, refusal: Refusal, until: float) -> None:
        """Set a request aside that cannot fit as things are, at most until `until`."""
        self._leave(sequence)
        sequence.state = State.PARKED
        sequence.refusal = refusal
        sequence.tenant.parked[sequence.number] = sequence
        sequence.tenant.num_ahead += sequence.num_asked - 1
        self._limit(sequence, until)

    def fetch(self, sequence: SequenceState) -> None:
        """Take a request out of its line while its beginning is on its way from the disk."""
        self._leave(sequence)
        sequence.state = State.FETCHING
        sequence.tenant.num_ahead += sequence.num_asked - 1

    def start(self, sequence: SequenceState, table: BlockTable, now: float) -> None:
        """Let a waiting request run on a new block table. Its other outputs get in line when it first does."""
        self._leave(sequence)
        sequence.state = State.RUNNING
        sequence.table = table
        sequence.tenant.running.append(sequence)
        self.running.append(sequence)
        self.num_embeds += sequence.request.embed
        if not sequence.admitted:
            sequence.admitted = True
            sequence.queue_seconds = max(0.0, now - sequence.request.arrived_at)
            if self.watcher is not None:
                self.watcher.started(sequence, now)
            if sequence.request.n > 1 and sequence.beams is None:
                self._fan_out(sequence)
        self.swapping.gone(sequence)
        self.fetching.gone(sequence)
        if sequence.group is not None and table.meter is None:
            sequence.group.meter.admit(table, now)
        if sequence.beams is not None:
            self.searches[sequence.id] = sequence.beams

    def preempt(self, sequence: SequenceState, plan_number: int, now: float, *, by: AccountOwner | None = None) -> None:
        """Take a running request's blocks; it keeps its place, and its tokens: swapped, or to be computed again.

        A beam leaves with all beams of its request, whose search starts again. `by`: whose need or limit it is for;
        None: the tenant's own.
        """
        group = sequence.beams
        if group is not None:
            sequence = group.leader
        self.interference.preempted(sequence, by)
        if group is not None:
            gather(self, group, now)
        sequence.num_preemptions += 1
        sequence.preempted_in = plan_number
        sequence.waiting_since = now
        self.num_preemptions += 1
        self.swapping.preempted(sequence)
        self.parking.set_aside(sequence)
        self._stop(sequence, now)
        if group is not None:
            group.begin_again()
            sequence.tokens, sequence.chain_stamp = list(sequence.request.prompt), (-1, -1)
        self.queue(sequence)

    def finish(
        self,
        sequence: SequenceState,
        reason: FinishReason,
        now: float,
        *,
        token_ids: tuple[int, ...] = (),
        logprobs: tuple[float, ...] = (),
        extras: OutputExtras | None = None,
        message: str = "",
        field: str = "",
    ) -> None:
        """End a request that was taken, whatever its state, and report it with its last token.

        A beam ends with its whole search, and with the best that was found. `field` is the one of the request whose
        fault an error is; empty: it is not the request's own.
        """
        if sequence.beams is not None:
            self._finish_search(sequence.beams, reason, now, message)
            return
        if sequence.generated:
            sequence.tenant.lengths.observe(sequence.generated, complete=reason is FinishReason.STOP)
        if self.watcher is not None:
            self.watcher.ended(sequence, reason, now)
        self._end(sequence, now)
        if not sequence.admitted:  # nor have its other outputs begun
            for index in range(1, sequence.request.n):
                self._events.append(
                    RequestOutput(sequence.id, output_index=index, finish_reason=reason, message=message, field=field)
                )
        self._events.append(
            RequestOutput(
                sequence=sequence.handle,
                token_ids=token_ids,
                kv_byte_seconds=sequence.kv_block_seconds * self.memory.shape.block_bytes,
                num_preemptions=sequence.num_preemptions,
                output_index=sequence.index,
                admitted_max_tokens=0 if sequence.announced or not sequence.admitted else max(1, sequence.max_tokens),
                queue_seconds=0.0 if sequence.announced else sequence.queue_seconds,
                cached_tokens=0 if sequence.announced else sequence.cached_tokens,
                finish_reason=reason,
                message=message,
                field=field,
                logprobs=logprobs,
                extras=extras,
            )
        )

    def refuse(self, sequence: SequenceState, refusal: Refusal, now: float) -> None:
        """End a request that never ran and report why."""
        if self.watcher is not None:
            self.watcher.ended(sequence, None, now)
        self._end(sequence, now)
        self._events.append(RequestOutput(sequence=sequence.id, refusal=refusal))

    def num_places(self, tenant: Tenant | None = None) -> int:
        """Return the running sequences, of one tenant or of all, with the beams that will still fork from them."""
        running = self.running if tenant is None else tenant.running
        if not self.searches:
            return len(running)
        searches = self.searches.values()
        to_come = (one.num_to_come for one in searches if tenant is None or one.leader.tenant is tenant)
        return len(running) + sum(to_come)

    def add_beam(self, leader: SequenceState) -> SequenceState:
        """Return a new running beam of the leader's request. The caller gives it its table."""
        beam = self._another(leader)
        beam.number, beam.beams, beam.state = leader.number, leader.beams, State.RUNNING
        beam.sampling = leader.sampling
        beam.tenant.running.append(beam)
        self.running.append(beam)
        return beam

    def part(self, beam: SequenceState, now: float) -> None:
        """End a beam that is not the leader: its request goes on."""
        self._end(beam, now)

    def report(self, output: RequestOutput) -> None:
        """Add news to what the next `take_events` returns."""
        self._events.append(output)

    def take_events(self) -> list[RequestOutput]:
        """Return the news since the last call, in order."""
        events, self._events = self._events, []
        return events

    def drop_if_idle(self, tenant: Tenant) -> None:
        """Forget a tenant without policy, requests and blocks: names that strangers send must not pile up."""
        if tenant.num_live or tenant.policy is not None or self.tenants.get(tenant.name) is not tenant:
            return
        if tenant.account is None or not tenant.account.blocks:  # else enforce.py takes them, bit by bit
            self.memory.forget(tenant.name)
            self.tenants.pop(tenant.name, None)

    def audit(self) -> None:
        """Recount states, lines, searches and accounts from scratch. Raises InvariantError."""
        audit(self)

    def _fan_out(self, leader: SequenceState) -> None:
        """Put a request's other outputs in line, right behind the one that computes the prompt."""
        group = leader.group = self.groups[leader.id] = SequenceGroup(leader)
        for index in range(1, leader.request.n):
            output = self._another(leader)
            output.number, output.index, output.group = leader.number + index, index, group
            output.random_key = fork_key(leader.random_key, index)
            self._hold(output)
            group.members.append(output)
            self.queue(output)

    def _another(self, leader: SequenceState) -> SequenceState:
        """Return a new sequence of a request that was admitted; it is in no list of its state yet."""
        one = SequenceState(SequenceId(self._next_fork), leader.request, leader.tenant, leader.number)
        self._next_fork -= 1
        one.handle, one.rank, one.max_tokens = leader.id, leader.rank, leader.max_tokens
        one.policy_stamp, one.stop_ids = leader.policy_stamp, leader.stop_ids
        one.constraint = None if leader.constraint is None else leader.constraint.another()
        one.admitted = one.announced = True  # with the first
        one.unscored = one.num_prompt  # the first one's prompt is the same
        self.sequences[one.id] = one
        self.parking.entered(one)
        one.tenant.num_live += 1
        return one

    def _finish_search(self, group: BeamGroup, reason: FinishReason, now: float, message: str) -> None:
        """End a beam search; where the client is there to see it, with the best that was found."""
        leader = group.leader
        found = group.best(leader.request.n) if reason in (FinishReason.STOP, FinishReason.LENGTH) else []
        if found:
            leader.tenant.lengths.observe(len(found[0].token_ids), complete=found[0].stopped)
        gather(self, group, now)
        if self.watcher is not None:
            self.watcher.ended(leader, reason, now)
        self._end(leader, now)
        report_end(self, group, found, reason, message)

    def _is_here(self, owner: AccountOwner) -> bool:
        if isinstance(owner, ShareGroupId):
            return self.memory.accounts.get(owner) is not None
        return owner in self.tenants

    def _limit(self, sequence: SequenceState, until: float) -> None:
        deadline = sequence.request.deadline
        self.timers.set(sequence, min(until, deadline) if deadline > 0 else until)

    def _hold(self, sequence: SequenceState) -> None:
        self.held[sequence.id] = sequence
        sequence.tenant.num_held += sequence.num_asked
        sequence.tenant.num_ahead += sequence.num_asked - 1

    def _leave(self, sequence: SequenceState) -> None:
        tenant = sequence.tenant
        if sequence.state is State.RUNNING:
            return
        tenant.num_ahead -= sequence.num_asked - 1
        if sequence.state is State.WAITING:
            tenant.lines[sequence.rank].remove(sequence)
            if tenant.num_waiting == 0:
                del self.waiting[tenant.name]
        elif sequence.state is State.HELD:
            del self.held[sequence.id]
            tenant.num_held -= sequence.num_asked
        elif sequence.state is State.FETCHING:
            self.fetching.left(sequence)
        elif sequence.state is State.PARKED:
            del tenant.parked[sequence.number]
            sequence.refusal = None

    def _stop(self, sequence: SequenceState, now: float) -> None:
        table = sequence.table
        assert table is not None, "only a running sequence stops"
        self.memory.free(table, now)
        self.prefills.end(sequence)
        sequence.kv_block_seconds = sequence.held(now)
        sequence.table = None
        self.streaming.stopped(sequence)
        sequence.computed = 0
        if sequence.generated:
            sequence.charged = len(sequence.tokens)  # prompt and output are paid for
        sequence.tenant.running.remove(sequence)
        self.running.remove(sequence)
        self.num_embeds -= sequence.request.embed
        if sequence.beams is not None:
            self.searches.pop(sequence.id, None)  # an id of the leader alone

    def _end(self, sequence: SequenceState, now: float) -> None:
        self.parking.left(sequence)
        if sequence.state is State.RUNNING:
            self._stop(sequence, now)
        else:
            self._leave(sequence)
        self.timers.set(sequence, 0.0)
        sequence.state = State.ENDED
        sequence.tokens = []
        del self.sequences[sequence.id]
        self.interference.ended(sequence.id)
        self.swapping.gone(sequence)
        self.fetching.gone(sequence)
        self.streaming.gone(sequence)
        if sequence.group is not None:
            sequence.group.members.remove(sequence)
            if not sequence.group.members:
                del self.groups[sequence.handle]
        tenant = sequence.tenant
        tenant.num_live -= 1
        if tenant.num_live == 0:
            del self.busy[tenant.name]
            self._floor = max(self._floor, tenant.counter)
            self.drop_if_idle(tenant)
