"""Writes the trace of a core: the scheduler tells what happens to a request, a thread of its own writes it down.

On the step's path a request costs three records of some microseconds each, a token nothing: no lock, no system call.
(Not a memory-mapped file: a store to a page that the kernel is writing back can wait for the disk, and the step with
it.) What was not yet written when a core is killed, a quarter of a second at most, is lost.
"""

import logging
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from engine.memory.eviction.base import BlockKey
from engine.request import FinishReason
from engine.scheduler.sequence import SequenceState
from engine.scheduler.step_time import StepTimeModel
from engine.scheduler.swap_cost import SwapCost
from engine.trace.records import (
    ALL_OUTPUTS,
    NAME_BYTES,
    REFUSED,
    CoreStarted,
    Ended,
    Machine,
    Record,
    Speed,
    Started,
    Submitted,
    encode,
)
from engine.trace.ring import FILE_NAME, RingWriter

WRITE_SECONDS = 0.25
SPEED_SECONDS = 5.0  # between two records of how long steps take
MOST_WAITING = 16_384  # records that wait to be written; a disk that stands still must not cost memory without end
_STOP_SECONDS = 2.0

log = logging.getLogger(__name__)


class MeasuredSpeed(NamedTuple):
    """What a core has learned of its machine."""

    steps: StepTimeModel
    copies: SwapCost | None = None


class Recorder:
    """A RequestWatcher that keeps the trace."""

    def __init__(
        self,
        ring: RingWriter,
        machine: Machine,
        speed: MeasuredSpeed,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begin a core's trace; the ring is the recorder's from here on."""
        self._ring = ring
        self._block_size = machine.block_size
        self._longest = ring.longest - 1024  # bytes of a record: the segment begins with the core's own
        self._most_names = self._longest // 2 // NAME_BYTES  # of a record; a longer prompt's other blocks count as new
        self._speed = speed
        self._offset = time.time() - clock()  # from the scheduler's clock to unix seconds
        self._core = encode(CoreStarted(random.SystemRandom().getrandbits(63), time.time(), machine))
        self._waiting: deque[bytes] = deque()
        self._speed_at = 0.0
        self._num_dropped = 0
        self._closing = threading.Event()
        self._writer = threading.Thread(target=self._write_on, name="trace", daemon=True)
        self._writer.start()

    @property
    def num_waiting(self) -> int:
        """Records that are not yet written."""
        return len(self._waiting)

    def submitted(self, sequence: SequenceState) -> None:
        """Note a request."""
        request = sequence.request
        deadline = max(0.001, request.deadline - request.arrived_at) if request.deadline else 0.0
        self._put(
            Submitted(
                request=sequence.id,
                at=request.arrived_at + self._offset,
                tenant=request.tenant,
                priority=request.priority,
                num_prompt=sequence.num_prompt,
                max_tokens=1 if request.embed else request.sampling.max_tokens,  # played again as the least there is
                num_outputs=request.n if request.beams is None else request.beams.width,
                deadline_seconds=deadline,
            )
        )

    def started(self, sequence: SequenceState, now: float) -> None:
        """Note which blocks a request's prompt has."""
        chain = sequence.chain
        names, group, num_head = b"", "", 0
        if chain is not None:
            names = _names(chain.keys[: min(self._first_after(sequence), self._most_names)])
            if chain.num_head and sequence.table is not None:
                num_head, group = chain.num_head, sequence.table.head_account.owner[0]
        self._put(Started(sequence.id, now + self._offset, names, group, num_head))

    def ended(self, sequence: SequenceState, reason: FinishReason | None, now: float) -> None:
        """Note how long an output was, and which blocks it has filled."""
        first, chain = self._first_after(sequence), sequence.chain
        names = b"" if chain is None else _names(chain.keys[first : first + self._most_names])
        at = now + self._offset
        index = sequence.index if sequence.beams is None else ALL_OUTPUTS
        self._put(Ended(sequence.handle, at, index, reason or REFUSED, sequence.generated, first, names))
        if now >= self._speed_at and self._speed.steps.num_observed:
            self._speed_at = now + SPEED_SECONDS
            copies = self._speed.copies
            rates = (copies.out.bytes_per_second, copies.back.bytes_per_second) if copies is not None else (0.0, 0.0)
            self._put(Speed(at, self._speed.steps.weights, *rates))

    def close(self) -> None:
        """Write what is waiting and close the file."""
        self._closing.set()
        self._writer.join(_STOP_SECONDS)

    def _first_after(self, sequence: SequenceState) -> int:
        """Return the number of the prompt's blocks whose names are looked up: the last token's is not."""
        return (sequence.num_prompt - 1) // self._block_size

    def _put(self, record: Record) -> None:
        payload = encode(record)
        if len(self._waiting) < MOST_WAITING and len(payload) <= self._longest:
            self._waiting.append(payload)
        else:
            self._num_dropped += 1

    def _write_on(self) -> None:
        failed = False
        while not self._closing.wait(WRITE_SECONDS):
            failed = self._write(failed)
        self._write(failed)
        self._ring.close()

    def _write(self, failed: bool) -> bool:
        """Write what is waiting; log a failing disk when it begins to fail, and when it is well again."""
        payloads = [self._waiting.popleft() for _ in range(len(self._waiting))]
        if not payloads:
            return failed
        try:
            self._ring.append(payloads, self._core)
        except OSError as error:
            if not failed:
                log.warning("trace_not_written", extra={"error": str(error)})
            return True
        if failed:
            log.info("trace_written_again", extra={"dropped": self._num_dropped})
        return False


def open_recorder(state_dir: Path, capacity: int, machine: Machine, speed: MeasuredSpeed) -> Recorder | None:
    """Return the recorder of a core; None where there is to be none, or no room for it: the worker serves without."""
    if not capacity:
        return None
    try:
        state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        ring = RingWriter(state_dir / FILE_NAME, capacity)
    except OSError as error:
        log.warning("no_trace", extra={"error": str(error), "hint": "previews of limits have nothing to replay"})
        return None
    return Recorder(ring, machine, speed)


def _names(keys: Sequence[BlockKey]) -> bytes:
    """Return the first bytes of each key, one after the other."""
    if not keys:
        return b""
    return np.frombuffer(b"".join(keys), dtype="<u8").reshape(len(keys), -1)[:, 0].tobytes()
