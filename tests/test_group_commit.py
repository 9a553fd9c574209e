"""Group commit: what waits shares one commit, each member fails alone, and what must follow a commit follows it.

By way of `Database`, on a real SQLite. `stalled` makes writers wait together, so the groups are no matter of luck.
"""

import asyncio
import sqlite3
import threading
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio

from pastebin_daemon.database import Database, Tx, lane, open_database
from pastebin_daemon.database.group_commit import COUNT_MAX
from pastebin_daemon.errors import Busy, DatabaseUnavailable, Forbidden, StorageFull
from tests.fakes import START_MS, FakeClock
from tests.faulty_sqlite import FaultySqlite, stalled


@dataclass(frozen=True)
class Noted:
    key: str


def note(tx: Tx, key: str) -> int:
    tx.changed("insert into objects (key, stored_ms, body) values (?, ?, x'00')", (key, tx.now_ms))
    tx.emit(Noted(key))
    return tx.now_ms


def note_numbered(tx: Tx, number: int) -> int:
    note(tx, str(number))
    return number * number


def keys(tx: Tx) -> list[str]:
    return [key for (key,) in tx.rows("select key from objects order by rowid limit 10000")]


class Subject:
    def __init__(
        self, database: Database, clock: FakeClock, groups: list[int], sqlite: FaultySqlite, path: Path
    ) -> None:
        self.database = database
        self.clock = clock
        self.groups = groups
        """Members of each commit that changed something."""
        self.sqlite = sqlite
        self.path = path
        self.said: list[str] = []
        database.subscribe(Noted, lambda event: self.said.append(event.key))


@pytest_asyncio.fixture
async def it(tmp_path: Path) -> AsyncIterator[Subject]:
    clock, groups, sqlite = FakeClock(), list[int](), FaultySqlite(busy_timeout_ms=20)
    path = tmp_path / "some.sqlite"
    async with open_database(
        path, "bodies", clock, observe=lambda members, seconds: groups.append(members), connect=sqlite.connect
    ) as database:
        yield Subject(database, clock, groups, sqlite, path)


async def test_writers_that_wait_share_one_commit_and_get_their_results_in_order(it: Subject) -> None:
    async with stalled(it.database):
        waiting = [asyncio.ensure_future(it.database.write(note_numbered, n)) for n in range(20)]
        await asyncio.sleep(0)
    assert await asyncio.gather(*waiting) == [n * n for n in range(20)]
    assert it.groups == [20]


async def test_a_group_is_one_instant_read_once_after_the_lock_is_held(it: Subject) -> None:
    def note_and_let_time_pass(tx: Tx, key: str) -> int:
        it.clock.step_wall(5)
        return note(tx, key)

    async with stalled(it.database):
        waiting = [asyncio.ensure_future(it.database.write(note_and_let_time_pass, str(n))) for n in range(3)]
        await asyncio.sleep(0)
        it.clock.step_wall(1)
    assert await asyncio.gather(*waiting) == [START_MS + 1000] * 3
    assert await it.database.write(lambda tx: tx.now_ms) == START_MS + 16_000


async def test_a_failing_member_rolls_back_alone_and_its_neighbours_commit(it: Subject) -> None:
    def half(tx: Tx) -> None:
        note(tx, "half")
        raise Forbidden("no")

    async with stalled(it.database):
        waiting = [
            asyncio.ensure_future(it.database.write(note, "before")),
            asyncio.ensure_future(it.database.write(half)),
            asyncio.ensure_future(it.database.write(note, "after")),
        ]
        await asyncio.sleep(0)
    results = await asyncio.gather(*waiting, return_exceptions=True)
    assert results[0] == results[2] == START_MS
    assert isinstance(results[1], Forbidden)
    assert await it.database.read(keys) == ["before", "after"]
    assert it.said == ["before", "after"], "what did not happen is not said"
    assert it.groups == [3]


