"""The page of a paste in a real browser: the very text, its lines, and everything that one does with it."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from playwright.async_api import Page, expect

from pastebin_daemon.clock import SystemClock
from tests.real.browser import Chromium, browser
from tests.support import Harness, running
from tests.test_browser_form import saved

SOURCE = "def f():\n\treturn '</pre>'\n\n" + "x = 1  # one\n" * 300
BODIES = [
    "x",
    "x\n",
    "x\n\n",
    "\n\nfirst lines are empty",
    "a\n\n  b\tc\n\nlast\n\n",
    "   led by spaces\n",
    "trailing  \n  \n",
    "<script>alert(1)</script>\n</pre>&amp;\n",
    SOURCE,
    "one very long line " * 500,
]


@pytest.fixture
async def it(tmp_path: Path) -> AsyncIterator[Harness]:
    async with running(tmp_path, clock=SystemClock()) as it:
        yield it


@pytest.fixture
async def chromium() -> AsyncIterator[Chromium]:
    async with browser() as started:
        yield started


async def clipboard(page: Page) -> str:
    """As another program would have it, since Chromium's own pages see CR changed."""
    text: str = await page.evaluate("navigator.clipboard.readText()")
    return text


async def pasted(page: Page) -> str:
    """What a key pastes into an empty field of a page of no paste; for browsers with their scripts off."""
    other = await page.context.new_page()
    await other.goto("data:text/html,<textarea></textarea>")
    await other.focus("textarea")
    await other.keyboard.press("Control+v")
    text = await other.input_value("textarea")
    await other.close()
    return text


@pytest.mark.parametrize("scripts", [True, False], ids=["scripts", "no scripts"])
async def test_selecting_all_and_copying_gives_exactly_the_text(it: Harness, chromium: Chromium, scripts: bool) -> None:
    context = await chromium.context(scripts=scripts)
    for title in ("", "x.py"):
        for body in BODIES:
            made = await it.paste(body.encode(), title=title)
            page = await context.new_page()
            await page.goto(made.url)
            await page.keyboard.press("Control+a")
            await page.keyboard.press("Control+c")
            assert await (clipboard if scripts else pasted)(page) == body
            await page.close()


async def test_the_button_copies_exactly_the_text_also_without_a_clipboard(it: Harness, chromium: Chromium) -> None:
    context = await chromium.context()
    for plain_http in (False, True):
        for body in (*BODIES, "a\r\nb\rc\r\n"):
            made = await it.paste(body.encode(), title="x.py")
            page = await context.new_page()
            if plain_http:
                await page.add_init_script("navigator.clipboard.writeText = undefined")
            await page.goto(made.url)
            await page.click("text=Copy >> nth=0")
            await expect(page.locator(".toast")).to_have_text("Text copied")
            assert await clipboard(page) == body
            await page.close()


async def test_some_selected_lines_are_copied_without_their_numbers(it: Harness, chromium: Chromium) -> None:
    made = await it.paste(SOURCE.encode(), title="x.py")
    page = await chromium.open(made.url)
    await page.evaluate("""() => {
        const range = document.createRange();
        range.setStart(document.getElementById("L2"), 0);
        range.setEnd(document.getElementById("L4"), 0);
        getSelection().removeAllRanges();
        getSelection().addRange(range);
    }""")
    await page.keyboard.press("Control+c")
    assert await clipboard(page) == "\treturn '</pre>'\n\n"


async def marked(page: Page) -> list[str]:
    found: list[str] = await page.evaluate("[...document.querySelectorAll('#text .on')].map((line) => line.id)")
    return found


async def test_lines_are_linked_by_click_and_shift_click(it: Harness, chromium: Chromium) -> None:
    made = await it.paste(SOURCE.encode(), title="x.py")
    page = await chromium.open(made.url)
    await page.click("#L3 a")
    assert (page.url.partition("#")[2], await marked(page)) == ("L3", ["L3"])
    await page.click("#L7 a", modifiers=["Shift"])
    assert (page.url.partition("#")[2], await marked(page)) == ("L3-L7", [f"L{n}" for n in range(3, 8)])
    await page.click("#L2 a", modifiers=["Shift"])
    assert (page.url.partition("#")[2], await marked(page)) == ("L2-L3", ["L2", "L3"])
    for fragment, lines in (("L250-L251", ["L250", "L251"]), ("L9999", []), ("L1-L99999", None)):
        page = await chromium.open(f"{made.url}#{fragment}")
        found = await marked(page)
        assert found == lines if lines is not None else len(found) == 303
        if fragment.startswith("L250"):
            await expect(page.locator("#L250")).to_be_in_viewport()


