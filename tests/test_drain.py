"""The stop: nothing more is claimed, what is under way is finished or given back, and no attempt is lost by it (G5).

A drain's budget is short here, and whatever must be cut short hangs for ever: so the tests end as soon as it is cut.
"""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio

from pastebin_daemon.errors import Temporary
from tests.fakes import FakeClock, FakeEdge, FakeStore, Hold
from tests.jobs import EDGE_PURGE, OBJECT_DELETE, all_done, effects, enqueue_deletes, jobs, probes, written
from tests.support import Harness, running

LEASE_S = 60
AMPLE_S, SHORT_S = 60.0, 0.05


@pytest_asyncio.fixture
async def it(tmp_path: Path) -> AsyncIterator[Harness]:
    clock = FakeClock()
    async with running(tmp_path, clock=clock, store=FakeStore(clock), edge=FakeEdge()) as it:
        yield it


async def start(it: Harness, hold: Hold) -> asyncio.Task[bool]:
    tick = asyncio.create_task(it.tick(OBJECT_DELETE))
    await hold.reached.wait()
    return tick


def drain(it: Harness, within_s: float) -> None:
    for dispatcher in it.daemon.dispatchers.values():
        dispatcher.drain(within_s)


async def ended(tick: asyncio.Task[bool]) -> None:
    async with asyncio.timeout(15):  # less than the 20 s that an effect or a probe may take
        await tick


async def test_a_draining_dispatcher_claims_nothing_and_its_loop_is_woken(it: Harness) -> None:
    await enqueue_deletes(it, 1)
    before = await jobs(it)
    drain(it, AMPLE_S)
    assert it.daemon.dispatchers[OBJECT_DELETE].woken.is_set()
    assert not await it.tick(OBJECT_DELETE)
    assert await jobs(it) == before


async def test_what_is_under_way_is_finished_within_the_budget(it: Harness) -> None:
    await enqueue_deletes(it, 3)
    hold = it.store.faults.hold("delete")
    tick = await start(it, hold)
    drain(it, AMPLE_S)
    hold.go.set()
    await tick
    assert it.store.objects == {}
    assert await all_done(it)


async def test_what_is_not_finished_is_given_back_with_its_attempt(it: Harness) -> None:
    await enqueue_deletes(it, 3)
    tick = await start(it, it.store.faults.hold("delete"))
    drain(it, SHORT_S)
    await ended(tick)
    assert {(job.state, job.attempts, job.last_error) for job in await jobs(it)} == {
        ("pending", 0, "the daemon was stopped")
    }
    assert len(it.store.objects) == 3


async def test_the_next_start_does_at_once_what_was_given_back(tmp_path: Path) -> None:
    clock = FakeClock()
    store = FakeStore(clock)
    async with running(tmp_path, clock=clock, store=store) as it:
        keys = await enqueue_deletes(it, 3)
        tick = await start(it, store.faults.hold("delete"))
        drain(it, SHORT_S)
        await ended(tick)
    async with running(tmp_path, clock=clock, store=store) as it:
        await it.drain()
        assert await all_done(it)
    assert [sorted(call) for call in effects(store)] == [keys, keys], "in bulk: nothing is suspect"


async def test_a_failure_during_the_drain_costs_no_attempt_and_asks_no_probe(it: Harness) -> None:
    await enqueue_deletes(it, 1)
    it.store.faults.fail("delete", Temporary("500"))
    hold = it.store.faults.hold("delete")
    tick = await start(it, hold)
    drain(it, AMPLE_S)
    hold.go.set()
    await tick
    (job,) = await jobs(it)
    assert (job.state, job.attempts) == ("pending", 0)
    assert probes(it.store) == 0


async def test_a_probe_that_hangs_does_not_hold_up_the_stop(it: Harness) -> None:
    await enqueue_deletes(it, 1)
    failing, probing = it.store.faults.hold("delete"), it.store.faults.hold("delete")
    it.store.faults.fail("delete", Temporary("500"))
    tick = await start(it, failing)
    failing.go.set()
    await probing.reached.wait()
    drain(it, SHORT_S)
    await ended(tick)
    (job,) = await jobs(it)
    assert (job.state, job.attempts) == ("pending", 0)


async def test_an_outage_does_not_hold_up_the_stop(it: Harness) -> None:
    await enqueue_deletes(it, 1)
    it.store.faults.fail("delete", times=2)
    await it.drain()
    it.clock.advance(10)
    tick = await start(it, it.store.faults.hold("delete"))  # the probe of the open breaker
    drain(it, SHORT_S)
    await ended(tick)


async def test_a_draining_dispatcher_asks_no_probe_whether_an_outage_is_over(it: Harness) -> None:
    await enqueue_deletes(it, 1)
    it.store.faults.fail("delete", times=2)
    await it.drain()
    it.clock.advance(10)
    drain(it, AMPLE_S)
    assert not await it.tick(OBJECT_DELETE)
    assert probes(it.store) == 1, "the one that opened the breaker"


async def test_a_dispatcher_that_waits_for_a_suspect_claims_nothing_after_the_drain(it: Harness) -> None:
    await enqueue_deletes(it, 1)
    tick = await start(it, it.store.faults.hold("delete"))
    tick.cancel()
    it.clock.advance(LEASE_S)
    made = await it.paste()
    await it.delete(made)
    suspect = await start(it, it.store.faults.hold("delete"))
    waiting = asyncio.create_task(it.tick(EDGE_PURGE))
    await written(it)

    drain(it, SHORT_S)
    await ended(suspect)
    await ended(waiting)

    assert [job.generation for job in await jobs(it) if job.kind == EDGE_PURGE] == [0, 0]
    assert it.edge.calls == []


async def test_nothing_is_left_leased_by_who_stopped(it: Harness) -> None:
    await enqueue_deletes(it, 250)
    made = await it.paste()
    await it.delete(made)
    removing = await start(it, it.store.faults.hold("delete"))
    purge = it.edge.faults.hold("purge")
    purging = asyncio.create_task(it.tick(EDGE_PURGE))
    await purge.reached.wait()
    drain(it, SHORT_S)
    await ended(removing)
    await ended(purging)
    assert {(job.state, job.attempts) for job in await jobs(it)} == {("pending", 0)}
    assert await it.rows("select leased from totals") == [(0,)]
