"""One request over several workers."""

import asyncio
import tempfile
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from engine.protocol import pb
from gateway.routing.choose import affinity
from gateway.routing.route import Routed
from gateway.workers.errors import GenerationFailed, Refused, Stopping, WorkerUnavailable
from gateway.workers.generation import Admitted, Delta, Finished
from gateway.workers.registry import WorkerRegistry
from tests.gateway.wire.scripted import TOKEN, ScriptedEngine, admitted, delta, finished, refused, serving, until

Story = Callable[[Routed, ScriptedEngine, ScriptedEngine], Coroutine[Any, Any, None]]


@asynccontextmanager
async def routed(session: str = "") -> AsyncIterator[tuple[Routed, ScriptedEngine, ScriptedEngine]]:
    """A request on its way to the first of two workers; a session's goes to where the session is."""
    with tempfile.TemporaryDirectory(prefix="tollgate-") as name:
        async with serving(Path(name), "a") as one, serving(Path(name), "b") as two:

            async def read() -> list[Any]:
                return [one.view(), two.view()]

            registry = WorkerRegistry(read, TOKEN)
            await registry.refresh()
            await until(lambda: registry.num_connected == 2)
            model = registry.model("scripted")
            assert model is not None
            submit = pb.Submit(request_id="r", token_ids=[1, 2], policy_version=7, tenant="t", session=session)
            async with Routed(registry, model, submit) as run:
                await until(lambda: one.submits or two.submits)
                home, other = (one, two) if one.submits else (two, one)
                yield run, home, other
            await registry.close()


def run(story: Story, session: str = "") -> None:
    """Run a story."""

    async def main() -> None:
        async with routed(session) as (request, one, two):
            await story(request, one, two)

    asyncio.run(main())


@pytest.mark.parametrize("code", [pb.REFUSAL_CODE_DRAINING, pb.REFUSAL_CODE_UNAVAILABLE])
def test_worker_that_cannot_is_left(code: int) -> None:
    """A worker that drains or starts is left for the next; the next try has a request id of its own."""

    async def story(request: Routed, one: ScriptedEngine, two: ScriptedEngine) -> None:
        await one.say(refused(one.submits[0].stream, code))
        event = asyncio.create_task(request.next())
        sent = (await until(lambda: two.submits))[0]
        assert (one.submits[0].request_id, sent.request_id) == ("r", "r.2")
        await two.say(admitted(sent.stream), finished(sent.stream))
        assert await event == Admitted(10)
        assert isinstance(await request.next(), Finished)
        assert request.used_tokens == 5

    run(story)


def test_policy_that_does_not_come() -> None:
    """A worker that never gets the policy version goes on under its last; the next request doesn't wait for it."""

    async def story(request: Routed, one: ScriptedEngine, two: ScriptedEngine) -> None:
        assert one.submits[0].policy_version == 7
        await one.say(refused(one.submits[0].stream, pb.REFUSAL_CODE_NO_POLICY))
        event = asyncio.create_task(request.next())
        again = await until(lambda: one.submits[1:])
        assert (again[0].policy_version, again[0].request_id) == (0, "r.2")
        await one.say(admitted(again[0].stream))
        assert await event == Admitted(10)
        async with Routed(request._registry, request._model, pb.Submit(request_id="s", policy_version=7)):
            await until(lambda: two.submits)
        await one.say(finished(again[0].stream))
        assert isinstance(await request.next(), Finished)
        async with Routed(request._registry, request._model, pb.Submit(request_id="t", policy_version=7)):
            await until(lambda: one.submits[2:])
        assert (two.submits[0].policy_version, one.submits[2].policy_version) == (7, 0)

    run(story)


def test_no_policy_at_all() -> None:
    """A tenant that the worker doesn't know is refused after the second try."""

    async def story(request: Routed, one: ScriptedEngine, two: ScriptedEngine) -> None:
        await one.say(refused(one.submits[0].stream, pb.REFUSAL_CODE_NO_POLICY))
        event = asyncio.create_task(request.next())
        again = await until(lambda: one.submits[1:])
        await one.say(refused(again[0].stream, pb.REFUSAL_CODE_NO_POLICY))
        with pytest.raises(Refused):
            await event
        assert not two.submits

    run(story)


