"""The operator's page: what is true for users, what is red and what to do about it, and its buttons."""

import re
from pathlib import Path

import pytest
from playwright.async_api import expect

from pastebin_daemon.clock import SystemClock
from pastebin_daemon.errors import Permanent, Temporary
from pastebin_daemon.history import EVERY_S, HOUR_S
from tests.fakes import FakeClock, FakeEdge, FakeStore
from tests.real.browser import browser
from tests.support import Harness, running


async def page(it: Harness) -> str:
    async with it.http.get(f"{it.admin}/") as answer:
        assert (answer.status, answer.headers["Cache-Control"]) == (200, "no-store")
        return " ".join(re.sub("<[^>]*>", " ", (await answer.text()).partition("<main")[2]).split())


async def bury_one(it: Harness, reason: str = "NoSuchBucket: <i>gone</i>") -> None:
    made = await it.paste()
    it.store.faults.fail("delete", Permanent(reason))
    await it.delete(made)
    await it.tick("object-delete")


async def test_all_is_well_when_it_is(tmp_path: Path) -> None:
    async with running(tmp_path, edge=FakeEdge()) as it:
        text = await page(it)
        assert "All is well." in text
        assert "within a minute Origin an ended paste is gone here at once at once" in text
        assert "within a minute Edges copies go within 60 s purged" in text
        assert "within hours Stored bytes the object follows its paste nothing is late" in text
        assert "Dead letters: 0" in text
    async with running(tmp_path) as it:
        assert "no edge is configured; a cache in front keeps copies for up to 60 s" in await page(it)


async def test_what_is_late_is_red_by_its_alert_lines(tmp_path: Path) -> None:
    clock = FakeClock()
    async with running(tmp_path, clock=clock, store=FakeStore(clock), edge=FakeEdge()) as it:
        await it.delete(await it.paste())
        for after_s, well in ((0, True), (59, True), (1, False), (240, False)):
            clock.advance(after_s)
            assert ("All is well." in await page(it)) == well
        text = await page(it)
        assert "Oldest job: 5 min (alert from 60 s, wake somebody from 5 min)" in text
        assert "the oldest delete is 5 min late" in text
        assert "the oldest purge is 5 min late" in text
        assert "Jobs are late though nothing is broken" in text
        async with it.http.get(f"{it.admin}/") as answer:
            assert '<strong class="bad">5 min</strong>' in await answer.text()


async def test_an_open_breaker_is_told_with_its_reason_and_what_to_do(tmp_path: Path) -> None:
    clock = FakeClock()
    store, edge = FakeStore(clock), FakeEdge()
    async with running(tmp_path, clock=clock, store=store, edge=edge) as it:
        await it.delete(await it.paste())
        store.faults.fail("delete", Temporary("bucket unreachable"), times=None)
        edge.faults.fail("purge", Temporary("edge unreachable"), times=None)
        await it.tick("object-delete")
        await it.tick("edge-purge")
        text = await page(it)
        assert "object-delete waits: " in text
        assert "bucket unreachable" in text
        assert "purges wait (" in text
        assert "copies go by themselves within 60 s of the end" in text
        assert "check that the store is reachable" in text
        assert "check that the edge is reachable" in text


async def test_dead_letters_are_shown_with_their_reason_and_replayed_or_discarded(tmp_path: Path) -> None:
    clock = FakeClock()
    async with running(tmp_path, clock=clock, store=FakeStore(clock)) as it:
        for _ in range(2):
            await bury_one(it)
        text = await page(it)
        assert "Dead letters: 2" in text
        assert "NoSuchBucket: &lt;i&gt;gone&lt;/i&gt;" in text
        ids = [job for (job,) in await it.rows("select id from dead_letters order by id")]

        ours = {"Origin": it.admin}
        for way, headers in (("replay", {}), ("discard", {}), ("replay", {"Origin": "http://evil.example.org"})):
            async with it.http.post(f"{it.admin}/jobs/{way}", data={"id": str(ids[0])}, headers=headers) as answer:
                assert answer.status == 403, "a form that no page of ours has sent"
        for wrong in ("", "x", "-1", "9" * 30, "all-dead" * 2):
            async with it.http.post(f"{it.admin}/jobs/replay", data={"id": wrong}, headers=ours) as answer:
                assert answer.status == 400
        async with it.http.post(f"{it.admin}/jobs/discard", data={"id": "all-dead"}, headers=ours) as answer:
            assert answer.status == 400
        assert len(await it.rows("select id from dead_letters")) == 2

        async with it.http.post(
            f"{it.admin}/jobs/replay", data={"id": str(ids[0])}, headers=ours, allow_redirects=False
        ) as answer:
            assert (answer.status, answer.headers["Location"]) == (303, "/")
        assert await it.rows("select id, state, replayed_by from outbox") == [(ids[0], "pending", "status page")]
        async with it.http.post(f"{it.admin}/jobs/discard", data={"id": str(ids[1])}, headers=ours) as answer:
            assert "Dead letters: 0" in re.sub("<[^>]*>", "", await answer.text())
        await it.drain()
        assert await it.rows("select * from outbox") == []


