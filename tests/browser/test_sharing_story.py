"""A share group's story: an operator makes it and registers a prompt, a tenant joins, sees it and shares it."""

import json
import re
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import NARROW, Watched
from tests.product import RunningProduct

pytestmark = pytest.mark.browser

GROUP = "browser-desk"
APPLIED = re.compile(r"applied on 1/1 workers\s+in\s+[\d.]+\s*m?s")
PROMPT = "You are the assistant of a shop.\n\nBe brief, be kind, and never guess.\n" * 6


@pytest.fixture
def console(product: RunningProduct, open_page: Callable[..., Watched]) -> Watched:
    """Return a page on which the operator is signed in."""
    watched = open_page()
    watched.sign_in(product.serve["operator"]["email"], product.serve["operator"]["password"])
    return watched


@pytest.fixture
def _without_the_group(product: RunningProduct) -> Iterator[None]:
    """Take the group and its membership away at the end, whatever became of them."""
    yield
    key, base = product.serve["operator"]["api_key"], f"{product.serve['console_url']}api/v1/share-groups/"
    names = [group["name"] for group in call("GET", base, key)["data"]]
    if GROUP in names:
        call("DELETE", f"{base}{GROUP}/?detach=true", key)


def call(method: str, url: str, key: str, body: Any = None) -> Any:
    """Send JSON with a key and return the answer, None where it is empty."""
    data = None if body is None else json.dumps(body).encode()
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    with urllib.request.urlopen(urllib.request.Request(url, data, headers, method=method)) as answer:
        text = answer.read()
    return json.loads(text) if text else None


def ask(product: RunningProduct, tenant: str, question: str) -> int:
    """Let a tenant ask with the prompt and return how many of the prompt's tokens were there already."""
    messages = [{"role": "system", "content": PROMPT}, {"role": "user", "content": question}]
    body = {"model": product.serve["model"], "messages": messages, "max_tokens": 4}
    url, key = f"{product.serve['base_url']}/chat/completions", product.serve["tenants"][tenant]["api_key"]
    return int(call("POST", url, key, body)["usage"]["prompt_tokens_details"]["cached_tokens"])


@pytest.mark.usefixtures("_without_the_group")
def test_a_prompt_is_registered_and_shared(
    product: RunningProduct, open_page: Callable[..., Watched], console: Watched
) -> None:
    """What an operator registers in a group is on the page of the tenant that joins it, and in its requests' usage."""
    make_group(console)
    register_prompt(console)
    put_into_group(console, "minnow")

    watched = open_page()
    page = watched.page
    watched.sign_in(product.serve["tenants"]["minnow"]["email"], product.serve["tenants"]["minnow"]["password"])
    page.get_by_role("link", name="Prefixes", exact=True).click()
    row = page.get_by_role("row").filter(has_text="shop assistant")
    expect(row).to_contain_text("operator")
    shared = int(re.sub(r"\D", "", row.locator(".shared-with .figure").first.inner_text()))
    assert shared > 0
    row.get_by_role("button", name="Show the text of shop assistant").press("Enter")
    expect(page.locator("pre")).to_have_text(PROMPT)
    expect(page.get_by_role("button", name="Remove shop assistant")).to_have_count(0)
    ask(product, "minnow", "What is new?")
    assert ask(product, "minnow", "Something else, then.") >= shared
    expect(page.get_by_role("img", name=re.compile(r"uses [\d.]+ [KM]iB, of it .* only cached"))).to_be_visible()

    remove_group(console)  # the tenant's page, open still, reads itself anew
    expect(page.get_by_role("heading", name="Minnow is in no share group")).to_be_visible()


