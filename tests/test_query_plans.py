"""No statement of the daemon reads a table from end to end, whatever is in it and whatever ANALYZE has found there.

Every statement is taken as it runs, by way of `tests.driving`; a statement that is written and never driven fails the
test. What may be scanned, and why that is bounded:

| scan                          | why it is bounded                                                               |
|-------------------------------|---------------------------------------------------------------------------------|
| json_each                     | the parameter: a batch of jobs or objects, as long as its caller made it        |
| totals                        | one row (CHECK)                                                                 |
| a subquery                    | what the LIMIT inside of it let through                                         |
| dead_letters by id with LIMIT | walks the table in its own order and stops at the LIMIT; nothing is skipped     |

A SEARCH is bounded by what stands between its two ends; that the ends are close is shown by counting steps of SQLite's
virtual machine at scale, where time would show only how busy the machine is.
"""

import ast
import inspect
import re
import sqlite3
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from pastebin_daemon import inbox, operating, outbox, pastes
from pastebin_daemon.bodies import local
from pastebin_daemon.database import Database
from tests.driving import drive, drive_bodies, fill, traced
from tests.faulty_sqlite import FaultySqlite

PACKAGE = Path(pastes.__file__).parent
MODULES = (pastes, outbox, inbox, operating, local)
"""All that speak SQL, beside database/, whose own is pragmas and transactions."""

MANY = 20_000

Statements = dict[str, Any]
"""Each statement with the parameters of one of its runs."""
Plans = dict[str, tuple[str, ...]]


# --- taking the statements


def statements(sqlite: FaultySqlite) -> Statements:
    found = dict(sqlite.seen)
    for sql in list(found):
        if sql.split()[0] in ("begin", "savepoint", "release", "rollback", "commit"):
            del found[sql]
    return found


async def taken(directory: Path) -> dict[str, Statements]:
    async with traced(directory / "driven.sqlite", "metadata") as (database, clock, sqlite):
        await drive(database, clock)
        metadata = statements(sqlite)
    async with traced(directory / "driven-bodies.sqlite", "bodies") as (database, _, sqlite):
        await drive_bodies(database)
        bodies = statements(sqlite)
    return {"metadata": metadata, "bodies": bodies}


def transactions(module: ModuleType) -> dict[str, Callable[..., Any]]:
    """The functions that take a `tx`."""
    return {
        name: function
        for name, function in vars(module).items()
        if inspect.isfunction(function)
        and function.__module__ == module.__name__
        and next(iter(inspect.signature(function).parameters), "") == "tx"
    }


def written(module: ModuleType) -> list[str]:
    """How each statement in the source of a module begins: up to its first substitution."""
    beginnings = []
    for node in ast.walk(ast.parse(inspect.getsource(module))):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
            continue
        if node.func.attr in ("rows", "row", "changed", "changed_one"):
            sql = node.args[0]
            if isinstance(sql, ast.JoinedStr):
                sql = sql.values[0]
            assert isinstance(sql, ast.Constant), f"line {node.lineno} of {module.__name__}: SQL stands inline"
            beginnings.append(str(sql.value).strip())
    return beginnings


