"""How many sockets there may be, and when their callers are checked."""

import asyncio
import json

import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from gateway.api.errors import Overloaded, RateLimited
from gateway.realtime import sockets as module
from gateway.realtime.sockets import Most, Sockets
from tenants.contracts import KeyGrant, PolicyView
from tests.gateway.realtime.dialling import SECONDS, dial, until_closed
from tests.gateway.wire.scripted import until
from tests.gateway.wire.stack import Stack, TenantInTest, wait_for


class Counted:
    """Counts how often it is checked; waits in a check where it is told to."""

    def __init__(self) -> None:
        self.checks = 0
        self.may_end = asyncio.Event()
        self.may_end.set()

    async def recheck(self) -> None:
        """Be checked."""
        self.checks += 1
        await self.may_end.wait()
        if self.checks == 1:
            raise ValueError("a defect, which ends nobody else's checks")


def grant(tenant: str, key: str = "") -> KeyGrant:
    """Return a grant of a tenant's key."""
    policy = PolicyView(
        version=1,
        weight=1.0,
        kv_soft_bytes=0,
        kv_hard_bytes=1,
        max_running=1,
        max_queued=1,
        rpm=0,
        tpm=0,
        max_context=1,
        max_output=1,
        priority="standard",
    )
    return KeyGrant(
        key_id=key,
        tenant_id=tenant,
        tenant_slug=tenant,
        project_id="",
        namespace=b"",
        models=(),
        expires_at=0.0,
        ip_ranges=(),
        rpm=0,
        tpm=0,
        policy=policy,
    )


def test_each_bound_refuses_in_its_own_words() -> None:
    """Of a process 503, of a tenant and of a key 429; who leaves makes room, and a member's console is no key."""

    async def scenario() -> None:
        sockets = Sockets(Most(process=4, tenant=3, key=2), 15.0)
        held = [Counted() for _ in range(4)]
        for socket in held[:2]:
            sockets.enter(socket, grant("a", "k"))
        with pytest.raises(RateLimited, match="2 websockets of this API key") as refused:
            sockets.enter(held[2], grant("a", "k"))
        assert refused.value.error_code == "too_many_connections"
        sockets.enter(held[2], grant("a"))
        with pytest.raises(RateLimited, match="3 websockets of your tenant"):
            sockets.enter(held[3], grant("a"))
        sockets.enter(held[3], grant("b"))
        with pytest.raises(Overloaded, match="4 websockets are open"):
            sockets.enter(Counted(), grant("c"))
        sockets.leave(held[0])
        sockets.leave(held[0])
        sockets.enter(held[0], grant("a", "k"))
        assert len(sockets) == 4

    asyncio.run(scenario())


def test_shares_of_a_process() -> None:
    """Neither a tenant nor a key can have all sockets, and each can have one."""
    assert Most.of(5000) == Most(process=5000, tenant=3750, key=2500)
    assert Most.of(1) == Most(process=1, tenant=1, key=1)


def test_changes_check_whom_they_concern() -> None:
    """A changed key's sockets are checked, a changed tenant's too; one that is being checked is checked again."""

    async def scenario() -> None:
        sockets = Sockets(Most.of(100), 15.0)
        one, two, other = Counted(), Counted(), Counted()
        for socket, given in ((one, grant("a", "k1")), (two, grant("a", "k2")), (other, grant("b", "k3"))):
            sockets.enter(socket, given)
        sockets.changed("key:k1")
        await until(lambda: one.checks == 1)
        two.may_end.clear()
        sockets.changed("tenant:a")
        await until(lambda: (one.checks, two.checks) == (2, 1))
        sockets.changed("key:k2")
        two.may_end.set()
        await until(lambda: two.checks == 2)
        assert other.checks == 0
        await sockets.stop()

    asyncio.run(scenario())


def test_everybody_is_checked_by_and_by(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without any notice each socket is checked again and again; one that hangs holds up nobody."""
    monkeypatch.setattr(module, "RECHECK_SECONDS", 0.02)
    monkeypatch.setattr(module, "STEP_SECONDS", 0.001)

    async def scenario() -> None:
        sockets = Sockets(Most.of(1000), 15.0)
        sockets.start()
        held = [Counted() for _ in range(100)]
        held[7].may_end.clear()
        for socket in held:
            sockets.enter(socket, grant("a"))
        await until(lambda: all(socket.checks >= 3 for socket in held if socket is not held[7]))
        assert held[7].checks == 1
        await sockets.stop()

    asyncio.run(scenario())


def test_one_process_has_so_many(stack: Stack) -> None:
    """Over a share the handshake is refused with 429, over the process with 503; a browser is let in and told."""
    process, port = stack.start_web(REALTIME_SOCKETS="4")
    tenants = [stack.tenant() for _ in range(3)]
    first, second, third = (tenant.key() for tenant in tenants)
    try:
        with dial(stack, first, port=port), dial(stack, first, port=port):
            assert refusal(port, first) == (429, "too_many_connections")
            with dial(stack, tenants[0].key(), port=port):
                assert refusal(port, tenants[0].key()) == (429, "too_many_connections")
                with dial(stack, second, port=port):
                    assert refusal(port, third) == (503, "server_is_overloaded")
                    protocols = ["realtime", f"openai-insecure-api-key.{third}"]
                    url = f"ws://127.0.0.1:{port}/v1/realtime"
                    browser = {"origin": "https://app.example", "proxy": None, "open_timeout": SECONDS}
                    with connect(url, subprotocols=protocols, **browser) as socket:  # type: ignore[arg-type]
                        events, code, reason = until_closed(socket)
                    assert (code, reason.split(":")[0]) == (1013, "server_is_overloaded")
                    assert [event["error"]["code"] for event in events] == ["server_is_overloaded"]
        wait_for(lambda: is_let_in(stack, third, port))
    finally:
        process.stop()


def refusal(port: int, raw: str) -> tuple[int, str]:
    """Return the status and the code with which a handshake is refused."""
    headers = {"authorization": f"Bearer {raw}"}
    with pytest.raises(InvalidStatus) as caught:
        connect(f"ws://127.0.0.1:{port}/v1/realtime", additional_headers=headers, proxy=None, open_timeout=SECONDS)
    response = caught.value.response
    assert "retry-after" in response.headers
    return response.status_code, json.loads(response.body)["error"]["code"]


def is_let_in(stack: Stack, raw: str, port: int) -> bool:
    """Whether there is room for a socket."""
    try:
        with dial(stack, raw, port=port):
            return True
    except InvalidStatus:
        return False


def test_other_tenants_keys_are_not_looked_up_again(stack: Stack, tenant: TenantInTest) -> None:
    """A key that is revoked closes its own sockets: the tenant's other ones stay, and so do other tenants'."""
    raw, sibling, foreign = tenant.key(), tenant.key(), stack.tenant().key()
    with dial(stack, raw) as ended, dial(stack, sibling) as one, dial(stack, foreign) as two:
        from tenants.keys import parse_key

        parsed = parse_key(raw)
        assert parsed is not None
        stack.seed(do="revoke", tenant_id=tenant.id, key_id=parsed.key_id)
        assert until_closed(ended)[1] == 1008
        for socket in (one, two):
            assert socket.ping().wait(60)
