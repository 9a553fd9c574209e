"""What the state machines share: a real SQLite in memory, one instant for each transaction, and how long they search.

In CI each machine runs a fixed set of stories (derandomized), the same every time. By hand, as many as you have time for:

    PASTEBIN_STORIES=20000 pytest -q tests/test_machine_of_jobs.py tests/test_machine_of_pastes.py

Those are random; hypothesis prints the shortest story that it found, as a program that replays it.
"""

import os
import sqlite3
from collections.abc import Callable
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine

from pastebin_daemon.database import Tx
from pastebin_daemon.database.migrate import bring_up

__all__ = ["SETTINGS", "START_MS", "Machine"]

START_MS = 1_700_000_000_000
_STORIES = os.environ.get("PASTEBIN_STORIES")

SETTINGS = settings(
    max_examples=int(_STORIES or 400), stateful_step_count=40, deadline=None, derandomize=_STORIES is None, database=None,
    suppress_health_check=list(HealthCheck), print_blob=True,
)  # fmt: skip


class Machine(RuleBasedStateMachine):
    """One story: a database that begins empty, and a clock that the story turns."""

    def __init__(self) -> None:
        super().__init__()
        self.now_ms = START_MS
        self.connection = sqlite3.connect(":memory:", isolation_level=None)
        bring_up(self.connection, "metadata")

    def teardown(self) -> None:
        self.connection.close()

    def write(self, function: Callable[..., Any], *args: Any) -> tuple[Any, list[object]]:
        """The result and the events, or raises what the function raised, all of it undone."""
        self.connection.execute("begin immediate")
        tx = Tx(self.connection, self.now_ms)
        try:
            result = function(tx, *args)
        except BaseException:
            self.connection.execute("rollback")
            raise
        self.connection.execute("commit")
        return result, tx.events

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        return self.connection.execute(sql).fetchall()
