"""A real browser on the running product: an error on the console, a refused script or a lost request fails the test."""

import shutil
from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, Request, Response, expect, sync_playwright

from tests.product import RunningProduct

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
PATIENCE_MS = 40_000  # of a machine that is slow, and loaded
WIDE = (1440, 900)
NARROW = (390, 844)

expect.set_options(timeout=PATIENCE_MS)  # of its own it waits five seconds


@pytest.fixture
def browser() -> Iterator[Browser]:
    """Start the system's Chromium, or the one that playwright installed.

    For one test only: while playwright is up its event loop counts as running, and no other test could run its own.
    """
    with sync_playwright() as playwright:
        program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
        running = playwright.chromium.launch(executable_path=program, args=FLAGS)
        yield running
        running.close()


class Watched:
    """A page, and what went wrong on it."""

    def __init__(self, page: Page, base: str) -> None:
        self.page = page
        self.base = base
        self.wrongs: list[str] = []
        page.set_default_timeout(PATIENCE_MS)
        page.on("console", self._on_console)
        page.on("pageerror", lambda error: self.wrongs.append(f"uncaught: {error}"))
        page.on("requestfailed", self._on_failed)
        page.on("response", self._on_response)

    def go(self, path: str) -> None:
        """Open a path of the console."""
        self.page.goto(self.base + path)

    def sign_in(self, email: str, password: str) -> None:
        """Sign in through the form."""
        self.go("/sign-in/")
        self.page.get_by_label("E-mail").fill(email)
        self.page.get_by_label("Password").fill(password)
        self.page.get_by_role("button", name="Sign in").click()
        self.page.wait_for_url(lambda url: "/sign-in/" not in url)

    def overflow(self) -> int:
        """Return by how many pixels the page is wider than the window."""
        return int(self.page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth"))

    def _on_console(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.wrongs.append(f"{message.type}: {message.text}")

    def _on_failed(self, request: Request) -> None:
        # leaving a page aborts what it was fetching
        if request.failure != "net::ERR_ABORTED":
            self.wrongs.append(f"{request.method} {request.url}: {request.failure}")

    def _on_response(self, response: Response) -> None:
        if response.status >= 400:
            self.wrongs.append(f"{response.request.method} {response.url}: {response.status}")


@pytest.fixture
def open_page(browser: Browser, product: RunningProduct) -> Iterator[Callable[..., Watched]]:
    """Return a maker of watched pages, each with cookies of its own; all are checked at the end."""
    opened: list[Watched] = []

    def make(size: tuple[int, int] = WIDE, scheme: str = "light") -> Watched:
        context = browser.new_context(
            viewport={"width": size[0], "height": size[1]},
            color_scheme="dark" if scheme == "dark" else "light",
            permissions=["clipboard-read", "clipboard-write"],
        )
        opened.append(Watched(context.new_page(), product.serve["console_url"].rstrip("/")))
        return opened[-1]

    yield make
    for watched in opened:
        watched.page.context.close()
    assert [wrong for watched in opened for wrong in watched.wrongs] == []
