"""The embedded body store: a second SQLite file beside the metadata, with the same group commit.

One file, since fsyncing a file for each body costs four times as much (25,000 durable puts of 4 KiB a second here,
5,800 with files), and since a second file can be copied, measured and vacuumed by the same means as the first. It is a
file of its own so that bodies do not push metadata out of the page cache, and so that the daemon treats it like any
other store: nothing is committed across the two.

A row table with its key beside it: bodies go to overflow pages in the order in which they came, and a lookup by key
reads one index page path and then exactly the body.
"""

import json
import sqlite3
from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from itertools import chain
from pathlib import Path

from pastebin_daemon.bodies import Deletion
from pastebin_daemon.clock import Clock
from pastebin_daemon.database import Database, Tx, batched_by, only, open_database
from pastebin_daemon.errors import Busy, DatabaseUnavailable, StorageFull, Temporary

__all__ = ["LocalStore", "open_local"]

BATCH_BYTES = 64 * 1024
"""Larger bodies are put one by one, so that the writer can look at its time in between, and without a copy of them."""
DELETE_AT_ONCE = 32
"""Objects in a transaction: each is overwritten (secure_delete), so one of 1 MiB writes as much, and puts wait for it."""


class LocalStore:
    """`put` also raises `StorageFull`: unlike a bucket, this store's disk is the operator's own, and can be full."""

    def __init__(self, database: Database) -> None:
        self.database = database

    async def put(self, key: str, body: bytes) -> None:
        try:
            await self.database.grow(_insert if len(body) <= BATCH_BYTES else _insert_large, key, body)
        except sqlite3.IntegrityError as error:
            raise Temporary(f"the object {key} is there already") from error
        except (Busy, DatabaseUnavailable, sqlite3.Error) as error:
            raise Temporary(str(error)) from error

    async def get(self, key: str) -> bytes | None:
        try:
            return await self.database.read(_select, key)
        except (Busy, DatabaseUnavailable) as error:
            raise Temporary(str(error)) from error

    async def delete(self, keys: Sequence[str]) -> Mapping[str, Deletion]:
        results: dict[str, Deletion] = {}
        waiting = deque(keys[start : start + DELETE_AT_ONCE] for start in range(0, len(keys), DELETE_AT_ONCE))
        while waiting:
            some = waiting.popleft()
            try:
                removed = await self.database.write(_remove, some)
            except StorageFull as error:
                if len(some) > 1:  # overwriting them all takes room: one by one takes less of it
                    waiting.extendleft([key] for key in reversed(some))
                    continue
                # No job is to blame for a full disk: the consumer waits, and no attempt is lost.
                return results | dict.fromkeys(chain(some, *waiting), Temporary(str(error), throttled=True))
            except (Busy, DatabaseUnavailable, sqlite3.Error) as error:
                return results | dict.fromkeys(chain(some, *waiting), Temporary(str(error)))
            results |= {key: "deleted" if key in removed else "missing" for key in some}
        return results

    async def age_s(self, key: str) -> float | None:
        try:
            return await self.database.read(_age_s, key)
        except (Busy, DatabaseUnavailable) as error:
            raise Temporary(str(error)) from error


def _insert_all(tx: Tx, calls: Sequence[tuple[str, bytes]]) -> list[None]:
    """All bodies in one value, since JSON can't hold them, and where in it each of them is."""
    places = []
    start = 1
    for key, body in calls:
        places.append((key, start, len(body)))
        start += len(body)
    tx.changed(
        "insert into objects (key, stored_ms, body)"
        " select value ->> 0, ?, substr(?, value ->> 1, value ->> 2) from json_each(?)",
        (tx.now_ms, b"".join(body for _, body in calls), json.dumps(places)),
    )
    return [None] * len(calls)


def _insert_large(tx: Tx, key: str, body: bytes) -> None:
    ((row,),) = tx.rows(
        "insert into objects (key, stored_ms, body) values (?, ?, zeroblob(?)) returning rowid",
        (key, tx.now_ms, len(body)),
    )
    tx.fill_blob("objects", "body", row, body)


@batched_by(_insert_all)
def _insert(tx: Tx, key: str, body: bytes) -> None:
    only(_insert_all(tx, [(key, body)]))


def _select_all(tx: Tx, calls: Sequence[tuple[str]]) -> list[bytes | None]:
    keys = [key for (key,) in calls]
    found: dict[str, bytes] = dict(
        tx.rows("select o.key, o.body from json_each(?) j cross join objects o on o.key = j.value", (json.dumps(keys),))
    )
    return [found.get(key) for key in keys]


@batched_by(_select_all)
def _select(tx: Tx, key: str) -> bytes | None:
    return only(_select_all(tx, [(key,)]))


def _remove(tx: Tx, keys: Sequence[str]) -> set[str]:
    ((found,),) = tx.rows(
        "select json_group_array(key) from objects where key in (select value from json_each(?))",
        (json.dumps(list(keys)),),
    )
    tx.changed("delete from objects where key in (select value from json_each(?))", (found,))
    return set(json.loads(found))


def _age_s(tx: Tx, key: str) -> float | None:
    row = tx.row("select stored_ms from objects where key = ?", (key,))
    return None if row is None else max(0, tx.now_ms - row[0]) / 1000


@asynccontextmanager
async def open_local(path: Path, clock: Clock) -> AsyncIterator[LocalStore]:
    """Open or make the file. Raises `StartError`."""
    async with open_database(path, "bodies", clock) as database:
        yield LocalStore(database)
