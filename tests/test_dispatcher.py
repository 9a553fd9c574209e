"""The pace of the dispatcher: what wakes it, how much it takes at once, and when it comes again.

The wake-up is looked at as the loop sees it: `woken`, an event that ends the wait for the next poll.
"""

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio

from pastebin_daemon import outbox
from pastebin_daemon.errors import Temporary
from tests.fakes import FakeClock, FakeEdge, FakeStore
from tests.jobs import EDGE_PURGE, OBJECT_DELETE, all_done, effects, enqueue, enqueue_deletes, jobs, purges, shown
from tests.support import Harness, Made, running


@pytest_asyncio.fixture
async def it(tmp_path: Path) -> AsyncIterator[Harness]:
    clock = FakeClock()
    settings = {"outbox.batch": 3}
    async with running(tmp_path, clock=clock, store=FakeStore(clock), edge=FakeEdge(), settings=settings) as it:
        yield it


def is_woken(it: Harness, kind: str) -> bool:
    return it.daemon.dispatchers[kind].woken.is_set()


async def deleted(it: Harness, count: int) -> list[Made]:
    pastes = [await it.paste() for _ in range(count)]
    for made in pastes:
        await it.delete(made)
    return pastes


async def test_a_purge_goes_out_at_once_and_removals_wait_for_a_full_batch(it: Harness) -> None:
    await deleted(it, 2)
    assert is_woken(it, EDGE_PURGE)
    assert not is_woken(it, OBJECT_DELETE), "they wait for more, or for the next poll"
    await deleted(it, 1)
    assert is_woken(it, OBJECT_DELETE)


async def test_a_batch_is_counted_anew_after_each_tick(it: Harness) -> None:
    await deleted(it, 2)
    await it.drain()
    await deleted(it, 2)
    assert not is_woken(it, OBJECT_DELETE)


async def test_the_delayed_purge_wakes_nobody(it: Harness) -> None:
    later_ms = it.clock.now_ms() + 1
    await it.database.write(outbox.enqueue, EDGE_PURGE, [{"paste": "x"}], later_ms)
    assert not is_woken(it, EDGE_PURGE)


async def test_what_is_enqueued_while_a_tick_runs_wakes_the_next(it: Harness) -> None:
    await deleted(it, 1)
    hold = it.edge.faults.hold("purge")
    tick = asyncio.create_task(it.tick(EDGE_PURGE))
    await hold.reached.wait()
    await deleted(it, 1)
    hold.go.set()
    await tick
    assert is_woken(it, EDGE_PURGE)


async def test_what_is_enqueued_right_behind_the_claim_is_not_lost(it: Harness) -> None:
    """The claim and a delete share one group commit, the claim first: so it doesn't see the new job."""
    gate = threading.Event()
    blocked = asyncio.create_task(it.database._writer.run(lambda connection: gate.wait()))
    await asyncio.sleep(0)
    tick = asyncio.create_task(it.tick(EDGE_PURGE))
    late = asyncio.create_task(it.database.write(outbox.enqueue, EDGE_PURGE, [{"paste": "x"}]))
    await asyncio.sleep(0)
    gate.set()
    await asyncio.gather(blocked, tick, late)

    assert it.edge.calls == []
    assert is_woken(it, EDGE_PURGE)


async def test_a_full_batch_comes_again_at_once(it: Harness) -> None:
    await enqueue_deletes(it, 7)
    assert [await it.tick(OBJECT_DELETE) for _ in range(4)] == [True, True, False, False]
    assert [len(call) for call in effects(it.store)] == [3, 3, 1], "a batch is one call"


async def test_a_tick_claims_no_more_than_it_starts(it: Harness) -> None:
    await enqueue_deletes(it, 7)
    hold = it.store.faults.hold("delete")
    tick = asyncio.create_task(it.tick(OBJECT_DELETE))
    await hold.reached.wait()
    assert [job.state for job in await jobs(it)] == ["leased"] * 3 + ["pending"] * 4
    hold.go.set()
    await tick


async def test_purges_keep_to_what_the_edge_takes_at_once(tmp_path: Path) -> None:
    clock = FakeClock()
    edge = FakeEdge(batch_max=3)
    async with running(tmp_path, clock=clock, store=FakeStore(clock), edge=edge) as it:
        pastes = await deleted(it, 10)
        await it.drain()
        calls = purges(edge, [made.id for made in pastes])
        assert [len(call) for call in calls] == [3, 3, 3, 1]
        assert sorted(paste for call in calls for paste in call) == sorted(made.id for made in pastes)


async def test_no_purge_waits_behind_more_than_the_edge_takes_at_once(tmp_path: Path) -> None:
    """Or a slow edge would have a long queue cut off as a whole, with what it had done, until all of it were buried."""
    clock = FakeClock()
    edge = FakeEdge(batch_max=2)
    settings = {"outbox.lease": "1s", "outbox.effect_timeout": "200ms", "outbox.poll_interval": "50ms"}
    async with running(tmp_path, clock=clock, store=FakeStore(clock), edge=edge, settings=settings) as it:
        await enqueue(it, EDGE_PURGE, *({"paste": f"p{number}"} for number in range(6)))
        assert await it.tick(EDGE_PURGE), "there is more"
        edge.faults.hold("purge")
        await it.tick(EDGE_PURGE)
        assert edge.purged[:2] == ["paste-p0", "paste-p1"]
        assert [job.attempts for job in await jobs(it)] == [1, 1, 0, 0]


async def test_a_purge_that_fails_does_not_fail_the_others_of_its_batch(it: Harness) -> None:
    pastes = await deleted(it, 3)
    it.edge.stuck[f"paste-{pastes[1].id}"] = Temporary("500")
    await it.drain()
    assert it.edge.purged[:2] == [f"paste-{pastes[0].id}", f"paste-{pastes[2].id}"]
    due = [job for job in await jobs(it) if job.attempts]
    assert [job.last_error for job in due] == ["500"]


async def test_every_copy_of_a_paste_is_named_by_its_public_address(it: Harness) -> None:
    (made,) = await deleted(it, 1)
    await it.drain()
    (target,) = it.edge.calls[0]
    base = f"http://127.0.0.1:8080/{made.id}"
    assert (target.id, target.tag) == (made.id, f"paste-{made.id}")
    assert target.urls == (
        base, f"{base}/raw", f"{base}/download", f"http://127.0.0.1:8080/api/v1/pastes/{made.id}",
    )  # fmt: skip


async def test_the_second_purge_is_not_early_and_the_first_one_alone_tells_the_lag(it: Harness) -> None:
    (made,) = await deleted(it, 1)
    it.clock.advance(2)
    await it.drain()
    assert it.edge.purged == [f"paste-{made.id}"]
    (second,) = await jobs(it)
    wait_s = (second.due_ms - it.clock.now_ms()) / 1000
    assert 15 <= wait_s + 2 <= 30, "longer than the longest answer that was on its way"

    it.clock.advance(wait_s - 0.001)
    await it.drain()
    assert len(it.edge.purged) == 1
    it.clock.advance(0.001)
    await it.drain()

    assert it.edge.purged == [f"paste-{made.id}"] * 2
    assert await all_done(it)
    assert await shown(it, "pastebin_purge_lag_seconds_count") == 1
    assert await shown(it, "pastebin_purge_lag_seconds_sum") == 2


async def test_an_id_may_spell_anything_and_its_lag_is_told(it: Harness) -> None:
    await enqueue(it, EDGE_PURGE, {"paste": "Xagain0123456789AB"})
    await it.drain()
    assert it.metric("pastebin_purge_lag_seconds_count") == 1