def test_every_worker_refuses() -> None:
    """When no worker takes it the last refusal is the answer, and nothing was used."""

    async def story(request: Routed, one: ScriptedEngine, two: ScriptedEngine) -> None:
        await one.say(refused(one.submits[0].stream, pb.REFUSAL_CODE_DRAINING))
        event = asyncio.create_task(request.next())
        await until(lambda: two.submits)
        await two.say(refused(two.submits[0].stream, pb.REFUSAL_CODE_UNAVAILABLE))
        with pytest.raises(Refused):
            await event
        assert request.used_tokens == 0

    run(story)


@pytest.mark.parametrize("code", [pb.REFUSAL_CODE_KV_LIMIT, pb.REFUSAL_CODE_INVALID, pb.REFUSAL_CODE_QUEUE_FULL])
def test_refusal_of_the_request_is_final(code: int) -> None:
    """What is wrong with the request itself is not tried elsewhere."""

    async def story(request: Routed, one: ScriptedEngine, two: ScriptedEngine) -> None:
        await one.say(refused(one.submits[0].stream, code))
        with pytest.raises(Refused):
            await request.next()
        assert not two.submits

    run(story)


def test_broken_before_admission_goes_on_elsewhere() -> None:
    """A worker lost before it admitted the request costs the client nothing."""

    async def story(request: Routed, one: ScriptedEngine, two: ScriptedEngine) -> None:
        one.break_stream()
        event = asyncio.create_task(request.next())
        sent = (await until(lambda: two.submits))[0]
        await two.say(admitted(sent.stream))
        assert await event == Admitted(10)

    run(story)


def test_broken_after_admission_is_an_error() -> None:
    """A worker lost in mid-stream ends the request; what was generated counts."""

    async def story(request: Routed, one: ScriptedEngine, two: ScriptedEngine) -> None:
        stream = one.submits[0].stream
        await one.say(admitted(stream), delta(stream, "ab", 2))
        assert await request.next() == Admitted(10)
        assert await request.next() == Delta("ab")
        one.break_stream()
        with pytest.raises(GenerationFailed):
            await request.next()
        assert not two.submits
        assert request.used_tokens == 4

    run(story)


def test_fail_ends_it() -> None:
    """A request that this process ends is cancelled and tried nowhere else."""

    async def story(request: Routed, one: ScriptedEngine, two: ScriptedEngine) -> None:
        request.fail(Stopping("stop"))
        with pytest.raises(Stopping):
            await request.next()
        await until(lambda: one.cancels)
        assert not two.submits

    run(story)


def test_no_worker() -> None:
    """Without a connected worker the request is refused at once."""

    async def main() -> None:
        async with routed() as (request, *_):
            empty = WorkerRegistry(lambda: asyncio.sleep(0, []), TOKEN)
            with pytest.raises(WorkerUnavailable):
                Routed(empty, request._model, pb.Submit(request_id="r"))

    asyncio.run(main())


@pytest.mark.parametrize("session", [f"chat {number}" for number in range(6)])
def test_full_queue_at_home_sends_a_session_elsewhere(session: str) -> None:
    """Elsewhere it computes again what it had, which is better than a refusal."""

    async def story(request: Routed, home: ScriptedEngine, other: ScriptedEngine) -> None:
        event = asyncio.create_task(request.next())
        await home.say(refused(home.submits[0].stream, pb.REFUSAL_CODE_QUEUE_FULL))
        sent = (await until(lambda: other.submits))[0]
        assert sent.session == session
        await other.say(admitted(sent.stream))
        assert await event == Admitted(10)

    run(story, session)


def test_full_queue_everywhere_is_a_refusal() -> None:
    """A session is told what any other request is."""

    async def story(request: Routed, home: ScriptedEngine, other: ScriptedEngine) -> None:
        event = asyncio.create_task(request.next())
        await home.say(refused(home.submits[0].stream, pb.REFUSAL_CODE_QUEUE_FULL))
        sent = (await until(lambda: other.submits))[0]
        await other.say(refused(sent.stream, pb.REFUSAL_CODE_QUEUE_FULL))
        with pytest.raises(Refused):
            await event

    run(story, "chat")


def test_prefetch_goes_where_the_turn_will_go() -> None:
    """The worker that would get the session's next request is the one that is told, and no other."""

    async def story(request: Routed, home: ScriptedEngine, other: ScriptedEngine) -> None:
        registry = request._registry
        ((name, client),) = registry.keepers(affinity("t", "chat"))
        assert name == "scripted"
        client.prefetch("t", "chat")
        (told,) = await until(lambda: home.prefetches)
        assert (told.tenant, told.session) == ("t", "chat")
        assert not other.prefetches

    run(story, "chat")
