"""Who follows a response in the background lets go at once: of a client that has left, of a process that ends."""

import asyncio
from collections.abc import Callable, Sequence

import pytest

from gateway.api.exchange import Exchange, Watching
from gateway.api.responses.document import Ending, Step
from gateway.api.responses.following import Follower, Source
from gateway.web import Web
from gateway.workers.errors import Stopping
from tests.gateway.api.responses.test_narrator import head
from tests.gateway.api.test_waiting import Client, run
from tests.gateway.wire.scripted import ScriptedEngine, until

IN_THE_END = 60.0  # seconds: nothing here is looked at again by itself


class Silent:
    """A response of which there is never more."""

    def __init__(self) -> None:
        self.asked = 0
        self.left = 0

    def now(self) -> tuple[Sequence[Step], Ending | None]:
        """Return its beginning."""
        return [Step("admitted"), Step("text", "a")], None

    async def more(self) -> None:
        """Wait for what doesn't come."""
        self.asked += 1
        try:
            await asyncio.Event().wait()
        finally:
            self.left += 1


class Broken(Silent):
    """A response that can't be read on."""

    async def more(self) -> None:
        """Fail."""
        raise RuntimeError("a defect")


def followed(web: Web, source: Source) -> Client:
    """Return a client that follows a response."""

    async def handler(exchange: Exchange) -> None:
        async with Watching(exchange):
            follower = Follower(exchange, source, head=head(), after=-1, padded=False)
            await follower.follow()

    return Client(web, {}, handler)


def leaves(client: Client, web: Web) -> None:
    """Let the client go."""
    client.leave()


def stops(client: Client, web: Web) -> None:
    """Let the process end what lives."""
    for live in list(web.drain._live):
        live.fail(Stopping("The server is restarting and ended this response"))


@pytest.mark.parametrize("end", [leaves, stops])
def test_it_ends_in_the_middle_of_a_wait(end: Callable[[Client, Web], None]) -> None:
    """A follower that waits for more ends with its client, or its process, and so does its wait."""

    async def story(web: Web, engine: ScriptedEngine) -> None:
        source = Silent()
        client = followed(web, source)
        await until(lambda: source.asked)
        assert b"response.output_text.delta" in client.body
        end(client, web)
        await asyncio.wait_for(client.task, IN_THE_END)
        await until(lambda: source.left)
        assert (source.asked, source.left) == (1, 1)
        assert client.sent[-1].get("more_body", True) is (end is leaves)

    run(story)


@pytest.mark.parametrize("end", [leaves, stops])
def test_it_ends_before_the_first_wait(end: Callable[[Client, Web], None]) -> None:
    """What ends it while it writes is not forgotten when it comes to wait."""

    async def story(web: Web, engine: ScriptedEngine) -> None:
        ended = asyncio.Event()

        class Late(Silent):
            def now(self) -> tuple[Sequence[Step], Ending | None]:
                end(client, web)
                ended.set()
                return super().now()

        client = followed(web, Late())
        await asyncio.wait_for(client.task, IN_THE_END)
        assert ended.is_set()

    run(story)


def test_a_request_that_is_cut_takes_its_wait_along() -> None:
    """A follower whose own task is cancelled leaves nothing that waits."""

    async def story(web: Web, engine: ScriptedEngine) -> None:
        source = Silent()
        client = followed(web, source)
        await until(lambda: source.asked)
        client.task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await client.task
        await until(lambda: source.left)

    run(story)


def test_what_fails_in_a_wait_is_told() -> None:
    """An error while it waits is not swallowed."""

    async def story(web: Web, engine: ScriptedEngine) -> None:
        client = followed(web, Broken())
        with pytest.raises(RuntimeError, match="a defect"):
            await client.task

    run(story)
