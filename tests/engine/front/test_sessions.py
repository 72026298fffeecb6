"""Calls about sessions over the real front and a scripted core."""

import asyncio

import grpc
import pytest

from engine import ipc
from engine.front.sessions import SessionCalls, SessionError
from engine.protocol import pb
from tests.engine.front.client import Client, channel
from tests.engine.front.conftest import Run
from tests.engine.front.process import WorkerProcess
from tests.engine.front.scripted_core import COUNT


async def ask(client: Client, tenant: str, session: str = "", **fields: object) -> pb.SessionPage:
    """List sessions."""
    query = pb.SessionQuery(tenant=tenant, session=session, **fields)  # type: ignore[arg-type]
    page: pb.SessionPage = await client.stub.ListSessions(query, metadata=client.metadata, timeout=60)
    return page


async def change(client: Client, tenant: str, session: str, action: int) -> pb.Session:
    """Change a session."""
    call = pb.SessionChange(tenant=tenant, session=session, action=action)  # type: ignore[arg-type]
    changed: pb.Session = await client.stub.ChangeSession(call, metadata=client.metadata, timeout=60)
    return changed


async def take_turns(client: Client, tenant: str, *sessions: str, seconds: float = 0.0) -> None:
    """Let a turn of each session run, one after the other."""
    stream = client.generate()
    for session in sessions:
        number = await stream.submit([COUNT, 1], tenant=tenant, session=session, session_seconds=seconds)
        assert (await stream.end(number)).HasField("finished")


def test_lists_page_by_page(shared_worker: WorkerProcess, run: Run) -> None:
    """The last used first; the next page begins before the last one of this; the number of all is told."""

    async def story() -> None:
        async with channel(shared_worker.address) as client:
            await take_turns(client, "pages", "one", "two", "three", seconds=120.0)
            first = await ask(client, "pages", limit=2)
            assert ([one.session for one in first.sessions], first.num_sessions) == (["three", "two"], 3)
            rest = await ask(client, "pages", before=first.sessions[-1].last_used_at)
            assert [one.session for one in rest.sessions] == ["one"]
            (only,) = (await ask(client, "pages", "two")).sessions
            assert (only.num_tokens, only.num_turns, only.pinned, only.active) == (2, 1, False, False)
            assert only.expires_at - only.last_used_at == pytest.approx(120.0)
            assert not (await ask(client, "pages", "four")).sessions
            assert not (await ask(client, "others")).sessions

    run(story())


def test_changes_answer_with_the_session(shared_worker: WorkerProcess, run: Run) -> None:
    """Pinned, unpinned, erased; one that is not there, any more or for this tenant, is NOT_FOUND."""

    async def story() -> None:
        async with channel(shared_worker.address) as client:
            await take_turns(client, "changes", "chat")
            assert (await change(client, "changes", "chat", pb.SESSION_ACTION_PIN)).pinned
            assert not (await change(client, "changes", "chat", pb.SESSION_ACTION_UNPIN)).pinned
            for tenant, session in (("changes", "tahc"), ("others", "chat")):
                with pytest.raises(grpc.aio.AioRpcError) as unknown:
                    await change(client, tenant, session, pb.SESSION_ACTION_ERASE)
                assert unknown.value.code() is grpc.StatusCode.NOT_FOUND
            assert (await change(client, "changes", "chat", pb.SESSION_ACTION_ERASE)).session == "chat"
            with pytest.raises(grpc.aio.AioRpcError) as gone:
                await change(client, "changes", "chat", pb.SESSION_ACTION_ERASE)
            assert gone.value.code() is grpc.StatusCode.NOT_FOUND

    run(story())


def test_a_prefetch_says_nothing_back(shared_worker: WorkerProcess, run: Run) -> None:
    """It reaches the core in the order of the stream's commands; one of no session, or of an unknown one, is none."""

    async def story() -> None:
        async with channel(shared_worker.address) as client:
            await take_turns(client, "typing", "chat")
            stream = client.generate()
            for tenant, session in (("", ""), ("typing", "x" * 300), ("typing", "unknown"), ("typing", "chat")):
                await stream.call.write(pb.Command(prefetch=pb.Prefetch(tenant=tenant, session=session)))
            await stream.end(await stream.submit([COUNT, 1], tenant="typing"))
            (session_,) = (await ask(client, "typing")).sessions
            assert session_.device_bytes > 0

    run(story())


@pytest.mark.parametrize(
    ("field", "query"),
    [
        ("tenant", {}),
        ("tenant", {"tenant": "t" * 129}),
        ("session", {"tenant": "t", "session": "s" * 257}),
        ("session", {"tenant": "t", "session": "a\nb"}),
        ("session", {"tenant": "t", "session": "a\x9fb"}),
        ("before", {"tenant": "t", "before": float("nan")}),
        ("before", {"tenant": "t", "before": -1.0}),
        ("limit", {"tenant": "t", "limit": 1001}),
    ],
    ids=str,
)
def test_a_malformed_query_names_its_field(
    shared_worker: WorkerProcess, run: Run, field: str, query: dict[str, object]
) -> None:
    """INVALID_ARGUMENT, and the core never hears of it."""

    async def story() -> None:
        async with channel(shared_worker.address) as client:
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await ask(client, **{"tenant": "", **query})  # type: ignore[arg-type]
            assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
            assert (refused.value.details() or "").startswith(f"{field}: ")

    run(story())


