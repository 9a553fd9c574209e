"""The rules of SQLite that durability and deletion hang on are in force on the connections that live, not only written
down; readers only read, and see every write that returned before they asked."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path

import pytest
import pytest_asyncio

from pastebin_daemon.database import Database, Tx, open_database
from pastebin_daemon.errors import DatabaseUnavailable
from tests.fakes import FakeClock
from tests.faulty_sqlite import FaultySqlite, sqlite_error, stalled
from tests.support import running


def put(tx: Tx, key: str, size: int = 1) -> None:
    tx.changed("insert into objects (key, stored_ms, body) values (?, ?, zeroblob(?))", (key, tx.now_ms, size))


def keys(tx: Tx) -> list[str]:
    return [key for (key,) in tx.rows("select key from objects order by rowid limit 1000")]


@pytest_asyncio.fixture
async def database(tmp_path: Path) -> AsyncIterator[Database]:
    async with open_database(tmp_path / "some.sqlite", "bodies", FakeClock()) as database:
        yield database


def pragma(tx: Tx, name: str) -> object:
    return tx.rows(f"pragma {name}")[0][0]


async def test_both_files_of_a_running_daemon_are_synced_shredded_and_shrinkable(tmp_path: Path) -> None:
    full, incremental = 2, 2
    async with running(tmp_path) as it:
        for database in (it.database, it.store.database):
            assert await database.write(pragma, "synchronous") == full, "NORMAL loses commits at a power cut"
            assert await database.write(pragma, "secure_delete") == 1
            assert await database.write(pragma, "auto_vacuum") == incremental
            assert await database.write(pragma, "journal_mode") == "wal"
            assert await database.write(pragma, "journal_size_limit") == 32 * 1024 * 1024
            assert await database.read(pragma, "journal_mode") == "wal"
            assert await database.read(pragma, "query_only") == 1


async def test_a_deleted_text_is_nowhere_in_the_files(tmp_path: Path) -> None:
    secret = b"a text that nobody may find again"
    async with running(tmp_path) as it:
        made = await it.paste(secret * 3000, title="the-title-of-it")
        await it.delete(made)
        await it.drain()
        it.clock.advance(60)
        for database in (it.database, it.store.database):
            await database.tend()
            assert database.wal_bytes() == 0
        found = [file.name for file in (tmp_path / "state").iterdir() if secret in file.read_bytes()]
        assert found == []
        assert not [file.name for file in (tmp_path / "state").iterdir() if b"the-title-of-it" in file.read_bytes()]


async def test_a_reader_can_not_write(database: Database) -> None:
    with pytest.raises(DatabaseUnavailable, match="readonly"):
        await database.read(put, "x")
    await database.write(put, "y")
    assert await database.read(keys) == ["y"]


async def test_a_read_sees_every_write_that_returned_before_it(database: Database) -> None:
    for n in range(50):
        await database.write(put, str(n))
        assert await database.read(keys) == [str(m) for m in range(n + 1)]


async def test_a_snapshot_is_no_older_than_its_call_also_when_the_reader_was_busy(database: Database) -> None:
    """The reader stands in an old snapshot while a write commits; who asks after that does not share it."""
    started, go = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def slow(tx: Tx) -> list[str]:
        keys(tx)  # the snapshot begins here
        loop.call_soon_threadsafe(started.set)
        asyncio.run_coroutine_threadsafe(go.wait(), loop).result(30)
        return keys(tx)

    old = asyncio.ensure_future(database.read(slow))
    await started.wait()
    await database.write(put, "new")
    young = asyncio.ensure_future(database.read(keys))
    await asyncio.sleep(0)
    go.set()
    assert await old == []
    assert await young == ["new"]


async def test_readers_of_one_round_share_a_snapshot_and_an_instant(database: Database) -> None:
    reads = [asyncio.ensure_future(database.read(lambda tx: (tx.now_ms, keys(tx)))) for _ in range(10)]
    assert len({repr(result) for result in await asyncio.gather(*reads)}) == 1


async def test_reads_go_on_while_the_writer_stands(database: Database) -> None:
    await database.write(put, "x")
    async with stalled(database):
        assert await database.read(keys) == ["x"]


@pytest.mark.parametrize("name", ["SQLITE_IOERR", "SQLITE_NOMEM"])
async def test_an_error_that_ends_the_readers_transaction_costs_one_read_its_answer(tmp_path: Path, name: str) -> None:
    """SQLite rolls back by itself after I/O errors and a lack of memory; the COMMIT that follows would raise again."""
    sqlite, path = FaultySqlite(), tmp_path / "some.sqlite"

    def look_twice(tx: Tx) -> bool:
        first = keys(tx)
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("delete from objects")
        return keys(tx) == first == ["x"]

    async with open_database(path, "bodies", FakeClock(), connect=sqlite.connect) as database:
        await database.write(put, "x")
        raised: BaseException = MemoryError() if name == "SQLITE_NOMEM" else sqlite_error(name)
        sqlite.fail("select", name, after=1, rolls_back=True, error=lambda: raised)
        async with asyncio.timeout(30):
            first, failed, last = await asyncio.gather(
                database.read(keys), database.read(keys), database.read(look_twice), return_exceptions=True
            )
        assert first == ["x"]
        assert isinstance(failed, MemoryError if name == "SQLITE_NOMEM" else DatabaseUnavailable)
        assert last is True, "who comes after it has a snapshot all the same"
        await database.write(put, "y")
        assert await database.read(keys) == ["y"]


async def test_a_half_read_answer_never_pins_the_log(database: Database, tmp_path: Path) -> None:
    for n in range(100):
        await database.write(put, str(n))
    await database.read(keys)
    with pytest.raises(AssertionError):
        await database.read(lambda tx: tx.row("select key from objects"))
    other = sqlite3.connect(tmp_path / "some.sqlite")
    assert other.execute("pragma wal_checkpoint(truncate)").fetchone()[0] == 0, "nobody reads any more"
    other.close()
