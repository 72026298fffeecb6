"""Which workers a process knows, keeps and drops."""

import asyncio
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from engine.protocol import pb
from gateway.routing.choose import affinity
from gateway.workers.registry import WorkerRegistry
from tenants.contracts import WorkerView
from tests.gateway.wire.scripted import TOKEN, ScriptedEngine, serving, until


class Listing:
    """The control plane's list, which can be away."""

    def __init__(self) -> None:
        self.views: list[WorkerView] = []
        self.away = False

    async def read(self) -> list[WorkerView]:
        """Return the list."""
        if self.away:
            raise ConnectionError("away")
        return list(self.views)


@asynccontextmanager
async def two_engines() -> AsyncIterator[tuple[Listing, WorkerRegistry, ScriptedEngine, ScriptedEngine]]:
    """A registry, its list and two scripted engines, of which none is listed yet."""
    with tempfile.TemporaryDirectory(prefix="tollgate-") as name:
        async with serving(Path(name), "a") as one, serving(Path(name), "b") as two:
            listing = Listing()
            registry = WorkerRegistry(listing.read, TOKEN)
            yield listing, registry, one, two
            await registry.close()


def test_workers_share_a_model() -> None:
    """Two workers of one digest are one model with two candidates; its tokenizer is held once."""

    async def story() -> None:
        async with two_engines() as (listing, registry, one, two):
            listing.views = [one.view(), two.view()]
            await registry.refresh()
            await until(lambda: registry.num_connected == 2)
            model = registry.model("scripted")
            assert model is not None
            assert {candidate.worker_id for candidate in registry.candidates(model)} == {"a", "b"}
            assert registry.names() == {"scripted"}
            assert await model.encode(["hello"], special=False) == [model.tokenizer.encode("hello").ids]
            listing.views = [one.view(draining=True), two.view()]
            await registry.refresh()
            assert [candidate.worker_id for candidate in registry.candidates(model)] == ["b"]

    asyncio.run(story())


def test_models_of_one_name_do_not_mix() -> None:
    """A worker of another digest under the same name doesn't get prompts tokenised for the first."""

    async def story() -> None:
        async with two_engines() as (listing, registry, one, two):
            two.digest = "e" * 64
            listing.views = [one.view(), two.view()]
            await registry.refresh()
            await until(lambda: registry.num_connected == 2)
            model = registry.model("scripted")
            assert model is not None
            assert len(registry.candidates(model)) == 1

    asyncio.run(story())


def test_all_workers_of_a_name_serve() -> None:
    """Of two digests under one name the one with less to do is asked, and when one drains, the other takes all."""

    async def story() -> None:
        async with two_engines() as (listing, registry, one, two):
            two.digest = "e" * 64
            listing.views = [one.view(), two.view()]
            await registry.refresh()
            await until(lambda: registry.num_connected == 2)

            def asked() -> list[str]:
                model = registry.model("scripted")
                assert model is not None
                return [candidate.worker_id for candidate in registry.candidates(model)]

            assert asked() == ["a"]
            listing.views = [one.view(draining=True), two.view()]
            await registry.refresh()
            assert asked() == ["b"]
            listing.views = [one.view(draining=True), two.view(draining=True)]
            await registry.refresh()
            assert asked() == []  # the name is still known
            listing.views = [one.view(), two.view()]
            await registry.refresh()
            busy = registry.client("a")
            assert busy is not None
            running = busy.submit(pb.Submit(request_id="r", tenant="t", token_ids=[1]))
            assert asked() == ["b"]
            running.cancel()

    asyncio.run(story())


def test_last_known_set_serves_on() -> None:
    """With the list away, or a worker missing from it whose connection stands, it serves on."""

    async def story() -> None:
        async with two_engines() as (listing, registry, one, two):
            listing.views = [one.view(), two.view()]
            await registry.refresh()
            await until(lambda: registry.num_connected == 2)
            listing.away = True
            await registry.refresh()
            listing.away, listing.views = False, []
            await registry.refresh()
            assert registry.num_connected == 2
            assert registry.names() == {"scripted"}

    asyncio.run(story())


def test_gone_worker_is_dropped() -> None:
    """A worker that is neither listed nor connected is forgotten; one that moved is dialled anew."""

    async def story() -> None:
        async with two_engines() as (listing, registry, one, two):
            listing.views = [one.view(), two.view(address="unix:/nonexistent/socket")]
            await registry.refresh()
            await until(lambda: registry.num_connected == 1)
            listing.views = [one.view(), two.view()]
            await registry.refresh()
            await until(lambda: registry.num_connected == 2)
            await registry.refresh()
            listing.views = []
            client = registry.client("a")
            assert client is not None
            one.break_stream()
            await until(lambda: not client.connected.is_set())
            await registry.refresh()
            assert registry.client("a") is None
            assert registry.client("b") is not None

    asyncio.run(story())


def test_card_that_cannot_be_read() -> None:
    """A worker whose tokenizer is broken is not used, and is used once it is mended."""

    async def story() -> None:
        async with two_engines() as (listing, registry, one, _):
            good, one.tokenizer = one.tokenizer, b"{nonsense"
            listing.views = [one.view()]
            await registry.refresh()
            client = registry.client("a")
            assert client is not None
            await asyncio.sleep(0)
            assert registry.model("scripted") is None
            assert registry.names() == {"scripted"}
            one.tokenizer = good
            await until(client.connected.is_set)
            assert registry.model("scripted") is not None

    asyncio.run(story())


def test_least_loaded_is_chosen() -> None:
    """Requests spread over the workers of a model."""

    async def story() -> None:
        from gateway.routing.route import Routed

        async with two_engines() as (listing, registry, one, two):
            listing.views = [one.view(), two.view()]
            await registry.refresh()
            await until(lambda: registry.num_connected == 2)
            model = registry.model("scripted")
            assert model is not None
            runs = [Routed(registry, model, pb.Submit(request_id=f"r{number}")) for number in range(4)]
            await until(lambda: len(one.submits) == len(two.submits) == 2)
            for run in runs:
                run.cancel()
            await until(lambda: len(one.cancels) == len(two.cancels) == 2)

    asyncio.run(story())


def test_a_session_stays_with_its_worker_over_digests() -> None:
    """Of two digests under one name the model is that of the worker that keeps the session, and prefetches."""

    async def story() -> None:
        async with two_engines() as (listing, registry, one, two):
            two.digest = "e" * 64
            listing.views = [one.view(), two.view()]
            await registry.refresh()
            await until(lambda: registry.num_connected == 2)
            digests = set()
            for number in range(32):
                session = affinity("tenant", f"chat {number}")
                model = registry.model("scripted", session)
                assert model is not None
                ((name, keeper),) = registry.keepers(session)
                home = {"d" * 64: "a", "e" * 64: "b"}[model.digest]
                assert (name, keeper) == ("scripted", registry.client(home))
                assert registry.model("scripted", session) == model
                digests.add(model.digest)
            assert len(digests) == 2
            listing.views = [one.view(draining=True), two.view()]
            await registry.refresh()
            session = affinity("tenant", "chat 0")
            assert registry.keepers(session) == [("scripted", registry.client("b"))]
            listing.views = [one.view(draining=True), two.view(draining=True)]
            await registry.refresh()
            assert registry.keepers(session) == []

    asyncio.run(story())
