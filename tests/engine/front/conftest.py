"""Workers under test. Each has its own short folder under /tmp: socket paths have 107 bytes."""

import asyncio
import shutil
import tempfile
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from tests.engine.front.dispatching import Front, reap
from tests.engine.front.process import WorkerProcess
from tests.engine.tiny_model import make_tiny_model

StartWorker = Callable[..., WorkerProcess]
Run = Callable[[Coroutine[Any, Any, None]], None]
Tokenize = Callable[[str], list[int]]


@pytest.fixture(scope="session")
def run() -> Iterator[Run]:
    """Run a story on the one event loop of the session: grpc's poller outlives a loop that is closed."""
    with asyncio.Runner() as runner:
        yield runner.run


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a tiny random model, with room for streams that do not end by themselves while a test runs."""
    return make_tiny_model(tmp_path_factory.mktemp("model") / "tiny", max_context=1 << 15)


@contextmanager
def short_folder() -> Iterator[Path]:
    """A folder with a short name, removed at the end."""
    path = Path(tempfile.mkdtemp(prefix="tg-"))
    try:
        yield path
    finally:
        shutil.rmtree(path)


@pytest.fixture
def folder() -> Iterator[Path]:
    """A short-named folder."""
    with short_folder() as path:
        yield path


@pytest.fixture(scope="module")
def shared_worker(tiny_model: Path) -> Iterator[WorkerProcess]:
    """One ready worker over the scripted core for all tests of a module: use request ids of your own."""
    with short_folder() as path:
        worker = WorkerProcess(path, tiny_model, scripted=True)
        try:
            yield worker.start().wait_ready()
        finally:
            worker.close()


@pytest.fixture(scope="module")
def engine(tiny_model: Path) -> Iterator[WorkerProcess]:
    """One ready worker with a real core for all tests of a module."""
    with short_folder() as path:
        worker = WorkerProcess(path, tiny_model, scripted=False, ENGINE_POISON="1")
        try:
            yield worker.start().wait_ready()
        finally:
            worker.close()


@pytest.fixture
def make_worker(folder: Path, tiny_model: Path) -> Iterator[StartWorker]:
    """Make workers on one state folder; whatever still runs at the end is killed."""
    made: list[WorkerProcess] = []

    def make(*, scripted: bool = True, **settings: str) -> WorkerProcess:
        made.append(WorkerProcess(folder, tiny_model, scripted=scripted, **settings))
        return made[-1]

    yield make
    for worker in made:
        worker.close()


@pytest.fixture
def worker(make_worker: StartWorker) -> WorkerProcess:
    """A ready worker whose core follows the prompt's script."""
    return make_worker().start().wait_ready()


@pytest.fixture(scope="session")
def tokenize(tiny_model: Path) -> Tokenize:
    """Encode text as the tiny model does."""
    tokenizer = Tokenizer.from_file(str(tiny_model / "tokenizer.json"))
    return lambda text: list(tokenizer.encode(text, add_special_tokens=False).ids)


@pytest.fixture(scope="module")
def front(tiny_model: Path, run: Run) -> Iterator[Front]:
    """One front without gRPC and core for all stories of a module."""
    with short_folder() as folder:
        made = Front(tiny_model, folder)

        async def start() -> None:
            made.journal.start()

        run(start())
        yield made
        made.dispatcher.close()
        run(reap())
        made.journal.close()
        made.meter.close()
