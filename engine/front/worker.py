"""The front as a whole: what is started in which order, and how it ends.

lock, journal, meter (closes orphans) -> socket -> core and model, side by side -> ready
"""

import asyncio
import signal
from collections.abc import Sequence

import structlog
import zmq.asyncio
from tokenizers import Tokenizer

from engine import __version__, ipc
from engine.config import EngineConfig
from engine.errors import ConfigError
from engine.fingerprint import fingerprint
from engine.front.address import check_address, is_wildcard
from engine.front.announce import Announcement, Announcer
from engine.front.connection import OUTBOX_BYTES
from engine.front.control import ControlHub
from engine.front.core_process import CORE_COMMAND, CoreProcess
from engine.front.dispatch import Dispatcher
from engine.front.journal import Journal
from engine.front.meter import Meter
from engine.front.policies import POLICY, SHARE_GROUPS, PolicyBook, policy_frame
from engine.front.preview import Previewer
from engine.front.server import EngineService, Server
from engine.front.sessions import SessionCalls
from engine.front.state import StateLock
from engine.front.stats import StatsBook
from engine.model.folder import ModelFolder, resolve_model
from engine.protocol import pb
from engine.trace.ring import FILE_NAME

_STATS_SECONDS = 0.25
_COMMIT_SECONDS = 2.0  # for the last usage records at the end
_GRACE_SECONDS = 1.0  # for clients to read the last events

log = structlog.get_logger(part="worker")


