"""What keeps a database file, its log and its reserve small, and what happens when a reader stands in the way.

`tend` is the crank; the clock is turned by hand.
"""

import asyncio
import os
import sqlite3
import time
from collections.abc import AsyncIterator, Iterator, MutableMapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import structlog

from pastebin_daemon.database import Database, Tx, open_database
from pastebin_daemon.database.database import IDLE_S, RESERVE_BYTES, WAL_LIMIT_BYTES
from pastebin_daemon.errors import DatabaseUnavailable
from tests.fakes import FakeClock
from tests.faulty_sqlite import FaultySqlite
from tests.support import running

MIB = 1024 * 1024


def put(tx: Tx, key: str, size: int) -> None:
    tx.changed("insert into objects (key, stored_ms, body) values (?, ?, zeroblob(?))", (key, tx.now_ms, size))


def fill(tx: Tx, first: int, count: int, size: int) -> None:
    for number in range(first, first + count):
        put(tx, str(number), size)


def free_pages(tx: Tx) -> int:
    return int(tx.rows("pragma freelist_count")[0][0])


class Subject:
    def __init__(self, database: Database, clock: FakeClock, sqlite: FaultySqlite) -> None:
        self.database = database
        self.clock = clock
        self.sqlite = sqlite
        self.path = database.path

    async def tend_when_idle(self) -> None:
        self.clock.advance(IDLE_S)
        await self.database.tend()

    @contextmanager
    def reader(self) -> Iterator[sqlite3.Connection]:
        """Another program in the middle of reading."""
        other = sqlite3.connect(self.path, isolation_level=None)
        other.execute("begin")
        other.execute("select count(*) from objects").fetchall()
        try:
            yield other
        finally:
            other.close()


@pytest_asyncio.fixture
async def it(tmp_path: Path) -> AsyncIterator[Subject]:
    clock, sqlite = FakeClock(), FaultySqlite()
    async with open_database(tmp_path / "some.sqlite", "bodies", clock, connect=sqlite.connect) as database:
        yield Subject(database, clock, sqlite)


@pytest.fixture
def logged() -> Iterator[list[MutableMapping[str, Any]]]:
    with structlog.testing.capture_logs() as lines:
        yield lines


# --- the log


async def test_the_log_is_bounded_again_after_a_reader_let_go(it: Subject) -> None:
    with it.reader():
        for n in range(10):
            await it.database.write(fill, n * 1000, 5, MIB)
        assert it.database.wal_bytes() > 1.4 * WAL_LIMIT_BYTES, "the reader kept it from being written over"
    for n in range(3):  # a checkpoint follows a commit, and the next one begins the file again
        await it.database.write(put, f"after {n}", 1)
    assert it.database.wal_bytes() <= WAL_LIMIT_BYTES


async def test_the_log_is_cut_to_nothing_when_idle(it: Subject) -> None:
    await it.database.write(put, "x", 100)
    assert it.database.wal_bytes() > 0
    await it.database.tend()
    assert it.database.wal_bytes() > 0, "not while others write"
    await it.tend_when_idle()
    assert it.database.wal_bytes() == 0


async def test_a_daemon_that_only_looks_for_work_is_idle(tmp_path: Path) -> None:
    """The loops ask the writer once a second. What changes nothing is no commit, or no daemon would ever be idle."""
    clock = FakeClock()
    async with running(tmp_path, clock=clock) as it:
        await it.paste()
        assert it.database.wal_bytes() > 0
        commits = it.metric("pastebin_commit_seconds_count")
        for _ in range(int(IDLE_S) + 1):
            clock.advance(1)
            await it.drain()
            for name in it.daemon.sweepers:
                await it.sweep(name)
            async with it.http.get(f"{it.admin}/readyz") as answer:
                assert answer.status == 200
            await it.database.tend()
        assert it.database.wal_bytes() == 0
        assert it.metric("pastebin_commit_seconds_count") == commits, "nor is it counted as one"


