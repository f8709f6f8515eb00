"""Open a page in Chromium; measure when it is drawn and when it responds, and count its elements.

Files that BertViz loads from a CDN are served from npm packages, so no network time is measured.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import shutil
import subprocess
import sys
import tarfile
import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from playwright.sync_api import (
    Browser,
    ConsoleMessage,
    Error,
    Playwright,
    Route,
    ViewportSize,
    sync_playwright,
)

_CDN = "https://cdnjs.cloudflare.com/ajax/libs/"
_SERVED = {  # BertViz requests jquery 2.0.0, which is not on npm
    "require.js/": ("requirejs@2.3.6", "require.js"),
    "d3/": ("d3@5.7.0", "dist/d3.min.js"),
    "jquery/": ("jquery@2.1.0", "dist/jquery.min.js"),
}
_FLAGS = ["--disable-gpu", "--no-first-run", "--disable-background-networking"]
# A frame is drawn when the next one begins. A canvas is blank while all pixels are equal.
_WATCH = """(() => {
  const small = Object.assign(document.createElement("canvas"), { width: 32, height: 32 });
  const pen = small.getContext("2d", { willReadFrequently: true });
  const isPainted = (canvas) => {
    if (!canvas.width || !canvas.height) return false;
    pen.clearRect(0, 0, 32, 32);
    pen.drawImage(canvas, 0, 0, 32, 32);
    return new Set(new Uint32Array(pen.getImageData(0, 0, 32, 32).data.buffer)).size > 4;
  };
  const signs = {
    drawn: () => document.querySelector("svg line") || [...document.querySelectorAll("canvas")].some(isPainted),
    answered: () => document.querySelector("[role=tooltip]:not([hidden]), #attention[visibility=hidden], rect[style*=cursor]"),
  };
  const look = () => {
    for (const name of Object.keys(signs)) {
      if (!signs[name]()) continue;
      delete signs[name];
      requestAnimationFrame(() => setTimeout(() => {
        const nodes = document.querySelectorAll("*").length;
        console.debug("bench " + JSON.stringify({ name, seconds: performance.now() / 1000, nodes }));
      }));
    }
    if (Object.keys(signs).length) requestAnimationFrame(look);
  };
  requestAnimationFrame(look);
})()"""  # noqa: E501

# The pixels of the widest and of the highest part of a page, with what must be scrolled to.
_EXTENT = """["Width", "Height"].map((side) =>
  Math.max(...[...document.querySelectorAll("html, div")].map((one) => one["scroll" + side])))"""


@dataclass(frozen=True)
class Opened:
    """Result of opening a page: seconds since the request, and the number of drawn elements."""

    drawn: float
    answered: float
    nodes: int


def open_page(file: Path, patience: float) -> Opened | None:
    """Open a page in a new browser; return None if it is not drawn within `patience` seconds."""
    events: dict[str, dict[str, float]] = {}

    def record_event(message: ConsoleMessage) -> None:
        if message.text.startswith("bench "):
            event = json.loads(message.text.removeprefix("bench "))
            events[event["name"]] = event

    with sync_playwright() as playwright:
        browser = launch(playwright)
        page = browser.new_page(viewport={"width": 1280, "height": 800})
        page.route(f"{_CDN}**", _serve)
        page.add_init_script(_WATCH)
        page.on("console", record_event)
        try:
            page.goto(file.as_uri(), wait_until="commit", timeout=1000 * patience)
            end = time.monotonic() + patience
            for step in itertools.count():
                if "answered" in events or time.monotonic() > end:
                    break
                if "drawn" in events:  # move the pointer over the picture
                    page.mouse.move((60, 180, 300)[step % 3], 90 + 11 * step % 400)
                page.wait_for_timeout(10)
        except Error:  # Chromium crashed
            return None
        finally:
            browser.close()
    if "drawn" not in events:
        return None
    answered = events.get("answered", {"seconds": math.inf})
    return Opened(events["drawn"]["seconds"], answered["seconds"], int(events["drawn"]["nodes"]))


def shoot(browser: Browser, body: str, width: int, click: str, file: Path) -> str:
    """Write what a square window shows of a page; return which part of it, in words.

    click : the selector of what is clicked before, or "". The picture has two pixels for each of
    the window's. A page may take minutes to draw.
    """
    window: ViewportSize = {"width": width, "height": width}
    page = browser.new_page(viewport=window, device_scale_factor=2)
    page.set_default_timeout(600_000)
    page.route(f"{_CDN}**", _serve)
    page.set_content(f"<body style='margin: 16px'>{body}")
    page.wait_for_selector("svg line, canvas, [id^=id_] *", state="attached")
    if click:
        page.locator(click).click(force=True)
    page.wait_for_timeout(2500)
    page.screenshot(path=file)
    across, down = page.evaluate(_EXTENT)
    page.close()
    shares = {"left": width / across, "top": width / down}
    return ", ".join(f"{side} {share:.0%}" for side, share in shares.items() if share < 0.9)


def launch(playwright: Playwright) -> Browser:
    """Start Chromium."""
    return playwright.chromium.launch(
        executable_path=chromium(), args=_FLAGS, chromium_sandbox=False
    )


def chromium() -> str:
    """Return the path of Chromium; exit if there is none."""
    path = next(filter(None, map(shutil.which, ("chromium", "google-chrome"))), None)
    if path is None:
        sys.exit("Chromium is not on the PATH. Install it to open the pages.")
    return path


def loaded_bytes() -> int:
    """Return the number of bytes that a BertViz page loads in addition to itself."""
    return sum(_library(name).stat().st_size for name in _SERVED)


def _serve(route: Route) -> None:
    name = next(name for name in _SERVED if route.request.url.startswith(_CDN + name))
    headers = {"Access-Control-Allow-Origin": "*", "Content-Type": "text/javascript"}
    route.fulfill(path=_library(name), headers=headers)


@cache
def _library(name: str) -> Path:
    """Return a file of an npm package from the user's cache; exit if npm cannot download it."""
    package, path = _SERVED[name]
    home = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "attnviz-bench"
    file = home / package / "package" / path
    if not file.exists():
        (home / package).mkdir(parents=True, exist_ok=True)
        command = ["npm", "pack", package, "--silent", "--pack-destination", str(home / package)]
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"npm could not download {package} for BertViz: {done.stderr.strip()}")
        with tarfile.open(home / package / done.stdout.split()[-1]) as archive:
            archive.extractall(home / package, filter="data")
    return file
