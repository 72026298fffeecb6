"""Both replays of one story, side by side in two processes, each of one thread.

A replay goes from mark to mark in time. When the answer is due, one that is late stops at the last mark that it has
reached, and both are told as they stood at the last mark that both have reached: the two are always of the same
stretch.
"""

import os
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import msgspec

from engine.ipc import PolicyTenant
from engine.policy import TenantPolicy
from engine.process import die_with_parent
from engine.replay.extent import choose
from engine.replay.script import Part, render
from engine.replay.setting import Setting
from engine.replay.simulation import Simulation
from engine.replay.story import Story, TraceProblem, read_story
from engine.replay.task import Outcome, Report, Task
from engine.request import TenantId

MOST_BLOCKS = 250_000  # of the trace that are read
_MARKS = 24
_LEAST_MARKS = 8  # before a replay is late: less would say little
_SAMPLE_BLOCKS = 2_000  # replayed to see how fast this process is
_STARVED = 0.6  # of a core: the machine is busy, so a late answer of more is better than a prompt one of little
_SAMPLE_SECONDS = 60.0  # after its last arrival
_LEAST_SECONDS = 0.3
_CAUTION = 1.3  # a full pool costs more than an empty one, and the sample's is empty

_IDLE = TenantId("")  # nobody's name

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[tuple[int, Outcome]]).decode


@dataclass(frozen=True, slots=True, kw_only=True)
class Deadline:
    """When the answer is due, and when it must come; `time.monotonic` seconds."""

    due: float
    latest: float

    def is_late(self, marks: int) -> bool:
        """Say whether a replay that has come so far should stop."""
        now = time.monotonic()
        return now >= self.latest or (now >= self.due and marks >= _LEAST_MARKS)


def answer(task: Task, began: float) -> Report:
    """Do what the front asks. `began`: `time.monotonic` when it did."""
    since = task.now - task.seconds if task.seconds else 0.0
    try:
        story = read_story(Path(task.trace), since, MOST_BLOCKS)
    except TraceProblem as problem:
        return Report(problem=str(problem))
    in_force = {policy.tenant: policy for policy in in_play(task, story)}
    proposed = in_force | {policy.tenant: policy_of(policy) for policy in task.proposed}
    size = story.machine.block_size
    rate, is_starved = _measure(story, task, list(in_force.values()))
    latest = began + task.patience_seconds
    deadline = Deadline(due=latest if is_starved else began + task.answer_seconds, latest=latest)
    left = max(_LEAST_SECONDS, deadline.due - time.monotonic())
    first, grain = choose(story.calls, size, rate * left)
    parts = [render(call, size, grain) for call in story.calls[first:]]
    replay = _Replay(_setting(story, task, grain), parts, task)
    before, after = _side_by_side(
        [partial(replay.run, list(policies.values()), deadline) for policies in (in_force, proposed)]
    )
    mark = max(before.keys() & after.keys(), default=None)
    if mark is None:
        return Report(problem="The machine is too busy to replay anything in time. Try again later.")
    until = replay.marks[mark]
    played = [part.call for part in parts if part.call.at <= until]
    return Report(
        seconds=until - parts[0].call.at,
        num_events=sum(call.num_blocks(size) for call in played),
        before=before[mark],
        after=after[mark],
    )


def in_play(task: Task, story: Story) -> list[TenantPolicy]:
    """Return the policies in force of all who matter, and one for all others together.

    Who has asked for nothing and is not asked about only keeps others out of what it is guaranteed. Thousands of such
    accounts would be looked at with every block that is given up.
    """
    names = {call.tenant for call in story.calls} | {policy.tenant for policy in task.proposed}
    played = [policy_of(policy) for policy in task.tenants if policy.tenant in names]
    guaranteed = sum(min(one.kv_soft_bytes, one.kv_hard_bytes) for one in task.tenants if one.tenant not in names)
    if guaranteed:
        idle = TenantPolicy(
            tenant=_IDLE,
            kv_soft_bytes=guaranteed,
            kv_hard_bytes=guaranteed,
            max_running=1,
            max_queued=1,
            max_context_tokens=1,
            max_output_tokens=1,
        )
        played.append(idle)
    return played


def _setting(story: Story, task: Task, grain: int) -> Setting:
    heads = frozenset(
        (call.group, tuple(call.symbols[: call.num_head])) for call in story.calls if call.num_head and call.group
    )
    return Setting(story.machine, story.speed, task.groups, grain, story.num_symbols, heads)


def _measure(story: Story, task: Task, policies: list[TenantPolicy]) -> tuple[float, bool]:
    """Replay the first requests; return the blocks a second that there is time for, and whether others take it."""
    size = story.machine.block_size
    sample: list[Part] = []
    num_blocks = 0
    for call in story.calls:
        sample.append(render(call, size, size))
        num_blocks += call.num_blocks(size)
        if num_blocks >= _SAMPLE_BLOCKS:
            break
    simulation = Simulation(_setting(story, task, size), policies, sample)
    began, used = time.monotonic(), time.process_time()
    simulation.run(sample[-1].call.at + _SAMPLE_SECONDS)
    took, used = max(1e-6, time.monotonic() - began), time.process_time() - used
    return num_blocks / took / _CAUTION, used < _STARVED * took


class _Replay:
    """What is the same for both, and what is left to say of each."""

    def __init__(self, setting: Setting, parts: list[Part], task: Task) -> None:
        self._setting = setting
        self._parts = parts
        self._names = [policy.tenant for policy in task.proposed]
        first = parts[0].call.at
        self.marks = [first + (task.now - first) * (number + 1) / _MARKS for number in range(_MARKS)]

    def run(self, policies: list[TenantPolicy], deadline: Deadline) -> list[tuple[int, Outcome]]:
        """Return the outcome under some policies at each mark that was reached, the first ones left out."""
        simulation = Simulation(self._setting, policies, self._parts)
        outcomes: list[tuple[int, Outcome]] = []
        for number, moment in enumerate(self.marks):
            simulation.run(moment)
            is_late = deadline.is_late(number + 1)
            if number + 1 >= _LEAST_MARKS or is_late:
                outcomes.append((number, simulation.outcome(self._names)))
            if is_late:
                break
        return outcomes


def _side_by_side(
    tasks: list[Callable[[], list[tuple[int, Outcome]]]],
) -> list[dict[int, Outcome]]:
    """Run each in a child process that ends with this one; return what they return."""
    pipes = []
    for task in tasks:
        source, sink = os.pipe()
        parent, child = os.getpid(), os.fork()
        if child == 0:
            _be_child(task, sink, parent)
        os.close(sink)
        pipes.append((child, source))
    results = []
    for child, source in pipes:
        with os.fdopen(source, "rb") as stream:
            data = stream.read()
        _, status = os.waitpid(child, 0)
        if status:
            raise RuntimeError(f"a replay ended with status {os.waitstatus_to_exitcode(status)}")
        results.append(dict(_decode(data)))
    return results


def _be_child(task: Callable[[], list[tuple[int, Outcome]]], sink: int, parent: int) -> None:
    """Do one task and leave, past everything that belongs to the parent."""
    status = 1
    try:
        die_with_parent(parent)
        with os.fdopen(sink, "wb") as stream:
            stream.write(_encode(task()))
        status = 0
    finally:
        if status:
            traceback.print_exc()
        os._exit(status)


def policy_of(policy: PolicyTenant) -> TenantPolicy:
    """Return a policy as the scheduler takes it."""
    return msgspec.convert(policy, TenantPolicy, from_attributes=True)
