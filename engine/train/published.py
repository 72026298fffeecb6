"""Where a model is published, and the thread of a core that takes it up. No torch here.

<state folder>/reuse.json            the model; ENGINE_REUSE_MODEL names another file
<state folder>/reuse-metrics.json    how the last training went, published or not
"""

import logging
import os
import threading
from pathlib import Path

from engine.memory.eviction.guard import Foresight
from engine.memory.eviction.model import MOST_BYTES, ModelProblem, ReuseModel, read

MODEL_FILE = "reuse.json"
METRICS_FILE = "reuse-metrics.json"
LOCK_FILE = "reuse.lock"
LOOK_SECONDS = 5.0
_STOP_SECONDS = 0.5  # it may be waiting for a disk

log = logging.getLogger(__name__)


def publish(path: Path, data: bytes) -> None:
    """Put a file in its place as a whole, durably. Raises OSError."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        file = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        with os.fdopen(file, "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        fresh.replace(path)
    finally:
        fresh.unlink(missing_ok=True)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def load(path: Path, *, block_size: int) -> ReuseModel:
    """Return a published model.

    Raises:
        FileNotFoundError: there is none.
        OSError: it cannot be read.
        ModelProblem: it is not to be used.
    """
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    with os.fdopen(file, "rb") as stream:
        data = stream.read(MOST_BYTES + 1)
    if len(data) > MOST_BYTES:
        raise ModelProblem(f"it has over {MOST_BYTES} bytes")
    return read(data or b"", block_size=block_size)


class ModelWatch:
    """Takes up what is published, now and whenever there is something new; a bad file is told of once."""

    def __init__(self, path: Path, block_size: int, foresight: Foresight) -> None:
        """Load what is there, and go on looking."""
        self._path = path
        self._block_size = block_size
        self._foresight = foresight
        self._seen: tuple[int, int, int] | None = None
        self._stopping = threading.Event()
        self.look()
        self._thread = threading.Thread(target=self._watch, name="reuse-model", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop looking."""
        self._stopping.set()
        self._thread.join(_STOP_SECONDS)

    def look(self) -> None:
        """Load the file if it has changed. One that is gone takes its model away; a bad one changes nothing."""
        try:
            status = self._path.stat()
            seen = (status.st_ino, status.st_mtime_ns, status.st_size)
        except OSError:
            seen = None
        if seen == self._seen:
            return
        self._seen = seen
        if seen is None:
            self._foresight.model = None
            log.info("reuse_model_gone", extra={"path": str(self._path)})
            return
        try:
            self._foresight.model = model = load(self._path, block_size=self._block_size)
        except (ModelProblem, OSError) as problem:
            log.warning("reuse_model_ignored", extra={"path": str(self._path), "reason": str(problem)})
            return
        told = {"path": str(self._path), "trained_at": model.weights.trained_at}
        log.info("reuse_model_loaded", extra=told)

    def _watch(self) -> None:
        while not self._stopping.wait(LOOK_SECONDS):
            self.look()
