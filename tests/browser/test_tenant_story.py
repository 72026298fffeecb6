"""A tenant developer's story: sign in, make a key, try the model, revoke the key."""

import contextlib
import json
import urllib.error
import urllib.request
from collections.abc import Callable

import pytest
from playwright.sync_api import TimeoutError as NotThere
from playwright.sync_api import expect

from tests.browser.conftest import NARROW, Watched
from tests.product import RunningProduct

pytestmark = pytest.mark.browser


def models_status(product: RunningProduct, key: str) -> int:
    """Ask for the models with a key and return the status."""
    request = urllib.request.Request(f"{product.serve['base_url']}/models", headers={"Authorization": f"Bearer {key}"})
    try:
        with urllib.request.urlopen(request) as answer:
            json.load(answer)
            return int(answer.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code


def test_key_is_made_copied_used_and_revoked(product: RunningProduct, open_page: Callable[..., Watched]) -> None:
    """The secret that the page copies works until the page revokes the key."""
    watched = open_page()
    page = watched.page
    watched.sign_in(product.serve["tenants"]["minnow"]["email"], product.serve["tenants"]["minnow"]["password"])
    page.get_by_role("link", name="Keys", exact=True).click()
    page.get_by_role("button", name="New key").click()
    expect(page.get_by_label("Name")).to_be_focused()
    page.get_by_label("Name").fill("browser test")
    page.get_by_label("Expires").select_option(label="In 7 days")
    page.get_by_role("button", name="Create key").click()
    expect(page.get_by_role("heading", name="Key “browser test” is ready")).to_be_focused()
    page.locator("#key-panel").get_by_role("button", name="Copy").first.click()
    expect(page.get_by_role("button", name="Copied")).to_be_visible()
    secret = page.evaluate("navigator.clipboard.readText()")
    assert secret == page.locator("#key-secret").inner_text()
    assert models_status(product, secret) == 200

    page.get_by_role("link", name="I have copied it").click()
    expect(page.get_by_text(secret)).to_have_count(0)
    page.get_by_role("button", name="Revoke browser test").click()
    expect(page.get_by_text("Revoke “browser test”?")).to_be_visible()
    confirm = page.get_by_role("button", name="Revoke browser test")
    expect(confirm).to_be_focused()
    confirm.click()
    expect(page.get_by_role("row", name="browser test").filter(has_text="revoked").first).to_be_visible()
    for _ in range(1800):  # the revocation travels to the web processes
        if models_status(product, secret) == 401:
            break
        page.wait_for_timeout(50)
    assert models_status(product, secret) == 401


def test_playground_streams_and_stops(product: RunningProduct, open_page: Callable[..., Watched]) -> None:
    """An answer streams in with what it cost; Stop ends the next one; the conversation can begin anew."""
    watched = open_page()
    page = watched.page
    watched.sign_in(product.serve["tenants"]["minnow"]["email"], product.serve["tenants"]["minnow"]["password"])
    watched.go("/t/minnow/playground/")
    page.get_by_label("Max tokens").fill("16")
    page.get_by_label("System prompt").fill("Be brief.")
    page.get_by_label("Message").fill("Hello")
    page.get_by_label("Message").press("Enter")
    turns = page.locator(".turn.assistant")
    expect(turns.first.locator(".said")).not_to_be_empty()
    expect(turns.first.locator(".meter")).to_contain_text("first token")
    expect(turns.first.locator(".meter")).to_contain_text("output")
    expect(page.get_by_role("button", name="Send")).to_be_enabled()

    # Seconds of work, unless the random model comes to its end by chance: hence greedy, and some tries. Each is a new
    # conversation: an answer that was not stopped fills the context, and the next question would be refused.
    page.get_by_label("Max tokens").fill("4000")
    page.get_by_label("Temperature").fill("0")
    for number in range(1, 9):
        page.get_by_role("button", name="New conversation").click()
        page.get_by_label("Message").fill(f"Tell me everything {number}")
        page.get_by_role("button", name="Send").click()
        with contextlib.suppress(NotThere):
            page.get_by_role("button", name="Stop").click(timeout=8000)
        expect(page.get_by_role("button", name="Send")).to_be_enabled()
        if "stopped" in turns.last.locator(".meter").inner_text():
            break
    expect(turns.last.locator(".meter")).to_contain_text("stopped")

    page.get_by_role("button", name="New conversation").click()
    expect(turns).to_have_count(0)
    expect(page.get_by_text("Say something")).to_be_visible()


HELD = """
const Real = window.WebSocket;
const state = Object.getOwnPropertyDescriptor(Real.prototype, "readyState").get;
window.isHeld = true;
window.letGo = () => { window.isHeld = false; window.opened?.(); };
window.WebSocket = class extends Real {
    get readyState() { return window.isHeld ? Real.CONNECTING : state.call(this); }
    set onopen(heard) {
        this.addEventListener("open", () => { if (window.isHeld) window.opened = heard; else heard(); });
    }
};
"""  # a page's sockets do not open before it is told to let go


def test_what_is_sent_before_there_is_a_connection_is_sent_then(
    product: RunningProduct, open_page: Callable[..., Watched]
) -> None:
    """The composer says that it waits; who writes on takes it back, and who does not need not send again."""
    watched = open_page()
    page = watched.page
    watched.sign_in(product.serve["tenants"]["minnow"]["email"], product.serve["tenants"]["minnow"]["password"])
    page.add_init_script(HELD)
    watched.go("/t/minnow/playground/")
    page.get_by_label("Max tokens").fill("8")
    message, turns = page.get_by_label("Message"), page.locator(".turn")
    message.fill("Hello")
    message.press("Enter")
    expect(page.get_by_text("This is sent as soon as")).to_be_visible()
    expect(message).to_have_value("Hello")
    message.fill("Hello you")
    expect(page.get_by_text("This is sent as soon as")).to_have_count(0)
    message.press("Enter")
    expect(turns).to_have_count(0)
    page.evaluate("window.letGo()")
    expect(turns.first).to_contain_text("Hello you")
    expect(turns.last.locator(".meter")).to_contain_text("output")
    expect(message).to_have_value("")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pages_fit_a_phone(product: RunningProduct, open_page: Callable[..., Watched], scheme: str) -> None:
    """At 390 px nothing is wider than the screen, in either theme."""
    watched = open_page(NARROW, scheme)
    watched.sign_in(product.serve["tenants"]["whale"]["email"], product.serve["tenants"]["whale"]["password"])
    for path in ("/t/whale/", "/t/whale/keys/", "/t/whale/playground/"):
        watched.go(path)
        expect(watched.page.locator("h1")).to_be_visible()
        assert watched.overflow() == 0, path


def test_theme_stays(product: RunningProduct, open_page: Callable[..., Watched]) -> None:
    """A chosen theme is in force at once and on the next page from its first paint on."""
    watched = open_page()
    page = watched.page
    watched.sign_in(product.serve["tenants"]["whale"]["email"], product.serve["tenants"]["whale"]["password"])
    page.locator("summary", has_text="account").click()
    page.get_by_text("Dark", exact=True).click()
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    watched.go("/t/whale/keys/")
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
