"""A database of every earlier version comes up with its rows, one that can't is left as it was, and one that this program
would not understand is refused with what to do about it.

The tests take the migrations as they find them, so the next one is under test the day it is written; and since there may
be few, made-up ones are put after them.
"""

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from pastebin_daemon.database import Tx, migrate, open_database
from pastebin_daemon.database.migrate import scripts
from pastebin_daemon.errors import StartError
from tests.fakes import FakeClock

SCHEMAS = ("metadata", "bodies")
EARLIER = [(schema, version) for schema in SCHEMAS for version in range(len(scripts(schema)) + 1)]

ROWS: dict[str, dict[int, list[str]]] = {
    "metadata": {
        1: [
            "insert into pastes values"
            " ('aaaaaaaaaaaaaaaaa1', 'o1', 1, 2, 3, zeroblob(32), 1, 't', 'python', zeroblob(32))",
            "insert into uploads values ('o2', 'aaaaaaaaaaaaaaaaa2', 1)",
            "insert into idempotency values (zeroblob(32), zeroblob(32), 'aaaaaaaaaaaaaaaaa1', 1)",
            "insert into outbox (kind, payload, created_ms, first_due_ms, due_ms) values ('reap', '{}', 1, 1, 1)",
            "insert into outbox (kind, payload, created_ms, first_due_ms, due_ms, state, attempts, generation, owner,"
            " lease_ms) values ('reap', '{}', 1, 1, 1, 'leased', 1, 1, 'me', 1)",
            "insert into dead_letters values (7, 'reap', '{}', 1, 8, 8, 'no', 'attempts_exhausted', 2, null, null)",
            "insert into inbox values (7, 1, 1999)",
        ],
        2: ["insert into inbox values (8, 2, 3)"],
    },
    "bodies": {1: ["insert into objects values ('o1', 1, x'0d0a00ff')"]},
}
"""Rows of every table, by the version that made the table (or changed what a row of it is)."""


def version_of(connection: sqlite3.Connection) -> int:
    return int(connection.execute("pragma user_version").fetchone()[0])


def tables(connection: sqlite3.Connection) -> list[str]:
    names = connection.execute(
        "select name from sqlite_master where type = 'table' and name not like 'sqlite_%' order by name"
    )
    return [name for (name,) in names]


def contents(connection: sqlite3.Connection) -> dict[str, list[dict[str, Any]]]:
    """Every row of every table, by the names of its columns."""
    found = {}
    for table in tables(connection):
        cursor = connection.execute(f"select * from {table}")
        columns = [column for column, *_ in cursor.description]
        found[table] = [dict(zip(columns, row, strict=True)) for row in cursor]
    return found


def schema_of(connection: sqlite3.Connection) -> list[tuple[str, str]]:
    rows = connection.execute("select name, sql from sqlite_master where sql is not null order by type, name")
    return [(name, " ".join(sql.split())) for name, sql in rows]


