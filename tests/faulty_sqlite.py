"""A SQLite that fails when a test says so, and that stands still when a test says so.

    sqlite = FaultySqlite()
    async with open_database(path, "bodies", clock, connect=sqlite.connect) as database:
        sqlite.fail("commit", "SQLITE_IOERR")            # the next COMMIT raises, and what it did is not known
        sqlite.fail("insert", "SQLITE_FULL", times=2)    # so do the next two statements that begin so
        async with stalled(database):                    # what is submitted here waits, and is taken together
            ...

The connection is the interpreter's own; only `execute` looks at the script first. All statements are kept in `seen`,
with their parameters.
"""

import asyncio
import sqlite3
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pastebin_daemon.database import Database, Tx

__all__ = ["FaultySqlite", "sqlite_error", "stalled"]

STALL_MAX_S = 60.0
_connect = sqlite3.connect  # also where a test has put this in the place of it


def sqlite_error(name: str) -> sqlite3.OperationalError:
    """An error as the driver raises it, such as `SQLITE_IOERR`."""
    error = sqlite3.OperationalError(f"scripted {name}")
    error.sqlite_errorname = name
    error.sqlite_errorcode = getattr(sqlite3, name)
    return error


@dataclass
class _Fault:
    beginning: str
    after: int
    times: int
    rolls_back: bool
    error: Callable[[], BaseException]


class FaultySqlite:
    def __init__(self, *, busy_timeout_ms: int | None = None) -> None:
        """`busy_timeout_ms` stands in for the one that the program sets, so that a test need not wait for it."""
        self.seen: list[tuple[str, Any]] = []
        self._busy_timeout_ms = busy_timeout_ms
        self._faults: list[_Fault] = []

    def fail(
        self,
        beginning: str,
        name: str,
        *,
        after: int = 0,
        times: int = 1,
        rolls_back: bool = False,
        error: Callable[[], BaseException] | None = None,
    ) -> None:
        """Of the statements that begin so, the first `after` run and the next `times` raise instead.

        `rolls_back`: SQLite ends the transaction by itself, as it does for some errors. `error`: what the driver raises
        in the place of an error with that name.
        """
        self._faults.append(_Fault(beginning, after, times, rolls_back, error or (lambda: sqlite_error(name))))

    def connect(self, path: Path) -> sqlite3.Connection:
        connection = _connect(
            path, isolation_level=None, cached_statements=256, check_same_thread=False, factory=_Connection
        )
        connection.script = self
        return connection

    def meet(self, connection: sqlite3.Connection, sql: str, params: Any) -> str:
        """The statement to run in its place. Raises what was scripted."""
        text = sql.strip()
        self.seen.append((text, params))
        for fault in self._faults:
            if not text.startswith(fault.beginning):
                continue
            if fault.after:
                fault.after -= 1
            elif fault.times:
                fault.times -= 1
                if fault.rolls_back:
                    sqlite3.Connection.execute(connection, "rollback")
                raise fault.error()
        if self._busy_timeout_ms is not None and text.startswith("pragma busy_timeout"):
            return f"pragma busy_timeout = {self._busy_timeout_ms}"
        return sql


class _Connection(sqlite3.Connection):
    script: FaultySqlite

    def execute(self, sql: str, parameters: Any = (), /) -> sqlite3.Cursor:
        return super().execute(self.script.meet(self, sql, parameters), parameters)

    def executescript(self, sql_script: str, /) -> sqlite3.Cursor:
        return super().executescript(self.script.meet(self, sql_script, ()))


@asynccontextmanager
async def stalled(database: Database) -> AsyncIterator[None]:
    """The writer's thread stands inside a transaction of its own; what is submitted meanwhile waits."""
    loop = asyncio.get_running_loop()
    reached, go = asyncio.Event(), threading.Event()

    def stand(tx: Tx) -> None:
        loop.call_soon_threadsafe(reached.set)
        assert go.wait(STALL_MAX_S)

    standing = asyncio.create_task(database.write(stand))
    await reached.wait()
    try:
        yield
    finally:
        go.set()
        await standing
