"""Reads behind a real Varnish with its default settings: what is kept, for how long, and what never is.

Varnish's grace of 10 s would serve a copy past its lifetime; the origin's headers alone have to keep it from that. So
an expired paste needs no purge (G11).
"""

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pastebin_daemon.clock import SystemClock
from tests.fakes import FakeClock, FakeStore
from tests.real import poll
from tests.real.faults import Hold
from tests.real.site import Front, Visit, running_front, site

ROUTES = ("{}", "{}/raw", "{}/download", "api/v1/pastes/{}")
TEXT = b"a text\n"


@pytest.fixture(scope="module")
def front() -> Iterator[Front]:
    with running_front() as opened:
        yield opened


async def test_an_expired_paste_is_never_served_and_no_purge_was_needed(front: Front, tmp_path: Path) -> None:
    """Some are asked for all the time, the last of them before its copy is stale; the others once, and then not until
    they have expired, so that nothing has replaced the copy that a grace would serve."""
    async with site(front, tmp_path, clock=SystemClock()) as at:
        busy = [await at.it.paste(TEXT, expires_in="4s") for _ in range(2)]
        quiet = [await at.it.paste(TEXT, expires_in="4s") for _ in range(20)]
        expires_s = {paste: ms / 1000 for paste, ms in await at.it.rows("select id, expires_ms from pastes")}
        visits: dict[str, list[Visit]] = {paste: [] for paste in expires_s}
        for made in busy + quiet:
            for route in ROUTES:
                visits[made.id].append(await at.visit(route.format(made.id)))
                visits[made.id].append(await at.visit(route.format(made.id)))

        async def hammer(paste: str, route: str) -> None:
            while time.time() < expires_s[paste] + 1:
                visits[paste].append(await at.visit(route.format(paste)))

        async def wait_for_the_end(paste: str) -> None:
            async def over() -> bool:
                return bool(time.time() >= expires_s[paste])

            await poll(over, "the paste has expired")
            for route in ROUTES:
                visits[paste].append(await at.visit(route.format(paste)))

        await asyncio.gather(
            *(hammer(made.id, route) for made in busy for route in ROUTES[:3]),
            *(wait_for_the_end(made.id) for made in quiet),
        )
        await at.it.sweep("expiry")
        assert await at.it.rows("select distinct kind from outbox") == [("object-delete",)]

        for paste, end_s in expires_s.items():
            assert any(each.hit and each.status == 200 for each in visits[paste]), "it was in the cache"
            assert {each.status for each in visits[paste] if each.asked_s < end_s - 1} == {200}
            assert {each.status for each in visits[paste] if each.asked_s >= end_s} == {404}


async def test_an_answer_that_was_slow_on_its_way_is_not_served_past_the_expiry_either(
    front: Front, tmp_path: Path
) -> None:
    async with site(front, tmp_path, clock=SystemClock()) as at:
        made = await at.it.paste(TEXT, expires_in="4s")
        ((expires_ms,),) = await at.it.rows("select expires_ms from pastes")
        slow = Hold()
        at.origin.next(slow, method="GET")
        reader = asyncio.create_task(at.visit(f"{made.id}/raw"))
        await slow.answered.wait()

        async def passed(end_s: float) -> bool:
            return bool(time.time() >= end_s)

        await poll(lambda: passed(expires_ms / 1000 - 0.5), "the answer is late")
        slow.go.set()
        assert (await reader).status == 200
        await poll(lambda: passed(expires_ms / 1000), "the paste has expired")
        assert (await at.visit(f"{made.id}/raw")).status == 404


async def test_what_is_not_there_is_asked_of_the_origin_each_time(front: Front, tmp_path: Path) -> None:
    async with site(front, tmp_path, clock=FakeClock()) as at:
        for method, path in (("GET", "0123456789abcdefghij0/raw"), ("HEAD", "0123456789abcdefghij0"), ("GET", "a/b/c")):
            for times in range(1, 4):
                asked = len(at.origin.seen)
                seen = await at.visit(path, method)
                assert (seen.status, seen.headers["Cache-Control"]) == (404, "no-store")
                assert len(at.origin.seen) == asked + 1, f"{path}, {times}"


async def test_while_the_store_is_down_varnish_serves_what_it_has_and_keeps_no_error(
    front: Front, tmp_path: Path
) -> None:
    clock = FakeClock()
    store = FakeStore(clock)
    async with site(front, tmp_path, clock=clock, store=store, settings={"cache.bytes_max": 0}) as at:
        cached, uncached = await at.it.paste(TEXT), await at.it.paste(TEXT)
        await at.visit(f"{cached.id}/raw")
        store.faults.fail("get", times=None)
        assert (await at.it.get(f"{cached.id}/raw"))[0] == 503, "the origin itself can't"

        seen = await at.visit(f"{cached.id}/raw")
        assert (seen.status, seen.body, seen.hit) == (200, TEXT, True)
        for _ in range(2):
            seen = await at.visit(f"{uncached.id}/raw")
            assert (seen.status, seen.headers["Cache-Control"]) == (503, "no-store")
            assert int(seen.headers["Retry-After"]) > 0

        store.faults.clear()
        assert (await at.visit(f"{uncached.id}/raw")).status == 200
        assert (await at.visit(f"{uncached.id}/raw")).hit


def lifetime_s(seen: Visit) -> int:
    """The N of `s-maxage=N`."""
    return int(seen.headers["Cache-Control"].partition("s-maxage=")[2].partition(",")[0])


async def test_a_304_of_the_origin_says_a_fresh_lifetime(front: Front, tmp_path: Path) -> None:
    """Varnish answers conditional requests out of its cache by itself; one with a cookie it passes to the origin."""
    clock = FakeClock()
    async with site(front, tmp_path, clock=clock) as at:
        made = await at.it.paste(TEXT, expires_in="50s")
        path = f"{made.id}/raw"
        first = await at.visit(path)
        assert lifetime_s(first) == 49
        clock.advance(30)

        condition = {"If-None-Match": first.headers["ETag"]}
        kept = await at.visit(path, **condition)
        assert (kept.status, kept.hit, lifetime_s(kept)) == (304, True, 49)
        passed = await at.visit(path, Cookie="theme=dark", **condition)
        assert (passed.status, passed.hit, lifetime_s(passed)) == (304, False, 19)
        assert at.origin.answered == [200, 304], "Varnish would make a 304 out of a passed 200 too"

        clock.advance(20)
        assert (await at.visit(path, Cookie="theme=dark", **condition)).status == 404, "liveness comes first"


async def test_a_conditional_request_fills_the_cache_with_the_whole_body(front: Front, tmp_path: Path) -> None:
    async with site(front, tmp_path, clock=FakeClock()) as at:
        made = await at.it.paste(TEXT)
        async with at.it.http.get(f"{made.url}/raw") as answer:
            condition = {"If-None-Match": answer.headers["ETag"]}
        assert (await at.visit(f"{made.id}/raw", **condition)).status == 304
        seen = await at.visit(f"{made.id}/raw")
        assert (seen.status, seen.body, seen.hit) == (200, TEXT, True)
