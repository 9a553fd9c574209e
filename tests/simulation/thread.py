"""The database's thread without a thread: what is posted to it runs in the simulated loop, in its order, when the seed says.

It stands in the place of aiosqlite's connection under the real `Lane`, so that the real `Database` and group commit run
and no thread escapes the simulated clock. A function that was posted runs whole, between two callbacks of the loop, as a
transaction runs beside a loop that waits; that it has ended is heard of later. A kill in between leaves it committed and
nobody told.
"""

import asyncio
import sqlite3
from collections import deque
from collections.abc import Callable, Generator
from typing import Any

from tests.simulation.loop import LIFE, Life, SimLoop

__all__ = ["InlineThread"]


class InlineThread:
    """What `Lane` uses of aiosqlite's connection. Belongs to the life in which it was made."""

    delay: Callable[[], float] = staticmethod(lambda: 0.0)
    """How long the thread takes until it does the next piece of work, in seconds."""

    def __init__(self, connector: Callable[[], sqlite3.Connection], iter_chunk_size: int) -> None:
        self._connector = connector
        self._conn: sqlite3.Connection
        self._free_at = 0.0
        self._posted: deque[tuple[asyncio.TimerHandle, Callable[[], Any]]] = deque()
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimLoop)
        self._loop = loop
        life = LIFE.get()
        assert life is not None
        self._life: Life = life
        self.begins: Callable[[], None] | None = None
        self.has_changed: Callable[[sqlite3.Connection], None] | None = None
        """Hears of each commit that changed something, in the step in which it happened."""

    def __await__(self) -> Generator[None, None, "InlineThread"]:
        self._conn = self._connector()
        yield from ()
        return self

    def post(self, function: Callable[[], Any]) -> None:
        self._free_at = max(self._loop.now + self.delay(), self._free_at + 1e-9)
        handle = self._loop.call_at(self._free_at, self._run, function, context=self._life.context)
        self._posted.append((handle, function))

    def _run(self, function: Callable[[], Any]) -> None:
        self._posted.popleft()
        if self.has_changed is None or self.begins is None:
            function()
            return
        changes = self._conn.total_changes
        self.begins()
        function()
        if self._conn.total_changes != changes:
            if (
                self._conn.in_transaction
            ):  # its COMMIT failed: no one uses the handle again, and at the end this goes back
                self._conn.execute("rollback")
            self.has_changed(self._conn)

    def join(self) -> None:
        pass

    async def close(self) -> None:
        """As on a thread: what was posted before is done first, also after a standstill, when all is due at once."""
        while self._posted:
            handle, function = self._posted[0]
            handle.cancel()
            self._run(function)
        self._conn.close()
