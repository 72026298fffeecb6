"""A conversation's story: it is kept, shown where it is, brought up when its reader types, pinned, and erased."""

import contextlib
import json
from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import Page, WebSocket, expect

from tests.browser.conftest import NARROW, Watched
from tests.product import RunningProduct

pytestmark = pytest.mark.browser


def sign_in(watched: Watched, product: RunningProduct, slug: str) -> Page:
    """Sign in as a demo tenant's owner."""
    watched.sign_in(product.serve["tenants"][slug]["email"], product.serve["tenants"][slug]["password"])
    return watched.page


def frames_sent(page: Page) -> list[dict[str, Any]]:
    """Return a list that fills with the events that the page sends over its sockets from now on."""
    sent: list[dict[str, Any]] = []

    def listen(socket: WebSocket) -> None:
        socket.on("framesent", lambda frame: sent.append(json.loads(frame)))

    page.on("websocket", listen)
    return sent


def say(page: Page, words: str, turn: int) -> None:
    """Send a message and wait until its answer has come to its end; `turn` counts from 1."""
    page.get_by_label("Message").press_sequentially(words)
    turns = page.locator(".turn.assistant")
    for _ in range(60):  # what is sent before the socket is open stays where it is, to be sent again
        page.get_by_label("Message").press("Enter")
        with contextlib.suppress(AssertionError):
            expect(turns).to_have_count(turn, timeout=1000)
            break
    expect(turns).to_have_count(turn)
    expect(page.locator(".turn.assistant").last.locator(".meter")).to_contain_text("output")
    expect(page.get_by_role("button", name="Send")).to_be_enabled()


def talk(page: Page, watched: Watched, slug: str) -> str:
    """Have a conversation of two turns in the playground; return its session's id."""
    sent = frames_sent(page)
    watched.go(f"/t/{slug}/playground/")
    page.get_by_label("Max tokens").fill("16")
    say(page, "Tell me of the rivers that flow north.", 1)
    assert [event["type"] for event in sent] == ["response.create"]
    say(page, "And of those that flow south?", 2)
    assert [event["type"] for event in sent] == ["response.create", "session.prefetch", "response.create"]
    names = {event.get("session") or event["response"]["session_id"] for event in sent}
    assert len(names) == 1
    return str(names.pop())


def test_the_playground_brings_its_conversation_up_when_its_reader_types(
    product: RunningProduct, open_page: Callable[..., Watched]
) -> None:
    """Once a turn and not once a key, and with nothing to bring up not at all; a new conversation is a new session."""
    watched = open_page()
    page = sign_in(watched, product, "minnow")
    first = talk(page, watched, "minnow")
    page.get_by_role("button", name="New conversation").click()
    sent = frames_sent(page)
    page.reload()
    page.get_by_label("Max tokens").fill("4")
    say(page, "Hello", 1)
    assert [event["type"] for event in sent] == ["response.create"]
    assert sent[0]["response"]["session_id"] != first


def test_a_session_is_shown_pinned_brought_up_and_erased(
    product: RunningProduct, open_page: Callable[..., Watched]
) -> None:
    """The page follows without a reload, by keyboard, and asks once before it erases."""
    watched = open_page()
    page = sign_in(watched, product, "whale")
    name = talk(page, watched, "whale")
    page.get_by_role("link", name="Sessions", exact=True).click()
    row = page.get_by_role("row", name=name)
    expect(row).to_contain_text("tiny")
    expect(row.locator(".where").first).to_be_visible()
    page.get_by_role("button", name=f"Pin {name}").press("Enter")
    expect(row).to_contain_text("pinned")
    unpin = page.get_by_role("button", name=f"Unpin {name}")
    expect(unpin).to_be_focused()
    with page.expect_response(lambda response: "/sessions/list/" in response.url):
        pass  # the list reads itself anew, and leaves the reader where they are
    expect(unpin).to_be_focused()
    unpin.press("Enter")
    expect(row).not_to_contain_text("pinned")
    with page.expect_response(lambda response: "/sessions/prefetch/" in response.url) as brought:
        page.get_by_role("button", name=f"Bring up {name}").press("Enter")
    assert "On its way" in brought.value.text()

    page.get_by_role("button", name=f"Erase {name}").press("Enter")
    expect(page.get_by_text(f"Erase “{name}”?")).to_be_visible()
    page.get_by_role("button", name="Keep it").press("Enter")
    expect(page.get_by_role("button", name=f"Erase {name}")).to_be_focused()
    page.get_by_role("button", name=f"Erase {name}").press("Enter")
    confirm = page.locator("form.question").get_by_role("button", name="Erase")
    expect(confirm).to_be_focused()
    confirm.press("Enter")
    expect(page.get_by_text("is erased from every tier")).to_be_visible()
    expect(page.get_by_role("button", name=f"Pin {name}")).to_have_count(0)


def test_an_owner_encrypts_the_disk_and_erases_everything(
    product: RunningProduct, open_page: Callable[..., Watched]
) -> None:
    """Each asks once, naming the tenant, and is followed to the worker."""
    watched = open_page()
    page = sign_in(watched, product, "whale")
    name = talk(page, watched, "whale")
    watched.go("/t/whale/sessions/")
    expect(page.get_by_role("row", name=name)).to_be_visible()
    page.get_by_role("button", name="Encrypt the disk…").click()
    confirm = page.get_by_role("button", name="Encrypt the disk", exact=True)
    expect(confirm).to_be_focused()
    confirm.click()
    expect(page.locator("#keeping")).to_contain_text("encrypted from now on")
    expect(page.locator("#keeping")).to_contain_text("applied on 1/1 workers in")
    page.get_by_role("button", name="Stop encrypting…").click()
    page.get_by_role("button", name="Stop encrypting", exact=True).click()
    expect(page.locator("#keeping")).to_contain_text("no longer encrypted")

    page.get_by_role("button", name="Erase all KV…").click()
    page.get_by_role("button", name="Erase all KV of Whale").click()
    expect(page.locator("#keeping")).to_contain_text("All KV of Whale is erased")
    expect(page.locator("#keeping")).to_contain_text("applied on 1/1 workers in")
    expect(page.get_by_role("row", name=name)).to_have_count(0)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_fits_a_phone(product: RunningProduct, open_page: Callable[..., Watched], scheme: str) -> None:
    """At 390 px nothing is wider than the screen, a question included."""
    watched = open_page(NARROW, scheme)
    page = sign_in(watched, product, "minnow")
    name = talk(page, watched, "minnow")
    watched.go("/t/minnow/sessions/")
    page.get_by_role("button", name=f"Erase {name}").click()
    expect(page.get_by_text(f"Erase “{name}”?")).to_be_visible()
    page.get_by_role("button", name="Erase all KV…").click()
    expect(page.get_by_text("Erase all KV of Minnow?")).to_be_visible()
    assert watched.overflow() == 0
