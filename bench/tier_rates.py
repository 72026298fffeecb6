"""How fast blocks move between the tiers, beside what this machine can: part of `python -m bench.tiers`.

    L1 → L2, L2 → L1   88 blocks by one transfer beside the steps, as a session parks and resumes; a memcpy of as much
    L2 → L3            slabs written by the store, until each is on the disk and named by the index; one thread that
                       writes as much to a file with O_DIRECT, 4 MiB at once, and syncs it
    L3 → L2            slabs read and verified; one thread that reads that file so

Sides take turns. What is written is as large as `SLABS`: a disk with a cache of its own may hold less of it.
"""

import hashlib
import mmap
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import torch

from bench.report import Row, medians, samples_of, take_turns
from engine.config import EngineConfig
from engine.disk.events import ReadDone, Written
from engine.disk.store import DiskStore, open_store
from engine.memory.eviction.base import BlockKey
from engine.model.folder import resolve_model
from engine.model.runner import ModelRunner
from engine.request import BlockId, SlabId
from engine.step import SlabMove, Transfer

NUM_COPIED = 88  # blocks: as many as 1,400 tokens take
SLABS, BUFFERS = 800, 64
TARGET = 0.6
_PIECE = 4 << 20
_POLL_SECONDS = 0.0003

Found = tuple[list[Row], list[dict[str, object]]]


def memory_rates(repeats: int) -> Found:
    """Measure transfers either way, and a plain copy of as many bytes."""
    config = EngineConfig(kv_bytes=256 << 20, host_bytes=128 << 20)
    runner = ModelRunner(config, resolve_model(config))
    moves = tuple(SlabMove(BlockId(3 * index % runner.shape.num_blocks), SlabId(index)) for index in range(NUM_COPIED))
    num_bytes = NUM_COPIED * runner.shape.block_bytes
    source, target = torch.ones(num_bytes, dtype=torch.uint8), torch.zeros(num_bytes, dtype=torch.uint8)
    count = iter(range(1 << 30))

    def transfer(*, is_store: bool) -> float:
        runner.copy(Transfer(next(count), is_store, moves))
        while not (done := runner.copied()):
            time.sleep(_POLL_SECONDS)
        return num_bytes / done[0].seconds / 1e9

    def memcpy() -> float:
        began = time.perf_counter()
        target.copy_(source)
        return num_bytes / (time.perf_counter() - began) / 1e9

    sides: dict[str, Callable[[], float]] = {
        "memcpy": memcpy,
        "L1 → L2": lambda: transfer(is_store=True),
        "L2 → L1": lambda: transfer(is_store=False),
    }
    found = take_turns(sides, repeats=repeats, warm_up=2)
    runner.close()
    beside, *ours = medians(found)
    rows = [
        Row(case=case, ours=rate, unit="GB/s", beside=beside, target=TARGET, note="beside memcpy")
        for case, rate in zip(("L1 → L2", "L2 → L1"), ours, strict=True)
    ]
    return rows, samples_of("copies in memory", found, "GB/s")


class RawFile:
    """One thread, one file, large pieces, past the cache."""

    def __init__(self, path: Path, num_bytes: int) -> None:
        self._path, self._num_bytes = path, num_bytes
        self._piece = mmap.mmap(-1, _PIECE)
        self._piece.write(os.urandom(_PIECE))

    def write(self) -> float:
        """Return GB/s, until it is on the disk."""
        self._path.unlink(missing_ok=True)
        file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_DIRECT)
        began, offset = time.perf_counter(), 0
        while offset < self._num_bytes:
            offset += os.pwrite(file, self._piece, offset)
        os.fdatasync(file)
        seconds = time.perf_counter() - began
        os.close(file)
        return offset / seconds / 1e9

    def read(self) -> float:
        """Return GB/s."""
        file = os.open(self._path, os.O_RDONLY | os.O_DIRECT)
        began, offset = time.perf_counter(), 0
        while offset < self._num_bytes:
            offset += os.preadv(file, [self._piece], offset)
        seconds = time.perf_counter() - began
        os.close(file)
        return offset / seconds / 1e9


class Slabs:
    """A store of one owner, written to and read from as fast as it takes and gives."""

    def __init__(self, folder: Path, slot_bytes: int, secret: bytes) -> None:
        self._folder, self._secret, self._slot_bytes = folder, secret, slot_bytes
        self._keys = [BlockKey(hashlib.sha256(b"%d" % number).digest()) for number in range(SLABS)]
        memory = memoryview(mmap.mmap(-1, slot_bytes * BUFFERS))
        memory[:] = os.urandom(len(memory))
        self._memory = [memory[at : at + slot_bytes] for at in range(0, len(memory), slot_bytes)]
        self._store: DiskStore | None = None

    def write(self) -> float:
        """Return GB/s, until each slab is readable after a power cut."""
        self.close()
        shutil.rmtree(self._folder, ignore_errors=True)
        total = 2 * SLABS * self._slot_bytes
        store = self._store = open_store(self._folder, self._slot_bytes, total, "bench")
        store.limit("bench", total, self._secret)
        began = time.perf_counter()
        self._run(store, lambda index: store.write(self._keys[index], "bench", self._memory[index % BUFFERS]), SLABS)
        return SLABS * self._slot_bytes / (time.perf_counter() - began) / 1e9

    def read(self) -> float:
        """Return GB/s of slabs that were written, and were right."""
        store = self._store
        if store is None:
            raise RuntimeError("nothing was written before")
        began = time.perf_counter()
        self._run(store, lambda index: store.read(self._keys[index], self._memory[index % BUFFERS]), BUFFERS // 2)
        return SLABS * self._slot_bytes / (time.perf_counter() - began) / 1e9

    def close(self) -> None:
        """Close the store."""
        if self._store is not None:
            self._store.close(10)

    def _run(self, store: DiskStore, begin: Callable[[int], bool], most: int) -> None:
        begun = ended = 0
        while ended < SLABS:
            while begun < SLABS and begun - ended < most and begin(begun):
                begun += 1
            for event in store.poll():
                if isinstance(event, Written | ReadDone):
                    if not event.ok:
                        raise RuntimeError(f"the store failed: {store.stats()}")
                    ended += 1
            time.sleep(_POLL_SECONDS)


def disk_rates(folder: Path, slot_bytes: int, repeats: int) -> Found:
    """Measure the store, plain and encrypted, and the disk itself."""
    raw = RawFile(folder / "raw", SLABS * slot_bytes)
    stores = {
        "plain": Slabs(folder / "plain", slot_bytes, b""),
        "AES-GCM": Slabs(folder / "secret", slot_bytes, b"s" * 32),
    }
    rows: list[Row] = []
    samples: list[dict[str, object]] = []
    try:
        written = take_turns({"disk": raw.write, **{n: s.write for n, s in stores.items()}}, repeats=repeats)
        read = take_turns({"disk": raw.read, **{n: s.read for n, s in stores.items()}}, repeats=repeats)
    finally:
        for store in stores.values():
            store.close()
    for case, found in (("L2 → L3", written), ("L3 → L2", read)):
        beside, *ours = medians(found)
        rows += [
            Row(case=f"{case}, {name}", ours=rate, unit="GB/s", beside=beside, target=TARGET, note="beside the disk")
            for name, rate in zip(stores, ours, strict=True)
        ]
        samples += samples_of(case, found, "GB/s")
    return rows, samples
