"""The inbox keeps what a job may still need, forgets the rest, and never holds the writer up for it (G9).

The walk of a pass is looked at with small batches, in memory; the retention in the assembled daemon.
"""

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from pastebin_daemon import inbox
from pastebin_daemon.database import Tx
from pastebin_daemon.database.migrate import bring_up
from tests.fakes import FakeClock, FakeStore
from tests.jobs import enqueue_deletes, shown
from tests.support import Harness, running

RETENTION_MS, NOW_MS = 1_000_000, 5_000_400
YOUNG_S = (NOW_MS - RETENTION_MS) // 1000
OLD_S = YOUNG_S - 1
DAY_S = 86_400


@pytest.fixture
def connection() -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(":memory:", isolation_level=None)
    bring_up(connection, "metadata")
    yield connection
    connection.close()


def fill(connection: sqlite3.Connection, done: dict[int, int], consumer: int = 1) -> None:
    connection.executemany(
        "insert into inbox values (?, ?, ?)", [(job, consumer, done_s) for job, done_s in done.items()]
    )


def left(connection: sqlite3.Connection) -> list[int]:
    return [job for (job,) in connection.execute("select outbox_id from inbox order by outbox_id, consumer")]


def walk(connection: sqlite3.Connection, limit: int) -> list[tuple[int, int]]:
    """A whole pass: what each batch answered."""
    answers: list[tuple[int, int]] = []
    after = 0
    while not answers or after:
        answers.append(inbox.sweep(Tx(connection, NOW_MS), after, RETENTION_MS, limit))
        after = answers[-1][1]
    return answers


def keep_job(connection: sqlite3.Connection, job: int) -> None:
    connection.execute(
        "insert into outbox (id, kind, payload, created_ms, first_due_ms, due_ms) values (?, 'reap', '', 0, 0, 0)",
        (job,),
    )


def keep_dead(connection: sqlite3.Connection, job: int) -> None:
    connection.execute(
        "insert into dead_letters (id, kind, payload, created_ms, attempts, generation, reason, died_ms)"
        " values (?, 'reap', '', 0, 1, 1, 'permanent', 0)",
        (job,),
    )


def test_a_row_lives_for_its_retention_and_up_to_a_second_longer(connection: sqlite3.Connection) -> None:
    """Row 2 may be of the last millisecond of its second, which is not old enough yet."""
    fill(connection, {1: OLD_S, 2: YOUNG_S})
    walk(connection, 10)
    assert left(connection) == [2]


def test_a_row_stays_while_its_job_waits_or_is_dead(connection: sqlite3.Connection) -> None:
    fill(connection, dict.fromkeys(range(1, 6), 0))
    keep_job(connection, 2)
    keep_dead(connection, 4)
    walk(connection, 10)
    assert left(connection) == [2, 4]
    connection.execute("delete from outbox")
    connection.execute("delete from dead_letters")
    walk(connection, 10)
    assert left(connection) == []


def test_a_pass_goes_batch_by_batch_from_where_it_stopped(connection: sqlite3.Connection) -> None:
    fill(connection, dict.fromkeys([1, 2, 5, 8, 9], OLD_S))
    assert walk(connection, 2) == [(2, 2), (2, 8), (1, 9), (0, 0)]
    assert left(connection) == []


def test_a_pass_walks_past_what_is_kept(connection: sqlite3.Connection) -> None:
    fill(connection, dict.fromkeys(range(1, 7), OLD_S))
    for job in (1, 2, 3):
        keep_dead(connection, job)
    assert walk(connection, 2) == [(0, 2), (1, 4), (2, 6), (0, 0)]
    assert left(connection) == [1, 2, 3]


def test_a_pass_ends_at_the_first_batch_that_is_all_too_young(connection: sqlite3.Connection) -> None:
    fill(connection, {1: OLD_S, 2: YOUNG_S, 3: YOUNG_S, 4: YOUNG_S, 5: OLD_S, 6: OLD_S})
    assert walk(connection, 2) == [(1, 2), (0, 0)]
    assert left(connection) == [2, 3, 4, 5, 6], "80 million young rows are not looked through every minute"


def test_no_batch_removes_more_than_its_limit(connection: sqlite3.Connection) -> None:
    fill(connection, dict.fromkeys(range(1, 1001), OLD_S))
    assert max(removed for removed, _ in walk(connection, 100)) == 100
    assert left(connection) == []


def test_an_empty_inbox_is_swept_too(connection: sqlite3.Connection) -> None:
    assert walk(connection, 2) == [(0, 0)]


def test_two_consumers_of_one_job_do_not_mix(connection: sqlite3.Connection) -> None:
    inbox.record(Tx(connection, OLD_S * 1000), 1, [7])
    assert inbox.seen(Tx(connection, NOW_MS), 2, [7]) == set()
    inbox.record(Tx(connection, YOUNG_S * 1000), 2, [7])
    assert inbox.seen(Tx(connection, NOW_MS), 2, [7, 8]) == {7}
    walk(connection, 1)
    assert list(connection.execute("select consumer from inbox")) == [(2,)]


def test_saying_twice_that_an_effect_happened_keeps_the_first_time(connection: sqlite3.Connection) -> None:
    inbox.record(Tx(connection, 10_999), 1, [7])
    inbox.record(Tx(connection, 20_000), 1, [7, 8])
    assert list(connection.execute("select outbox_id, done_s from inbox")) == [(7, 10), (8, 20)]


async def sweep(it: Harness) -> None:
    while await it.sweep("inbox"):
        pass


async def test_what_was_done_is_remembered_for_eight_days(tmp_path: Path) -> None:
    clock = FakeClock()
    async with running(tmp_path, clock=clock, store=FakeStore(clock)) as it:
        await enqueue_deletes(it, 3)
        await it.drain()
        assert await shown(it, "pastebin_inbox_rows") == 3

        clock.advance(8 * DAY_S)
        await sweep(it)
        assert await shown(it, "pastebin_inbox_rows") == 3

        clock.advance(1)
        await sweep(it)
        assert await shown(it, "pastebin_inbox_rows") == 0
        assert it.metric("pastebin_inbox_swept_total") == 3
        await sweep(it)
        assert it.metric("pastebin_inbox_swept_total") == 3


async def test_what_waits_or_is_dead_is_never_swept_however_old(tmp_path: Path) -> None:
    clock = FakeClock()
    async with running(tmp_path, clock=clock, store=FakeStore(clock)) as it:
        await enqueue_deletes(it, 3)
        before = await it.rows("select * from outbox")
        clock.advance(365 * DAY_S)
        for name in it.daemon.sweepers:
            await it.sweep(name)
        assert await it.rows("select * from outbox") == before
