"""The core process: model, memory and step loop behind one PAIR socket.

    python -m engine.core --endpoint ipc:///path

Started by the front, whose death ends it. Settings come from the environment (engine/config.py). Exit status: 0 after a
StopFrame or SIGTERM, 2 for settings that cannot be served with, 1 when a step failed; stderr says why in one JSON line.
"""

import argparse
import gc
import json
import logging
import os
import signal
import sys
import time
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING

import zmq

from engine import ipc
from engine.config import EngineConfig
from engine.constraints.preparing import Compile, GrammarThread
from engine.disk.store import DiskStore, open_store
from engine.errors import ConfigError, CoreError, ModelError
from engine.fingerprint import fingerprint
from engine.loop import EngineLoop
from engine.mailbox import FrameMailbox
from engine.memory.eviction.guard import Foresight, GuardedOrder
from engine.memory.manager import KVMemory
from engine.model.folder import ModelFolder, resolve_model
from engine.process import die_with_parent
from engine.scheduler.plan import Scheduler
from engine.scheduler.sizing import Limits
from engine.step import CacheShape, Runner
from engine.trace.recorder import MeasuredSpeed, Recorder, open_recorder
from engine.trace.records import Machine
from engine.train.published import ModelWatch

if TYPE_CHECKING:
    from engine.model.runner import ModelRunner

_CONNECT_MS = 10_000
_PARK_SECONDS = 1.0  # at exit, for sessions that are still on their way down: the front kills us after three in all
_DISK_SECONDS = 1.5  # at exit, for what the disk is writing
_LINGER_MS = 1000  # at exit, for what is still on its way to the front
_RECORD_FIELDS = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime"}

log = logging.getLogger("engine.core")


def main(argv: list[str] | None = None) -> int:
    """Run a core until it is told to stop; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m engine.core", description="The engine's core process.")
    parser.add_argument("--endpoint", required=True, help="where the front listens, such as ipc:///run/tollgate/core")
    endpoint = parser.parse_args(argv).endpoint
    start_logging()
    die_with_parent()
    try:
        run(EngineConfig.from_env(), endpoint)
    except (ConfigError, ModelError) as error:
        log.error("core_cannot_start", extra={"error": str(error)})
        return 2
    except Exception:
        log.exception("core_failed")
        return 1
    return 0


def run(config: EngineConfig, endpoint: str) -> None:
    """Load the model, report it, serve until stopped."""
    loop: EngineLoop | None = None

    def stop(signum: int, frame: FrameType | None) -> None:
        if loop is None:
            sys.exit(0)  # still loading: there is nothing to finish
        loop.stop()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    folder = resolve_model(config)
    from engine.model.runner import ModelRunner  # imports torch: only the core does, and only once it must

    runner = ModelRunner(config, folder)
    foresight = Foresight(offset=time.time() - time.monotonic())
    scheduler = make_scheduler(config, folder, runner, kv_format=runner.dtype, foresight=foresight)
    models = ModelWatch(config.reuse_path, runner.shape.block_size, foresight)
    store = open_disk(config, folder, runner, scheduler, kv_format=runner.dtype)
    recorder = record(config, folder, runner, scheduler)
    context = zmq.Context()
    socket = context.socket(zmq.PAIR)
    try:
        _connect(socket, endpoint)
        mailbox = FrameMailbox(socket)
        loop = EngineLoop(scheduler, runner, mailbox, ahead=plans_ahead(config, runner))
        gc.collect()
        gc.freeze()  # what is loaded stays: collections during steps need not look at it again
        mailbox.ready(_ready(runner))
        log.info("core_ready", extra={"blocks": runner.shape.num_blocks, "backend": runner.kernel_backend})
        loop.run()
        scheduler.memory.tiers.finish(runner, _PARK_SECONDS)
        log.info("core_stopped", extra={"step": scheduler.step})
    finally:
        models.close()
        if recorder is not None:
            recorder.close()
        runner.close()
        if store is not None:
            store.close(_DISK_SECONDS)
        socket.close(linger=_LINGER_MS)
        context.term()


def record(config: EngineConfig, folder: ModelFolder, runner: Runner, scheduler: Scheduler) -> Recorder | None:
    """Let the trace be kept of what the scheduler does; None where there is none."""
    shape = runner.shape
    machine = Machine(
        num_blocks=shape.num_blocks,
        block_size=shape.block_size,
        block_bytes=shape.block_bytes,
        max_rows=shape.max_rows,
        max_context=model_limits(folder, shape).max_context,
        max_batched_tokens=config.max_batched_tokens,
        num_slabs=shape.num_slabs,
    )
    speed = MeasuredSpeed(scheduler.step_time, scheduler.roster.swapping.cost)
    recorder = open_recorder(config.state_dir, config.trace_bytes, machine, speed)
    scheduler.roster.watcher = recorder
    return recorder


def open_disk(
    config: EngineConfig, folder: ModelFolder, runner: Runner, scheduler: Scheduler, *, kv_format: str = "auto"
) -> DiskStore | None:
    """Let blocks be kept on disk too; None where there is none, or no host memory above it.

    Raises:
        ConfigError: its folder cannot be one.
    """
    shape = runner.shape
    if not (config.disk_bytes and shape.num_slabs):
        return None
    name = f"{fingerprint(folder, config)} {kv_format} {shape.block_size}"
    store = open_store(config.disk_folder, shape.block_bytes, config.disk_bytes, name)
    scheduler.memory.tiers.attach(store, runner)
    scheduler.roster.parking.make_room(config.disk_bytes // shape.block_bytes)
    return store


def make_scheduler(
    config: EngineConfig,
    folder: ModelFolder,
    runner: Runner,
    *,
    kv_format: str = "auto",
    foresight: Foresight | None = None,
) -> Scheduler:
    """Return an empty scheduler over the runner's pool, with the model's limits."""
    shape: CacheShape = runner.shape
    make_order = partial(GuardedOrder, foresight=foresight or Foresight())
    limits = model_limits(folder, shape)
    return Scheduler(
        KVMemory(shape, model=fingerprint(folder, config).encode(), kv_format=kv_format, make_order=make_order),
        limits,
        max_batched_tokens=config.max_batched_tokens,
        eos_token_ids=folder.eos_token_ids,
        grammars=GrammarThread(partial(_open_compiler, folder)),
    )


def _open_compiler(folder: ModelFolder) -> Compile:
    from engine.constraints.compile import open_compiler  # imports llguidance: only once a grammar comes

    return open_compiler(folder.tokenizer_json, folder.vocab_size, folder.eos_token_ids)


def model_limits(folder: ModelFolder, shape: CacheShape) -> Limits:
    """Return what model and pool allow to anyone."""
    return Limits(
        vocab_size=folder.vocab_size,
        max_context=min(folder.max_context_tokens, shape.max_columns * shape.block_size),
        num_blocks=shape.num_blocks,
        block_size=shape.block_size,
        block_bytes=shape.block_bytes,
        num_slabs=shape.num_slabs if shape.streams else 0,
    )


def plans_ahead(config: EngineConfig, runner: Runner) -> bool:
    """Say whether a step is planned while the one before it runs: ENGINE_OVERLAP, or where the runner can use it."""
    return runner.runs_ahead if config.overlap == "auto" else config.overlap == "on"


def start_logging() -> None:
    """Write one JSON object a line to stderr."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)


