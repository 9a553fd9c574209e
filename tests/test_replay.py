"""Dead letters: an operator replays or discards them, through the operator's API, and nothing else moves them (G9)."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from pastebin_daemon.errors import Permanent, Temporary
from tests.fakes import FakeClock, FakeEdge, FakeStore
from tests.jobs import (
    EDGE_PURGE,
    OBJECT_DELETE,
    all_done,
    dead_letters,
    effects,
    enqueue,
    enqueue_deletes,
    jobs,
    post,
    rival,
    shown,
)
from tests.support import Harness, running

DAY_S = 86_400


@pytest_asyncio.fixture
async def it(tmp_path: Path) -> AsyncIterator[Harness]:
    clock = FakeClock()
    async with running(tmp_path, clock=clock, store=FakeStore(clock), edge=FakeEdge()) as it:
        yield it


async def replay(it: Harness, *ids: int, by: str = "ann") -> Any:
    return (await post(it, "/api/v1/jobs/replay", {"ids": list(ids), "by": by}))["replayed"]


async def bury(it: Harness, count: int = 1) -> list[str]:
    """Dead letters 1 to `count`; the result: the objects that they are about."""
    keys = await enqueue_deletes(it, count)
    it.store.faults.fail("delete", Permanent("malformed"))
    await it.drain()
    assert len(await dead_letters(it)) == count
    return keys


async def bury_with_its_effect_done(it: Harness) -> None:
    """A first claim outlives its lease, a second one fails for good, and then the first one's effect succeeds after all."""
    await enqueue_deletes(it, 1)
    hold = it.store.faults.hold("delete")
    first = asyncio.create_task(it.tick(OBJECT_DELETE))
    await hold.reached.wait()
    it.clock.advance(60)
    it.store.faults.fail("delete", Permanent("malformed"))
    await rival(it).tick()
    hold.go.set()
    await first
    assert len(await dead_letters(it)) == len(await it.rows("select * from inbox")) == 1


async def sweep_inbox(it: Harness) -> None:
    while await it.sweep("inbox"):
        pass


async def test_inside_the_window_a_replay_is_the_same_job_again(it: Harness) -> None:
    (key,) = await bury(it)
    it.clock.advance(7 * DAY_S - 0.001)
    now_ms = it.clock.now_ms()

    assert await replay(it, 1) == {"1": 1}

    (job,) = await jobs(it)
    assert (job.id, job.state, job.attempts, job.generation) == (1, "pending", 0, 1)
    assert (job.due_ms, job.first_due_ms) == (now_ms, now_ms), "its delay is counted from now"
    assert await dead_letters(it) == []
    await it.drain()
    assert effects(it.store) == [(key,), (key,)]
    assert it.store.objects == {}
    assert await all_done(it)


async def test_after_the_window_a_replay_is_a_new_job(it: Harness) -> None:
    await bury(it)
    it.clock.advance(7 * DAY_S)
    assert await replay(it, 1) == {"1": 2}
    (job,) = await jobs(it)
    assert (job.id, job.attempts, job.generation) == (2, 0, 0)
    await it.drain()
    assert it.store.objects == {}
    assert await all_done(it)


async def test_a_replayed_job_whose_effect_is_known_is_done_without_it(it: Harness) -> None:
    await bury_with_its_effect_done(it)
    calls = len(effects(it.store))

    await replay(it, 1)
    await it.drain()

    assert len(effects(it.store)) == calls
    assert await all_done(it)
    assert it.metric("pastebin_inbox_duplicates_total", consumer=OBJECT_DELETE) == 1


async def test_a_job_replayed_at_the_last_moment_and_done_days_later_is_still_known(it: Harness) -> None:
    await bury_with_its_effect_done(it)
    calls = len(effects(it.store))
    it.clock.advance(7 * DAY_S - 0.001)
    await sweep_inbox(it)
    await replay(it, 1)
    it.clock.advance(3 * DAY_S)  # the row is past its retention, but the job is there
    await sweep_inbox(it)
    await it.drain()
    assert len(effects(it.store)) == calls
    assert await all_done(it)
    await sweep_inbox(it)
    assert await it.rows("select * from inbox") == []


async def test_after_the_window_the_effect_happens_again_since_that_is_a_new_decision(it: Harness) -> None:
    await bury_with_its_effect_done(it)
    calls = len(effects(it.store))
    it.clock.advance(7 * DAY_S)
    await replay(it, 1)
    await it.drain()
    assert len(effects(it.store)) == calls + 1
    assert await all_done(it)


