"""What the schedules of one process share: a scratch directory in memory, a database to begin with, configurations that
were drawn before, and a connection whose COMMIT can fail."""

import functools
import gc
import shutil
import sqlite3
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pastebin_daemon import daemon
from pastebin_daemon.config import Config
from pastebin_daemon.database import database as files
from pastebin_daemon.database import lane
from tests.simulation.thread import InlineThread
from tests.support import configured

__all__ = ["SWEEP_MAX_S", "Connection", "Workshop", "config_of"]

SWEEP_MAX_S = 15.0
"""The longest interval of a sweeper here."""


class Connection(sqlite3.Connection):
    """Its COMMIT may fail, and then does not say whether it happened."""

    fault: Callable[[], str] = staticmethod(lambda: "")

    def execute(self, sql: str, parameters: Any = (), /) -> sqlite3.Cursor:
        if sql == "commit" and self.total_changes:
            match self.fault():
                case "done":
                    super().execute(sql)
                    raise _error("SQLITE_IOERR")
                case "undone":
                    raise _error("SQLITE_IOERR")
                case "full":
                    raise _error("SQLITE_FULL")
        return super().execute(sql, parameters)


def _error(name: str) -> sqlite3.OperationalError:
    error = sqlite3.OperationalError(f"simulated {name}")
    error.sqlite_errorname, error.sqlite_errorcode = name, getattr(sqlite3, name)
    return error


class Workshop:
    """What all schedules of this process share: a scratch directory in memory, and a database to begin with."""

    def __init__(self) -> None:
        shm = Path("/dev/shm")
        self.directory = Path(tempfile.mkdtemp(prefix="pastebin-simulation-", dir=shm if shm.is_dir() else None))
        self.template = self.directory / "template.sqlite"
        connection = files.connect(self.template)
        files._prepare_writer("metadata")(connection)
        connection.close()
        vars(lane)["_Connection"] = InlineThread  # no thread escapes the simulated clock
        files.RESERVE_BYTES = 4096
        daemon.TEND_S = SWEEP_MAX_S
        gc.collect()
        gc.freeze()
        gc.disable()
        self._ran = 0

    def path(self) -> Path:
        self._ran += 1
        if self._ran % 200 == 0:
            gc.collect()
        path = self.directory / "pastebin.sqlite"
        for leftover in self.directory.glob("pastebin.sqlite*"):
            leftover.unlink()
        shutil.copyfile(self.template, path)
        return path

    def close(self) -> None:
        shutil.rmtree(self.directory)


@functools.lru_cache(maxsize=4096)
def config_of(
    lease: str, effect: str, poll: str, batch: int, attempts: int, span: str, window: str, kept: str
) -> Config:
    return configured(
        Path("/nowhere"),
        {
            "outbox.lease": lease, "outbox.effect_timeout": effect, "outbox.poll_interval": poll, "outbox.batch": batch,
            "outbox.attempts_max": attempts, "outbox.retry_span": span, "outbox.replay_window": window,
            "inbox.retention": kept, "edge.driver": "http", "edge.http.url": "http://127.0.0.1:1{path}",
        },
    )  # fmt: skip
