"""An outage is not poison: while the surroundings are down nothing is given up, and what is poisoned still is (G5).

The clock is turned by hand, so six hours pass in a second. Whatever the store is asked while it is down must be the
neutral probe.
"""

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from pastebin_daemon.database.lane import QUEUE_MAX
from pastebin_daemon.errors import EffectError, Permanent, Temporary
from tests.fakes import FakeClock, FakeEdge, FakeStore
from tests.jobs import (
    EDGE_PURGE,
    OBJECT_DELETE,
    REAP,
    all_done,
    dead_letters,
    effects,
    enqueue,
    enqueue_deletes,
    jobs,
    probes,
    shown,
)
from tests.support import Harness, running

HOUR_S = 3600
SURROUNDINGS = [Temporary("connection refused"), Temporary("timed out"), Temporary("500"), Temporary("403")]


@pytest_asyncio.fixture
async def it(tmp_path: Path) -> AsyncIterator[Harness]:
    clock = FakeClock()
    async with running(tmp_path, clock=clock, store=FakeStore(clock), edge=FakeEdge()) as it:
        yield it


async def pass_time(it: Harness, seconds: int, step: int = 1) -> None:
    """Time passes in steps, and after each every dispatcher is turned, as the loops do."""
    for _ in range(seconds // step):
        it.clock.advance(step)
        await it.drain()


async def test_six_hours_without_a_store_cost_no_job_and_no_attempt(it: Harness) -> None:
    keys = await enqueue_deletes(it, 250)
    it.store.faults.fail("delete", times=None)

    await pass_time(it, 6 * HOUR_S, step=5)

    assert await dead_letters(it) == []
    assert {(job.state, job.attempts) for job in await jobs(it)} == {("pending", 0)}
    assert len(effects(it.store)) == 1, "the first batch, and nothing more until it is over"
    assert len(it.store.objects) == 250

    it.store.faults.clear()
    await pass_time(it, 10)

    assert it.store.objects == {}, "it drains by itself"
    assert await all_done(it)
    assert sorted(key for call in effects(it.store)[1:] for key in call) == keys


async def test_six_hours_without_a_store_cost_a_lone_job_nothing(it: Harness) -> None:
    await enqueue_deletes(it, 1)
    it.store.faults.fail("delete", times=None)

    await pass_time(it, 6 * HOUR_S, step=5)

    (job,) = await jobs(it)
    assert (job.state, job.attempts) == ("pending", 0)
    it.store.faults.clear()
    await pass_time(it, 10)
    assert await all_done(it)


async def test_a_poisoned_job_at_the_head_is_buried_after_the_outage_and_it_alone(it: Harness) -> None:
    keys = await enqueue_deletes(it, 5)
    it.store.stuck[keys[0]] = Temporary("500: internal error")
    it.store.faults.fail("delete", times=None)
    await pass_time(it, 6 * HOUR_S, step=5)
    assert await dead_letters(it) == []

    it.store.faults.clear()
    await pass_time(it, 10)
    assert list(it.store.objects) == [keys[0]], "the others do not wait for it"
    await pass_time(it, 2 * HOUR_S, step=5)

    (dead,) = await dead_letters(it)
    assert (dead.id, dead.reason, dead.attempts) == (1, "attempts_exhausted", 8)
    assert dead.last_error == "500: internal error"
    assert await jobs(it) == []


async def test_restarting_in_an_outage_costs_nothing_either(tmp_path: Path) -> None:
    clock = FakeClock()
    store = FakeStore(clock)
    store.faults.fail("delete", times=None)
    for start in range(12):
        async with running(tmp_path, clock=clock, store=store) as it:
            if start == 0:
                await enqueue_deletes(it, 3)
            await pass_time(it, 60, step=5)
            assert {(job.state, job.attempts) for job in await jobs(it)} == {("pending", 0)}
            assert await dead_letters(it) == []


async def test_our_own_database_being_busy_costs_no_attempt(it: Harness) -> None:
    await enqueue_deletes(it, 3)
    gate = threading.Event()
    reader = it.database._reader
    blocked = asyncio.create_task(reader.run(lambda connection: gate.wait()))
    await asyncio.sleep(0)
    waiting = [reader.submit(lambda tx: None, ()) for _ in range(QUEUE_MAX)]

    await it.tick(OBJECT_DELETE)
    gate.set()
    await asyncio.gather(blocked, *waiting)

    assert {(job.state, job.attempts) for job in await jobs(it)} == {("pending", 0)}
    assert it.store.calls == [], "nobody is asked about it"
    it.clock.advance(5)
    await it.drain()
    assert await all_done(it)


@pytest.mark.parametrize("error", SURROUNDINGS, ids=str)
async def test_what_may_be_the_surroundings_is_asked_of_a_probe_before_it_counts(
    it: Harness, error: EffectError
) -> None:
    await enqueue_deletes(it, 1)
    it.store.faults.fail("delete", error, times=2)  # the job's, and the probe's
    await it.drain()
    (job,) = await jobs(it)
    assert (job.attempts, job.last_error) == (0, str(error))
    assert probes(it.store) == 1


async def test_a_failure_of_a_job_alone_counts_against_it_and_opens_nothing(it: Harness) -> None:
    bad, good = await enqueue_deletes(it, 2)
    it.store.stuck[bad] = Temporary("500")
    await it.drain()
    (job,) = await jobs(it)
    assert (job.state, job.attempts) == ("pending", 1)
    assert probes(it.store) == 1
    assert await shown(it, "pastebin_outbox_breaker_open", consumer=OBJECT_DELETE) == 0
    assert good not in it.store.objects


async def test_a_permanent_error_asks_no_probe(it: Harness) -> None:
    await enqueue_deletes(it, 1)
    it.store.faults.fail("delete", Permanent("malformed"))
    await it.drain()
    assert probes(it.store) == 0
    assert len(await dead_letters(it)) == 1


async def test_the_probe_goes_out_every_ten_seconds_and_no_oftener(it: Harness) -> None:
    await enqueue_deletes(it, 1)
    it.store.faults.fail("delete", times=None)
    await it.drain()
    it.store.calls.clear()

    it.clock.advance(9.999)
    await it.drain()
    assert it.store.calls == []
    it.clock.advance(0.001)
    await it.drain()
    assert probes(it.store) == 1
    await pass_time(it, 600)

    assert probes(it.store) == 61
    assert len({keys for _, keys in it.store.calls}) == 61, "each names an object that never was"
    assert effects(it.store) == []


async def test_only_the_probe_closes_the_breaker(it: Harness) -> None:
    await enqueue_deletes(it, 1)
    it.store.faults.fail("delete", times=2)
    await it.drain()
    it.clock.advance(9)  # the store is well again, and nobody asks it yet
    await enqueue_deletes(it, 1)
    await it.drain()
    assert len(effects(it.store)) == 1
    assert await shown(it, "pastebin_outbox_breaker_open", consumer=OBJECT_DELETE) == 1

    it.clock.advance(1)
    await it.drain()

    assert probes(it.store) == 2
    assert await shown(it, "pastebin_outbox_breaker_open", consumer=OBJECT_DELETE) == 0
    assert await all_done(it)


async def test_an_outage_of_the_edge_does_not_keep_objects_from_being_removed(it: Harness) -> None:
    made = await it.paste()
    it.edge.faults.fail("purge", times=None)
    await it.delete(made)

    await pass_time(it, HOUR_S)

    assert it.store.objects == {}
    assert [(job.kind, job.attempts) for job in await jobs(it)] == [(EDGE_PURGE, 0)] * 2
    assert await shown(it, "pastebin_outbox_breaker_open", consumer=EDGE_PURGE) == 1
    assert await shown(it, "pastebin_outbox_oldest_unpublished_age_seconds") == HOUR_S, "and that is alarmed"
    it.edge.faults.clear()
    await pass_time(it, 10)
    assert await all_done(it)
    probed = {target.id for targets in it.edge.calls for target in targets} - {made.id}
    assert len(probed) >= HOUR_S // 10, "each probe names a paste that never was"


async def test_reaps_wait_for_a_store_that_only_refuses_to_be_read(it: Harness) -> None:
    await it.store.put("orphan", b"x")
    await enqueue(it, REAP, {"object": "orphan"})
    it.clock.advance(2 * HOUR_S)
    it.store.faults.fail("age_s", Temporary("403"), times=None)
    await pass_time(it, 6 * HOUR_S, step=5)
    (job,) = await jobs(it)
    assert (job.state, job.attempts) == ("pending", 0)

    it.store.faults.clear()
    await pass_time(it, 10)

    assert it.store.objects == {}
    assert await all_done(it)


@pytest.mark.parametrize(
    ("asked_s", "waited_s"),
    [(10.0**12, HOUR_S), (float("inf"), HOUR_S), (HOUR_S + 1, HOUR_S), (120, 120), (0, 1), (-5, 1), (None, 5)],
)
async def test_asked_to_slow_down_the_consumer_waits_but_no_longer_than_an_hour(
    it: Harness, asked_s: float | None, waited_s: int
) -> None:
    keys = await enqueue_deletes(it, 3)
    it.store.faults.fail("delete", Temporary("SlowDown", throttled=True, retry_after_s=asked_s))
    await it.drain()
    assert {(job.state, job.attempts) for job in await jobs(it)} == {("pending", 0)}, "the attempts are given back"
    assert probes(it.store) == 0, "who asks for less is not asked for more"
    assert await shown(it, "pastebin_outbox_breaker_open", consumer=OBJECT_DELETE) == 1

    it.clock.advance(waited_s - 0.001)
    await it.drain()
    assert len(effects(it.store)) == 1, "the consumer is paused, not the job"
    it.clock.advance(0.001)
    await it.drain()

    assert sorted(effects(it.store)[1]) == keys
    assert await all_done(it)
    assert await shown(it, "pastebin_outbox_breaker_open", consumer=OBJECT_DELETE) == 0


async def test_one_consumer_that_is_asked_to_slow_down_does_not_slow_another(it: Harness) -> None:
    made = await it.paste()
    await it.delete(made)
    it.edge.faults.fail("purge", Temporary("429", throttled=True, retry_after_s=600))
    await it.drain()
    assert it.store.objects == {}
    assert it.edge.purged == []


async def test_a_pause_does_not_end_early_by_a_shorter_one(it: Harness) -> None:
    breaker = it.daemon.dispatchers[OBJECT_DELETE].breaker
    breaker.pause(600)
    breaker.pause(1)
    it.clock.advance(599)
    assert not breaker.may_claim()
    it.clock.advance(1)
    assert breaker.may_claim()


async def test_the_operator_is_told_why_a_consumer_claims_nothing(it: Harness) -> None:
    await enqueue_deletes(it, 1)
    it.store.faults.fail("delete", Temporary("connection refused"), times=None)
    await it.drain()
    async with it.http.get(f"{it.admin}/readyz") as answer:
        assert answer.status == 200, "deletes and cached reads go on"
        assert "connection refused" in await answer.text()
