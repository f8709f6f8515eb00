"""Pictures of interactive pages, taken with Chromium."""

import os
from pathlib import Path

WINDOW = {"width": 1100, "height": 760}


def screenshot(
    page: Path,
    scale: float = 1,
    *,
    until: str | None = None,
    style: str = "",
    boxes: dict[str, tuple[float, ...]] | None = None,
) -> Path:
    """Return a picture of a page on disk; `scale` pixels for each pixel of the window.

    until : the last element that is shown, as a CSS selector; by default the height of the window.
    style : rules of CSS, as to leave something out. boxes : its keys are CSS selectors; their
    values become where the elements are in the picture, (x, y, width, height) in its pixels.
    """
    from playwright.sync_api import sync_playwright  # only who takes pictures needs it

    path = page.with_suffix(".png")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=os.environ.get("CHROMIUM", "/usr/bin/chromium"),
            args=["--disable-gpu"],
            chromium_sandbox=False,
        )
        tab = browser.new_page(viewport=WINDOW, device_scale_factor=scale, bypass_csp=bool(style))
        tab.goto(page.resolve().as_uri())
        if style:
            tab.add_style_tag(content=style)
        tab.wait_for_timeout(3000)  # until it is drawn
        tab.locator("body:not(:has([data-state=asked]))").wait_for(timeout=120_000)
        if until is not None:
            lower = tab.locator(until).bounding_box()
            tab.set_viewport_size(WINDOW | {"height": int(lower["y"] + lower["height"]) + 8})
        for selector in boxes or ():
            box = tab.locator(selector).bounding_box()
            boxes[selector] = tuple(scale * box[of] for of in ("x", "y", "width", "height"))
        tab.screenshot(path=str(path))
        browser.close()
    return path
