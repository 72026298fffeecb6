"""Live limits: an operator tries a limit by slider, sees what it would have done, applies it, boosts, and goes back."""

import re
import time
from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import NARROW, PATIENCE_MS, Watched
from tests.browser.test_sharing_story import ask
from tests.product import RunningProduct

pytestmark = pytest.mark.browser

PAGE = "/operator/tenants/whale/policy/"
APPLIED = re.compile(r"applied on 1/1 workers\s+in\s+[\d.]+\s*m?s")
SETTLED = re.compile(r"settled after\s+[\d.]+\s*m?s")
ANSWERED = re.compile(r"answered in|nothing to replay|is at work|No worker has answered")
REPLAYED = re.compile(r"replayed, .* events, answered in")


@pytest.fixture
def console(product: RunningProduct, open_page: Callable[..., Watched]) -> Watched:
    """Return a page on which the operator is signed in."""
    watched = open_page()
    watched.sign_in(product.serve["operator"]["email"], product.serve["operator"]["password"])
    return watched


@pytest.fixture
def _whale_as_found(console: Watched) -> Iterator[None]:
    """Go back to the whale's policy as it was, by its history."""
    console.go(PAGE)
    found = console.page.locator("#history tbody").first.locator("td").first.inner_text()
    yield
    console.go(PAGE)
    end = console.page.get_by_role("button", name="End the boost now")
    if end.is_visible():
        end.click()
        expect(console.page.get_by_role("button", name="Start a boost")).to_be_visible()
    if console.page.locator("#history tbody").first.locator("td").first.inner_text() != found:
        go_back(console.page, found)


def go_back(page: Page, version: str) -> None:
    """Go back to a version, if its policy is another than the one in force."""
    page.get_by_role("button", name=f"Go back to version {version}", exact=True).click()
    question = page.locator(f"#version-{version} form")
    expect(question).to_be_visible()
    again = question.get_by_role("button", name="Go back to version")
    if again.is_visible():
        again.click()
        expect(page.locator("#editor .stages")).to_contain_text(APPLIED)


def replay(page: Page) -> None:
    """Wait for the replay that the changed form has asked for; ask again while the machine is too busy."""
    deadline = time.monotonic() + 3 * PATIENCE_MS / 1000
    told = page.locator("#preview:not(.htmx-request)")
    expect(told).to_contain_text(ANSWERED)
    while not REPLAYED.search(told.inner_text()):
        assert time.monotonic() < deadline, told.inner_text()
        page.get_by_role("button", name="Replay").click()
        expect(told).to_contain_text(ANSWERED)


@pytest.mark.usefixtures("_whale_as_found")
def test_a_limit_is_tried_applied_and_brought_back(product: RunningProduct, console: Watched) -> None:
    """From the slider to the settled ack, and by the history back to where it was."""
    ask(product, "whale", "What do you sell?")
    page = console.page
    console.go(PAGE)
    slider = page.get_by_label("Slide the ceiling")
    slider.focus()
    for _ in range(32):  # two doublings from the slider's end
        page.keyboard.press("ArrowLeft")
    expect(page.get_by_label("Ceiling (hard)")).to_have_value("64")
    expect(slider).to_have_attribute("aria-valuetext", "64 MiB")
    replay(page)
    expect(page.locator("#preview")).to_contain_text(re.compile("Nobody would have noticed|would have (gained|lost)"))
    page.get_by_role("button", name="Lower hard limit to 64 MiB").click()
    acks = page.locator("#editor .stages")
    expect(acks).to_contain_text(APPLIED)
    expect(acks).to_contain_text(SETTLED)
    expect(acks.locator(".step.done")).to_have_count(4)
    newest = page.locator("#history tbody").first
    expect(newest).to_contain_text(re.compile(r"hard limit 256 MiB →\s*64 MiB"))
    expect(newest).to_contain_text(product.serve["operator"]["email"])
    before = page.locator("#history tbody").nth(1).locator("td").first.inner_text()
    page.get_by_role("button", name=f"Go back to version {before}", exact=True).click()
    question = page.locator(f"#version-{before} form")
    expect(question).to_contain_text(re.compile(r"Hard limit\s+64 MiB →\s*to\s*256 MiB"))
    question.get_by_role("button", name=f"Go back to version {before}").click()
    expect(page.get_by_label("Ceiling (hard)")).to_have_value("256")
    expect(page.locator("#editor .stages")).to_contain_text(APPLIED)
    expect(page.locator("#history tbody").first).to_contain_text("Brought back")