def make(path: Path, schema: str, version: int) -> dict[str, list[dict[str, Any]]]:
    """A database as the program of that version left it, with rows. The result: what is in it."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for number, script in enumerate(scripts(schema)[:version], start=1):
            connection.executescript(script)
            connection.execute(f"pragma user_version = {number}")
            for row in ROWS[schema].get(number, []):
                connection.execute(row)
        return contents(connection)


def brought_up(before: dict[str, list[dict[str, Any]]], schema: str, version: int) -> dict[str, list[dict[str, Any]]]:
    """What the later migrations are to make of the rows of a version."""
    if schema == "metadata" and version == 1:
        inbox = [
            {"outbox_id": row["outbox_id"], "consumer": row["consumer"], "done_s": row["done_ms"] // 1000}
            for row in before["inbox"]
        ]
        return before | {"inbox": inbox}
    return before


def use(monkeypatch: pytest.MonkeyPatch, schema: str, *more: str) -> None:
    known = [*scripts(schema), *more]
    monkeypatch.setattr(migrate, "scripts", lambda _: known)


async def opened(path: Path, schema: str, look: Callable[[Tx], Any] = lambda tx: None) -> Any:
    async with open_database(path, schema, FakeClock()) as database:
        return await database.write(look)


@pytest.mark.parametrize(("schema", "version"), EARLIER)
async def test_a_database_of_every_earlier_version_comes_up_with_its_rows(
    tmp_path: Path, schema: str, version: int
) -> None:
    path, fresh = tmp_path / "old.sqlite", tmp_path / "fresh.sqlite"
    before = make(path, schema, version)
    if version:
        assert all(before.values()), "a table without a row proves nothing: add one to ROWS"
    await opened(path, schema)
    await opened(fresh, schema)
    with closing(sqlite3.connect(path)) as connection, closing(sqlite3.connect(fresh)) as other:
        assert version_of(connection) == version_of(other) == len(scripts(schema))
        assert schema_of(connection) == schema_of(other), "an upgraded database is like a new one"
        assert connection.execute("pragma integrity_check").fetchall() == [("ok",)]
        after = contents(connection)
    for table, rows in brought_up(before, schema, version).items():
        for row, kept in zip(rows, after[table], strict=True):
            assert {column: kept[column] for column in row} == row


async def test_a_later_migration_changes_tables_that_have_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, known = tmp_path / "old.sqlite", len(scripts("metadata"))
    make(path, "metadata", known)
    use(
        monkeypatch,
        "metadata",
        "ALTER TABLE pastes ADD COLUMN views INTEGER NOT NULL DEFAULT 0;\n"
        "CREATE TRIGGER seen AFTER UPDATE ON pastes BEGIN\n"
        "    UPDATE totals SET pastes = pastes;\n"
        "    UPDATE totals SET bytes = bytes;\n"
        "END;\n",
        "UPDATE pastes SET views = 5;\n",
    )
    found = await opened(path, "metadata", lambda tx: tx.rows("select id, views from pastes"))
    assert found == [("aaaaaaaaaaaaaaaaa1", 5)]
    with closing(sqlite3.connect(path)) as connection:
        assert version_of(connection) == known + 2


@pytest.mark.parametrize("last", ["INSERT INTO nowhere VALUES (1);\n", "INSERT INTO more VALUES ('not a number');\n"])
async def test_a_migration_that_fails_leaves_the_version_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, last: str
) -> None:
    path, known = tmp_path / "old.sqlite", len(scripts("metadata"))
    before = make(path, "metadata", known)
    good = "CREATE TABLE kept (x INTEGER) STRICT;\n"
    bad = "CREATE TABLE more (x INTEGER) STRICT;\nDELETE FROM inbox;\n" + last
    use(monkeypatch, "metadata", good, bad)

    with pytest.raises(StartError, match=r"old\.sqlite can't be opened"):
        await opened(path, "metadata")

    with closing(sqlite3.connect(path)) as connection:
        assert version_of(connection) == known + 1, "each migration is a transaction of its own"
        assert "kept" in tables(connection)
        assert "more" not in tables(connection)
        assert contents(connection) == before | {"kept": []}
    use(monkeypatch, "metadata", good)
    await opened(path, "metadata")


async def test_a_database_of_a_newer_version_is_refused_and_left_alone(tmp_path: Path) -> None:
    path, known = tmp_path / "new.sqlite", len(scripts("metadata"))
    before = make(path, "metadata", known)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"pragma user_version = {known + 1}")
    with pytest.raises(StartError, match=f"version {known + 1}, this program knows {known}: start the newer program"):
        await opened(path, "metadata")
    with closing(sqlite3.connect(path)) as connection:
        assert version_of(connection) == known + 1
        assert contents(connection) == before


def _no_sqlite_file(path: Path) -> None:
    path.write_bytes(b"This is no database. " * 1000)


def _torn(path: Path) -> None:
    """The first page says one thing, and the pages after it are gone."""
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript("create table t (x); insert into t values (zeroblob(100000));")
    content = bytearray(path.read_bytes())
    content[100:4096] = bytes(3996)
    path.write_bytes(content)


def _a_directory(path: Path) -> None:
    path.mkdir()


@pytest.mark.parametrize(
    ("damage", "remedy"),
    [
        (_no_sqlite_file, "is damaged or no SQLite file .*: restore it from a backup"),
        (_torn, "is damaged or no SQLite file .*: restore it from a backup"),
        (_a_directory, "can't be opened for writing .*: make .* writable"),
    ],
)
async def test_a_file_that_can_not_be_used_is_named_with_the_remedy(
    tmp_path: Path, damage: Callable[[Path], None], remedy: str
) -> None:
    path = tmp_path / "pastebin.sqlite"
    damage(path)
    with pytest.raises(StartError, match=f"pastebin.sqlite {remedy}"):
        await opened(path, "metadata")


async def test_a_database_that_another_program_has_locked_is_named_with_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pastebin_daemon.database.database.BUSY_TIMEOUT", "pragma busy_timeout = 20")
    path = tmp_path / "pastebin.sqlite"
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("begin exclusive")
        with pytest.raises(StartError, match=r"another program has .*pastebin\.sqlite locked"):
            await opened(path, "metadata")
