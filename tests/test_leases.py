"""A lease that was lost settles nothing, loses nothing, and makes no effect happen twice for nothing (G5, G6, G7, G8).

Two dispatchers on one database stand for two processes: `rival` makes the second. A hold stops an effect half way, and
the clock takes the lease away meanwhile.
"""

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path

import pytest
import pytest_asyncio

from pastebin_daemon.consumers import ObjectDelete, Reap
from pastebin_daemon.database import open_database
from pastebin_daemon.dispatcher import Dispatcher
from pastebin_daemon.errors import Permanent, Temporary
from pastebin_daemon.loops import Loop
from tests.fakes import FakeClock, FakeEdge, FakeStore, Hold
from tests.jobs import OBJECT_DELETE, REAP, Job, all_done, dead_letters, effects, enqueue, enqueue_deletes, jobs, rival
from tests.support import Harness, running

LEASE_S = 60


@pytest_asyncio.fixture
async def it(tmp_path: Path) -> AsyncIterator[Harness]:
    clock = FakeClock()
    async with running(tmp_path, clock=clock, store=FakeStore(clock), edge=FakeEdge()) as it:
        yield it


async def start(it: Harness, dispatcher: Dispatcher, operation: str = "delete") -> tuple[asyncio.Task[bool], Hold]:
    """A tick that has claimed and stands before its effect."""
    hold: Hold = it.store.faults.hold(operation)
    tick = asyncio.create_task(dispatcher.tick())
    await hold.reached.wait()
    return tick, hold


async def finish(started: tuple[asyncio.Task[bool], Hold]) -> None:
    tick, hold = started
    hold.go.set()
    await tick


async def die(started: tuple[asyncio.Task[bool], Hold]) -> None:
    """The process ends in the middle of the effect: nothing is settled."""
    tick, _ = started
    tick.cancel()
    with pytest.raises(asyncio.CancelledError):
        await tick


async def test_an_expired_claim_is_taken_over_and_not_a_moment_earlier(it: Harness) -> None:
    (key,) = await enqueue_deletes(it, 1)
    await die(await start(it, it.daemon.dispatchers[OBJECT_DELETE]))
    other = rival(it)

    it.clock.advance(LEASE_S - 0.001)
    await other.tick()
    assert effects(it.store) == [(key,)], "the lease is not over, so nobody else touches the job"

    it.clock.advance(0.001)
    await other.tick()
    assert it.store.objects == {}
    assert await jobs(it) == []
    assert it.metric("pastebin_outbox_claims_total", kind=OBJECT_DELETE, reason="due") == 1
    assert it.metric("pastebin_outbox_claims_total", kind=OBJECT_DELETE, reason="expired") == 1


async def test_a_lease_begins_at_its_claim_however_long_the_job_has_waited(it: Harness) -> None:
    await enqueue_deletes(it, 1)
    it.clock.advance(2 * 3600)
    started = await start(it, it.daemon.dispatchers[OBJECT_DELETE])
    (job,) = await jobs(it)
    assert job.lease_ms == it.clock.now_ms() + LEASE_S * 1000
    await finish(started)


async def test_a_process_that_takes_the_name_of_a_dead_one_does_not_own_its_claims(it: Harness) -> None:
    await enqueue_deletes(it, 1)
    await die(await start(it, rival(it, owner="host-1")))
    successor = rival(it, owner="host-1")

    await successor.tick()
    (job,) = await jobs(it)
    assert (job.state, job.generation) == ("leased", 1), "it is not resumed before its lease is over"

    it.clock.advance(LEASE_S)
    await successor.tick()
    assert await jobs(it) == []


async def test_a_late_settlement_under_a_reused_name_is_told_apart_by_its_generation(it: Harness) -> None:
    await enqueue_deletes(it, 1)
    first = await start(it, rival(it, owner="host-1"))
    it.clock.advance(LEASE_S)
    second = await start(it, rival(it, owner="host-1"))
    held = await jobs(it)

    await finish(first)

    assert await jobs(it) == held, "the earlier generation's word changes nothing"
    assert held[0].generation == 2
    assert it.metric("pastebin_outbox_stale_settlements_total", transition="ack") == 1
    await finish(second)
    assert await jobs(it) == []


async def test_no_two_starts_of_the_process_have_the_same_owner(tmp_path: Path) -> None:
    clock = FakeClock()
    store = FakeStore(clock)
    owners = set()
    for _ in range(3):
        async with running(tmp_path, clock=clock, store=store) as it:
            await enqueue_deletes(it, 1)
            await die(await start(it, it.daemon.dispatchers[OBJECT_DELETE]))
            owners |= {job.owner for job in await jobs(it)}
    assert len(owners) == 3