@pytest.mark.usefixtures("_whale_as_found")
def test_a_boost_is_started_and_ended(console: Watched) -> None:
    """A boost counts down, the editor follows it, the table marks it, and its end puts back what it had changed."""
    page = console.page
    console.go(PAGE)
    page.get_by_role("button", name="Start a boost").click()
    boost = page.locator("#boost")
    boost.get_by_label("Requests at once").fill("64")
    boost.get_by_role("button", name="Replay").click()
    expect(page.locator("#boost-preview:not(.htmx-request)")).to_contain_text(ANSWERED)
    boost.get_by_text("15 min", exact=True).click()
    boost.get_by_label("Reason").fill("A launch")
    boost.get_by_role("button", name="Start the boost").click()
    expect(boost).to_contain_text(re.compile(r"ends in (15|14)\s*min"))
    expect(boost).to_contain_text("goes back to 32 at the end")
    expect(boost.locator(".stages")).to_contain_text(APPLIED)
    expect(page.locator("#editor").get_by_label("Requests at once", exact=True)).to_have_value("64")
    other = page.context.new_page()
    other.goto(f"{console.base}/operator/tenants/")
    expect(other.get_by_role("row").filter(has_text="Whale")).to_contain_text(re.compile(r"boost\s+1[45]\s*min"))
    other.close()
    boost.get_by_role("button", name="End the boost now").click()
    expect(boost).to_contain_text("The boost has ended")
    expect(page.locator("#editor").get_by_label("Requests at once", exact=True)).to_have_value("32")
    expect(page.locator("#history tbody").first).to_contain_text("Boost ended")


@pytest.mark.usefixtures("_whale_as_found")
def test_what_is_being_typed_is_not_lost_to_another_operator(
    product: RunningProduct, console: Watched, open_page: Callable[..., Watched]
) -> None:
    """A page without changes follows another operator's; one with changes keeps them, and its history follows."""
    other = open_page()
    other.sign_in(product.serve["operator"]["email"], product.serve["operator"]["password"])
    other.go(PAGE)
    console.go(PAGE)
    expect(other.page.locator(".feed")).to_have_text("live")
    expect(console.page.locator(".feed")).to_have_text("live")
    for number in ("40", "41"):
        mine = console.page.locator("#editor").get_by_label("Requests at once", exact=True)
        mine.fill(number)
        console.page.get_by_role("button", name=re.compile("(Raise|Lower) requests at once")).click()
        expect(console.page.locator("#editor .stages")).to_contain_text(APPLIED)
        expect(other.page.locator("#history tbody").first).to_contain_text(number)
        if number == "40":
            expect(other.page.locator("#editor").get_by_label("Requests at once", exact=True)).to_have_value("40")
            other.page.locator("#editor").get_by_label("Waiting requests", exact=True).fill("99")
    expect(other.page.locator("#editor").get_by_label("Waiting requests", exact=True)).to_have_value("99")
    expect(other.page.locator("#editor").get_by_label("Requests at once", exact=True)).to_have_value("40")


def test_guarantees_move_with_the_slider(console: Watched) -> None:
    """The sum of all guarantees follows the slider before anything is sent; beyond the room it asks for overcommit."""
    page = console.page
    console.go(PAGE)
    slider, sums = page.get_by_label("Slide the guarantee"), page.locator("#guarantees")
    slider.focus()
    expect(sums.get_by_text("Guarantee more than fits")).to_be_hidden()
    page.keyboard.press("End")
    expect(page.get_by_label("Guaranteed (soft)")).to_have_value("256")  # not above the ceiling
    expect(sums).to_contain_text(re.compile(r"scales down to 22 %; this one keeps 57\.6\s*MiB"))
    button = page.locator("#effect button[type=submit]")
    expect(button).to_have_text("Raise guaranteed KV to 256 MiB")
    expect(button).to_be_disabled()
    sums.get_by_text("Guarantee more than fits").click()
    expect(button).to_be_enabled()
    page.get_by_label("Slide the ceiling").focus()
    page.keyboard.press("Home")
    expect(page.get_by_label("Ceiling (hard)")).to_have_value("256")  # not below the guarantee


def test_pressure_is_drawn(product: RunningProduct, console: Watched) -> None:
    """The lines come with the first ten seconds, their values by keyboard, and the range is in the URL."""
    ask(product, "minnow", "What do you sell?")
    page = console.page
    console.go("/operator/pressure/?range=15m")
    chart = page.locator("[data-part=pressure] .chart")
    expect(chart).to_be_visible()
    chart.focus()
    page.keyboard.press("End")
    expect(chart.locator(".chart-tip")).to_be_visible()
    expect(page.locator("[data-worker]")).to_contain_text(re.compile(r"\d\.\d\d"))
    page.get_by_role("link", name="24 h").click()
    expect(page).to_have_url(re.compile("range=24h"))
    expect(page.get_by_role("link", name="24 h")).to_have_attribute("aria-current", "true")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pages_fit_a_phone(product: RunningProduct, open_page: Callable[..., Watched], scheme: str) -> None:
    """At 390 px no page is wider than the screen, its forms opened."""
    watched = open_page(NARROW, scheme)
    watched.sign_in(product.serve["operator"]["email"], product.serve["operator"]["password"])
    watched.go("/operator/pressure/")
    expect(watched.page.locator("[data-part=pressure] .chart")).to_be_visible()
    assert watched.overflow() == 0
    watched.go(PAGE)
    watched.page.get_by_role("heading", name="Limits on trial").click()
    watched.page.get_by_role("button", name="Start a boost").click()
    expect(watched.page.locator("#boost form")).to_be_visible()
    watched.page.get_by_label("Slide the guarantee").focus()
    watched.page.keyboard.press("End")
    expect(watched.page.get_by_text("Guarantee more than fits")).to_be_visible()
    assert watched.overflow() == 0