async def test_a_line_is_linked_with_scripts_off(it: Harness, chromium: Chromium) -> None:
    made = await it.paste(SOURCE.encode(), title="x.py")
    page = await chromium.open(f"{made.url}#L250", scripts=False)
    await expect(page.locator("#L250")).to_be_in_viewport()
    grounds = [
        await page.locator(f"#L{line}").evaluate("(line) => getComputedStyle(line).backgroundColor")
        for line in (250, 251)
    ]
    assert grounds[0] != grounds[1]
    await page.click("#L255 a")
    assert page.url.endswith("#L255")


@pytest.mark.parametrize("scripts", [True, False], ids=["scripts", "no scripts"])
async def test_long_lines_wrap_when_asked_and_at_once_when_very_long(
    it: Harness, chromium: Chromium, scripts: bool
) -> None:
    context = await chromium.context(scripts=scripts)
    page = await context.new_page()
    made = await it.paste(b"word " * 150)
    await page.goto(made.url)

    async def is_wide() -> bool:
        wide: bool = await page.locator("#text").evaluate("(pre) => pre.scrollWidth > pre.clientWidth")
        return wide

    assert await is_wide()
    await page.check("#wrap")
    assert not await is_wide()
    if scripts:
        await page.reload()
        assert not await is_wide(), "it is remembered"
    await page.goto((await it.paste(b"w" * 5000)).url)
    assert not await is_wide()


@pytest.mark.parametrize("scripts", [True, False], ids=["scripts", "no scripts"])
@pytest.mark.parametrize(
    "body",
    [
        b"\nled by a newline\n",
        b"</textarea><script>alert(1)</script>\n",
        b"a\r\nb\r\n",
        b"a\r\nb\rc\n",
        "\ufeffé\u2028\n".encode(),
        b"nul \0 here\n",
        b"no newline",
    ],
)
async def test_a_clone_is_the_same_bytes(it: Harness, chromium: Chromium, scripts: bool, body: bytes) -> None:
    made = await it.paste(body, title="x.py", language="python")
    page = await chromium.open(made.url, scripts=scripts)
    await page.click("text=Clone")
    assert await page.input_value("[name=title]") == "x.py"
    if scripts and b"\0" in body:
        await expect(page.locator("#alert")).to_contain_text("is not text")
    await page.click("button.main")
    if scripts:
        assert await saved(page, it) == body
    else:
        link = await page.input_value("#link")
        assert (await it.get(link.rpartition("/")[2] + "/raw"))[1] == body


async def test_a_changed_clone_keeps_its_newlines_with_scripts_off(it: Harness, chromium: Chromium) -> None:
    made = await it.paste(b"a\r\nb\r\n")
    page = await chromium.open(made.url, scripts=False)
    await page.click("text=Clone")
    await page.fill("#content", "a\nb\nc\n")
    await page.click("button.main")
    assert (await it.get((await page.input_value("#link")).rpartition("/")[2] + "/raw"))[1] == b"a\r\nb\r\nc\r\n"


async def test_a_clone_of_what_is_gone_or_binary_says_so(it: Harness, chromium: Chromium) -> None:
    chromium.expected += ["404 (Not Found)", "400 (Bad Request)"]
    page = await chromium.open(f"{it.url}/?clone={'x' * 18}")
    await expect(page.locator("h1")).to_have_text("Nothing here")
    made = await it.paste(b"\xff")
    page = await chromium.open(f"{it.url}/?clone={made.id}")
    await expect(page.locator("main")).to_contain_text("Only a text can be cloned here")


async def test_a_binary_paste_says_what_it_is_and_offers_the_download(it: Harness, chromium: Chromium) -> None:
    body = b"\x89PNG\r\n\x1a\n" + bytes(range(256))
    made = await it.paste(body, title="image.png")
    page = await chromium.open(made.url, scripts=False)
    await expect(page.locator("main")).to_contain_text("This looks like a PNG image.")
    async with page.expect_download() as download:
        await page.click("text=download it")
    file = await (await download.value).path()
    assert file.read_bytes() == body
    assert (await download.value).suggested_filename == "image.png"


