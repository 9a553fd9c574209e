"""What a failing COMMIT means. A full disk is a known outcome: the group is rolled back, deletes and settlements run again
one by one, creates are refused until there is space. Any other failure is an unknown one: whoever waits is told so,
nothing more is run on the handle, and the process ends.

SQLite is real; `FaultySqlite` lets single statements fail, and `max_page_count` makes it find itself full.
"""

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Coroutine
from pathlib import Path

import pytest
import pytest_asyncio

from pastebin_daemon.bodies.local import LocalStore, open_local
from pastebin_daemon.database import Database, Tx, open_database
from pastebin_daemon.errors import DatabaseUnavailable, Forbidden, StorageFull, Temporary
from tests.fakes import FakeClock
from tests.faulty_sqlite import FaultySqlite, sqlite_error, stalled


class Said(str):
    """An event: what was put or removed."""


def put(tx: Tx, key: str, size: int = 1) -> str:
    tx.changed("insert into objects (key, stored_ms, body) values (?, ?, zeroblob(?))", (key, tx.now_ms, size))
    tx.emit(Said(key))
    return key


def half(tx: Tx, key: str) -> None:
    put(tx, key)
    raise Forbidden("no")


def remove(tx: Tx, key: str) -> bool:
    tx.emit(Said(f"-{key}"))
    return tx.changed_one("delete from objects where key = ?", (key,))


def keys(tx: Tx) -> list[str]:
    return [key for (key,) in tx.rows("select key from objects order by key limit 1000")]


class Subject:
    def __init__(self, database: Database, sqlite: FaultySqlite) -> None:
        self.database = database
        self.sqlite = sqlite
        self.said: list[str] = []
        self.reserve = database.path.with_name("some.sqlite.reserve")
        database.subscribe(Said, self.said.append)

    async def group(self, *members: tuple[str, str]) -> list[object]:
        """Run the members in one group: ("put", key), ("remove", key), ("half", key), or ("grow", key). Their outcomes."""

        def submit(verb: str, key: str) -> Coroutine[object, object, object]:
            if verb in ("remove", "half"):
                return self.database.write(remove if verb == "remove" else half, key)
            return self.database.grow(put, key) if verb == "grow" else self.database.write(put, key)

        async with stalled(self.database):
            waiting = [asyncio.ensure_future(submit(*member)) for member in members]
            await asyncio.sleep(0)
        async with asyncio.timeout(30):
            return await asyncio.gather(*waiting, return_exceptions=True)


@pytest_asyncio.fixture
async def it(tmp_path: Path) -> AsyncIterator[Subject]:
    sqlite = FaultySqlite()
    async with open_database(tmp_path / "some.sqlite", "bodies", FakeClock(), connect=sqlite.connect) as database:
        yield Subject(database, sqlite)


# --- a full disk


@pytest.mark.parametrize("statement", ["commit", "insert", "delete"])
@pytest.mark.parametrize("rolls_back", [True, False])
async def test_on_a_full_disk_deletes_go_on_one_by_one_and_creates_are_refused(
    it: Subject, statement: str, rolls_back: bool
) -> None:
    await it.database.write(put, "old")
    it.said.clear()
    it.sqlite.seen.clear()
    it.sqlite.fail(statement, "SQLITE_FULL", after=1 if statement == "commit" else 0, rolls_back=rolls_back)

    outcomes = await it.group(("grow", "new"), ("put", "row"), ("remove", "old"), ("remove", "nothing"))

    assert isinstance(outcomes[0], StorageFull)
    assert outcomes[1:] == ["row", True, False]
    assert await it.database.read(keys) == ["row"]
    assert it.said == ["row", "-old", "-nothing"], "once each, and nothing of what was refused"
    assert not it.database.failed.done()
    writes = [sql.split()[0] for sql, _ in it.sqlite.seen if sql.split()[0] in ("begin", "commit", "rollback")]
    assert writes.count("begin") - writes.count("commit") <= 1


async def test_the_reserve_makes_room_for_what_makes_room(it: Subject) -> None:
    assert it.reserve.exists()
    it.sqlite.fail("commit", "SQLITE_FULL")
    await it.database.write(put, "a settlement")
    assert not it.reserve.exists()
    assert it.database.full


