"""A transaction as its function sees it."""

import sqlite3
from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["Params", "Row", "Tx"]

Params = Sequence[Any] | Mapping[str, Any]
Row = tuple[Any, ...]


class Tx:
    """One transaction at one instant. Valid only inside the function that it was given to.

    `now_ms` is the instant, read once after the write lock was taken.
    """

    __slots__ = ("_connection", "events", "now_ms")

    def __init__(self, connection: sqlite3.Connection, now_ms: int) -> None:
        self._connection = connection
        self.now_ms = now_ms
        self.events: list[object] = []

    def rows(self, sql: str, params: Params = ()) -> list[Row]:
        """Every row at once: a cursor left half read would pin the WAL. So the SQL bounds itself with a LIMIT."""
        return self._connection.execute(sql, params).fetchall()

    def row(self, sql: str, params: Params = ()) -> Row | None:
        """The only row, or None."""
        found = self._connection.execute(sql, params).fetchall()
        assert len(found) <= 1, sql
        return found[0] if found else None

    def changed(self, sql: str, params: Params = ()) -> int:
        """How many rows the statement inserted, updated or deleted (triggers not counted)."""
        return self._connection.execute(sql, params).rowcount

    def changed_one(self, sql: str, params: Params = ()) -> bool:
        """Whether the statement changed its one row."""
        count = self.changed(sql, params)
        assert count <= 1, sql
        return count == 1

    def fill_blob(self, table: str, column: str, rowid: int, content: bytes) -> None:
        """Write what a statement has left room for with `zeroblob(length)`. A parameter would be copied twice on its way:
        when it is bound, and into the record of its row."""
        with self._connection.blobopen(table, column, rowid) as blob:
            blob.write(content)

    def emit(self, event: object) -> None:
        """Say what happened. Subscribers hear of it if, and only if, this transaction commits."""
        self.events.append(event)