async def test_every_transaction_and_every_statement_is_driven(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    not_run = set()

    def watch(module: ModuleType, name: str, function: Callable[..., Any]) -> None:
        full = f"{module.__name__}.{name}"
        not_run.add(full)

        def run(*args: Any, **kwargs: Any) -> Any:
            not_run.discard(full)
            return function(*args, **kwargs)

        monkeypatch.setattr(module, name, run)

    for module in MODULES:
        for name, function in transactions(module).items():
            watch(module, name, function)
    ran = await taken(tmp_path)
    assert not_run == set()
    for module in MODULES:
        seen = ran["bodies" if module is local else "metadata"]
        for beginning in written(module):
            assert any(sql.startswith(beginning) for sql in seen), f"{module.__name__} has it, drive it: {beginning}"


def test_no_other_module_speaks_sql() -> None:
    allowed = {Path(module.__file__ or "") for module in MODULES}
    for file in sorted(PACKAGE.rglob("*.py")):
        if file not in allowed and file.parent.name != "database":
            assert not re.search(r"\btx\.(rows|row|changed|changed_one)\(|\.execute", file.read_text()), file


# --- their plans


async def plans(database: Database, found: Statements) -> Plans:
    def explain(connection: sqlite3.Connection) -> Plans:
        return {
            sql: tuple(row[3] for row in connection.execute(f"explain query plan {sql}", params))
            for sql, params in found.items()
        }

    result: Plans = await database._writer.run(explain)
    return result


BOUNDED = re.compile(r"SCAN (json_each|j) VIRTUAL TABLE INDEX 1:|SCAN totals|SCAN \(subquery-\d+\)|SCAN CONSTANT ROW")


def unbounded(sql: str, plan: tuple[str, ...]) -> list[str]:
    """The lines of a plan that read as much as there is, or sort it."""
    bad = [line for line in plan if "SCAN" in line and not BOUNDED.fullmatch(line)]
    if re.fullmatch(r"select id from dead_letters order by id limit \?", sql):
        bad.remove("SCAN dead_letters")
    whole = ("TEMP B-TREE", "AUTOMATIC", "BLOOM FILTER")  # each reads all of something before the first row comes out
    return bad + [line for line in plan if any(word in line for word in whole)]


@pytest.fixture
async def driven(tmp_path: Path) -> dict[str, Statements]:
    return await taken(tmp_path)


@pytest.mark.parametrize("schema", ["metadata", "bodies"])
@pytest.mark.parametrize(
    ("rows", "analyzed"), [(0, False), (0, True), (MANY, False), (MANY, True)],
    ids=["empty", "analyzed empty", "full", "analyzed full"],
)  # fmt: skip
async def test_no_statement_reads_a_whole_table(
    tmp_path: Path, driven: dict[str, Statements], schema: str, rows: int, analyzed: bool
) -> None:
    async with traced(tmp_path / "fresh.sqlite", schema) as (fresh, _, _):
        expected = await plans(fresh, driven[schema])
    async with traced(tmp_path / "some.sqlite", schema) as (database, _, _):
        if rows:
            await database.write(fill, schema, rows)
        if analyzed:
            await database._writer.run(lambda connection: connection.execute("analyze").fetchall())
            await database._writer.run(lambda connection: connection.execute("analyze sqlite_schema").fetchall())
        found = await plans(database, driven[schema])
    assert len(found) >= {"metadata": 40, "bodies": 4}[schema]
    for sql, plan in found.items():
        assert unbounded(sql, plan) == [], sql
        assert plan == expected[sql], f"the plan depends on what ANALYZE found: {sql}"


@pytest.mark.parametrize("schema", ["metadata", "bodies"])
async def test_what_analyze_found_in_a_small_database_is_forgotten_at_the_next_start(
    tmp_path: Path, driven: dict[str, Statements], schema: str
) -> None:
    async with traced(tmp_path / "some.sqlite", schema) as (database, _, _):
        expected = await plans(database, driven[schema])
        await database.write(fill, schema, 1)
        await database._writer.run(lambda connection: connection.execute("analyze").fetchall())
        await database._writer.run(lambda connection: connection.execute("analyze sqlite_schema").fetchall())
        assert await plans(database, driven[schema]) != expected, "if not, the next start has nothing to forget"
    async with traced(tmp_path / "some.sqlite", schema) as (database, _, _):
        assert await plans(database, driven[schema]) == expected


INDEXES = {
    r"select json_group_array\(json_array\(id, payload.* where state = 'pending'": "outbox_due (kind=? AND due_ms<?)",
    r"select json_group_array\(json_array\(id, payload.* where state = 'leased'": "outbox_leases (kind=? AND lease_ms<?)",
    "update outbox set state = 'leased'": "SEARCH outbox USING INTEGER PRIMARY KEY (rowid=?)",
    r"select json_group_array\(o.id\) from json_each": "SEARCH o USING INTEGER PRIMARY KEY (rowid=?)",
    "select 1 from outbox where state = 'leased'": "outbox_leases (kind=? AND lease_ms<?)",
    "select id, exists .* where state = 'leased'": "outbox_leases (kind=? AND lease_ms<?)",
    r"select min\(first_due_ms\) from outbox": "outbox_age",
    r"select json_group_array\(json_array\(id, object\)\) from \(": "INDEX pastes_expiry (expires_ms<?)",
    "delete from pastes where id in": "SEARCH pastes USING PRIMARY KEY (id=?)",
    "delete from uploads where object in .* started_ms": "COVERING INDEX uploads_started (started_ms<?)",
    r"select json_group_array\(json_array\(id, object\)\) from pastes where id in": "SEARCH pastes USING PRIMARY KEY (id=?)",
    r"select json_group_array\(json_array\(id, expires_ms": "SEARCH pastes USING PRIMARY KEY (id=?)",
    "select id, object, created_ms, .* from pastes": "SEARCH pastes USING PRIMARY KEY (id=?)",
    "delete from idempotency .* created_ms": "COVERING INDEX idempotency_created (created_ms<?)",
    r"select max\(outbox_id\)": "SEARCH inbox USING PRIMARY KEY (outbox_id>?)",
    "delete from inbox": "SEARCH inbox USING PRIMARY KEY (outbox_id>? AND outbox_id<?)",
    "select p.object from json_each": "COVERING INDEX sqlite_autoindex_pastes_2 (object=?)",
    r"select json_group_array\(u.object\) from json_each": "SEARCH u USING PRIMARY KEY (object=?)",
    "select i.outbox_id from json_each": "SEARCH i USING PRIMARY KEY (outbox_id=? AND consumer=?)",
}


async def test_claims_and_sweeps_go_by_the_indexes_made_for_them(tmp_path: Path, driven: dict[str, Statements]) -> None:
    async with traced(tmp_path / "some.sqlite", "metadata") as (database, _, _):
        found = await plans(database, driven["metadata"])
    for statement, index in INDEXES.items():
        matching = [plan for sql, plan in found.items() if re.match(statement, " ".join(sql.split()))]
        assert matching, statement
        for plan in matching:
            assert any(index in line for line in plan), (statement, plan)


async def test_what_a_trigger_does_is_one_row(tmp_path: Path) -> None:
    """EXPLAIN shows nothing of what triggers run, so their statements are looked at by themselves."""
    async with traced(tmp_path / "some.sqlite", "metadata") as (database, _, _):
        await database.write(fill, "metadata", 100)
        triggers = await database.read(lambda tx: tx.rows("select name, sql from sqlite_master where type = 'trigger'"))
        assert len(triggers) == 9
        for name, sql in triggers:
            body = re.fullmatch(r"CREATE TRIGGER .*? BEGIN\s(.*)END", sql, re.DOTALL)
            assert body is not None, name
            first, *others = re.sub(r"\b(new|old)\.\w+", "1", body[1]).strip().rstrip(";").split(";\n")
            assert await plans(database, {first: ()}) == {first: ("SCAN totals",)}, name
            for statement in others:
                (plan,) = (await plans(database, {statement: ()})).values()
                assert plan == ("SEARCH uploads USING PRIMARY KEY (object=?)",), name
        assert await database.read(lambda tx: tx.rows("select count(*) from totals")) == [(1,)]
