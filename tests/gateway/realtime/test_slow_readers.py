"""A client that does not read what it asked for."""

import socket as sockets
from collections.abc import Iterator
from contextlib import contextmanager

from websockets.sync.client import ClientConnection

from tests.gateway.realtime.dialling import ENDLESS, HELLO, LONG, create, dial, receive, send, until_closed, until_done
from tests.gateway.wire.stack import Stack, TenantInTest, wait_for

MANY = LONG | {"max_output_tokens": 4000}


@contextmanager
def slow_dial(port: int, raw: str, stack: Stack) -> Iterator[ClientConnection]:
    """Open a socket for which this side of the wire keeps little: what isn't received here, isn't read from there."""
    connection = sockets.socket()
    connection.setsockopt(sockets.SOL_SOCKET, sockets.SO_RCVBUF, 4096)
    connection.connect(("127.0.0.1", port))
    with dial(stack, raw, port=port, sock=connection, max_queue=1) as socket:
        yield socket


@contextmanager
def patient(stack: Stack, seconds: int) -> Iterator[int]:
    """Start a web process that waits so long for readers, and return its port."""
    process, port = stack.start_web(REALTIME_SLOW_SECONDS=str(seconds))
    try:
        yield port
    finally:
        process.stop()


def test_pause_loses_nothing_and_holds_up_nobody(stack: Stack, tenant: TenantInTest) -> None:
    """While a reader pauses its response is generated to the end; then it reads the same text, in fewer pieces."""
    raw = tenant.key()
    with patient(stack, 600) as port, slow_dial(port, raw, stack) as socket:
        created = create(socket, **MANY)
        record = wait_for(tenant.usage, seconds=200)[0]
        assert (record["finish_reason"], record["completion_tokens"]) == ("length", 4000)
        pieces, text = 0, ""
        while (event := receive(socket))["type"] != "response.done":
            if event["type"] == "response.output_text.delta":
                pieces, text = pieces + 1, text + event["delta"]
    assert event["response"]["id"] == created
    assert event["response"]["output"][0]["content"][0]["text"] == text
    assert pieces < 3000
    answer = stack.openai(raw, timeout=200).chat.completions.create(
        model="tiny", messages=HELLO, max_tokens=4000, temperature=0, extra_body={"ignore_eos": True}
    )
    assert answer.choices[0].message.content == text


def test_reader_who_never_reads_is_sent_away(stack: Stack, tenant: TenantInTest) -> None:
    """Its responses are cancelled and its socket closes with a reason, while another socket's response runs on."""
    raw = tenant.key()
    with patient(stack, 2) as port, slow_dial(port, raw, stack) as slow, dial(stack, raw, port=port) as quick:
        for _ in range(3):
            send(slow, type="response.create", response=ENDLESS)
        send(quick, type="response.create", response=LONG)
        assert until_done(quick)[1]["usage"]["output_tokens"] == 1500
        records = wait_for(lambda: len(tenant.usage()) == 4 and tenant.usage(), seconds=200)
        assert sorted(record["finish_reason"] for record in records) == ["cancelled"] * 3 + ["length"]
        events, code, reason = until_closed(slow)
        assert (code, reason.split(":")[0]) == (1008, "client_too_slow")
        assert not [event for event in events if event["type"] == "response.done"]
        send(quick, type="response.create", response=LONG | {"max_output_tokens": 2})
        assert until_done(quick)[1]["status"] == "incomplete"
