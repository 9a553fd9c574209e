"""The form at `/` in a real browser: an editor that loses nothing, with scripts and without."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from playwright.async_api import Page, Route, expect

from pastebin_daemon.clock import SystemClock
from pastebin_daemon.errors import StoreUnavailable
from tests.real.browser import Chromium, browser
from tests.support import Harness, running

LIMIT = 2000


@pytest.fixture
async def it(tmp_path: Path) -> AsyncIterator[Harness]:
    async with running(tmp_path, clock=SystemClock(), settings={"pastes.body_bytes_max": LIMIT}) as it:
        yield it


@pytest.fixture
async def chromium() -> AsyncIterator[Chromium]:
    async with browser() as started:
        yield started


async def saved(page: Page, it: Harness) -> bytes:
    """The bytes of the paste whose page this is."""
    await page.wait_for_url(lambda url: len(url.rpartition("/")[2].partition("#")[0]) == 18)
    status, body = await it.get(page.url.rpartition("/")[2].partition("#")[0] + "/raw")
    assert status == 200
    return body


@pytest.mark.parametrize("keys", ["Control+Enter", "Control+s", "Meta+Enter"])
async def test_one_types_at_once_and_saves_by_a_key(it: Harness, chromium: Chromium, keys: str) -> None:
    page = await chromium.open(it.url + "/")
    await page.keyboard.type("def f():\n")
    await page.keyboard.press("Tab")
    await page.keyboard.type("return 1\n")
    await page.keyboard.press(keys)
    assert await saved(page, it) == b"def f():\n\treturn 1\n"


async def test_tab_indents_lines_and_esc_releases_it(it: Harness, chromium: Chromium) -> None:
    page = await chromium.open(it.url + "/")
    text = page.locator("#content")
    await page.keyboard.insert_text("a\nb\nc")
    await text.press("Control+a")
    await text.press("Tab")
    assert await text.input_value() == "\ta\n\tb\n\tc"
    await text.press("Shift+Tab")
    assert await text.input_value() == "a\nb\nc"
    await text.press("Control+z")
    assert await text.input_value() == "\ta\n\tb\n\tc", "undo knows of it"
    await text.press("Escape")
    await text.press("Tab")
    await expect(text).not_to_be_focused()
    await text.focus()
    await text.press("ArrowRight")
    await text.press("Tab")
    await expect(text).to_be_focused()


async def test_the_language_is_guessed_from_the_name_and_the_list_has_all_of_pygments(
    it: Harness, chromium: Chromium
) -> None:
    page = await chromium.open(it.url + "/")
    await page.fill("[name=title]", "setup.PY")
    assert await page.get_attribute("[name=language]", "placeholder") == "python (from the name)"
    await page.fill("[name=title]", "Makefile")
    assert "make" in (await page.get_attribute("[name=language]", "placeholder") or "")
    await page.fill("[name=title]", "holiday")
    assert await page.get_attribute("[name=language]", "placeholder") == "Language"
    assert await page.locator("#languages option").count() > 500
    await page.fill("[name=title]", "x.rs")
    await page.fill("#content", "fn main() {}")
    await page.select_option("[name=expires_in]", "1h")
    await page.click("button.main")
    await expect(page.locator(".facts")).to_contain_text("Rust")
    await expect(page.locator("#gone")).to_contain_text("in 60 minutes")


async def test_the_size_is_shown_and_too_much_is_told_before_it_is_sent(it: Harness, chromium: Chromium) -> None:
    page = await chromium.open(it.url + "/")
    await page.fill("#content", "é" * 10)
    await expect(page.locator("#size")).to_have_text("20 bytes of 2000 bytes")
    await page.fill("#content", "x" * (LIMIT + 1))
    await page.click("button.main")
    await expect(page.locator("#alert")).to_have_text("This is 2001 bytes; a paste may have 2000 bytes here.")
    assert await page.input_value("#content") == "x" * (LIMIT + 1)
    await page.fill("#content", "")
    await page.click("button.main")
    await expect(page.locator("#alert")).to_have_text("There is nothing to save yet.")


async def test_no_error_loses_the_text_and_saving_again_makes_one_paste(
    it: Harness, chromium: Chromium, monkeypatch: pytest.MonkeyPatch
) -> None:
    chromium.expected.append("503 (Service Unavailable)")
    chromium.expected.append("ERR_CONNECTION")

    async def down(*_: object) -> None:
        raise StoreUnavailable("down")

    page = await chromium.open(it.url + "/")
    await page.fill("#content", "precious")
    with monkeypatch.context() as patch:
        patch.setattr(it.daemon.store, "put", down)
        await page.click("button.main")
        await expect(page.locator("#alert")).to_contain_text("Not saved: The storage behind this pastebin")
    assert await page.input_value("#content") == "precious"

    # The answer is lost on its way: the paste is there, and saving again under the same key finds it.
    await page.route("**/api/v1/pastes?*", lost_answer)
    await page.click("button.main")
    await expect(page.locator("#alert")).to_contain_text("could not be reached")
    assert await it.rows("select count(*) from pastes") == [(1,)]
    await page.unroute("**/api/v1/pastes?*")
    await page.click("button.main")
    assert await saved(page, it) == b"precious"
    assert await it.rows("select count(*) from pastes") == [(1,)]


async def lost_answer(route: Route) -> None:
    await route.fetch()
    await route.abort("connectionreset")


async def test_a_text_outlives_a_reload_until_it_is_saved(it: Harness, chromium: Chromium) -> None:
    page = await chromium.open(it.url + "/")
    await page.fill("[name=title]", "notes.txt")
    await page.fill("#content", "\n  half a thought")
    await page.select_option("[name=expires_in]", "1d")
    await page.reload()
    assert await page.input_value("#content") == "\n  half a thought"
    assert await page.input_value("[name=title]") == "notes.txt"
    assert await page.input_value("[name=expires_in]") == "1d"
    await page.click("button.main")
    assert await saved(page, it) == b"\n  half a thought"
    await page.goto(it.url + "/")
    assert await page.input_value("#content") == ""


DROP = """([name, bytes]) => {
    const transfer = new DataTransfer();
    transfer.items.add(new File([new Uint8Array(bytes)], name));
    document.body.dispatchEvent(new DragEvent("dragover", {bubbles: true, cancelable: true, dataTransfer: transfer}));
    document.body.dispatchEvent(new DragEvent("drop", {bubbles: true, cancelable: true, dataTransfer: transfer}));
}"""


@pytest.mark.parametrize(
    ("body", "shown"),
    [
        (b"a\r\nb\rc\r\n", "a\nb\nc\n"),
        (b"\n\nx\x00y", ""),
        (b"\xff\xfe\x00", ""),
        ("\ufeffé\n".encode(), "\ufeffé\n"),
    ],
)
async def test_a_file_dropped_anywhere_is_saved_byte_for_byte(
    it: Harness, chromium: Chromium, body: bytes, shown: str
) -> None:
    page = await chromium.open(it.url + "/")
    await page.evaluate(DROP, ["notes.py", list(body)])
    await expect(page.locator("[name=title]")).to_have_value("notes.py")
    assert await page.input_value("#content") == shown
    if not shown:
        await expect(page.locator("#alert")).to_contain_text("is not text")
    await page.click("button.main")
    assert await saved(page, it) == body


async def test_a_dropped_file_that_was_changed_is_what_stands_there(it: Harness, chromium: Chromium) -> None:
    page = await chromium.open(it.url + "/")
    await page.evaluate(DROP, ["notes.py", list(b"a\r\nb\r\n")])
    await expect(page.locator("[name=title]")).to_have_value("notes.py")
    await page.fill("#content", "a\nb\nc\n")
    await page.click("button.main")
    assert await saved(page, it) == b"a\nb\nc\n"


async def test_with_scripts_off_the_form_saves_and_gives_the_text_back_with_every_refusal(
    it: Harness, chromium: Chromium
) -> None:
    chromium.expected.append("413 (Request Entity Too Large)")
    page = await chromium.open(it.url + "/", scripts=False)
    await expect(page.locator("#content")).to_be_focused()
    for text in ("\n</textarea><b>&amp;\n", "x" * LIMIT):
        await page.fill("#content", text + "y" * LIMIT)
        await page.fill("[name=title]", "a 'title' \"of\" <mine>")
        await page.select_option("[name=expires_in]", "1h")
        await page.click("button.main")
        await expect(page.locator("#alert")).to_contain_text("Not saved: a paste may have 2000 (2000 bytes) here")
        assert await page.input_value("#content") == text + "y" * LIMIT
        assert await page.input_value("[name=title]") == "a 'title' \"of\" <mine>"
        assert await page.input_value("[name=expires_in]") == "1h"
    await page.fill("#content", "\nshort\n")
    await page.click("button.main")
    await expect(page.locator("h1")).to_have_text("Saved")
    assert (await it.get((await page.input_value("#link")).rpartition("/")[2] + "/raw"))[1] == b"\nshort\n"


async def test_with_scripts_off_a_file_is_saved_byte_for_byte(it: Harness, chromium: Chromium, tmp_path: Path) -> None:
    page = await chromium.open(it.url + "/", scripts=False)
    file = tmp_path / "x.bin"
    file.write_bytes(b"a\r\n\x00\xff")
    await page.set_input_files("[name=file]", file)
    await page.click("button.main")
    link = await page.input_value("#link")
    assert (await it.get(link.rpartition("/")[2] + "/raw"))[1] == b"a\r\n\x00\xff"
    assert await it.rows("select title from pastes") == [("x.bin",)]


async def test_a_create_token_is_asked_for_where_one_is_needed(tmp_path: Path, chromium: Chromium) -> None:
    chromium.expected.append("401 (Unauthorized)")
    (tmp_path / "tokens").write_text("let-me-in\n")
    settings = {"access.create_tokens_file": str(tmp_path / "tokens")}
    async with running(tmp_path, clock=SystemClock(), settings=settings) as it:
        for scripts in (True, False):
            page = await chromium.open(it.url + "/", scripts=scripts)
            await page.fill("#content", "mine")
            await page.fill("[name=create_token]", "wrong")
            await page.click("button.main")
            await expect(page.locator("#alert")).to_contain_text("creating needs a token here")
            assert await page.input_value("#content") == "mine"
            await page.fill("[name=create_token]", "let-me-in")
            await page.click("button.main")
            await expect(page.locator("#link")).to_be_visible()