async def test_a_reader_that_pins_the_log_is_named_in_the_log(
    it: Subject, logged: list[MutableMapping[str, Any]]
) -> None:
    await it.database.write(put, "x", 100)
    with it.reader():
        await it.database.write(put, "y", 100)
        await it.tend_when_idle()
        assert it.database.wal_bytes() > 0
    (line,) = [line for line in logged if line["event"] == "checkpoint.blocked"]
    assert line["file"] == "some.sqlite"
    assert line["wal_bytes"] == it.database.wal_bytes()
    assert line["frames"] > 0
    logged.clear()
    await it.tend_when_idle()
    assert it.database.wal_bytes() == 0
    assert logged == []


async def test_a_reader_that_pins_the_log_holds_nobody_up(it: Subject) -> None:
    """SQLite would wait for the reader on the writer's own thread, for its whole busy timeout of 5 s."""
    await it.database.write(put, "x", 100)
    with it.reader():
        await it.database.write(put, "y", 100)
        it.clock.advance(IDLE_S)
        began = time.monotonic()
        tending = asyncio.ensure_future(it.database.tend())
        await asyncio.sleep(0)
        await it.database.write(put, "z", 100)
        assert time.monotonic() - began < 2.5
        await tending


async def test_another_programs_write_lock_is_survived(it: Subject) -> None:
    await it.database.write(put, "x", 100)
    other = sqlite3.connect(it.path, isolation_level=None)
    other.execute("begin immediate")
    await it.tend_when_idle()
    other.close()
    assert not it.database.failed.done()


# --- the file


async def test_a_mass_deletion_gives_its_pages_back_to_the_file_system(it: Subject) -> None:
    await it.database.write(fill, 0, 16, MIB)
    await it.tend_when_idle()
    before = it.path.stat().st_size
    assert before > 16 * MIB

    await it.database.write(lambda tx: tx.changed("delete from objects"))
    left = await it.database.read(free_pages)
    while left > 1024:
        await it.tend_when_idle()
        left, had = await it.database.read(free_pages), left
        assert 200 < had - left < 300, "a piece at a time, so that the writer is never held for long"
    assert it.path.stat().st_size < before / 3


# --- the reserve


async def test_a_reserve_is_set_aside_and_completed_if_a_kill_left_half_of_it(it: Subject) -> None:
    reserve = it.path.with_name("some.sqlite.reserve")
    assert reserve.stat().st_blocks * 512 >= RESERVE_BYTES, "really there, and no hole"
    os.truncate(reserve, 10)
    await it.database.tend()
    assert reserve.stat().st_size == RESERVE_BYTES


async def test_a_file_system_that_grants_no_reserve_is_no_reason_to_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, logged: list[MutableMapping[str, Any]]
) -> None:
    """A quota shows only when the space is asked for."""

    def refuse(*_: object) -> None:
        raise OSError(122, "Disk quota exceeded")

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    async with open_database(tmp_path / "some.sqlite", "bodies", FakeClock()) as database:
        assert [line["event"] for line in logged] == ["disk.low"]
        await database.tend()
        await database.write(put, "x", 1)
        monkeypatch.undo()
        await database.tend()
        assert (tmp_path / "some.sqlite.reserve").stat().st_size == RESERVE_BYTES


# --- the path


@pytest.mark.parametrize("how", ["moved away", "removed", "replaced"])
async def test_a_file_that_is_no_longer_at_its_path_fails_loudly(
    it: Subject, how: str, logged: list[MutableMapping[str, Any]]
) -> None:
    """Rows would go on to be committed into a file that the next start does not find."""
    await it.database.write(put, "x", 1)
    it.path.rename(it.path.with_name("elsewhere")) if how != "removed" else it.path.unlink()
    if how == "replaced":
        it.path.touch()
    with pytest.raises(DatabaseUnavailable):
        await it.database.write(put, "y", 1)
    assert "moved or replaced" in str(it.database.failed.result())
    assert [line["event"] for line in logged] == ["database.failed"]
    with pytest.raises(DatabaseUnavailable):
        await it.database.write(put, "z", 1)
