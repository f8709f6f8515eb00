"""Open a page in Chromium and see when it is drawn, when it answers the pointer, and what it holds.

What BertViz loads from a CDN is served from npm packages, at once: no network is measured.
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

from playwright.sync_api import ConsoleMessage, Error, Route, sync_playwright

_CDN = "https://cdnjs.cloudflare.com/ajax/libs/"
_SERVED = {  # jquery 2.0.0, which BertViz asks for, is not on npm
    "require.js/": ("requirejs@2.3.6", "require.js"),
    "d3/": ("d3@5.7.0", "dist/d3.min.js"),
    "jquery/": ("jquery@2.1.0", "dist/jquery.min.js"),
}
_FLAGS = ["--disable-gpu", "--no-first-run", "--disable-background-networking"]
# A frame is drawn once the one after it begins. Canvases are blank while all pixels are alike.
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


@dataclass(frozen=True)
class Opened:
    """What opening a page took: seconds since it was asked for, and elements once drawn."""

    drawn: float
    answered: float
    nodes: int


def open_page(file: Path, patience: float) -> Opened | None:
    """Open a page in a browser of its own; None where it is not drawn after `patience` seconds."""
    said: dict[str, dict[str, float]] = {}

    def hear(message: ConsoleMessage) -> None:
        if message.text.startswith("bench "):
            told = json.loads(message.text.removeprefix("bench "))
            said[told["name"]] = told

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=chromium(), args=_FLAGS, chromium_sandbox=False
        )
        page = browser.new_page(viewport={"width": 1280, "height": 800})
        page.route(f"{_CDN}**", _serve)
        page.add_init_script(_WATCH)
        page.on("console", hear)
        try:
            page.goto(file.as_uri(), wait_until="commit", timeout=1000 * patience)
            end = time.monotonic() + patience
            for step in itertools.count():
                if "answered" in said or time.monotonic() > end:
                    break
                if "drawn" in said:  # a pointer that wanders over the picture
                    page.mouse.move((60, 180, 300)[step % 3], 90 + 11 * step % 400)
                page.wait_for_timeout(10)
        except Error:  # Chromium gave up
            return None
        finally:
            browser.close()
    if "drawn" not in said:
        return None
    answered = said.get("answered", {"seconds": math.inf})
    return Opened(said["drawn"]["seconds"], answered["seconds"], int(said["drawn"]["nodes"]))


def chromium() -> str:
    """Return the path of Chromium; end where there is none."""
    found = next(filter(None, map(shutil.which, ("chromium", "google-chrome"))), None)
    if found is None:
        sys.exit("Expected Chromium, which opens the pages, on the PATH. Install it.")
    return found


def loaded_bytes() -> int:
    """Return how many bytes a page of BertViz loads beside itself."""
    return sum(_library(name).stat().st_size for name in _SERVED)


def _serve(route: Route) -> None:
    name = next(name for name in _SERVED if route.request.url.startswith(_CDN + name))
    headers = {"Access-Control-Allow-Origin": "*", "Content-Type": "text/javascript"}
    route.fulfill(path=_library(name), headers=headers)


@cache
def _library(name: str) -> Path:
    """Return a file of an npm package, kept in the user's cache; end where npm cannot get it."""
    package, path = _SERVED[name]
    home = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "attnviz-bench"
    file = home / package / "package" / path
    if not file.exists():
        (home / package).mkdir(parents=True, exist_ok=True)
        command = ["npm", "pack", package, "--silent", "--pack-destination", str(home / package)]
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"Expected npm to fetch {package}, which BertViz loads: {done.stderr.strip()}")
        with tarfile.open(home / package / done.stdout.split()[-1]) as archive:
            archive.extractall(home / package, filter="data")
    return file
