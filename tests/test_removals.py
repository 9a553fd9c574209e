"""Which objects are removed, and which never: not the body of a live paste (G4), not one that may still become a
paste's (G12)."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from pastebin_daemon.errors import Temporary
from tests.fakes import FakeClock, FakeStore, StoredObject
from tests.jobs import (
    OBJECT_DELETE,
    REAP,
    all_done,
    dead_letters,
    effects,
    enqueue,
    enqueue_deletes,
    jobs,
    post,
    shown,
)
from tests.support import Harness, Made, running

HOUR_S = 3600


@pytest_asyncio.fixture
async def it(tmp_path: Path) -> AsyncIterator[Harness]:
    clock = FakeClock()
    async with running(tmp_path, clock=clock, store=FakeStore(clock)) as it:
        yield it


async def object_of(it: Harness, made: Made) -> str:
    ((key,),) = await it.rows("select object from pastes where id = ?", made.id)
    return str(key)


async def reap(it: Harness, *keys: str) -> None:
    await enqueue(it, REAP, *({"object": key} for key in keys))


def put(it: Harness, *keys: str) -> None:
    it.store.objects.update({key: StoredObject(b"x", it.clock.now_ms()) for key in keys})


async def test_a_removal_of_a_live_body_is_refused_at_once_and_alarmed(it: Harness) -> None:
    made = await it.paste(b"precious")
    await enqueue_deletes(it, 2)
    await enqueue(it, OBJECT_DELETE, {"object": await object_of(it, made), "paste": made.id})

    await it.drain()

    (dead,) = await dead_letters(it)
    assert (dead.id, dead.reason, dead.attempts) == (3, "row_is_live", 1)
    assert await shown(it, "pastebin_row_is_live_total") == 1
    assert await jobs(it) == [], "the others of the batch are done"
    assert await it.get(f"{made.id}/raw") == (200, b"precious"), "nobody notices"
    assert len(it.store.objects) == 1


async def test_the_row_is_looked_at_anew_before_each_attempt(it: Harness) -> None:
    made = await it.paste(b"precious")
    key = await object_of(it, made)
    await it.delete(made)
    it.store.stuck[key] = Temporary("500")
    await it.drain()
    it.clock.advance(HOUR_S)
    await it.execute(  # whatever bug did this
        "insert into pastes (id, object, created_ms, size, sha256, is_text, token_sha256)"
        " values ('somebodyelsespaste', ?, 0, 1, zeroblob(32), 1, zeroblob(32))",
        key,
    )
    it.store.stuck.clear()

    await it.drain()

    assert [dead.reason for dead in await dead_letters(it)] == ["row_is_live"]
    assert list(it.store.objects) == [key]


async def test_a_row_is_live_until_it_is_swept(it: Harness) -> None:
    made = await it.paste(expires_in="10m")
    await enqueue(it, OBJECT_DELETE, {"object": await object_of(it, made), "paste": made.id})
    it.clock.advance(601)
    await it.drain()
    assert len(it.store.objects) == 1
    assert [dead.reason for dead in await dead_letters(it)] == ["row_is_live"]


async def test_a_dead_removal_of_a_live_body_can_be_replayed_once_the_paste_has_ended(it: Harness) -> None:
    made = await it.paste()
    await enqueue(it, OBJECT_DELETE, {"object": await object_of(it, made), "paste": made.id})
    await it.drain()
    await it.delete(made)
    await post(it, "/api/v1/jobs/replay", {"ids": [1], "by": "ann"})
    await it.drain()
    assert it.store.objects == {}
    assert await all_done(it)


async def test_the_removal_sets_the_tombstone_again(it: Harness) -> None:
    made = await it.paste(b"hi")
    await it.delete(made)
    it.clock.advance(HOUR_S)
    it.daemon.cache.sweep()
    assert not it.daemon.cache.is_buried(made.id), "the first tombstone's time is over"
    hold = it.store.faults.hold("delete")
    tick = asyncio.create_task(it.tick(OBJECT_DELETE))
    await hold.reached.wait()
    assert it.daemon.cache.is_buried(made.id)
    hold.go.set()
    await tick


async def test_a_reap_of_an_owned_object_is_done_without_touching_it_and_is_no_alarm(it: Harness) -> None:
    made = await it.paste(b"owned")
    await reap(it, await object_of(it, made))
    it.clock.advance(2 * HOUR_S)

    await it.drain()

    assert await all_done(it)
    assert effects(it.store) == []
    assert len(await it.rows("select * from inbox")) == 1
    assert await shown(it, "pastebin_row_is_live_total") == 0
    assert await it.get(f"{made.id}/raw") == (200, b"owned")


async def test_a_reap_waits_until_its_object_is_an_hour_old_and_that_is_no_delay(it: Harness) -> None:
    put(it, "orphan")
    it.clock.advance(10)
    await reap(it, "orphan")

    await it.drain()

    (job,) = await jobs(it)
    assert (job.state, job.attempts) == ("pending", 0), "the attempt does not count"
    wait_s = (job.due_ms - it.clock.now_ms()) / 1000
    assert HOUR_S - 10 <= wait_s <= HOUR_S - 8
    it.clock.advance(wait_s)
    assert await shown(it, "pastebin_outbox_oldest_unpublished_age_seconds") == 0
    assert list(it.store.objects) == ["orphan"]
    it.clock.advance(5)
    assert await shown(it, "pastebin_outbox_oldest_unpublished_age_seconds") == 5, "from then on it is"

    await it.drain()

    assert it.store.objects == {}
    assert await all_done(it)


@pytest.mark.parametrize(("age_s", "is_reaped"), [(HOUR_S - 0.001, False), (HOUR_S, True)])
async def test_the_age_floor_is_an_hour_to_the_millisecond(it: Harness, age_s: float, is_reaped: bool) -> None:
    put(it, "orphan")
    it.clock.advance(age_s)
    await reap(it, "orphan")
    await it.drain()
    assert ("orphan" not in it.store.objects) is is_reaped


async def test_the_age_is_what_the_store_says_whatever_our_clock_says(tmp_path: Path) -> None:
    clock, its_clock = FakeClock(), FakeClock()
    store = FakeStore(its_clock)
    async with running(tmp_path, clock=clock, store=store) as it:
        await store.put("orphan", b"x")
        await reap(it, "orphan")
        for _ in range(5):
            clock.advance(2 * HOUR_S)  # ours runs ahead
            await it.drain()
        assert list(store.objects) == ["orphan"]
        its_clock.advance(HOUR_S)
        clock.advance(2 * HOUR_S)
        await it.drain()
        assert store.objects == {}


async def test_no_reap_removes_what_is_being_uploaded(it: Harness) -> None:
    hold = it.store.faults.hold("put")
    creating = asyncio.create_task(it.paste(b"slow"))
    await hold.reached.wait()
    ((key,),) = await it.rows("select object from uploads")
    put(it, key)  # a store may show an object before it answers
    it.clock.advance(2 * HOUR_S)
    await reap(it, key)

    await it.drain()

    assert key in it.store.objects
    (job,) = await jobs(it)
    assert (job.state, job.attempts) == ("pending", 0)
    assert job.due_ms - it.clock.now_ms() == HOUR_S * 1000

    hold.go.set()
    made = await creating
    it.clock.advance(2 * HOUR_S)
    await it.drain()
    assert await it.get(f"{made.id}/raw") == (200, b"slow"), "now it is owned"
    assert await all_done(it)


async def test_a_reap_of_a_missing_object_is_done_when_nothing_can_be_on_its_way_any_more(it: Harness) -> None:
    await reap(it, "never-was")
    await it.drain()
    ((job,),) = [await jobs(it)]
    assert (job.attempts, job.due_ms - it.clock.now_ms()) == (0, HOUR_S * 1000), "it is looked at once more"
    it.clock.advance(HOUR_S)
    await it.drain()
    assert await all_done(it)
    assert effects(it.store) == []


async def test_a_body_that_arrives_after_its_reap_first_looked_is_reaped_all_the_same(it: Harness) -> None:
    it.store.faults.fail("put")
    async with it.http.post(it.url, data=b"late") as answer:
        assert answer.status == 503
    ((key,),) = await it.rows("select object from uploads")
    it.clock.step_wall(2 * HOUR_S)
    await it.sweep("uploads")
    await it.drain()
    put(it, key)
    it.clock.advance(HOUR_S + 1)
    await it.drain()
    assert it.store.objects == {}, "the PUT that was on its way has landed, and was found"
    assert await all_done(it)


async def test_with_the_clock_set_back_a_reap_of_a_missing_object_waits_no_longer_than_the_floor(it: Harness) -> None:
    await reap(it, "never-was")
    it.clock.step_wall(-5 * HOUR_S)
    await it.execute("update outbox set due_ms = due_ms - ?", 10 * HOUR_S * 1000)
    await it.drain()
    ((job,),) = [await jobs(it)]
    assert job.due_ms - it.clock.now_ms() == HOUR_S * 1000


async def test_every_reap_of_a_batch_has_its_own_fate(it: Harness) -> None:
    put(it, "old", "stuck")
    it.clock.advance(HOUR_S)
    put(it, "young")
    it.store.stuck["stuck"] = Temporary("500")
    await reap(it, "old", "stuck", "young", "missing")
    await it.drain()
    assert sorted(it.store.objects) == ["stuck", "young"]
    assert [(job.id, job.attempts) for job in await jobs(it)] == [(2, 1), (3, 0), (4, 0)]


async def test_many_reaps_go_through_in_bounded_batches(it: Harness) -> None:
    keys = [f"orphan{number:02}" for number in range(40)]
    put(it, *keys)
    it.clock.advance(HOUR_S)
    await reap(it, *keys)
    await it.drain()
    assert it.store.objects == {}
    assert await all_done(it)
    assert max(len(call) for call in effects(it.store)) <= 16