async def settle_late(it: Harness, kind: str, operation: str) -> tuple[list[Job], list[Job]]:
    """The daemon loses its lease during an effect, and another process has the job by the time it settles. The result:
    the jobs before and after that settlement."""
    consumer = ObjectDelete(it.database, it.store, lambda paste: None, lambda: None) if kind == OBJECT_DELETE else None
    other = rival(it, consumer=consumer or Reap(it.database, it.store, it.clock, 3600))
    ours = await start(it, it.daemon.dispatchers[kind], operation)
    it.clock.advance(LEASE_S)
    theirs = await start(it, other, operation)
    before = await jobs(it)
    await finish(ours)
    after = await jobs(it)
    await finish(theirs)
    return before, after


async def test_a_stale_ack_changes_nothing(it: Harness) -> None:
    await enqueue_deletes(it, 1)
    before, after = await settle_late(it, OBJECT_DELETE, "delete")
    assert before == after
    assert it.metric("pastebin_outbox_stale_settlements_total", transition="ack") == 1
    assert await jobs(it) == [], "the one that holds it settles it"


async def test_a_stale_retry_changes_nothing(it: Harness) -> None:
    await enqueue_deletes(it, 1)
    it.store.faults.fail("delete", Temporary("refused"))
    before, after = await settle_late(it, OBJECT_DELETE, "delete")
    assert before == after
    assert it.metric("pastebin_outbox_stale_settlements_total", transition="retry") == 1
    assert await jobs(it) == []


async def test_a_stale_dead_letter_changes_nothing(it: Harness) -> None:
    await enqueue_deletes(it, 1)
    it.store.faults.fail("delete", Permanent("malformed"))
    before, after = await settle_late(it, OBJECT_DELETE, "delete")
    assert before == after
    assert await dead_letters(it) == []
    assert it.metric("pastebin_outbox_stale_settlements_total", transition="bury") == 1
    assert await jobs(it) == []


async def test_a_stale_give_back_changes_nothing(it: Harness) -> None:
    await enqueue_deletes(it, 1)
    it.store.faults.fail("delete", Temporary("slow down", throttled=True))
    before, after = await settle_late(it, OBJECT_DELETE, "delete")
    assert before == after
    assert it.metric("pastebin_outbox_stale_settlements_total", transition="give_back") == 1
    assert await jobs(it) == []


async def test_a_stale_postponement_changes_nothing(it: Harness) -> None:
    await it.store.put("young", b"x")
    await enqueue(it, REAP, {"object": "young"})
    before, after = await settle_late(it, REAP, "age_s")
    assert before == after
    assert it.metric("pastebin_outbox_stale_settlements_total", transition="postpone") == 1
    (job,) = await jobs(it)
    assert (job.state, job.attempts) == ("pending", 1), "the attempt of the claim that was lost stays counted"


async def test_an_effect_whose_answer_was_lost_is_done_again_and_counts_once(it: Harness) -> None:
    (key,) = await enqueue_deletes(it, 1)
    it.store.faults.fail("delete", Temporary("connection reset"), lost=True)
    await it.drain()
    assert it.store.objects == {}, "it happened"
    (job,) = await jobs(it)
    assert (job.state, job.attempts, job.last_error) == ("pending", 1, "connection reset"), "and nobody knows"
    assert await it.rows("select * from inbox") == []

    it.clock.advance(3600)
    await it.drain()

    assert effects(it.store) == [(key,), (key,)]
    assert it.metric("pastebin_object_delete_missing_total") == 1
    assert await all_done(it)
    assert len(await it.rows("select * from inbox")) == 1


async def test_a_purge_whose_answer_was_lost_is_sent_again(it: Harness) -> None:
    made = await it.paste()
    await it.delete(made)
    it.edge.faults.fail("purge", lost=True)
    await it.drain()
    it.clock.advance(3600)
    await it.drain()
    assert it.edge.purged.count(f"paste-{made.id}") == 3, "lost, sent again, and the second purge of every delete"
    assert await all_done(it)


async def test_an_effect_that_outlived_its_lease_is_remembered_and_not_done_again(it: Harness) -> None:
    (key,) = await enqueue_deletes(it, 1)
    started = await start(it, it.daemon.dispatchers[OBJECT_DELETE])
    it.clock.advance(LEASE_S)
    await finish(started)
    (job,) = await jobs(it)
    assert job.state == "leased", "the ack came too late"
    assert await it.rows("select outbox_id, consumer from inbox") == [(job.id, 1)], "but what happened is true"

    await it.drain()

    assert await jobs(it) == []
    assert effects(it.store) == [(key,)], "the store was called once"
    assert it.metric("pastebin_inbox_duplicates_total", consumer=OBJECT_DELETE) == 1


async def test_two_that_both_did_the_effect_leave_one_row_in_the_inbox(it: Harness) -> None:
    await enqueue_deletes(it, 1)
    await settle_late(it, OBJECT_DELETE, "delete")
    assert len(effects(it.store)) == 2
    assert len(await it.rows("select * from inbox")) == 1
    assert await all_done(it)