async def test_the_queues_are_counted_up_to_what_a_person_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = FakeClock()
    async with running(tmp_path, clock=clock, store=FakeStore(clock), edge=FakeEdge()) as it:
        for _ in range(3):
            await it.delete(await it.paste())
        assert "object-delete 3 0 0 s closed edge-purge 6 0 0 s closed reap 0 0 0 s closed" in await page(it)
        monkeypatch.setattr("pastebin_daemon.operating.COUNT_MAX", 5)
        monkeypatch.setattr("pastebin_daemon.web.status.COUNT_MAX", 5)
        assert "edge-purge 5 or more 0" in await page(it)


async def test_the_plot_shows_the_last_hour_and_no_more(tmp_path: Path) -> None:
    clock = FakeClock()
    async with running(tmp_path, clock=clock, store=FakeStore(clock)) as it:
        assert "<svg" not in (await (await it.http.get(f"{it.admin}/")).text())
        await it.delete(await it.paste())
        for _ in range(2 * HOUR_S // EVERY_S):
            clock.advance(EVERY_S)
            assert not await it.daemon.history.sample()
        assert len(it.daemon.history.samples) == HOUR_S // EVERY_S
        async with it.http.get(f"{it.admin}/") as answer:
            text = await answer.text()
        assert 'aria-label="The last hour: the oldest job was at most 2 h old, and at most 1 jobs waited."' in text
        (points,) = re.findall(r'<polyline class="age" points="([^"]+)"/>', text)
        places = [tuple(map(float, point.split(","))) for point in points.split()]
        assert len(places) == HOUR_S // EVERY_S
        assert [x for x, _ in places] == sorted(x for x, _ in places)
        assert places[0][1] > places[-1][1], "it grows older upwards"


async def test_the_page_renews_itself_and_its_buttons_work_with_scripts_off(tmp_path: Path) -> None:
    clock = SystemClock()
    async with running(tmp_path, clock=clock, store=FakeStore(clock)) as it, browser() as chromium:
        await bury_one(it)
        context = await chromium.context()
        shown = await context.new_page()
        await shown.clock.install()
        await shown.goto(it.admin)
        await bury_one(it)
        await shown.clock.run_for(11_000)
        await expect(shown.locator("main")).to_contain_text("Dead letters: 2")

        plain = await chromium.open(it.admin, scripts=False)
        await plain.get_by_role("button", name="Replay job").first.click()
        await expect(plain.locator("main")).to_contain_text("Dead letters: 1")
        await plain.get_by_text("Discard…").click()
        await plain.get_by_role("button", name="for good").click()
        await expect(plain.locator("main")).to_contain_text("Dead letters: 0")


async def test_the_rest_of_what_can_be_red_is_told(tmp_path: Path) -> None:
    clock = FakeClock()
    async with running(tmp_path, clock=clock, store=FakeStore(clock)) as it:
        metrics = it.daemon.metrics
        metrics.expiry_paused.set(1)
        metrics.body_missing.inc()
        metrics.row_is_live.inc()
        it.database.full = True
        await it.daemon.database.write(
            lambda tx: tx.changed(
                "insert into outbox (kind, payload, created_ms, first_due_ms, due_ms) values ('new-kind', '{}', 0, 1, 1)"
            )
        )
        text = await page(it)
        for said in (
            "The clock was set: expiry waits ten minutes",
            "Bodies of live pastes are missing from the store",
            "(row_is_live): a bug",
            "The disk of pastebin.sqlite is full",
            "Jobs of a newer version wait (new-kind)",
        ):
            assert said in text
        it.daemon.health.draining = True
        assert "Not ready: the daemon is being stopped." in await page(it)