@pytest.mark.parametrize("scripts", [True, False], ids=["scripts", "no scripts"])
async def test_markdown_is_rendered_on_request_and_safely(it: Harness, chromium: Chromium, scripts: bool) -> None:
    text = (
        "# Title\n\n**bold** <b>raw</b> [bad](javascript:alert(1)) [data](data:text/html,x) [good](https://example.org)\n\n"
        "![picture](https://example.org/x.png)\n\n<script>alert(1)</script>\n\n|a|b|\n|-|-|\n|1|2|\n\n"
        '<img src=x onerror="alert(1)">\n\n```html\n<i>code</i>\n```\n'
    )
    made = await it.paste(text.encode(), title="notes.md")
    page = await chromium.open(made.url, scripts=scripts)
    assert await page.locator("article").count() == 0
    await page.click("text=Rendered")
    article = page.locator("article")
    await expect(article.locator("h2")).to_have_text("Title")
    await expect(article.locator("strong")).to_have_text("bold")
    await expect(article.locator("td").first).to_have_text("1")
    await expect(article.locator("pre code")).to_have_text("<i>code</i>\n")
    assert await article.locator("script, img, b").count() == 0
    links = article.locator("a")
    assert await links.count() == 1
    assert (await links.get_attribute("href"), await links.get_attribute("rel")) == (
        "https://example.org",
        "nofollow noopener noreferrer ugc",
    )
    await page.click("text=Source")
    assert await page.locator("article").count() == 0
    async with it.http.get(f"{made.url}?render=markdown") as answer:
        assert answer.headers["Cache-Control"] == "no-store", "a query string never makes a second copy in a cache"


async def test_right_to_left_text_reads_from_the_right_with_its_number_at_the_left(
    it: Harness, chromium: Chromium
) -> None:
    made = await it.paste("left\nשלום עולם\n".encode())
    page = await chromium.open(made.url)
    boxes = await page.evaluate("""["L1", "L2"].map((id) => {
        const line = document.getElementById(id), range = document.createRange();
        range.selectNodeContents(line.childNodes[1]);
        const text = [...range.getClientRects()].sort((a, b) => b.width - a.width)[0];
        const number = line.firstChild.getBoundingClientRect(), box = line.getBoundingClientRect();
        return [text.left - number.right, box.right - text.right, number.left - box.left];
    })""")
    (_, latin_right, latin_number), (hebrew_left, hebrew_right, hebrew_number) = boxes
    assert hebrew_right < 20 < latin_right
    assert hebrew_left > 100
    assert latin_number == hebrew_number == 0


async def test_a_megabyte_of_text_and_a_line_of_a_megabyte_stay_usable(it: Harness, chromium: Chromium) -> None:
    lines = "".join(f"{number:08d} the quick brown fox jumps over it\n" for number in range(1 << 20))[: 1 << 20]
    page = await chromium.open((await it.paste(lines.encode(), title="x.py")).url)
    assert await page.locator("#text .n > span").count() == lines.count("\n") + 1
    await page.click("#L5 a")
    await page.evaluate("location.hash = '#L20000'")
    await expect(page.locator("#L20000")).to_be_in_viewport()
    await page.keyboard.press("Control+a")
    await page.keyboard.press("Control+c")
    assert await clipboard(page) == lines
    page = await chromium.open((await it.paste(b"x" * (1 << 20))).url)
    await page.click("text=Copy >> nth=0")
    assert await clipboard(page) == "x" * (1 << 20)
    page = await chromium.open((await it.paste(b"\n" * (1 << 20))).url)
    assert await page.locator("#text .n").count() == 0, "too many lines to number"
    await expect(page.locator(".facts")).to_contain_text("1048576 lines")


async def test_one_key_actions_yield_to_ctrl_alt_and_cmd_and_to_typing(it: Harness, chromium: Chromium) -> None:
    made = await it.paste(b"text\n", title="x.py")
    page = await chromium.open(made.url)
    await page.keyboard.press("?")
    dialog = page.locator("dialog")
    for what in ("Copy the text", "Raw", "Download", "Clone into a new paste", "Wrap long lines", "Delete", "New"):
        await expect(dialog).to_contain_text(what)
    await page.keyboard.press("w")
    assert not await page.is_checked("#wrap"), "a dialog has the keys"
    await page.keyboard.press("Escape")
    await expect(dialog).to_have_count(0)
    for keys in ("Control+e", "Alt+e", "Meta+e"):
        await page.keyboard.press(keys)
        assert page.url == made.url
    await page.keyboard.press("w")
    assert await page.is_checked("#wrap")
    await page.keyboard.press("x")
    await page.fill("details[open] [name=token]", "")
    await page.type("details[open] [name=token]", "new")
    assert page.url == made.url
    await page.locator("#text").focus()
    await page.keyboard.press("c")
    await expect(page.locator(".toast")).to_have_text("Text copied")
    await page.keyboard.press("n")
    await page.wait_for_url(it.url + "/")