def make_group(console: Watched) -> None:
    """Make the group from the list of groups, and go to its page."""
    page = console.page
    page.get_by_role("link", name="Share groups").click()
    page.get_by_role("button", name=re.compile("New share group|Make the first group")).click()
    expect(page.get_by_label("Name")).to_be_focused()
    page.get_by_label("Name").fill(GROUP)
    page.get_by_label("Description").fill("Made by a test")
    page.get_by_label("Ceiling (hard)").fill("4")
    page.get_by_role("button", name="Create share group").click()
    expect(page.locator(".stages")).to_contain_text(APPLIED)
    row = page.get_by_role("row").filter(has_text=GROUP)
    expect(row.get_by_role("img", name="uses 0 B, soft limit 0 B, hard limit 4 MiB")).to_be_visible()
    page.get_by_role("link", name="Register its first prefix").click()
    expect(page.get_by_role("heading", name=GROUP)).to_be_visible()


def register_prompt(console: Watched) -> None:
    """Register the prompt; a message that is added and dropped again leaves nothing."""
    page = console.page
    page.get_by_role("button", name="Register the first prefix").click()
    expect(page.get_by_label("Name")).to_be_focused()
    page.get_by_label("Name").fill("shop assistant")
    page.get_by_label("System prompt").fill(PROMPT)
    page.get_by_role("button", name="Add a message").press("Enter")
    expect(page.get_by_label("Message", exact=True)).to_be_focused()
    page.get_by_role("button", name="Remove this message").press("Enter")
    expect(page.get_by_role("button", name="Add a message")).to_be_focused()
    page.get_by_role("button", name="Register prefix").click()
    expect(page.locator("#prefix-panel .stages")).to_contain_text(APPLIED)
    row = page.get_by_role("row").filter(has_text="shop assistant")
    expect(row.locator(".shared-with")).to_contain_text("tok")


def put_into_group(console: Watched, slug: str) -> None:
    """Choose the group in a tenant's policy, and find the tenant among its members."""
    page = console.page
    console.go(f"/operator/tenants/{slug}/policy/")
    page.get_by_label("Share group").select_option(GROUP)
    page.get_by_role("button", name=f"Join share group {GROUP}").click()
    expect(page.locator("#editor .stages")).to_contain_text(APPLIED)
    console.go(f"/operator/share-groups/{GROUP}/")
    expect(page.get_by_role("link", name="Minnow", exact=True).last).to_be_visible()


def remove_group(console: Watched) -> None:
    """Remove the group: the question names the tenant, the list says what was done."""
    page = console.page
    page.get_by_role("button", name="Remove group").press("Enter")
    expect(page.locator(".question")).to_contain_text("taken out of the policies of Minnow")
    confirm = page.get_by_role("button", name=f"Remove {GROUP}")
    expect(confirm).to_be_focused()
    confirm.press("Enter")
    expect(page.get_by_text(f"The share group “{GROUP}” is removed")).to_be_visible()
    expect(page.locator(".stages")).to_contain_text(APPLIED)


@pytest.mark.usefixtures("_without_the_group")
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_sharing_fits_a_phone(product: RunningProduct, open_page: Callable[..., Watched], scheme: str) -> None:
    """At 390 px nothing is wider than the screen: long names, a long text, the form and the questions included."""
    key, base = product.serve["operator"]["api_key"], f"{product.serve['console_url']}api/v1/share-groups/"
    limits = {"kv_soft_bytes": 0, "kv_hard_bytes": 1 << 20}
    call("POST", base, key, {"name": GROUP, "description": "very " * 80, **limits})
    prefix = {"name": "n" * 80, "text": "an unbroken line of " + "x" * 4000}
    call("POST", f"{base}{GROUP}/prefixes/", key, prefix)
    watched = open_page(NARROW, scheme)
    page = watched.page
    watched.sign_in(product.serve["operator"]["email"], product.serve["operator"]["password"])
    watched.go("/operator/share-groups/")
    expect(page.get_by_role("link", name=GROUP)).to_be_visible()
    assert watched.overflow() == 0
    watched.go(f"/operator/share-groups/{GROUP}/")
    page.get_by_role("button", name="Show the text of").click()
    expect(page.locator("pre")).to_be_visible()
    page.get_by_role("button", name="Register a prefix").click()
    page.get_by_role("button", name="Add a message").click()
    page.get_by_role("button", name="Remove group").click()
    expect(page.locator(".question")).to_be_visible()
    assert watched.overflow() == 0