async def test_two_processes_share_the_work_and_no_job_is_done_by_both(tmp_path: Path) -> None:
    clock = FakeClock()
    store = FakeStore(clock)
    async with (
        running(tmp_path, clock=clock, store=store, settings={"outbox.batch": 10}) as it,
        open_database(tmp_path / "state" / "pastebin.sqlite", "metadata", clock) as theirs,
    ):
        keys = await enqueue_deletes(it, 20)
        consumer = ObjectDelete(theirs, store, lambda paste: None, lambda: None)
        other = rival(it, database=theirs, consumer=consumer)
        holds = [store.faults.hold("delete"), store.faults.hold("delete")]

        ticks = [asyncio.create_task(each.tick()) for each in (it.daemon.dispatchers[OBJECT_DELETE], other)]
        for hold in holds:
            await hold.reached.wait()
        held = await jobs(it)
        for hold in holds:
            hold.go.set()
        await asyncio.gather(*ticks)

        assert len({job.owner for job in held}) == 2
        assert sorted(key for call in effects(store) for key in call) == keys, "each once"
        assert await jobs(it) == []
        assert it.metric("pastebin_outbox_settled_total", consumer=OBJECT_DELETE, result="ack") == 20
        for transition in ("ack", "retry", "give_back", "postpone", "bury"):
            assert it.metric("pastebin_outbox_stale_settlements_total", transition=transition) == 0


async def test_a_thousand_stale_acks_do_not_stop_the_loop(tmp_path: Path) -> None:
    clock = FakeClock()
    store = FakeStore(clock)
    async with running(tmp_path, clock=clock, store=store, settings={"outbox.batch": 1000}) as it:
        dispatcher = it.daemon.dispatchers[OBJECT_DELETE]
        await enqueue_deletes(it, 1000)

        async def turn() -> bool:
            again = await dispatcher.tick()
            if not await it.rows("select 1 from outbox limit 1"):
                loop.stop()
            return again

        loop = Loop("dispatch", turn, 0.001, 60, clock)
        hold = store.faults.hold("delete")
        running_loop = asyncio.create_task(loop.run())
        await hold.reached.wait()
        clock.advance(LEASE_S)
        hold.go.set()
        await running_loop

        assert it.metric("pastebin_outbox_stale_settlements_total", transition="ack") == 1000
        assert it.metric("pastebin_inbox_duplicates_total", consumer=OBJECT_DELETE) == 1000
        assert len(effects(store)) == 1
        assert await dead_letters(it) == []


async def test_a_settlement_that_could_not_be_written_is_counted_and_the_job_repeated(it: Harness) -> None:
    (key,) = await enqueue_deletes(it, 1)
    await it.database._writer.run(lambda connection: connection.execute("pragma busy_timeout = 0"))  # so no one waits
    tick, hold = await start(it, it.daemon.dispatchers[OBJECT_DELETE])
    with closing(sqlite3.connect(it.database.path, isolation_level=None)) as shell:
        shell.execute("begin immediate")
        hold.go.set()
        assert not await tick, "the loop goes on, at its usual pace"
        shell.execute("rollback")
    assert it.metric("pastebin_inbox_insert_failures_total") == 1
    (job,) = await jobs(it)
    assert job.state == "leased"
    assert await it.rows("select * from inbox") == []

    it.clock.advance(LEASE_S)
    await it.drain()

    assert effects(it.store) == [(key,), (key,)], "done again, which is once (G8)"
    assert await all_done(it)


HASTY = {"outbox.lease": "1s", "outbox.effect_timeout": "200ms", "outbox.poll_interval": "50ms"}


async def test_an_effect_that_hangs_is_cut_off_long_before_its_lease_ends(tmp_path: Path) -> None:
    clock = FakeClock()
    store = FakeStore(clock)
    async with running(tmp_path, clock=clock, store=store, settings=HASTY) as it:
        await enqueue_deletes(it, 1)
        store.faults.hold("delete")  # and nobody lets it go

        async with asyncio.timeout(30):
            await it.tick(OBJECT_DELETE)

        (job,) = await jobs(it)
        assert (job.state, job.attempts, job.last_error) == ("pending", 1, "the effect took longer than 0.2 s")
        assert it.metric("pastebin_outbox_breaker_open", consumer=OBJECT_DELETE) == 0, "the probe was answered"


async def test_when_everything_hangs_it_is_an_outage_and_no_attempt_is_lost(tmp_path: Path) -> None:
    clock = FakeClock()
    store = FakeStore(clock)
    async with running(tmp_path, clock=clock, store=store, settings=HASTY) as it:
        await enqueue_deletes(it, 1)
        store.faults.hold("delete")
        store.faults.hold("delete")  # the probe hangs too

        async with asyncio.timeout(30):
            await it.tick(OBJECT_DELETE)

        (job,) = await jobs(it)
        assert (job.state, job.attempts) == ("pending", 0)
        assert not it.daemon.dispatchers[OBJECT_DELETE].breaker.may_claim()
