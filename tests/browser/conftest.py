"""A real Chromium without network access, which reports errors of the page.

These tests are skipped without Chromium (or npm); with ATTNVIZ_BROWSER=required, as in continuous
integration, they fail instead.
"""

import os
import re
import shutil
import time
from functools import partial
from pathlib import Path

import pytest
from playwright.sync_api import expect, sync_playwright

FLAGS = [
    "--disable-gpu", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
    # otherwise a frame may send a request before Playwright intercepts it
    "--disable-features=IsolateSandboxedIframes,SpareRendererForSitePerProcess",
]  # fmt: skip
NOWHERE = {"server": "http://127.0.0.1:9", "bypass": "127.0.0.1"}  # there is no network here
PATIENCE = 120  # seconds for what is expected to be reported
AT_HAND = ("file:", "about:", "data:", "blob:")  # schemes that need no network


def pytest_collection_modifyitems(items):
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker("browser")


def needed(*names):
    """Return the path of the first of these programs that exists; skip, or fail if required."""
    path = next(filter(None, map(shutil.which, names)), None)
    if path is None:
        why = f"needs {' or '.join(names)}: none is on the PATH"
        (pytest.fail if os.environ.get("ATTNVIZ_BROWSER") == "required" else pytest.skip)(why)
    return path


@pytest.fixture(scope="session")
def npm():
    """Return the path of npm."""
    return needed("npm")


# Not session-scoped: while Playwright runs, no other test can start an event loop.
@pytest.fixture(scope="module")
def browser():
    """Headless Chromium."""
    chromium = needed("chromium", "chromium-browser", "google-chrome")
    expect.set_options(timeout=120_000)  # milliseconds; the machine may be busy
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(
            executable_path=chromium, args=FLAGS, chromium_sandbox=False, proxy=NOWHERE
        )
        yield started
        started.close()


@pytest.fixture(scope="module")
def left_open(browser):
    """Return the tabs that several tests of a module read, by their address and window."""
    return {}


@pytest.fixture(scope="module")
def idle_tabs(browser):
    """Return the tabs that no test reads; a new one takes longer than most tests."""
    return []


class Tab:
    """A page, the prefixes of the addresses that it may request, and its troubles."""

    def __init__(self, browser):
        self.allowed, self.troubles = AT_HAND, []
        context = browser.new_context()
        _watch(context, self)
        self.page = context.new_page()

    def prepare(self, address, width=1280, height=800, dark=False):
        """Make the empty page ready for an address."""
        self.allowed = _allowed(address)
        self.page.set_viewport_size({"width": width, "height": height})
        self.page.emulate_media(color_scheme="dark" if dark else "light")

    def clear(self):
        """Leave the page, and all that it has stored."""
        self.page.evaluate("() => { sessionStorage.clear(); localStorage.clear() }")
        self.page.mouse.move(0, 0)
        self.page.unroute_all()
        self.page.goto("about:blank")
        self.page.context.clear_cookies()


@pytest.fixture
def open_page(browser, left_open, idle_tabs, tmp_path):
    """Open pages without a network: a file, HTML as text, or the address of a local server.

    open_page(what, width=1280, height=800, dark=False, expects=(), fragment="", shared=False) →
    Playwright's page. The test fails at the end if a page requested anything else (for a server:
    from another origin) or reported an error, in its console or uncaught. `expects` are regular
    expressions of such lines that are required and allowed. A `shared` page is as the last test of
    the module has left it.
    """
    opened = []

    def open_(what, fragment="", shared=False, expects=(), **window):
        address = _address(what, tmp_path / f"page{len(opened)}.html")
        key = (address, *sorted(window.items()))
        tab = shared and left_open.get(key)
        if not tab:
            tab = idle_tabs.pop() if idle_tabs else Tab(browser)
            tab.prepare(address, **window)
        if shared:
            left_open[key] = tab
        opened.append((tab, expects, shared))
        if tab.page.url == "about:blank":
            tab.page.goto(f"{address}#{fragment}" if fragment else address)
        return tab.page

    yield open_
    for tab, expects, shared in opened:
        deadline = time.monotonic() + PATIENCE
        while _absent(tab.troubles, expects) and time.monotonic() < deadline:
            tab.page.wait_for_timeout(20)
        if not shared and not tab.page.is_closed():  # as a test does that changes the device
            tab.clear()
            idle_tabs.append(tab)
    wrong = [line for tab, expects, _ in opened for line in _wrong(tab.troubles, expects)]
    for tab, _, _ in opened:
        tab.troubles.clear()
    assert not wrong, "\n".join(wrong)


def _absent(troubles, expects):
    return [e for e in expects if not any(re.search(e, line) for line in troubles)]


def _wrong(troubles, expects):
    unexpected = [line for line in troubles if not any(re.search(e, line) for e in expects)]
    return unexpected + [f"expected {e!r}, which did not come" for e in _absent(troubles, expects)]


def _address(what, file):
    if isinstance(what, Path):
        return what.resolve().as_uri()
    if re.match(r"http://127\.0\.0\.1[:/]", what):
        return what
    file.write_text(what, encoding="utf-8")
    return file.as_uri()


def _allowed(address):
    """Return the address prefixes that a page may request."""
    if address.startswith("file:"):
        return AT_HAND
    host = re.match(r"http://[^/]+/?", address)[0].rstrip("/") + "/"
    return (*AT_HAND, host, host.replace("http:", "ws:"))


def _watch(context, tab):
    troubles = tab.troubles

    def refuse(address):
        return not address.startswith(tab.allowed)

    def ask(kind, asked):
        if refuse(asked.url):
            troubles.append(f"{kind}: {asked.url}")

    context.route(refuse, lambda route: route.abort())
    context.on("request", partial(ask, "request"))
    context.on("page", lambda page: page.on("websocket", partial(ask, "websocket")))
    context.on("weberror", lambda error: troubles.append(f"error: {error.error}"))
    context.on(
        "console",
        lambda message: (
            troubles.append(f"console: {message.text}") if message.type == "error" else None
        ),
    )
