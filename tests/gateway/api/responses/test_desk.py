"""What bounds a tenant's use of the store, and of this process."""

from collections.abc import Iterator

import pytest
from asgiref.sync import async_to_sync

from gateway.api.errors import RateLimited
from gateway.api.responses import desk as desks
from gateway.api.responses.desk import ResponseDesk
from tenants.contracts import ResponseOwner

ONE, OTHER = ResponseOwner("a", "p"), ResponseOwner("b", "p")


class Endless:
    """A response that runs until it is stopped."""

    def __init__(self, owner: ResponseOwner) -> None:
        self.owner = owner
        self.stopped = False

    def stop(self) -> None:
        """Take note."""
        self.stopped = True


@pytest.fixture
def desk() -> Iterator[ResponseDesk]:
    """Return a desk."""
    made = ResponseDesk()
    yield made
    made.close()


def test_a_tenant_has_so_many_in_the_background(desk: ResponseDesk) -> None:
    """Above that it waits for one to end; another tenant doesn't."""
    for number in range(desks.MOST_OF_A_TENANT):
        desk.enter(str(number), Endless(ONE))
    with pytest.raises(RateLimited):
        desk.enter("one more", Endless(ONE))
    desk.enter("another's", Endless(OTHER))
    desk.leave("0")
    desk.enter("one more", Endless(ONE))


def test_a_process_has_so_many(desk: ResponseDesk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of all tenants together."""
    monkeypatch.setattr(desks, "MOST_RUNNING", 1)
    desk.enter("1", Endless(ONE))
    with pytest.raises(RateLimited):
        desk.enter("2", Endless(OTHER))


def test_who_runs_is_the_owners(desk: ResponseDesk) -> None:
    """Another owner doesn't find it; it is stopped by its id, and an unknown one is passed over."""
    run = Endless(ONE)
    desk.enter("1", run)
    assert desk.running(ONE, "1") is run
    assert desk.running(ResponseOwner("a", "q"), "1") is None
    async_to_sync(desk.stopped)("2")
    assert not run.stopped
    async_to_sync(desk.stopped)("1")
    assert run.stopped
