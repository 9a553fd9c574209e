"""What a claim, a sweep or a look at the totals costs does not grow with what else is in the tables.

Counted are the instructions of SQLite's virtual machine, on a database with 200,000 rows of each kind that must not
matter, and on one without them. Time would show how busy the machine is.
"""

import sqlite3
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import pytest_asyncio

from pastebin_daemon import inbox, operating, outbox, pastes
from pastebin_daemon.database import Database, Tx
from tests.driving import fill, traced
from tests.fakes import START_MS

MANY = 200_000
OWN = 300
KIND = outbox.EDGE_PURGE


def fill_own(tx: Tx) -> None:
    """Rows that the transactions below are for. Jobs are due after the others, and leases over after theirs."""
    for number in range(OWN):
        tx.changed(
            "insert into outbox (kind, payload, created_ms, first_due_ms, due_ms) values (?, '{}', 1, 1, ?)",
            (KIND, START_MS),
        )
        tx.changed(
            "insert into outbox (kind, payload, created_ms, first_due_ms, due_ms, state, attempts, generation, owner,"
            " lease_ms) values ('object-delete', '{}', 1, 1, 1, 'leased', 8, 8, 'gone', ?)",
            (START_MS,),
        )
        tx.changed(
            "insert into pastes values (?, ?, 1, 2, 1, zeroblob(32), 1, null, null, zeroblob(32))",
            (f"own{number:015}", f"own{number}"),
        )
        tx.changed("insert into uploads values (?, ?, 1)", (f"own{number}", f"own{number:015}"))
        tx.changed("insert into idempotency values (?, zeroblob(32), 'x', 1)", (b"own%029d" % number,))
        tx.changed("insert into inbox values (?, 1, 1)", (-number,))


class Undone(Exception):
    """Ends a transaction that was only to be counted."""

    def __init__(self, result: object) -> None:
        self.result = result


class Counted:
    """A database whose transactions are counted and undone."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def steps(self, function: Callable[..., Any], *args: object) -> tuple[object, int]:
        steps = 0

        def step() -> None:
            nonlocal steps
            steps += 1

        def set_handler(handler: Callable[[], None] | None) -> Callable[[sqlite3.Connection], None]:
            return lambda connection: connection.set_progress_handler(handler, 1)

        def run(tx: Tx) -> None:
            raise Undone(function(tx, *args))

        await self._database._writer.run(set_handler(step))
        with pytest.raises(Undone) as undone:
            await self._database.write(run)
        await self._database._writer.run(set_handler(None))
        return undone.value.result, steps


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def few(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Counted]:
    async with traced(tmp_path_factory.mktemp("few") / "some.sqlite", "metadata") as (database, _, _):
        await database.write(fill_own)
        yield Counted(database)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def many(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Counted]:
    async with traced(tmp_path_factory.mktemp("many") / "some.sqlite", "metadata") as (database, _, _):
        await database.write(fill, "metadata", MANY)
        await database.write(fill_own)
        yield Counted(database)


def claimed(tx: Tx) -> int:
    return len(outbox.claim(tx, KIND, "me", 60_000, 100))


def reclaimed(tx: Tx) -> int:
    return len(outbox.reclaim(tx, "object-delete", "me", 60_000, 100))


def buried(tx: Tx) -> int:
    return len(outbox.bury_exhausted(tx, "object-delete", 1, 8, 100)[1])


def settled(tx: Tx) -> int:
    claims = outbox.claim(tx, KIND, "me", 60_000, 40)
    inbox.record(tx, 1, [claim.job for claim in claims[:10]])
    return sum(
        map(
            len,
            (
                outbox.ack(tx, "me", claims[:10]),
                outbox.retry(tx, "me", [(claim, 5, "no") for claim in claims[10:20]]),
                outbox.give_back(tx, "me", [(claim, "no") for claim in claims[20:30]]),
                outbox.bury(tx, "me", [(claim, "poison", "no") for claim in claims[30:]]),
            ),
        )
    )


TRANSACTIONS: dict[str, tuple[Callable[..., Any], tuple[object, ...], object]] = {
    "claim": (claimed, (), 100),
    "reclaim": (reclaimed, (), 1),
    "bury exhausted": (buried, (), 100),
    "expired kinds": (outbox.expired_kinds, (("reap", "object-delete"),), ["object-delete"]),
    "settle": (settled, (), 40),
    "expire": (pastes.expire, (100, START_MS + 10**9), 100),
    "abandon": (pastes.abandon, (3_600_000, 100), 100),
    "forget keys": (pastes.sweep_idempotency, (3_600_000, 100), 100),
    "sweep the inbox": (inbox.sweep, (-10_000, 3_600_000, 100), (100, -200)),
    "live objects": (pastes.live_objects, (["own1", "nothing"],), {"own1"}),
    "uploading": (pastes.uploading, (["own1", "nothing"],), {"own1"}),
    "dead ids": (lambda tx: len(operating.dead_ids(tx)) in (0, 500), (), True),
    "unknown kinds": (outbox.unknown_kinds, (outbox.KINDS,), []),
    "age of the oldest": (lambda tx: operating.totals(tx).oldest_age_ms, (), START_MS - 1),
}


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("name", TRANSACTIONS)
async def test_the_cost_does_not_grow_with_what_else_is_there(few: Counted, many: Counted, name: str) -> None:
    function, args, expected = TRANSACTIONS[name]
    result, alone = await few.steps(function, *args)
    assert result == expected
    result, among_many = await many.steps(function, *args)
    assert result == expected
    assert among_many < 1.2 * alone + 2000, "200,000 rows that are looked at are more steps than these"