FAILURES: dict[str, tuple[Callable[[Tx], object], type[BaseException]]] = {
    "a refusal": (lambda tx: _raise(Forbidden("no")), Forbidden),
    "a constraint": (lambda tx: note(tx, "there already"), sqlite3.IntegrityError),
    "a wrong type": (lambda tx: tx.changed("insert into objects values ('k', 'x', x'')"), sqlite3.IntegrityError),
    "a number over 64 bits": (lambda tx: tx.rows("select ?", (2**63,)), OverflowError),
    "a lone surrogate": (lambda tx: tx.rows("select ?", ("\ud83d",)), UnicodeEncodeError),
    "too few parameters": (lambda tx: tx.rows("select ?, ?", (1,)), sqlite3.ProgrammingError),
    "a parameter of no type": (lambda tx: tx.rows("select ?", (object(),)), sqlite3.ProgrammingError),
    "two statements": (lambda tx: tx.rows("select 1; select 2"), sqlite3.ProgrammingError),
    "a syntax error": (lambda tx: tx.rows("selekt 1"), sqlite3.OperationalError),
    "an assertion": (lambda tx: tx.changed_one("update objects set stored_ms = 1"), AssertionError),
    "the end of an iterator": (lambda tx: next(iter(())), RuntimeError),
    "no memory for Python": (lambda tx: _raise(MemoryError()), MemoryError),
}


def _raise(error: BaseException) -> None:
    raise error


@pytest.mark.parametrize("name", FAILURES)
async def test_every_failure_is_its_members_own_and_leaves_no_transaction_open(it: Subject, name: str) -> None:
    fail, expected = FAILURES[name]

    def note_and_fail(tx: Tx) -> None:
        note(tx, "not this")
        fail(tx)

    for key in ("there already", "another"):
        await it.database.write(note, key)
    async with stalled(it.database):
        waiting = [
            asyncio.ensure_future(it.database.write(note, "before")),
            asyncio.ensure_future(it.database.write(note_and_fail)),
            asyncio.ensure_future(it.database.write(note, "after")),
        ]
        await asyncio.sleep(0)
    before, failed, after = await asyncio.gather(*waiting, return_exceptions=True)
    assert before == after == START_MS
    assert type(failed) is expected
    assert await it.database.read(keys) == ["there already", "another", "before", "after"]
    assert it.said == ["there already", "another", "before", "after"]
    assert not await it.database._writer.run(lambda connection: connection.in_transaction)
    assert not it.database.failed.done()


@pytest.mark.parametrize("name", FAILURES)
async def test_a_failing_read_fails_alone_too(it: Subject, name: str) -> None:
    fail, expected = FAILURES[name]
    if issubclass(expected, sqlite3.Error) or expected is AssertionError:  # what would write fails as it tries
        expected = DatabaseUnavailable
    results = await asyncio.gather(
        it.database.read(keys), it.database.read(fail), it.database.read(keys), return_exceptions=True
    )
    assert results[0] == results[2] == []
    assert type(results[1]) is expected


async def test_events_come_after_the_commit_in_the_loop_and_before_any_waiter_goes_on(it: Subject) -> None:
    order: list[str] = []
    other = sqlite3.connect(it.path)

    def committed(event: Noted) -> None:
        assert threading.current_thread() is threading.main_thread()
        assert asyncio.get_running_loop()
        assert other.execute("select count(*) from objects where key = ?", (event.key,)).fetchone() == (1,)
        order.append(f"said {event.key}")

    async def write(key: str) -> None:
        await it.database.write(note, key)
        order.append(f"returned {key}")

    it.database.subscribe(Noted, committed)
    async with stalled(it.database):
        waiting = [asyncio.ensure_future(write(key)) for key in "abc"]
        await asyncio.sleep(0)
    await asyncio.gather(*waiting)
    other.close()
    assert order == ["said a", "said b", "said c", "returned a", "returned b", "returned c"]


async def test_cancelling_the_await_stops_neither_the_transaction_nor_what_follows_it(it: Subject) -> None:
    async with stalled(it.database):
        waiting = asyncio.ensure_future(it.database.write(note, "kept"))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert it.said == []
    assert await it.database.write(keys) == ["kept"]
    assert it.said == ["kept"]
    assert not await it.database._writer.run(lambda connection: connection.in_transaction)


