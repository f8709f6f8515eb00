"""A real Chromium without network access, which reports errors of the page.

These tests are skipped without Chromium (or npm); with ATTNVIZ_BROWSER=required, as in continuous
integration, they fail instead.
"""

import os
import re
import shutil
from functools import partial
from pathlib import Path

import pytest
from playwright.sync_api import expect, sync_playwright

FLAGS = [
    "--disable-gpu", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
    # otherwise a frame may send a request before Playwright intercepts it
    "--disable-features=IsolateSandboxedIframes",
]  # fmt: skip
NOWHERE = {"server": "http://127.0.0.1:9", "bypass": "127.0.0.1"}  # there is no network here
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
    """Return the pages that several tests of a module read, by their address and window."""
    pages = {}
    yield pages
    for page, _ in pages.values():
        page.context.close()


@pytest.fixture
def open_page(browser, left_open, tmp_path):
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
        page, troubles = (shared and left_open.get(key)) or _new(browser, address, **window)
        if shared:
            left_open[key] = page, troubles
        opened.append((page, troubles, expects, shared))
        if page.url == "about:blank":
            page.goto(f"{address}#{fragment}" if fragment else address)
        return page

    yield open_
    for page, _, _, shared in opened:
        if not shared:
            page.context.close()
    wrong = [line for _, troubles, expects, _ in opened for line in _wrong(troubles, expects)]
    for _, troubles, _, _ in opened:
        troubles.clear()
    assert not wrong, "\n".join(wrong)


def _new(browser, address, width=1280, height=800, dark=False):
    """Return an empty page for an address, and the list of its troubles."""
    context = browser.new_context(
        viewport={"width": width, "height": height}, color_scheme="dark" if dark else "light"
    )
    troubles = []
    _watch(context, _allowed(address), troubles)
    return context.new_page(), troubles


def _wrong(troubles, expects):
    absent = [e for e in expects if not any(re.search(e, line) for line in troubles)]
    unexpected = [line for line in troubles if not any(re.search(e, line) for e in expects)]
    return unexpected + [f"expected {e!r}, which did not come" for e in absent]


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


def _watch(context, allowed, troubles):
    def refuse(address):
        return not address.startswith(allowed)

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
