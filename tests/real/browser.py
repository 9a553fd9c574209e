"""Debian's Chromium, driven by Playwright, on the loopback only: every other name resolves to nothing.

async with browser() as it:
    page = await it.open(url)                   # scripts on; `scripts=False` for off
    ...
# leaving it fails the test for a console error, a report of the page's policy, an exception of the script, or a
# request that goes elsewhere
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib import resources
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from playwright.async_api import Browser, BrowserContext, ConsoleMessage, Page, async_playwright

from tests.real import require

__all__ = ["SCREENSHOTS", "Chromium", "browser", "violations"]

ARGUMENTS = [
    "--no-sandbox",  # tests run as root in a container
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1",
]
SCREENSHOTS = Path(os.environ.get("PASTEBIN_SCREENSHOTS", Path(__file__).parents[2] / "build" / "screenshots"))
"""Where pictures are put for somebody to look at."""
AXE = resources.files("axe_playwright_python").joinpath("axe.min.js")


class Chromium:
    def __init__(self, started: Browser) -> None:
        self._browser = started
        self.complaints: list[str] = []
        self.expected: list[str] = []
        """Parts of complaints that a test has asked for: the console tells of every answer of 400 and more."""

    async def context(
        self, *, scripts: bool = True, scheme: Literal["light", "dark"] = "light", width: int = 1100, height: int = 750,
        **options: Any,
    ) -> BrowserContext:  # fmt: skip
        """A browser of its own, as far as pages can tell: cookies, storage, clipboard rights."""
        context = await self._browser.new_context(
            java_script_enabled=scripts, color_scheme=scheme, viewport={"width": width, "height": height}, **options
        )
        await context.grant_permissions(["clipboard-read", "clipboard-write"])
        context.on("console", self._console)
        context.on("weberror", lambda error: self.complaints.append(f"exception: {error.error}"))
        context.on("request", lambda request: self._requested(request.url))
        return context

    async def open(self, url: str, **options: Any) -> Page:
        page = await (await self.context(**options)).new_page()
        await page.goto(url)
        return page

    def _console(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.complaints.append(f"{message.type}: {message.text}")

    def _requested(self, url: str) -> None:
        if urlsplit(url).hostname not in ("127.0.0.1", None) and not url.startswith(("about:", "data:", "blob:")):
            self.complaints.append(f"a request to {url}")


@asynccontextmanager
async def browser() -> AsyncIterator[Chromium]:
    program = require("chromium")
    async with async_playwright() as playwright:
        started = await playwright.chromium.launch(executable_path=program, args=ARGUMENTS)
        try:
            it = Chromium(started)
            yield it
        finally:
            await started.close()
    left = [each for each in it.complaints if not any(part in each for part in it.expected)]
    assert left == []


async def violations(page: Page) -> list[str]:
    """What axe-core finds, by its rules for WCAG 2 A and AA and its best practices. Evaluated, so the page's policy stays
    in force."""
    await page.evaluate(AXE.read_text("utf-8"))
    found = await page.evaluate("axe.run(document)")
    return [f"{each['id']}: {each['nodes'][0]['html'][:200]}" for each in found["violations"]]