async def test_a_transaction_that_runs_twice_says_what_happened_once(it: Subject) -> None:
    runs: list[str] = []

    def counted(tx: Tx, key: str) -> int:
        runs.append(key)
        return note(tx, key)

    it.sqlite.fail("commit", "SQLITE_FULL")
    assert await it.database.write(counted, "twice") == START_MS
    assert runs == ["twice", "twice"]
    assert it.said == ["twice"]
    assert await it.database.read(keys) == ["twice"]


async def test_what_failed_after_its_function_had_run_says_nothing(it: Subject) -> None:
    it.sqlite.fail("commit", "SQLITE_FULL", times=2)
    with pytest.raises(StorageFull):
        await it.database.write(note, "never")
    assert it.said == []
    assert await it.database.read(keys) == []

    it.sqlite.fail("commit", "SQLITE_FULL")
    it.sqlite.fail("begin immediate", "SQLITE_BUSY", after=1)
    with pytest.raises(Busy):
        await it.database.write(note, "nor this")
    assert it.said == []
    assert await it.database.read(keys) == []


async def test_a_group_ends_at_its_count(it: Subject) -> None:
    async with stalled(it.database):
        waiting = [asyncio.ensure_future(it.database.write(note, str(n))) for n in range(2 * COUNT_MAX + 1)]
        await asyncio.sleep(0)
    await asyncio.gather(*waiting)
    assert it.groups == [COUNT_MAX, COUNT_MAX, 1]
    assert await it.database.read(keys) == [str(n) for n in range(2 * COUNT_MAX + 1)], "first come, first served"


async def test_a_group_takes_no_further_member_when_it_has_taken_long(it: Subject) -> None:
    def slow(tx: Tx, key: str) -> int:
        it.clock.advance(0.015)
        return note(tx, key)

    async with stalled(it.database):
        waiting = [asyncio.ensure_future(it.database.write(slow, str(n))) for n in range(5)]
        await asyncio.sleep(0)
    await asyncio.gather(*waiting)
    assert it.groups == [2, 2, 1]
    assert await it.database.read(keys) == list("01234"), "who was put back stays the first in line"


async def test_beyond_the_bound_of_the_queue_writers_are_told_to_come_back(
    it: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lane, "QUEUE_MAX", 3)
    async with stalled(it.database):
        waiting = [asyncio.ensure_future(it.database.write(note, str(n))) for n in range(3)]
        await asyncio.sleep(0)
        with pytest.raises(Busy):
            await it.database.write(note, "one too many")
    await asyncio.gather(*waiting)
    await it.database.write(note, "3")
    assert await it.database.read(keys) == list("0123")


async def test_while_another_program_holds_the_write_lock_writers_are_told_to_come_back(it: Subject) -> None:
    await it.database.write(note, "before")
    other = sqlite3.connect(it.path, isolation_level=None)
    other.execute("begin immediate")
    async with asyncio.TaskGroup() as group:
        refused = [group.create_task(_outcome(it.database.write(note, str(n)))) for n in range(3)]
    assert [type(task.result()) for task in refused] == [Busy] * 3
    assert await it.database.read(keys) == ["before"], "reads go on"
    other.execute("rollback")
    other.close()

    await it.database.write(note, "after")
    assert await it.database.read(keys) == ["before", "after"]
    assert it.said == ["before", "after"]
    assert not it.database.failed.done()


async def _outcome(awaitable: "asyncio.Future[int] | object") -> object:
    try:
        return await awaitable  # type: ignore[misc]
    except Exception as error:  # noqa: BLE001  the outcome is what the test asks about
        return error


async def test_everything_that_waits_at_the_end_is_done_before_the_close(tmp_path: Path) -> None:
    path, count = tmp_path / "some.sqlite", 20 * COUNT_MAX
    async with open_database(path, "bodies", FakeClock()) as database:
        said: list[Noted] = []
        database.subscribe(Noted, said.append)
        waiting = [asyncio.ensure_future(database.write(note, str(n))) for n in range(count)]
        await asyncio.sleep(0)
    async with asyncio.timeout(10):
        await asyncio.gather(*waiting)
    assert len(said) == count
    assert sqlite3.connect(path).execute("select count(*) from objects").fetchone() == (count,)
