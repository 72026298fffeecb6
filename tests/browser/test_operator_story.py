"""An operator's story: see the tenants live, change a hard limit, see it applied."""

import re
from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import NARROW, Watched
from tests.product import RunningProduct

pytestmark = pytest.mark.browser


@pytest.fixture
def console(product: RunningProduct, open_page: Callable[..., Watched]) -> Watched:
    """Return a page on which the operator is signed in."""
    watched = open_page()
    watched.sign_in(product.serve["operator"]["email"], product.serve["operator"]["password"])
    return watched


@pytest.fixture
def whale_as_found(console: Watched) -> Iterator[None]:
    """Set the whale's hard limit back to what it was."""
    console.go("/operator/tenants/whale/policy/")
    number = console.page.get_by_label("Ceiling (hard)").input_value()
    yield
    console.go("/operator/tenants/whale/policy/")
    if console.page.get_by_label("Ceiling (hard)").input_value() != number:
        set_hard(console, number)


def set_hard(console: Watched, number: str) -> None:
    """Set the hard limit and wait until it is applied."""
    page = console.page
    page.get_by_label("Ceiling (hard)").fill(number)
    button = page.get_by_role("button", name=re.compile("(Lower|Raise) hard limit to"))
    expect(button).to_be_enabled()
    button.click()
    expect(page.locator("#editor .stages")).to_contain_text(re.compile(r"applied on 1/1 workers\s+in\s+[\d.]+\s*m?s"))


def test_tenants_are_live(console: Watched) -> None:
    """The tenants are listed with their limits, and the page says that what it shows is live."""
    page = console.page
    expect(page.locator(".feed")).to_have_text("live")
    row = page.get_by_role("row").filter(has_text="Whale")
    expect(row.get_by_role("img", name=re.compile("uses .* soft limit .* hard limit 256 MiB"))).to_be_visible()


@pytest.mark.usefixtures("whale_as_found")
def test_hard_limit_is_lowered_and_acked(console: Watched) -> None:
    """The effect is shown before, the button names it, and the ack follows in place, within a second."""
    page = console.page
    page.get_by_label("Ceiling (hard)").fill("192")
    expect(page.locator("#effect")).to_contain_text(re.compile(r"Hard limit\s+256 MiB →\s*to\s*192 MiB"))
    expect(page.get_by_role("button", name="Lower hard limit to 192 MiB")).to_be_enabled()
    set_hard(console, "192")
    expect(page.locator("#editor .stages .step.done")).to_have_count(4)
    console.go("/operator/tenants/")
    row = page.get_by_role("row").filter(has_text="Whale")
    expect(row.get_by_role("img", name=re.compile("hard limit 192 MiB"))).to_be_visible()


def test_operator_pages_fit_a_phone(product: RunningProduct, open_page: Callable[..., Watched]) -> None:
    """At 390 px nothing is wider than the screen."""
    watched = open_page(NARROW, "dark")
    watched.sign_in(product.serve["operator"]["email"], product.serve["operator"]["password"])
    for path in ("/operator/tenants/", "/operator/tenants/whale/policy/"):
        watched.go(path)
        expect(watched.page.locator(".feed")).to_have_text("live")
        assert watched.overflow() == 0, path


@pytest.mark.usefixtures("whale_as_found")
def test_limits_are_changed_on_a_phone_without_leaving_the_field(
    product: RunningProduct, open_page: Callable[..., Watched]
) -> None:
    """The button and what came of it are in sight while the field is, and cover no field at the form's end."""
    watched = open_page(NARROW)
    watched.sign_in(product.serve["operator"]["email"], product.serve["operator"]["password"])
    watched.go("/operator/tenants/whale/policy/")
    page = watched.page
    page.get_by_label("Ceiling (hard)").fill("224")
    button = page.get_by_role("button", name="Lower hard limit to 224 MiB")
    expect(button).to_be_enabled()
    expect(button).to_be_in_viewport(ratio=1)
    button.click(delay=500)  # as a finger: what leaving the field brings about must not take the button away meanwhile
    expect(page.locator("#editor .stages")).to_contain_text("applied on 1/1 workers")
    expect(page.locator("#editor .stages")).to_be_in_viewport(ratio=1)
    page.evaluate("window.scrollTo(0, document.documentElement.scrollHeight)")
    bar, last = page.locator("#effect .panel-foot").bounding_box(), page.locator("#effect .panel-body").bounding_box()
    assert bar is not None
    assert last is not None
    assert last["y"] + last["height"] <= bar["y"]


def test_the_tables_open_under_the_content_policy(console: Watched) -> None:
    """Django's admin runs no inline script that the browser would refuse."""
    for path in ("/admin/", "/admin/tenants/tenant/", "/admin/tenants/apikey/"):
        console.go(path)
        expect(console.page.locator("#site-name")).to_have_text("Tollgate: tables")
