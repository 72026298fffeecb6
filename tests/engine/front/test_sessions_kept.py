"""Sessions over the whole worker: real front, real core, real disk, a tiny random model in float32."""

import asyncio
import os
import random
import signal
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from engine.protocol import pb
from tests.engine.front.client import POLICY, Client, GenerateStream, channel
from tests.engine.front.conftest import Run, StartWorker, short_folder
from tests.engine.front.process import WorkerProcess
from tests.engine.front.test_sessions import ask, change

BLOCK_BYTES = 8192  # of the tiny model: two layers, keys and values, 16 tokens, two heads of 16 numbers
POOL_BLOCKS = 64
NAMESPACE = bytes(range(32))
SMALL = {
    "ENGINE_KV_BYTES": str(POOL_BLOCKS * BLOCK_BYTES),
    "ENGINE_HOST_BYTES": "8MiB",
    "ENGINE_DISK_BYTES": "8MiB",
    "ENGINE_POISON": "1",
}
MEGABYTES = 8 << 20


def policy(*, disk_secret: bytes = b"", host_bytes: int = MEGABYTES, disk_bytes: int = MEGABYTES) -> pb.PolicyPush:
    """Return a policy of the one tenant, with room in every tier."""
    push = pb.PolicyPush()
    push.CopyFrom(POLICY)
    tenant = push.tenants[0]
    tenant.host_bytes, tenant.disk_bytes, tenant.disk_secret = host_bytes, disk_bytes, disk_secret
    tenant.kv_soft_bytes = POOL_BLOCKS // 2 * BLOCK_BYTES
    return push


def prompt_of(seed: int, count: int) -> list[int]:
    """Return random tokens."""
    return random.Random(seed).choices(range(3, 250), k=count)


async def take_turn(
    stream: GenerateStream, prompt: list[int], session: str = "", max_tokens: int = 20
) -> tuple[list[int], pb.Usage]:
    """Let a request run, greedily; return its tokens and what it used."""
    sampling = {"max_tokens": max_tokens, "ignore_eos": True}
    number = await stream.submit(prompt, session=session, namespace=NAMESPACE, sampling=sampling)
    end = await stream.end(number)
    assert end.HasField("finished"), end
    return stream.token_ids(number), end.finished.usage


async def fill_the_pool(stream: GenerateStream) -> None:
    """Let other prompts run until nothing of what was there before is left on the device."""
    for seed in range(100, 104):
        await take_turn(stream, prompt_of(seed, 500), max_tokens=1)


async def parked(client: Client, session: str, *tiers: str) -> pb.Session:
    """Return a session once all of its blocks are in these tiers."""
    async with asyncio.timeout(60):
        while True:
            (found,) = (await ask(client, "minnow", session)).sessions
            if all(getattr(found, f"{tier}_bytes") * 16 == found.num_tokens * BLOCK_BYTES for tier in tiers):
                return found


@pytest.fixture(scope="module")
def expected(engine: WorkerProcess, run: Run) -> list[list[int]]:
    """The tokens of two turns of a conversation on a worker with a large pool, the second asked for cold."""
    found: list[list[int]] = []

    async def story() -> None:
        async with channel(engine.address) as client:
            await client.use_policy()
            stream = client.generate()
            first, _ = await take_turn(stream, prompt_of(1, 300))
            second, _ = await take_turn(stream, second_prompt(first))
            found.extend((first, second))

    run(story())
    return found


def second_prompt(first: list[int]) -> list[int]:
    """Return the next turn's prompt: what was said so far, and some more."""
    return [*prompt_of(1, 300), *first, *prompt_of(2, 40)]


@pytest.fixture(scope="module")
def small(tiny_model: Path) -> Iterator[WorkerProcess]:
    """A worker with a small pool, host memory and a disk."""
    with short_folder() as path:
        worker = WorkerProcess(path, tiny_model, scripted=False, **SMALL)
        try:
            yield worker.start().wait_ready()
        finally:
            worker.close()


