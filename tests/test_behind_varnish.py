"""Deletes behind a real Varnish with its default settings: the purge reaches every copy, whatever stood in its way.

Every test sees the copy served from the cache first, so that it could fail.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest
from yarl import URL

from tests.fakes import FakeClock
from tests.real import free_port, poll
from tests.real.faults import Answer, Fault, FaultProxy, Hang, Hold, Reset
from tests.real.site import Front, Site, Visit, running_front, site
from tests.real.varnish import running_varnish
from tests.support import Made

ROUTES = ("{}", "{}/raw", "{}/download", "api/v1/pastes/{}")
TEXT = b"a text that is long enough to be worth compressing\n" * 50


@pytest.fixture(scope="module")
def front() -> Iterator[Front]:
    with running_front() as opened:
        yield opened


async def copies(at: Site, made: Made) -> list[Visit]:
    """What visitors get at every address that is cached, by all the ways that a cache may keep apart."""
    found = []
    for route in ROUTES:
        path = route.format(made.id)
        found.append(await at.visit(path, **{"Accept-Encoding": "gzip"}))
        found.append(await at.visit(path, **{"Accept-Encoding": "identity"}))
        found.append(await at.visit(path, "HEAD"))
        found.append(await at.visit(path, **{"If-None-Match": found[-1].headers.get("ETag", '"any"')}))
    return found


async def warm(at: Site, made: Made) -> None:
    """Every copy is in the cache after it, and was seen to come from there."""
    await copies(at, made)
    asked = len(at.origin.seen)
    assert [each.status for each in await copies(at, made)] == [200, 200, 200, 304] * len(ROUTES)
    assert all(each.hit for each in await copies(at, made))
    assert len(at.origin.seen) == asked
    for _ in range(2):  # a query makes no second copy
        seen = await at.visit(f"{made.id}/raw?from=a-chat")
        assert (seen.status, seen.hit) == (200, False)


async def assert_gone(at: Site, made: Made) -> None:
    assert {each.status for each in await copies(at, made)} == {404}
    for route in ROUTES:
        assert (await at.visit(f"{route.format(made.id)}?from=a-chat")).status == 404


async def by_token(at: Site, made: Made) -> None:
    await at.delete(made)


async def by_form(at: Site, made: Made) -> None:
    async with at.it.http.post(f"{at.front.url}/{made.id}/delete", data={"token": made.token}) as answer:
        assert answer.status == 200


async def by_takedown(at: Site, made: Made) -> None:
    asked = {"id": made.id, "reason": "spam", "by": "operator"}
    async with at.it.http.post(f"{at.it.admin}/api/v1/takedown", json=asked) as answer:
        assert answer.status == 200


@pytest.mark.parametrize("end", [by_token, by_form, by_takedown])
async def test_an_ended_paste_is_404_at_every_address_after_one_tick_and_the_others_stay_cached(
    front: Front, tmp_path: Path, end: Callable[[Site, Made], Awaitable[None]]
) -> None:
    async with site(front, tmp_path, clock=FakeClock()) as at:
        gone, kept = await at.it.paste(TEXT), await at.it.paste(TEXT)
        await warm(at, gone)
        await warm(at, kept)
        await end(at, gone)
        assert (await at.visit(f"{gone.id}/raw")).hit, "nobody waits for the edge"

        await at.it.tick("edge-purge")

        await assert_gone(at, gone)
        asked = len(at.origin.seen)
        still = await copies(at, kept)
        assert [each.status for each in still] == [200, 200, 200, 304] * len(ROUTES)
        assert all(each.hit for each in still)
        assert len(at.origin.seen) == asked


async def test_many_pastes_are_purged_together(front: Front, tmp_path: Path) -> None:
    async with site(front, tmp_path, clock=FakeClock(), settings={"outbox.batch": 30}) as at:
        made = [await at.it.paste(TEXT) for _ in range(40)]
        for each in made:
            await at.visit(f"{each.id}/raw")
        for each in made[:35]:
            await at.it.delete(each)
        assert {(await at.visit(f"{each.id}/raw")).hit for each in made} == {True}
        await at.it.drain()
        assert {(await at.visit(f"{each.id}/raw")).status for each in made[:35]} == {404}
        assert {(await at.visit(f"{each.id}/raw")).hit for each in made[35:]} == {True}


# --- an answer that was on its way


async def overtaken(at: Site, made: Made, purge: bool) -> Visit:
    """A read is answered, and its answer is slow; meanwhile the paste is deleted and purged. What the reader gets."""
    slow = Hold()
    at.origin.next(slow, method="GET")
    reader = asyncio.create_task(at.visit(f"{made.id}/raw"))
    await slow.answered.wait()
    await at.it.delete(made)
    if purge:
        await at.it.tick("edge-purge")
    slow.go.set()
    return await reader


async def test_an_answer_that_a_purge_overtook_is_purged_by_the_second_one(front: Front, tmp_path: Path) -> None:
    clock = FakeClock()
    async with site(front, tmp_path, clock=clock) as at:
        made = await at.it.paste(TEXT)
        assert (await overtaken(at, made, purge=True)).status == 200
        ((due_ms,),) = await at.it.rows("select due_ms from outbox where kind = 'edge-purge'")
        assert (await at.visit(f"{made.id}/raw")).hit, "the first purge came too early"

        clock.advance((due_ms - clock.now_ms()) / 1000)
        await at.it.tick("edge-purge")

        await assert_gone(at, made)
        assert await at.it.rows("select * from outbox where kind = 'edge-purge'") == []


async def test_an_answer_that_no_purge_reached_is_gone_after_max_age(front: Front, tmp_path: Path) -> None:
    async with site(front, tmp_path, clock=FakeClock(), settings={"edge.max_age": "2s"}) as at:
        made = await at.it.paste(TEXT)
        assert (await overtaken(at, made, purge=True)).status == 200
        await served_for(at, made, 2)


async def served_for(at: Site, made: Made, most_s: float) -> None:
    """From now on the cache serves the paste for a while, and for no longer than `most_s`. One address is asked for only
    then, so that no earlier request has replaced a copy that a grace would serve."""
    began = time.time()
    *asked, quiet = ROUTES
    last_s = 0.0

    async def all_gone() -> bool:
        nonlocal last_s
        found = [await at.visit(route.format(made.id)) for route in asked]
        last_s = max([last_s, *(each.asked_s for each in found if each.status == 200)])
        return all(each.status != 200 for each in found)

    await poll(all_gone, "the copies are gone", limit_s=30)
    assert began < last_s < began + most_s + 0.1
    assert (await at.visit(quiet.format(made.id))).status != 200


async def test_with_the_dispatcher_stopped_a_deleted_paste_is_gone_after_max_age(front: Front, tmp_path: Path) -> None:
    async with site(front, tmp_path, clock=FakeClock(), settings={"edge.max_age": "2s"}) as at:
        made = await at.it.paste(TEXT)
        for route in ROUTES:
            await at.visit(route.format(made.id))
        await at.delete(made)
        await served_for(at, made, 2)
        await assert_gone(at, made)


async def test_not_even_a_dead_origin_makes_varnish_serve_past_max_age(front: Front, tmp_path: Path) -> None:
    async with site(front, tmp_path, clock=FakeClock(), settings={"edge.max_age": "2s"}) as at:
        made = await at.it.paste(TEXT)
        for route in ROUTES:
            await at.visit(route.format(made.id))
        await at.delete(made)
        at.origin.next(Reset(), times=None)
        await served_for(at, made, 2)
        assert (await at.visit(f"{made.id}/raw")).status == 503


# --- purges that fail


@pytest.mark.parametrize(
    "fault",
    [Answer(503), Answer(403), Answer(429, headers={"Retry-After": "600"}), Hang(), Reset()],
    ids=["503", "403", "429", "hanging", "reset"],
)
async def test_a_purge_that_fails_is_late_and_not_lost(front: Front, tmp_path: Path, fault: Fault) -> None:
    clock, varnish_port = FakeClock(), URL(front.url).port
    assert varnish_port is not None
    async with FaultProxy(varnish_port) as way:
        settings = {"edge.varnish.endpoint": way.url, "edge.varnish.timeout": "500ms"}
        async with site(front, tmp_path, clock=clock, settings=settings) as at:
            made = await at.it.paste(TEXT)
            await warm(at, made)
            way.next(fault, times=None)
            await at.delete(made)
            for _ in range(3):
                await at.it.drain()
                clock.advance(3600)
            assert (await at.visit(f"{made.id}/raw")).hit
            assert await at.it.rows("select state, attempts from outbox") == [("pending", 0)] * 2

            way.clear()
            await at.it.drain()
            await assert_gone(at, made)
            assert await at.it.rows("select * from outbox") == []
            assert await at.it.rows("select * from dead_letters") == []


async def test_while_varnish_is_down_deletes_are_204_and_the_purges_wait_for_it(tmp_path: Path) -> None:
    port, origin_port, clock = free_port(), free_port(), FakeClock()
    front = Front(f"http://127.0.0.1:{port}", origin_port)
    async with site(front, tmp_path, clock=clock) as at:
        dispatcher = at.it.daemon.dispatchers["edge-purge"]
        with running_varnish(origin_port, port):
            made = [await at.it.paste(TEXT) for _ in range(3)]
            assert {(await at.visit(f"{each.id}/raw")).status for each in made} == {200}
        for each in made[:2]:
            await at.it.delete(each)
        for _ in range(3):
            await at.it.drain()
            clock.advance(3600)
        assert not dispatcher.breaker.may_claim()
        assert await at.it.rows("select state, attempts from outbox") == [("pending", 0)] * 4

        with running_varnish(origin_port, port):
            await at.it.drain()
            assert dispatcher.breaker.may_claim()
            assert await at.it.rows("select * from outbox") == []
            assert await at.it.rows("select * from dead_letters") == []
            assert [(await at.visit(f"{each.id}/raw")).status for each in made] == [404, 404, 200]