class Worker:
    """One worker's front. Implements what core, control streams and service ask of it."""

    def __init__(
        self, config: EngineConfig, *, core_command: Sequence[str] = CORE_COMMAND, outbox_bytes: int = OUTBOX_BYTES
    ) -> None:
        """Take the state folder and bind the address; call it on the event loop.

        Args:
            config: the worker's settings.
            core_command: starts the core; `--endpoint ipc://…` is appended.
            outbox_bytes: what a client may leave unread before requests of it end.

        Raises:
            ConfigError: a setting is wrong, or another worker has the folder or the address.
            EngineError: the folder's files are not ours.
        """
        _check(config)
        self._config = config
        self._announcer = Announcer(config.announce_url, config.token) if config.announce_url else None
        self._lock = StateLock(config.state_dir)
        self._journal = Journal(config.state_dir / "journal.sqlite3")
        self._meter = Meter(config.state_dir, self._journal)
        self._book = PolicyBook(self._journal.load(POLICY), self._journal.load(SHARE_GROUPS))
        self._stats = StatsBook()
        self._core = CoreProcess(config, zmq.asyncio.Context(), core_command)
        self._dispatcher = Dispatcher(self._meter, config.worker_id, self._core.send)
        self._hub = ControlHub(self, self._journal)
        self._meter.watch(self._hub.records_due)
        self._previewer = Previewer(config.state_dir / FILE_NAME, self._book, config.preview_nice)
        self._sessions = SessionCalls(self._core.send)
        service = EngineService(
            self, self._dispatcher, self._hub, self._previewer, self._sessions, outbox_bytes=outbox_bytes
        )
        self._server = Server(config, service)
        self._folder: ModelFolder | None = None
        self._fingerprint = ""  # with the folder
        self._shape: ipc.ReadyFrame | None = None  # of the newest core that was ready
        self._core_ready = False
        self._described = asyncio.Event()
        self._settled = asyncio.Event()
        self._serving = False
        self._serving_due = asyncio.Event()
        self._stop = asyncio.Event()
        self._hurry = asyncio.Event()

    async def run(self) -> None:
        """Serve until SIGTERM or SIGINT, then drain; a second signal ends it at once.

        Raises:
            ConfigError, ModelError: the model or the core's settings cannot be served.
        """
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._signalled)
        self._journal.start()
        await self._server.start()
        if self._config.trace_bytes:
            self._previewer.start()
        core = asyncio.create_task(self._core.run(self))
        others = (self._load(), self._tick(), self._tell_health())
        tasks = [core, *map(asyncio.create_task, others)]
        stopping = asyncio.create_task(self._stop.wait())
        try:
            await self._until(stopping, tasks)
            await self._drain(core)
        finally:
            for task in (*tasks, stopping):
                task.cancel()
            await asyncio.wait({*tasks, stopping})
            await self._close()

    # ------------------------------------------------------------ for the core

    def core_frame(self, frame: ipc.ToFront) -> None:
        """Take a frame of the living core."""
        match frame:
            case ipc.StepFrame():
                self._dispatcher.step(frame.outputs)
            case ipc.StatsFrame():
                self._stats.add(frame)
                self._hub.stats_due()
            case ipc.AppliedFrame():
                self._book.applied = pb.Applied(
                    version=frame.version,
                    epoch=frame.epoch,
                    at=frame.at,
                    over_bytes=frame.over_bytes,
                    settle_seconds=frame.settle_seconds,
                )
                self._hub.applied(self._book.applied)
                self._update()
            case ipc.SettledFrame():
                self._book.settled = pb.Settled(version=frame.version, epoch=frame.epoch, at=frame.at)
                self._hub.settled(self._book.settled)
            case ipc.SessionsFrame():
                self._sessions.answered(frame)
            case ipc.ReadyFrame():
                self._take_ready(frame)

    def core_lost(self, detail: str) -> None:
        """End every request; submits are refused until the next core is ready."""
        self._core_ready = False
        self._book.applied, self._book.settled = pb.Applied(), pb.Settled()
        self._stats.core_lost()
        self._sessions.core_lost(detail)
        self._dispatcher.unavailable = detail
        self._dispatcher.end_all(detail)
        self._update()

    # ------------------------------------------------------------ for control streams

    async def settled(self) -> None:
        """Return when the core is ready and has applied the policy that this worker holds."""
        await self._settled.wait()

    def hello(self) -> pb.Hello:
        """Return the first event of a control stream."""
        shape = self._shape
        return pb.Hello(
            worker_id=self._config.worker_id,
            applied_version=self._book.applied.version,
            applied_epoch=self._book.applied.epoch,
            kv_bytes=shape.num_blocks * shape.block_bytes if shape else self._config.kv_bytes,
            block_bytes=shape.block_bytes if shape else 0,
            grants=self._book.tenants,
            share_groups=self._book.share_groups,
        )

    def stats(self, *, complete: bool) -> pb.Stats:
        """Return the statistics now."""
        return self._stats.take(
            complete=complete,
            block_bytes=self._shape.block_bytes if self._shape else 0,
            applied_version=self._book.applied.version,
            core_ready=self._core_ready,
        )

    def push_policy(self, push: pb.PolicyPush) -> Sequence[pb.ControlEvent]:
        """Merge a push, save the whole and hand the push to the core; an older one is only acked."""
        if not self._book.take(push):
            return self._book.acks()
        self._journal.save(self._book.unsaved())
        self._core.send(policy_frame(push))
        self._update()
        return ()

    def drain(self, draining: bool) -> None:
        """Take nothing new, or take again; a worker that shuts down stays closed, whatever the controller says."""
        if self._stop.is_set():
            return
        log.info("draining" if draining else "taking_requests")
        self._dispatcher.draining = draining
        self._core.send(ipc.DrainFrame(draining))

    # ------------------------------------------------------------ for the service

    async def card(self) -> pb.ModelCard:
        """Return the model card, waiting for the first core to be ready."""
        await self._described.wait()
        assert self._folder is not None and self._shape is not None
        return pb.ModelCard(
            worker_id=self._config.worker_id,
            model=self._folder.name,
            digest=self._fingerprint,
            tokenizer_json=self._folder.tokenizer_json,
            chat_template=self._folder.chat_template,
            special_tokens=self._folder.special_tokens,
            eos_token_ids=self._folder.eos_token_ids,
            vocab_size=self._folder.vocab_size,
            max_context_tokens=self._folder.max_context_tokens,
            block_size=self._shape.block_size,
            block_bytes=self._shape.block_bytes,
            num_blocks=self._shape.num_blocks,
            dtype=self._shape.dtype,
            device=self._shape.device,
            kernel_backend=self._shape.kernel_backend,
            engine_version=__version__,
            embedding_size=self._shape.embedding_size,
        )

    # ------------------------------------------------------------ inside

    async def _load(self) -> None:
        """Read the model's folder beside the core's own start."""
        folder = await asyncio.to_thread(resolve_model, self._config)
        tokenizer = await asyncio.to_thread(Tokenizer.from_buffer, folder.tokenizer_json)
        self._folder, self._fingerprint = folder, fingerprint(folder, self._config)
        self._book.serve_model(folder.vocab_size)
        self._dispatcher.serve_model(folder, tokenizer)
        log.info("model_read", model=folder.name, digest=self._fingerprint)
        self._update()

    async def _tick(self) -> None:
        """Keep statistics coming while there is no core to send them."""
        while True:
            await asyncio.sleep(_STATS_SECONDS)
            if not self._core_ready:
                self._hub.stats_due()

    async def _tell_health(self) -> None:
        """Keep what the health service answers in line with whether requests are served."""
        while True:
            await self._serving_due.wait()
            self._serving_due.clear()
            await self._server.set_serving(self._serving)

    def _take_ready(self, frame: ipc.ReadyFrame) -> None:
        # The policy goes first, so that no request of this core is judged without it.
        self._shape = frame
        self._core_ready = True
        if self._book.received:
            self._core.send(policy_frame(self._book.snapshot()))
        if self._dispatcher.draining:
            self._core.send(ipc.DrainFrame(True))
        self._dispatcher.embedding_size = frame.embedding_size
        self._dispatcher.unavailable = ""
        self._sessions.core_ready()
        log.info("core_ready", pid=frame.pid, blocks=frame.num_blocks, dtype=frame.dtype, backend=frame.kernel_backend)
        self._update()

    def _update(self) -> None:
        """Bring what others wait for in line with the state."""
        ready = self._core_ready and self._folder is not None
        if ready and not self._described.is_set():
            self._described.set()
            self._announce()
        applied = (self._book.applied.version, self._book.applied.epoch)
        if self._core_ready and applied >= self._book.order:
            self._settled.set()
        else:
            self._settled.clear()
        self._serving = ready
        self._serving_due.set()

    def _announce(self) -> None:
        if self._announcer is None or self._folder is None or self._shape is None:
            return
        self._announcer.start(
            Announcement(
                worker_id=self._config.worker_id,
                address=self._config.announce_address or self._server.address,
                model=self._folder.name,
                digest=self._fingerprint,
                kv_bytes=self._shape.num_blocks * self._shape.block_bytes,
                block_bytes=self._shape.block_bytes,
                max_context=self._folder.max_context_tokens,
            )
        )

    def _signalled(self) -> None:
        if self._stop.is_set():
            self._hurry.set()
        self._stop.set()

    async def _until(self, stopping: "asyncio.Task[bool]", tasks: "Sequence[asyncio.Task[None]]") -> None:
        """Return when a signal has come; raise what a task raised."""
        waiting: set[asyncio.Task[None] | asyncio.Task[bool]] = {*tasks, stopping}
        while not stopping.done():
            done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()

    async def _drain(self, core: "asyncio.Task[None]") -> None:
        """Let requests end by themselves for a while, then end the rest."""
        log.info("stopping", requests=self._dispatcher.num_requests)
        self._dispatcher.draining = True
        await self._server.announce_stop()
        idle = asyncio.create_task(self._dispatcher.idle.wait())
        hurry = asyncio.create_task(self._hurry.wait())
        await asyncio.wait({idle, hurry, core}, timeout=self._config.drain_seconds, return_when=asyncio.FIRST_COMPLETED)
        self._dispatcher.end_all("the worker is shutting down")
        await asyncio.wait({idle}, timeout=_COMMIT_SECONDS)
        for task in (idle, hurry):
            task.cancel()

    async def _close(self) -> None:
        if self._announcer is not None:
            self._announcer.stop()
        await self._server.stop(_GRACE_SECONDS)
        self._previewer.close()
        self._dispatcher.close()
        await asyncio.to_thread(self._journal.close)
        self._meter.close()
        self._lock.release()
        log.info("stopped")


def _check(config: EngineConfig) -> None:
    if not config.token:
        raise ConfigError("ENGINE_TOKEN is not set: give the worker and its gateway the same long random string")
    check_address(config.address)
    if config.announce_url and not config.announce_address and is_wildcard(config.address):
        raise ConfigError(
            f"ENGINE_ADDRESS={config.address!r} cannot be dialled: set ENGINE_ANNOUNCE_ADDRESS to what others use"
        )