def test_the_next_turn_finds_what_the_device_has_given_up(
    small: WorkerProcess, run: Run, expected: list[list[int]]
) -> None:
    """It computes nothing of the first turn again, and its tokens are those of a worker with a large pool."""

    async def story() -> None:
        async with channel(small.address) as client:
            await client.use_policy(policy())
            stream = client.generate()
            first, _ = await take_turn(stream, prompt_of(1, 300), "chat")
            assert first == expected[0]
            await parked(client, "chat", "host")
            await fill_the_pool(stream)
            (gone,) = (await ask(client, "minnow", "chat")).sessions
            assert gone.device_bytes < gone.host_bytes
            second, usage = await take_turn(client.generate(), second_prompt(first), "chat")
            assert second == expected[1]
            assert usage.cached_tokens >= (300 + 19) // 16 * 16
            (session,) = (await ask(client, "minnow", "chat")).sessions
            assert (session.num_turns, session.num_tokens) == (2, (300 + 20 + 40 + 19) // 16 * 16)

    run(story())


def test_an_erased_session_is_gone_from_the_disk(small: WorkerProcess, run: Run) -> None:
    """Of what was written of it not one page is left; the sessions of others stay, and the list is without it."""

    async def story() -> None:
        async with channel(small.address) as client:
            await client.use_policy(policy())
            stream = client.generate()
            await take_turn(stream, prompt_of(7, 200), "stays")
            await parked(client, "stays", "host", "disk")
            before = pages(small.folder / "state" / "disk")
            await take_turn(stream, prompt_of(8, 200), "goes")
            await parked(client, "goes", "host", "disk")
            own = pages(small.folder / "state" / "disk") - before
            assert len(own) >= 12
            erased = await change(client, "minnow", "goes", pb.SESSION_ACTION_ERASE)
            assert (erased.device_bytes, erased.host_bytes, erased.disk_bytes) == (0, 0, 0)
            left = pages(small.folder / "state" / "disk")
            assert not own & left
            assert before <= left
            _, usage = await take_turn(stream, prompt_of(8, 200))
            assert usage.cached_tokens == 0
            _, usage = await take_turn(stream, prompt_of(7, 200))
            assert usage.cached_tokens >= 199 // 16 * 16
            assert "goes" not in {one.session for one in (await ask(client, "minnow")).sessions}

    run(story())


def pages(folder: Path) -> set[bytes]:
    """Return what is written in the slab files, in pieces of 4 KiB."""
    found: set[bytes] = set()
    for path in folder.rglob("*"):
        if path.is_file() and "sqlite" not in path.name:
            data = path.read_bytes()
            found |= {data[start : start + 4096] for start in range(0, len(data), 4096)}
    return {page for page in found if page.strip(b"\0")}


@pytest.mark.parametrize("secret", [b"", bytes(range(32))], ids=["plain", "encrypted"])
def test_sessions_survive_the_worker(
    make_worker: StartWorker, run: Run, expected: list[list[int]], secret: bytes
) -> None:
    """After a restart they are listed with their bytes on disk, and the next turn computes nothing again.

    Those of a tenant whose disk is encrypted are there as soon as its secret is sent again; it is not in the state.
    """
    worker = make_worker(scripted=False, **SMALL).start().wait_ready()
    first: list[int] = []

    async def before() -> None:
        async with channel(worker.address) as client:
            await client.use_policy(policy(disk_secret=secret))
            tokens, _ = await take_turn(client.generate(), prompt_of(1, 300), "chat")
            first.extend(tokens)
            await change(client, "minnow", "chat", pb.SESSION_ACTION_PIN)
            await parked(client, "chat", "host", "disk")

    run(before())
    assert worker.terminate() == 0
    if secret:
        for path in worker.folder.rglob("*"):
            assert not path.is_file() or secret not in path.read_bytes(), path
        assert secret.hex() not in worker.text()
        assert repr(secret)[2:-1] not in worker.text()
    again = make_worker(scripted=False, **SMALL).start().wait_ready()

    async def after() -> None:
        async with channel(again.address) as client:
            if secret:
                assert not (await ask(client, "minnow", "chat")).sessions
                push = policy(disk_secret=secret)
                push.epoch = 1
                await client.use_policy(push)
            session = await listed(client, "chat")
            assert (session.num_turns, session.pinned, session.expires_at) == (1, True, 0.0)
            assert (session.num_tokens, session.device_bytes, session.host_bytes) == ((300 + 19) // 16 * 16, 0, 0)
            assert session.disk_bytes * 16 == session.num_tokens * BLOCK_BYTES
            tokens, usage = await take_turn(client.generate(), second_prompt(first), "chat")
            assert tokens == expected[1]
            assert usage.cached_tokens >= (300 + 19) // 16 * 16

    run(after())


async def listed(client: Client, name: str) -> pb.Session:
    """Return a session once it is listed."""
    async with asyncio.timeout(60):
        while True:
            page = await ask(client, "minnow", name)
            if page.sessions and page.sessions[0].disk_bytes:
                return page.sessions[0]


def test_a_prefetch_brings_a_session_up_from_the_disk(make_worker: StartWorker, run: Run) -> None:
    """Before the next turn comes, without a request: by a command of a stream, or by a call."""
    worker = make_worker(scripted=False, **SMALL).start().wait_ready()

    async def before() -> None:
        async with channel(worker.address) as client:
            await client.use_policy(policy())
            for number, session in enumerate(("typing", "asked")):
                await take_turn(client.generate(), prompt_of(20 + number, 200), session)
                await parked(client, session, "host", "disk")

    run(before())
    assert worker.terminate() == 0
    again = make_worker(scripted=False, **SMALL).start().wait_ready()

    async def after() -> None:
        async with channel(again.address) as client:
            assert (await listed(client, "typing")).host_bytes == 0
            stream = client.generate()
            await stream.call.write(pb.Command(prefetch=pb.Prefetch(tenant="minnow", session="typing")))
            await change(client, "minnow", "asked", pb.SESSION_ACTION_PREFETCH)
            for session in ("typing", "asked"):
                await parked(client, session, "host")

    run(after())


def test_erasing_ends_the_sessions_requests(small: WorkerProcess, run: Run) -> None:
    """A request of it ends as cancelled; then the session is gone."""

    async def story() -> None:
        async with channel(small.address) as client:
            await client.use_policy(policy())
            stream, sampling = client.generate(), {"max_tokens": 900, "ignore_eos": True}
            reason = pb.FINISH_REASON_LENGTH
            while reason == pb.FINISH_REASON_LENGTH:  # on a loaded machine it may have ended before this one's turn
                number = await stream.submit(prompt_of(10, 40), session="busy", namespace=NAMESPACE, sampling=sampling)
                await stream.tokens(number, 20)
                await change(client, "minnow", "busy", pb.SESSION_ACTION_ERASE)
                reason = (await stream.end(number)).finished.reason
            assert reason == pb.FINISH_REASON_CANCELLED
            with pytest.raises(grpc.aio.AioRpcError) as gone:
                await change(client, "minnow", "busy", pb.SESSION_ACTION_ERASE)
            assert gone.value.code() is grpc.StatusCode.NOT_FOUND

    run(story())


def test_a_killed_core_leaves_its_sessions(make_worker: StartWorker, run: Run) -> None:
    """The next core has them from the disk."""
    worker = make_worker(scripted=False, **SMALL).start().wait_ready()

    async def story() -> None:
        async with channel(worker.address) as client:
            await client.use_policy(policy())
            await take_turn(client.generate(), prompt_of(1, 100), "chat")
            await parked(client, "chat", "host", "disk")

    async def after() -> None:
        async with channel(worker.address) as client:
            assert (await listed(client, "chat")).num_tokens == 119 // 16 * 16

    run(story())
    os.kill(worker.core_pid, signal.SIGKILL)
    worker.wait_ready(2)
    run(after())