async def test_a_claim_from_before_the_death_can_not_settle_the_replayed_job(it: Harness) -> None:
    await enqueue_deletes(it, 1)
    hold = it.store.faults.hold("delete")
    ours = asyncio.create_task(it.tick(OBJECT_DELETE))
    await hold.reached.wait()
    it.clock.advance(60)
    it.store.faults.fail("delete", Permanent("malformed"))
    await rival(it).tick()
    await replay(it, 1)
    again = it.store.faults.hold("delete")
    theirs = asyncio.create_task(rival(it).tick())
    await again.reached.wait()
    held = await jobs(it)

    hold.go.set()
    await ours

    assert await jobs(it) == held
    assert held[0].generation == 3, "it grew over the death and the replay"
    again.go.set()
    await theirs
    assert await all_done(it)


async def test_a_replay_says_who_and_when_for_as_long_as_the_job_is_there(it: Harness) -> None:
    await bury(it)
    it.clock.advance(5)
    await replay(it, 1, by="ann@example.org")
    asked = {"replayed_by": "ann@example.org", "replayed_ms": it.clock.now_ms()}

    async with it.http.get(f"{it.admin}/api/v1/jobs/1") as answer:
        job = await answer.json()
    assert {key: job[key] for key in asked} == asked

    it.clock.advance(5)
    it.store.faults.fail("delete", Permanent("malformed still"))
    await it.drain()
    (dead,) = await dead_letters(it)
    assert (dead.replayed_by, dead.replayed_ms) == ("ann@example.org", asked["replayed_ms"])
    assert (dead.last_error, dead.generation) == ("malformed still", 2)


async def test_a_replayed_job_has_all_its_attempts_again(it: Harness) -> None:
    (key,) = await bury(it)
    it.store.stuck[key] = Temporary("500")
    await replay(it, 1)
    for _ in range(8):
        await it.drain()
        it.clock.advance(3600)
    (dead,) = await dead_letters(it)
    assert (dead.reason, dead.attempts, dead.generation) == ("attempts_exhausted", 8, 9)


async def test_a_replay_wakes_the_dispatcher(it: Harness) -> None:
    await enqueue(it, EDGE_PURGE, {"paste": "x"})
    it.edge.faults.fail("purge", Permanent("400"))
    await it.drain()
    woken = it.daemon.dispatchers[EDGE_PURGE].woken
    assert not woken.is_set()
    await replay(it, 1)
    assert woken.is_set()


async def test_only_the_dead_are_replayed_and_each_once(it: Harness) -> None:
    await bury(it, 2)
    await enqueue(it, OBJECT_DELETE, {"object": "waiting", "paste": "x"})
    before = (await jobs(it))[0]

    assert await replay(it, 1, 1, 3, 99) == {"1": 1}
    assert await replay(it, 1) == {}

    assert [job.id for job in await jobs(it)] == [1, 3]
    assert before in await jobs(it), "a job that waits is not touched"
    assert [dead.id for dead in await dead_letters(it)] == [2]


async def test_all_the_dead_are_replayed_at_once(it: Harness) -> None:
    await bury(it, 3)
    await post(it, "/api/v1/jobs/replay", {"ids": "all-dead", "by": "ann"})
    await it.drain()
    assert it.store.objects == {}
    assert await all_done(it)


async def test_a_discarded_letter_is_gone_and_nothing_happens_for_it(it: Harness) -> None:
    keys = await bury(it, 2)
    answer = await post(it, "/api/v1/jobs/discard", {"ids": [1, 1, 99], "by": "ann"})
    assert answer == {"discarded": [1]}
    assert [dead.id for dead in await dead_letters(it)] == [2]
    assert await replay(it, 1) == {}
    await it.drain()
    assert sorted(it.store.objects) == keys
    assert await shown(it, "pastebin_outbox_dead_letters") == 1


async def test_a_waiting_job_can_not_be_discarded(it: Harness) -> None:
    await enqueue_deletes(it, 1)
    assert await post(it, "/api/v1/jobs/discard", {"ids": [1], "by": "ann"}) == {"discarded": []}
    await it.drain()
    assert it.store.objects == {}


async def test_a_dead_letter_stays_until_somebody_decides(it: Harness) -> None:
    await bury(it)
    for _ in range(10):
        it.clock.advance(365 * DAY_S)
        for name in it.daemon.sweepers:
            await it.sweep(name)
        await it.drain()
    assert len(await dead_letters(it)) == 1


@pytest.mark.parametrize("window", ["7d", "2h"])
async def test_the_window_is_what_the_configuration_says(tmp_path: Path, window: str) -> None:
    clock = FakeClock()
    settings = {"outbox.replay_window": window}
    async with running(tmp_path, clock=clock, store=FakeStore(clock), settings=settings) as it:
        await bury(it)
        clock.advance(2 * 3600)
        assert await replay(it, 1) == {"1": 1 if window == "7d" else 2}
