"""The trace as a story: which requests came, what their prompts were made of, how long their outputs were."""

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import numpy as np

from engine.request import FinishReason
from engine.trace.records import ALL_OUTPUTS, CoreStarted, Ended, Machine, Record, Speed, Started, Submitted, decode
from engine.trace.ring import RingReader

NUM_WEIGHTS = 5
FIRST_SYMBOL = 2  # 0 ends an output, 1 is nobody's


@dataclass(slots=True)
class Output:
    """One output of a request: its length, None while it goes on, and its blocks from `first_block` on."""

    num_tokens: int | None = None
    first_block: int = 0
    symbols: list[int] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class Call:
    """One request as it came. A symbol stands for a block: blocks of equal name have the same one."""

    at: float  # unix seconds
    tenant: str
    priority: str
    num_prompt: int  # tokens
    max_tokens: int  # as asked; 0: as many as limits allow
    num_outputs: int
    deadline_seconds: float  # from its arrival; 0: none
    own_symbol: int  # of blocks whose name is not known: they are like no other's
    symbols: list[int] = field(default_factory=list)  # of the prompt's leading blocks
    group: str = ""  # the share group that the first `num_head` blocks belong to
    num_head: int = 0
    outputs: dict[int, Output] = field(default_factory=dict)
    gave_up_after: float | None = None  # seconds that its client waited in vain before it left

    @property
    def num_output(self) -> int:
        """Tokens of all its outputs, as far as they are known."""
        return sum(output.num_tokens or 0 for output in self.outputs.values())

    def num_blocks(self, block_size: int) -> int:
        """Return the blocks that its prompt and outputs come to."""
        return -(-(self.num_prompt + self.num_output) // block_size)


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    """The requests of a stretch of time, by arrival, and the machine that served them."""

    machine: Machine
    speed: Speed | None  # how long its steps and copies took, at last; None: not told
    calls: list[Call]
    num_symbols: int


class TraceProblem(Exception):
    """Why there is nothing to replay; the message is for operators."""


def read_story(path: Path, since: float, most_blocks: int) -> Story:
    """Read what has come since a moment, at most about so many blocks of it: the newest ones.

    Raises:
        TraceProblem: there is no trace, or nothing in it.
    """
    try:
        reader = RingReader(path)
    except FileNotFoundError:
        raise TraceProblem(
            "This worker keeps no trace: set ENGINE_TRACE_BYTES, and see its log for a reason."
        ) from None
    except (OSError, ValueError) as error:
        raise TraceProblem(f"The trace cannot be read: {error}") from error
    try:
        segments = list(_newest(reader, since, most_blocks))
    finally:
        reader.close()
    telling = _Telling(since)
    for records in reversed(segments):
        for record in records:
            telling.take(record)
    if telling.machine is None or not telling.calls:
        raise TraceProblem("No request has come to this worker in that time.")
    calls = sorted(telling.calls, key=lambda call: call.at)
    return Story(machine=telling.machine, speed=telling.speed, calls=calls, num_symbols=telling.next_symbol)


def _newest(reader: RingReader, since: float, most_blocks: int) -> Iterator[list[Record]]:
    """Yield segments from the newest back, until one begins before `since` or there are enough blocks."""
    num_blocks, block_size = 0, 1
    for payloads in reader.segments():
        records = list(_decoded(payloads))
        yield records
        for record in records:
            match record:
                case CoreStarted(machine=machine):
                    block_size = machine.block_size
                case Submitted(num_prompt=num_tokens) | Ended(num_output=num_tokens):
                    num_blocks += num_tokens // block_size
        first = next((record for record in records if isinstance(record, Submitted)), None)
        if num_blocks > most_blocks or (first is not None and first.at < since):
            return


def _decoded(payloads: Iterable[bytes]) -> Iterator[Record]:
    for payload in payloads:
        try:
            yield decode(payload)
        except msgspec.MsgspecError:  # a record of another version: what is after it may be of ours
            continue


class _Telling:
    """Puts records together, oldest first."""

    def __init__(self, since: float) -> None:
        self.machine: Machine | None = None
        self.speed: Speed | None = None
        self.calls: deque[Call] = deque()
        self.next_symbol = FIRST_SYMBOL
        self._since = since
        self._core = -1
        self._open: dict[int, Call] = {}
        self._symbols: dict[int, int] = {}

    def take(self, record: Record) -> None:
        """Take the next record."""
        match record:
            case CoreStarted():
                self._start_core(record)
            case Submitted():
                if record.at >= self._since:
                    self._submit(record)
            case Started():
                self._start(record)
            case Ended():
                self._end(record)
            case Speed():
                self.speed = record if len(record.weights) == NUM_WEIGHTS else self.speed

    def _start_core(self, record: CoreStarted) -> None:
        if record.core == self._core:
            return
        self._core = record.core
        for call in self._open.values():  # they ended with their core; how long they were nobody knows
            for output in call.outputs.values():
                output.num_tokens = output.num_tokens or 0
        self._open.clear()
        if self.machine is not None and record.machine.block_size != self.machine.block_size:
            self.calls.clear()  # their blocks are not ours
        self.machine = record.machine

    def _submit(self, record: Submitted) -> None:
        call = Call(
            at=record.at,
            tenant=record.tenant,
            priority=record.priority,
            num_prompt=max(1, record.num_prompt),
            max_tokens=record.max_tokens,
            num_outputs=max(1, record.num_outputs),
            deadline_seconds=record.deadline_seconds,
            own_symbol=self._new_symbol(),
        )
        self._open[record.request] = call
        self.calls.append(call)

    def _start(self, record: Started) -> None:
        call = self._open.get(record.request)
        if call is not None:
            call.symbols = self._symbols_of(record.names)
            call.group, call.num_head = record.group, min(record.num_head, len(call.symbols))
            for index in range(call.num_outputs):
                call.outputs[index] = Output()

    def _end(self, record: Ended) -> None:
        call = self._open.get(record.request)
        if call is None:
            return
        if not call.outputs:  # it never ran
            if record.reason == FinishReason.CANCELLED:
                call.gave_up_after = max(0.0, record.at - call.at)
            del self._open[record.request]
            return
        output = Output(record.num_output, record.first_block, self._symbols_of(record.names))
        if record.index == ALL_OUTPUTS:
            call.outputs = dict.fromkeys(call.outputs, output)
        else:
            call.outputs[record.index] = output
        if all(output.num_tokens is not None for output in call.outputs.values()):
            del self._open[record.request]

    def _symbols_of(self, names: bytes) -> list[int]:
        known = self._symbols
        symbols: list[int] = []
        for name in np.frombuffer(names[: len(names) // 8 * 8], dtype="<u8").tolist():
            symbol = known.get(name)
            if symbol is None:
                symbol = known[name] = self._new_symbol()
            symbols.append(symbol)
        return symbols

    def _new_symbol(self) -> int:
        self.next_symbol += 1
        return self.next_symbol - 1