@pytest.mark.parametrize(
    ("field", "session", "action"),
    [
        ("session", "", pb.SESSION_ACTION_PIN),
        ("session", "a\x00", pb.SESSION_ACTION_PIN),
        ("action", "s", pb.SESSION_ACTION_UNSPECIFIED),
        ("action", "s", 77),
    ],
    ids=str,
)
def test_a_malformed_change_names_its_field(
    shared_worker: WorkerProcess, run: Run, field: str, session: str, action: int
) -> None:
    """INVALID_ARGUMENT for a session that none can be called, and for what cannot be done."""

    async def story() -> None:
        async with channel(shared_worker.address) as client:
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await change(client, "t", session, action)
            assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
            assert (refused.value.details() or "").startswith(f"{field}: ")

    run(story())


def test_calls_that_wait_are_bounded(shared_worker: WorkerProcess, run: Run) -> None:
    """A tenant whose calls stay unanswered gets RESOURCE_EXHAUSTED for more, others are served; left calls are free."""

    async def story() -> None:
        async with channel(shared_worker.address) as client:
            waiting = [asyncio.ensure_future(ask(client, "silent")) for _ in range(100)]
            done, left = await asyncio.wait(waiting, return_when=asyncio.FIRST_EXCEPTION)
            while len(done) < 36:
                more, left = await asyncio.wait(left, return_when=asyncio.FIRST_COMPLETED)
                done |= more
            for one in done:
                error = one.exception()
                assert isinstance(error, grpc.aio.AioRpcError)
                assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert not (await ask(client, "others")).sessions
            for one in left:
                one.cancel()
            await asyncio.wait(left)
            answers = await asyncio.gather(*(ask(client, "others") for _ in range(60)))
            assert len(answers) == 60

    run(story())


def test_many_calls_at_once_get_each_its_own_answer(shared_worker: WorkerProcess, run: Run) -> None:
    """Answers go to who asked, whatever comes in between."""

    async def story() -> None:
        async with channel(shared_worker.address) as client:
            names = [f"chat-{number}" for number in range(20)]
            await take_turns(client, "many", *names)
            pages = await asyncio.gather(*(ask(client, "many", name) for name in names * 2))
            assert [page.sessions[0].session for page in pages] == names * 2

    run(story())


def test_no_call_hangs_when_the_core_dies(worker: WorkerProcess, run: Run) -> None:
    """What waits gets UNAVAILABLE at once; the next core answers calls again."""

    async def story() -> None:
        async with channel(worker.address) as client:
            waiting = asyncio.ensure_future(ask(client, "silent"))
            deadly = asyncio.ensure_future(ask(client, "deadly"))
            for result in await asyncio.gather(waiting, deadly, return_exceptions=True):
                assert isinstance(result, grpc.aio.AioRpcError)
                assert result.code() is grpc.StatusCode.UNAVAILABLE
            await asyncio.to_thread(worker.wait_ready, 2)
            assert (await ask(client, "t")).num_sessions == 0

    run(story())


def test_no_call_waits_for_a_core_that_starts(run: Run) -> None:
    """UNAVAILABLE at once, before the first core is ready and after one is lost; nothing is sent."""

    async def story() -> None:
        sent: list[ipc.ToCore] = []
        calls = SessionCalls(sent.append)
        query = pb.SessionQuery(tenant="t")
        with pytest.raises(SessionError, match="starting: try again soon") as early:
            await calls.list(query)
        assert early.value.code is grpc.StatusCode.UNAVAILABLE
        calls.core_ready()
        calls.core_lost("it is gone")
        calls.prefetch(pb.Prefetch(tenant="t", session="s"))
        with pytest.raises(SessionError, match="it is gone: try again soon"):
            await calls.list(query)
        assert not sent

    run(story())


def test_an_unanswered_call_ends(run: Run) -> None:
    """A core that does not answer costs the caller its deadline at most; what it says later is nobody's."""

    async def story() -> None:
        sent: list[ipc.ToCore] = []
        calls = SessionCalls(sent.append, answer_seconds=0.01, erase_seconds=0.02)
        calls.core_ready()
        query = pb.SessionQuery(tenant="t")
        erasure = pb.SessionChange(tenant="t", session="s", action=pb.SESSION_ACTION_ERASE)
        for call in (calls.list(query), calls.change(erasure)):
            with pytest.raises(SessionError, match="still being done") as late:
                await call
            assert late.value.code is grpc.StatusCode.DEADLINE_EXCEEDED
        for frame in sent:
            assert isinstance(frame, (ipc.SessionQueryFrame, ipc.SessionChangeFrame))
            calls.answered(ipc.SessionsFrame(number=frame.number, sessions=[]))

    run(story())


@pytest.mark.parametrize(
    ("field", "fields"),
    [
        ("session", {"session": "s" * 257}),
        ("session", {"session": "a\tb"}),
        ("session_ttl", {"session": "s", "session_seconds": 31 * 86400.0}),
        ("session_ttl", {"session": "s", "session_seconds": -1.0}),
        ("session_ttl", {"session": "s", "session_seconds": float("nan")}),
    ],
    ids=str,
)
def test_a_submit_of_no_possible_session_is_refused(
    shared_worker: WorkerProcess, run: Run, field: str, fields: dict[str, object]
) -> None:
    """With the field of the client's request."""

    async def story() -> None:
        async with channel(shared_worker.address) as client:
            stream = client.generate()
            end = await stream.end(await stream.submit([COUNT, 1], **fields))  # type: ignore[arg-type]
            assert (end.refused.code, end.refused.field) == (pb.REFUSAL_CODE_INVALID, field)

    run(story())