async def test_creates_are_refused_without_being_tried_until_there_is_space_again(
    it: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    it.sqlite.fail("commit", "SQLITE_FULL")
    with pytest.raises(StorageFull):
        await it.database.grow(put, "x")
    monkeypatch.setattr("pastebin_daemon.database.database.RESERVE_BYTES", 2**60)
    await it.database.tend()
    assert it.database.full, "no space yet"
    it.sqlite.seen.clear()
    with pytest.raises(StorageFull):
        await it.database.grow(put, "x")
    assert it.sqlite.seen == []

    await it.database.write(put, "a settlement")
    monkeypatch.undo()
    await it.database.tend()
    assert it.reserve.exists()
    assert await it.database.grow(put, "x") == "x"


async def test_what_finds_no_space_even_alone_is_told_so_alone(it: Subject) -> None:
    it.sqlite.fail("commit", "SQLITE_FULL", after=1)  # the stalling one, and then the group's
    it.sqlite.fail("insert", "SQLITE_FULL", after=1)  # the second run of the first member
    first, second = await it.group(("put", "first"), ("put", "second"))
    assert isinstance(first, StorageFull)
    assert second == "second"
    assert it.said == ["second"]
    assert await it.database.read(keys) == ["second"]


async def test_sqlites_own_limit_is_met_the_same_way(it: Subject) -> None:
    await it.database.write(put, "large", 300_000)
    (pages,) = (await it.database.write(lambda tx: tx.rows("pragma page_count")))[0]
    await it.database._writer.run(lambda connection: connection.execute(f"pragma max_page_count = {pages}").fetchall())

    with pytest.raises(StorageFull):
        await it.database.grow(put, "larger", 400_000)
    assert await it.database.read(keys) == ["large"]
    assert await it.database.write(remove, "large")
    await it.database.tend()
    assert await it.database.grow(put, "another", 200_000) == "another"


async def test_housekeeping_on_a_full_disk_is_no_reason_to_end(it: Subject) -> None:
    await it.database.write(put, "large", 8 * 1024 * 1024)
    await it.database.write(remove, "large")
    it.sqlite.fail("pragma incremental_vacuum", "SQLITE_FULL")
    await it.database.tend()
    assert await it.database.write(put, "x") == "x"


# --- an unknown outcome


@pytest.mark.parametrize("statement", ["commit", "insert", "begin immediate", "savepoint", "release", "rollback"])
@pytest.mark.parametrize("name", ["SQLITE_IOERR", "SQLITE_CORRUPT", "SQLITE_READONLY"])
async def test_after_any_other_error_nothing_more_is_run_on_the_handle(it: Subject, statement: str, name: str) -> None:
    await it.database.write(put, "old")
    it.said.clear()
    it.sqlite.fail(statement, name, after=1 if statement in ("commit", "begin immediate") else 0)  # the stalling one's

    # What has to be undone makes the group run again with savepoints.
    outcomes = await it.group(("put", "a"), ("grow", "b"), ("half", "c"), ("remove", "old"))

    assert [type(outcome) for outcome in outcomes] == [DatabaseUnavailable] * 4
    assert it.database.failed.done()
    cause = it.database.failed.result()
    assert isinstance(cause, sqlite3.OperationalError)
    assert cause.sqlite_errorname == name
    assert it.said == [], "whether it happened is not known, so nothing is said of it"

    it.sqlite.seen.clear()
    for attempt in (it.database.write(put, "c"), it.database.grow(put, "d"), it.database.write(remove, "old")):
        with pytest.raises(DatabaseUnavailable):
            await attempt
    await it.database.tend()
    assert it.sqlite.seen == []
    assert "old" in await it.database.read(keys), "reads go on until the process ends"


async def test_busy_at_a_commit_is_no_known_outcome(it: Subject) -> None:
    it.sqlite.fail("commit", "SQLITE_BUSY")
    with pytest.raises(DatabaseUnavailable):
        await it.database.write(put, "x")
    assert it.database.failed.done()


async def test_failed_is_done_before_any_waiter_goes_on(it: Subject) -> None:
    it.sqlite.fail("commit", "SQLITE_IOERR")
    with pytest.raises(DatabaseUnavailable):
        await it.database.write(put, "x")
    assert it.database.failed.done()


async def test_what_committed_before_the_handle_failed_has_happened(it: Subject) -> None:
    """A full disk, and then one by one; the second of these meets an I/O error."""
    it.sqlite.fail("commit", "SQLITE_FULL", after=1)
    it.sqlite.fail("commit", "SQLITE_IOERR", after=2)
    outcomes = await it.group(("put", "a"), ("put", "b"), ("put", "c"))
    assert outcomes[0] == "a"
    assert [type(outcome) for outcome in outcomes[1:]] == [DatabaseUnavailable] * 2
    assert it.said == ["a"]
    assert it.database.failed.done()


@pytest.mark.parametrize("error", [MemoryError(), sqlite_error("SQLITE_NOMEM")])
async def test_an_error_that_ends_the_groups_transaction_is_not_one_members_own(it: Subject, error: Exception) -> None:
    """A lack of memory makes SQLite roll the whole group back; Python calls it MemoryError."""
    it.sqlite.fail("insert", "SQLITE_NOMEM", after=1, rolls_back=True, error=lambda: error)
    outcomes = await it.group(("put", "a"), ("put", "b"), ("put", "c"))
    assert [type(outcome) for outcome in outcomes] == [DatabaseUnavailable] * 3
    assert it.database.failed.result() is error
    assert it.said == []
    assert await it.database.read(keys) == []


async def test_a_rollback_that_fails_leaves_nobody_waiting(it: Subject) -> None:
    it.sqlite.fail("commit", "SQLITE_FULL")
    it.sqlite.fail("rollback", "SQLITE_IOERR")
    with pytest.raises(DatabaseUnavailable):
        await it.database.write(put, "x")
    assert it.database.failed.done()


# --- the embedded store's seam


@pytest_asyncio.fixture
async def bodies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[LocalStore, FaultySqlite]]:
    sqlite = FaultySqlite()
    monkeypatch.setattr(sqlite3, "connect", lambda path, **_: sqlite.connect(path))
    async with open_local(tmp_path / "bodies.sqlite", FakeClock()) as store:
        yield store, sqlite


