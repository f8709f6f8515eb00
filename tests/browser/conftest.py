"""A real Chromium that reaches nothing but what a test gives it, and what went wrong in it.

A test here is skipped where there is no Chromium (or npm); with ATTNVIZ_BROWSER=required, as in
continuous integration, it fails instead.
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
    # else a frame may ask for something before Playwright looks on
    "--disable-features=IsolateSandboxedIframes",
]  # fmt: skip
NOWHERE = {"server": "http://127.0.0.1:9", "bypass": "127.0.0.1"}  # what the network is to it
AT_HAND = ("file:", "about:", "data:", "blob:")  # what no network is needed for


def pytest_collection_modifyitems(items):
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker("browser")


def needed(*names):
    """Return the path of the first of these programs that is there, or skip (fail where told)."""
    found = next(filter(None, map(shutil.which, names)), None)
    if found is None:
        why = f"needs {' or '.join(names)}: none is on the PATH"
        (pytest.fail if os.environ.get("ATTNVIZ_BROWSER") == "required" else pytest.skip)(why)
    return found


@pytest.fixture(scope="session")
def npm():
    """The path of npm."""
    return needed("npm")


# Not for the session: while Playwright runs, no other test could start an event loop of its own.
@pytest.fixture(scope="module")
def browser():
    """Chromium, without a window."""
    chromium = needed("chromium", "chromium-browser", "google-chrome")
    expect.set_options(timeout=30_000)  # milliseconds: a machine may be busy
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(
            executable_path=chromium, args=FLAGS, chromium_sandbox=False, proxy=NOWHERE
        )
        yield started
        started.close()


@pytest.fixture
def open_page(browser, tmp_path):
    """Open pages without a network: a file, HTML as text, or the address of a local server.

    open_page(what, width=1280, height=800, dark=False, expects=()) → Playwright's page. The test
    fails in the end where a page asked for anything that is not at hand (of a server: of another
    origin) or reported an error, in its console or uncaught. `expects` are regular expressions of
    such lines that have to come, and then are no failure.
    """
    opened = []

    def open_(what, width=1280, height=800, dark=False, expects=()):
        address = _address(what, tmp_path / f"page{len(opened)}.html")
        context = browser.new_context(
            viewport={"width": width, "height": height},
            color_scheme="dark" if dark else "light",
        )
        troubles = []
        opened.append((context, troubles, expects))
        _watch(context, _allowed(address), troubles)
        page = context.new_page()
        page.goto(address)
        return page

    yield open_
    for context, _, _ in opened:
        context.close()
    wrong = [line for _, troubles, expects in opened for line in _wrong(troubles, expects)]
    assert not wrong, "\n".join(wrong)


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
    """Return how the addresses begin that a page may ask for."""
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
        lambda said: troubles.append(f"console: {said.text}") if said.type == "error" else None,
    )
