"""What becomes of a job whose effect fails while all around it is well: it is tried eight times over about an hour, or
given up at once when trying can't help; and whatever becomes of it, the others go on (G5)."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from pastebin_daemon.errors import Permanent, Temporary
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
    shown,
)
from tests.support import Harness, running

HOUR_MS = 3_600_000
GAPS_MS = [HOUR_MS * 2**n / 127 for n in range(7)]
"""The longest waits between eight attempts: doubling, an hour in all."""


@pytest_asyncio.fixture
async def it(tmp_path: Path) -> AsyncIterator[Harness]:
    clock = FakeClock()
    async with running(tmp_path, clock=clock, store=FakeStore(clock), edge=FakeEdge()) as it:
        yield it


async def test_a_failing_job_is_tried_eight_times_over_about_an_hour_and_then_buried(it: Harness) -> None:
    (key,) = await enqueue_deletes(it, 1)
    it.store.stuck[key] = Temporary("500: internal error")
    waits = []
    for attempt in range(1, 8):
        await it.drain()
        (job,) = await jobs(it)
        assert (job.state, job.attempts, job.last_error) == ("pending", attempt, "500: internal error")
        wait_ms = job.due_ms - it.clock.now_ms()
        waits.append(wait_ms)
        it.clock.advance((wait_ms - 1) / 1000)
        await it.drain()
        assert len(effects(it.store)) == attempt, "not before it is due"
        it.clock.advance(0.001)
    await it.drain()

    for wait_ms, longest_ms in zip(waits, GAPS_MS, strict=True):
        assert longest_ms / 2 - 1 <= wait_ms <= longest_ms
    assert HOUR_MS / 2 - 10 <= sum(waits) <= HOUR_MS
    assert len(effects(it.store)) == 8
    assert await jobs(it) == []
    (dead,) = await dead_letters(it)
    assert (dead.reason, dead.attempts, dead.last_error) == ("attempts_exhausted", 8, "500: internal error")
    assert await shown(it, "pastebin_outbox_dead_letters") == 1


async def test_jobs_that_failed_at_one_instant_do_not_come_back_as_one(it: Harness) -> None:
    keys = await enqueue_deletes(it, 100)
    it.store.stuck.update(dict.fromkeys(keys, Temporary("500")))
    await it.drain()
    waits = [job.due_ms - it.clock.now_ms() for job in await jobs(it)]
    assert GAPS_MS[0] / 2 - 1 <= min(waits), "half of the wait is fixed"
    assert max(waits) <= GAPS_MS[0]
    assert len(set(waits)) > 50, "and half of it is chance"
    assert max(waits) - min(waits) > GAPS_MS[0] / 4


@pytest.mark.parametrize(("asked_s", "waited_s"), [(600, 600), (3600, 3600), (86_400, 3600), (10.0**15, 3600)])
async def test_a_retry_after_is_honoured_up_to_an_hour(it: Harness, asked_s: float, waited_s: int) -> None:
    (key,) = await enqueue_deletes(it, 1)
    it.store.stuck[key] = Temporary("503", retry_after_s=asked_s)
    await it.drain()
    (job,) = await jobs(it)
    assert (job.attempts, job.due_ms) == (1, it.clock.now_ms() + waited_s * 1000)


async def test_a_retry_after_does_not_make_the_wait_shorter(it: Harness) -> None:
    (key,) = await enqueue_deletes(it, 1)
    it.store.stuck[key] = Temporary("503", retry_after_s=0)
    await it.drain()
    (job,) = await jobs(it)
    assert job.due_ms - it.clock.now_ms() >= GAPS_MS[0] / 2 - 1


async def test_what_can_not_get_better_is_buried_at_once_and_the_rest_of_its_batch_is_done(it: Harness) -> None:
    bad, *_ = await enqueue_deletes(it, 3)
    it.store.stuck[bad] = Permanent("400: malformed key")
    await it.drain()
    (dead,) = await dead_letters(it)
    assert (dead.id, dead.reason, dead.attempts, dead.last_error) == (1, "permanent", 1, "400: malformed key")
    assert await jobs(it) == []
    assert list(it.store.objects) == [bad]


async def test_each_job_of_a_batch_has_its_own_fate(it: Harness) -> None:
    done, again, never, missing = await enqueue_deletes(it, 4)
    it.store.stuck |= {again: Temporary("500"), never: Permanent("400")}
    del it.store.objects[missing]
    await it.drain()
    assert [job.id for job in await jobs(it)] == [2]
    assert [dead.id for dead in await dead_letters(it)] == [3]
    assert await it.rows("select outbox_id from inbox") == [(1,), (4,)], "missing is success"
    assert done not in it.store.objects
    assert it.metric("pastebin_object_delete_missing_total") == 1
    for result, count in {"ack": 2, "retry": 1, "bury": 1}.items():
        assert it.metric("pastebin_outbox_settled_total", consumer=OBJECT_DELETE, result=result) == count


UNREADABLE = ["", "no JSON", "[]", "5", "null", '"text"', "{}", '{"object": 5, "paste": 5}',
              '{"object": "", "paste": ""}', '{"object": null, "paste": null}', "[" * 100_000]  # fmt: skip


@pytest.mark.parametrize("kind", [OBJECT_DELETE, REAP, EDGE_PURGE])
async def test_a_payload_that_nobody_can_read_is_buried_and_the_jobs_behind_it_go_on(it: Harness, kind: str) -> None:
    for payload in UNREADABLE:
        await it.execute(
            "insert into outbox (kind, payload, created_ms, first_due_ms, due_ms) values (?, ?, 0, 0, 0)", kind, payload
        )
    await enqueue(it, kind, {"object": "o", "paste": "p"})

    await it.drain()
    it.clock.advance(3600)  # until when a reap waits that has found nothing
    await it.drain()

    assert await jobs(it) == []
    dead = await dead_letters(it)
    assert {(letter.reason, letter.attempts) for letter in dead} == {("undecodable", 1)}
    assert len(dead) == len(UNREADABLE)
    assert await it.rows("select outbox_id from inbox") == [(len(UNREADABLE) + 1,)]


async def test_a_kind_that_this_version_does_not_know_is_left_alone_and_shown(it: Harness) -> None:
    await enqueue(it, "thumbnail", {"paste": "x"})
    await enqueue(it, "preview", {"paste": "x"})
    await it.execute(
        "update outbox set state = 'leased', owner = 'newer', lease_ms = ?, attempts = 1, generation = 1"
        " where kind = 'preview'",
        it.clock.now_ms() + 60_000,
    )
    before = await jobs(it)
    await enqueue_deletes(it, 1)

    await it.drain()
    it.clock.advance(3600)
    await it.drain()

    assert await jobs(it) == before, "neither claimed nor counted as tried"
    assert await shown(it, "pastebin_outbox_unknown_kinds") == 2, "waiting, or leased by a version that is gone"
    assert await shown(it, "pastebin_outbox_oldest_unpublished_age_seconds") == 3600
    assert it.store.objects == {}, "and it is in nobody's way"


async def test_two_jobs_for_one_object_are_both_done(it: Harness) -> None:
    await enqueue_deletes(it, 1)
    await enqueue(it, OBJECT_DELETE, {"object": "object0000", "paste": "x"})
    await it.drain()
    assert await all_done(it)
    assert effects(it.store) == [("object0000",)]