async def test_the_store_on_a_full_disk_deletes_one_by_one(bodies: tuple[LocalStore, FaultySqlite]) -> None:
    store, sqlite = bodies
    for key in "abc":
        await store.put(key, b"x")
    sqlite.fail("commit", "SQLITE_FULL", times=2)  # the three together, and they together once more
    assert await store.delete(list("abcd")) == {"a": "deleted", "b": "deleted", "c": "deleted", "d": "missing"}
    with pytest.raises(StorageFull):
        await store.put("e", b"x")


async def test_a_disk_too_full_to_delete_pauses_the_consumer_and_blames_no_job(
    bodies: tuple[LocalStore, FaultySqlite],
) -> None:
    store, sqlite = bodies
    for key in "abc":
        await store.put(key, b"x")
    sqlite.fail("commit", "SQLITE_FULL", times=2)
    sqlite.fail("commit", "SQLITE_FULL", after=1, times=2)
    results = await store.delete(list("abc"))
    assert results["a"] == "deleted"
    for key in "bc":
        error = results[key]
        assert isinstance(error, Temporary)
        assert error.throttled
    assert await store.get("b") == b"x"


@pytest.mark.parametrize("name", ["SQLITE_IOERR", "SQLITE_CORRUPT", "SQLITE_ERROR"])
async def test_only_the_two_errors_of_the_seam_come_out_of_the_store(
    bodies: tuple[LocalStore, FaultySqlite], name: str
) -> None:
    store, sqlite = bodies
    sqlite.fail("select", name, times=2)
    with pytest.raises(Temporary):
        await store.get("x")
    with pytest.raises(Temporary):
        await store.age_s("x")
    sqlite.fail("insert", name)
    with pytest.raises(Temporary):
        await store.put("x", b"x")
    sqlite.fail("delete", name)
    result = (await store.delete(["x"]))["x"]
    assert isinstance(result, Temporary)
    assert not result.throttled
