"""After saving and after deleting, in a real browser: what will happen and what is true is said, and the delete token is
in the browser that saved and nowhere else."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from playwright.async_api import Page, expect

from pastebin_daemon.clock import SystemClock, spoken_time
from tests.real.browser import Chromium, browser
from tests.support import Harness, running


@pytest.fixture
async def it(tmp_path: Path) -> AsyncIterator[Harness]:
    async with running(tmp_path, clock=SystemClock()) as it:
        yield it


@pytest.fixture
async def chromium() -> AsyncIterator[Chromium]:
    async with browser() as started:
        yield started


async def create(page: Page, it: Harness, text: str = "hello\n", title: str = "") -> str:
    """Save by the form; the id."""
    await page.goto(it.url + "/")
    await page.fill("#content", text)
    await page.fill("[name=title]", title)
    await page.click("button.main")
    await expect(page.locator("#link")).to_be_visible()
    return (await page.input_value("#link")).rpartition("/")[2]


@pytest.mark.parametrize("scripts", [True, False], ids=["scripts", "no scripts"])
async def test_one_bar_has_the_link_the_token_and_what_will_happen(
    it: Harness, chromium: Chromium, scripts: bool
) -> None:
    page = await (await chromium.context(scripts=scripts)).new_page()
    paste = await create(page, it)
    ((expires_ms,),) = await it.rows("select expires_ms from pastes")
    bar = page.locator("#share")
    assert await page.input_value("#link") == f"http://127.0.0.1:8080/{paste}"
    await expect(bar).to_contain_text(f"Gone on {spoken_time(expires_ms)}; delete it sooner here")
    token = await page.inner_text("#token")
    assert await bar.locator("text=Raw").get_attribute("href") == f"/{paste}/raw"
    await bar.locator("summary").click()
    qr = bar.locator("img")
    await expect(qr).to_be_visible()
    async with it.http.get(f"{it.url}/{paste}/qr") as answer:
        assert (answer.status, answer.headers["Content-Type"]) == (200, "image/svg+xml")
        assert answer.headers["Cache-Control"] == "no-store"
        assert "<svg" in await answer.text()
    if scripts:
        assert page.url == f"{it.url}/{paste}", "the address is the link's"
        await page.click("text=Copy link")
        assert await page.evaluate("navigator.clipboard.readText()") == f"http://127.0.0.1:8080/{paste}"
        await page.click("text=Copy token")
        assert await page.evaluate("navigator.clipboard.readText()") == token
        await page.reload()
        assert not await page.locator("#share").is_visible(), "the bar is for whoever just saved"
        await page.click("text=Share")
        assert await page.inner_text("#token") == token, "and the token stays with this browser"
    assert token not in (await it.get(paste))[1].decode(), "a page that a cache may keep holds nothing personal"
    async with it.http.delete(f"{it.url}/api/v1/pastes/{paste}", headers={"X-Delete-Token": token}) as answer:
        assert answer.status == 204


@pytest.mark.parametrize("scripts", [True, False], ids=["scripts", "no scripts"])
async def test_it_is_deleted_from_the_bar_and_what_is_true_then_is_said(
    it: Harness, chromium: Chromium, scripts: bool
) -> None:
    page = await (await chromium.context(scripts=scripts)).new_page()
    paste = await create(page, it)
    await page.locator("#share").get_by_text("Delete it now").click()
    await expect(page.locator("h1")).to_have_text("Deleted")
    for said in ("gone here, now and for good", "within 60 seconds", "cleaned up shortly after"):
        await expect(page.locator("main")).to_contain_text(said)
    assert (await it.get(paste))[0] == 404
    if scripts:
        await page.goto(it.url + "/mine")
        await expect(page.locator("#mine")).to_contain_text("Nothing yet.")


async def test_whoever_made_it_elsewhere_types_the_token_in(it: Harness, chromium: Chromium) -> None:
    chromium.expected += ["403 (Forbidden)", "401 (Unauthorized)"]
    made = await it.paste()
    for scripts in (True, False):
        page = await chromium.open(made.url, scripts=scripts)
        await page.click("summary >> text=Delete")
        await page.fill("details[open] [name=token]", "not it")
        await page.click("details[open] .danger")
        await expect(page.locator("h1")).to_have_text("Not allowed")
    page = await chromium.open(made.url, scripts=False)
    await page.click("summary >> text=Delete")
    await page.fill("details[open] [name=token]", made.token)
    await page.click("details[open] .danger")
    await expect(page.locator("h1")).to_have_text("Deleted")
    assert (await it.get(made.id))[0] == 404


async def test_my_pastes_are_those_of_this_browser_with_time_left_and_delete(it: Harness, chromium: Chromium) -> None:
    chromium.expected.append("404 (Not Found)")
    page = await (await chromium.context()).new_page()
    first = await create(page, it, "one", "<b>first</b>.txt")
    second = await create(page, it, "two")
    await page.goto(it.url + "/mine")
    rows = page.locator("#mine li")
    await expect(rows).to_have_count(2)
    await expect(rows.nth(0)).to_contain_text(second)
    await expect(rows.nth(1)).to_contain_text("<b>first</b>.txt")
    await expect(rows.nth(1)).to_contain_text("gone in 30 days")
    await rows.nth(1).get_by_role("button").click()
    await expect(rows).to_have_count(1)
    assert [(await it.get(paste))[0] for paste in (first, second)] == [404, 200]

    # One that somebody else ended (a takedown) goes from the list when its turn comes.
    await it.daemon.database.write(lambda tx: tx.changed("delete from pastes"))
    it.daemon.cache.bury(second)
    await rows.nth(0).get_by_role("button").click()
    await expect(page.locator("#mine")).to_contain_text("Nothing yet.")

    other = await chromium.open(it.url + "/mine")
    await expect(other.locator("#mine")).to_contain_text("Nothing yet.")
    without = await chromium.open(it.url + "/mine", scripts=False)
    await expect(without.locator("main")).to_contain_text("This list needs scripts")


async def test_a_delete_that_fails_is_told_and_the_paste_stays_in_the_list(it: Harness, chromium: Chromium) -> None:
    chromium.expected.append("ERR_CONNECTION")
    page = await (await chromium.context()).new_page()
    await create(page, it)
    await page.goto(it.url + "/mine")
    await page.route("**/api/v1/pastes/*", lambda route: route.abort("connectionreset"))
    await page.click("#mine button")
    await expect(page.locator("#alert")).to_contain_text("could not be reached")
    await expect(page.locator("#mine li")).to_have_count(1)


async def test_the_theme_that_was_chosen_is_kept_and_works_with_scripts_off(it: Harness, chromium: Chromium) -> None:
    async def ground(page: Page) -> str:
        colour: str = await page.evaluate("getComputedStyle(document.documentElement).backgroundColor")
        return colour

    light, dark = "rgb(251, 251, 249)", "rgb(20, 23, 26)"
    page = await chromium.open(it.url + "/help", scheme="light")
    assert await ground(page) == light
    await page.check("[name=theme][value=dark]")
    assert await ground(page) == dark
    await page.goto(it.url + "/")
    assert await ground(page) == dark
    await page.check("[name=theme][value=system]")
    await page.emulate_media(color_scheme="dark")
    assert await ground(page) == dark
    without = await chromium.open(it.url + "/help", scheme="dark", scripts=False)
    assert await ground(without) == dark
    await without.check("[name=theme][value=light]")
    assert await ground(without) == light
