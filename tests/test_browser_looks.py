"""Every page in light, dark and on a phone: axe-core finds nothing, the console is silent, nothing is wider than the
screen, and a picture is put into `build/screenshots/` for somebody to look at."""

import gzip
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Page

from pastebin_daemon.clock import SystemClock
from pastebin_daemon.errors import Permanent, StoreUnavailable, Temporary
from pastebin_daemon.history import Sample
from tests.fakes import FakeEdge, FakeStore
from tests.real.browser import SCREENSHOTS, Chromium, browser, violations
from tests.support import Harness, running

SOURCE = Path(__file__).parent.parent / "pastebin_daemon" / "dispatcher.py"
MARKDOWN = (
    "# Notes\n\nSome *words*, a [link](https://example.org), `code`:\n\n- one\n\n> quoted\n\n|a|b|\n|-|-|\n|1|2|\n"
)
WAYS: dict[str, dict[str, Any]] = {
    "light": {"scheme": "light"},
    "dark": {"scheme": "dark"},
    "phone": {"scheme": "light", "width": 360, "height": 740},
}


@asynccontextmanager
async def scene(directory: Path) -> AsyncIterator[Harness]:
    """A daemon with something to show: pastes, jobs that wait, a breaker that is open, dead letters, an hour of history."""
    clock = SystemClock()
    store = FakeStore(clock)
    settings = {
        "site.name": "Paste & co",
        "site.notice": "Kept by a friend.",
        "site.contact": "friend@example.org",
        "outbox.attempts_max": 1,
        "pastes.body_bytes_max": "20KiB",
    }
    async with running(directory, clock=clock, store=store, edge=FakeEdge(), settings=settings) as it:
        for _ in range(3):
            made = await it.paste()
            store.faults.fail("delete", Permanent("AccessDenied: <b>no</b> right to delete"))
            await it.delete(made)
            await it.tick("object-delete")
        store.faults.fail("delete", Temporary("connection refused"), times=None)
        await it.delete(await it.paste())
        await it.tick("object-delete")
        now_ms = clock.now_ms()
        history = it.daemon.history.samples
        history.extend(
            Sample(now_ms - age_s * 1000, max(0, 2400 - age_s) * 30, age_s % 700) for age_s in range(3580, 0, -20)
        )
        yield it


async def pages(it: Harness) -> dict[str, str]:
    """The address of each page, by its picture's name."""
    source = await it.paste(SOURCE.read_bytes(), title="dispatcher.py", expires_in="7d")
    notes = await it.paste(MARKDOWN.encode(), title="notes.md")
    binary = await it.paste(bytes(range(256)), title="picture.png")
    return {
        "form": f"{it.url}/",
        "paste": f"{source.url}#L10-L14",
        "markdown": f"{notes.url}?render=markdown",
        "binary": binary.url,
        "mine": f"{it.url}/mine",
        "help": f"{it.url}/help",
        "error-404": f"{it.url}/nothing-here",
        "status": f"{it.admin}/",
    }


async def look(page: Page, name: str, way: str) -> list[str]:
    """Take the picture; what is wrong with the page."""
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    await page.screenshot(path=SCREENSHOTS / f"{name}-{way}.png", full_page=name == "status")
    found = [f"{name}, {way}: {each}" for each in await violations(page)]
    if await page.evaluate("document.documentElement.scrollWidth > innerWidth"):
        found.append(f"{name}, {way}: wider than the screen")
    return found


@pytest.mark.parametrize("way", WAYS)
async def test_every_page_is_accessible_and_fits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    async with scene(tmp_path) as it, browser() as chromium:
        chromium.expected.append("Failed to load resource: the server responded with a status of")
        context = await chromium.context(**WAYS[way])
        page = await context.new_page()
        found = []
        for name, url in (await pages(it)).items():
            await page.goto(url)
            found += await look(page, name, way)
        await page.goto(f"{it.url}/")
        await page.keyboard.press("Escape")
        await page.locator("button[data-do=keys]").click()
        found += await look(page, "keys", way)
        await page.keyboard.press("Escape")
        await page.fill("#content", "def hello():\n\treturn 'world'\n")
        await page.fill("[name=title]", "hello.py")
        found += await look(page, "form-filled", way)
        await page.click("button.main")
        await page.wait_for_selector("#token:visible")
        await page.click("#share summary")
        found += await look(page, "created", way)
        await page.goto(f"{it.url}/mine")
        found += await look(page, "mine-filled", way)
        await page.go_back()
        await page.click("summary >> text=Delete")
        await page.locator("details[open] .danger").last.click()
        await page.wait_for_selector("text=gone here")
        found += await look(page, "deleted", way)
        found += await refused(it, chromium, monkeypatch, way)
        assert found == []


async def refused(it: Harness, chromium: Chromium, monkeypatch: pytest.MonkeyPatch, way: str) -> list[str]:
    """The errors that a person can meet, with scripts off, where the server shows them."""
    page = await (await chromium.context(**WAYS[way], scripts=False)).new_page()
    found = []

    async def post(text: str, name: str) -> None:
        await page.goto(f"{it.url}/")
        await page.fill("#content", text)
        await page.click("button.main")
        await page.wait_for_url("**/new")
        SCREENSHOTS.mkdir(parents=True, exist_ok=True)
        await page.screenshot(path=SCREENSHOTS / f"{name}-{way}.png")
        if await page.input_value("#content") != text or not await page.locator("#alert").inner_text():
            found.append(f"{name}: the text is lost, or nothing is said")

    await post("a line of some length, and again\n" * 800, "error-413")
    with monkeypatch.context() as patch:

        async def down(*_: object) -> None:
            raise StoreUnavailable("down")

        patch.setattr(it.store, "put", down)
        await post("precious", "error-503")
        made = await it.daemon.database.read(lambda tx: tx.row("select id from pastes limit 1"))
        assert made is not None
        patch.setattr(it.store, "get", down)
        it.daemon.cache._values.clear()
        await page.goto(f"{it.url}/{made[0]}")
        await page.screenshot(path=SCREENSHOTS / f"error-503-read-{way}.png")
    return found


async def test_the_first_view_is_one_stylesheet_and_one_script_and_light(tmp_path: Path) -> None:
    async with running(tmp_path) as it:
        made = await it.paste(SOURCE.read_bytes(), title="dispatcher.py")
        body = (await it.get(made.id))[1].decode()
        links = re.findall(r'(?:href|src)="(/static/[^"]+)"', body)
        assert [link.rpartition(".")[2] for link in links] == ["svg", "css", "js"]
        total = len(gzip.compress(body.encode()))
        for link in links:
            async with it.http.get(it.url + link) as answer:
                assert answer.headers["Cache-Control"] == "public, max-age=31536000, immutable"
                total += len(gzip.compress(await answer.read()))
        beyond = total - len(gzip.compress(SOURCE.read_bytes()))
        assert beyond < 40_000, beyond
        assert (await it.get(links[1].replace("style-", "style-0")))[0] == 404