class JsonFormatter(logging.Formatter):
    """One line a record: time, level, event, and the fields given in `extra`."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as one line of JSON."""
        line: dict[str, object] = {
            "timestamp": self.formatTime(record, "%Y-%m-%dT%H:%M:%S") + f".{int(record.msecs):03d}",
            "level": record.levelname.lower(),
            "event": record.getMessage(),
            "process": "core",
            "pid": record.process,
        }
        line |= {name: value for name, value in record.__dict__.items() if name not in _RECORD_FIELDS}
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def _connect(socket: zmq.Socket[bytes], endpoint: str) -> None:
    """Connect to the front, and make sure that it is there: a core without one would idle for ever."""
    socket.set(zmq.SNDHWM, 0)  # sends never wait for the front
    socket.set(zmq.RCVHWM, 0)
    monitor = socket.get_monitor_socket(zmq.EVENT_CONNECTED)
    try:
        socket.connect(endpoint)
    except zmq.ZMQError as error:
        raise ConfigError(f"--endpoint {endpoint}: {error}") from error
    connected = monitor.poll(_CONNECT_MS)
    socket.disable_monitor()
    if not connected:
        raise CoreError(f"nobody listens at {endpoint}")


def _ready(runner: "ModelRunner") -> ipc.ReadyFrame:
    return ipc.ReadyFrame(
        num_blocks=runner.shape.num_blocks,
        block_size=runner.shape.block_size,
        block_bytes=runner.shape.block_bytes,
        dtype=runner.dtype,
        device=runner.device,
        kernel_backend=runner.kernel_backend,
        pid=os.getpid(),
        embedding_size=runner.embedding_size,
    )


if __name__ == "__main__":
    sys.exit(main())
