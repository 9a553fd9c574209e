"""The daemon as a child process, with a state directory and ports of its own.

    async with child(tmp_path, {"outbox.poll_interval": "50ms"}, options=["--die-at", "commit inside"]) as it:
        async with it.http() as http: ...
        assert await it.ended() == -signal.SIGKILL

It is configured by the environment alone and listens where the kernel finds free ports. It can't outlive the test: the
helper kills what is left, and the kernel kills it when the test's process dies (PDEATHSIG).
"""

import asyncio
import os
import re
import signal
import sqlite3
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.real import require

__all__ = ["ROOT", "Child", "Done", "child", "command", "environment", "python", "rows"]

ROOT = Path(__file__).parent.parent
START_S = 60.0
END_S = 60.0
_ANNOUNCED = re.compile(r"pastebin-daemon: public on (.+), admin on (.+), state in (.+)\n")


def environment(settings: Mapping[str, object]) -> dict[str, str]:
    """This process's environment with nothing in it that is meant for a daemon, and the settings."""
    inherited = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PASTEBIN_", "LISTEN_", "WATCHDOG_"))
        and name not in ("NOTIFY_SOCKET", "STATE_DIRECTORY")
    }
    return inherited | {f"PASTEBIN_{key.upper().replace('.', '__')}": str(value) for key, value in settings.items()}


def python(*arguments: str) -> list[str]:
    """A command that runs Python in a process that the kernel ends with its parent."""
    return [require("setpriv"), "--pdeathsig", "KILL", "--", sys.executable, *arguments]


class Child:
    def __init__(self, process: asyncio.subprocess.Process, directory: Path) -> None:
        self.process = process
        self.directory = directory
        self.log_path = directory / "log"
        self.url = ""
        self.admin = ""

    def log(self) -> str:
        return self.log_path.read_text(errors="replace")

    async def announced(self) -> None:
        """Wait until it says where it listens."""
        assert self.process.stdout is not None
        async with asyncio.timeout(START_S):
            line = (await self.process.stdout.readline()).decode()
        found = _ANNOUNCED.fullmatch(line)
        assert found, f"said {line!r} instead of where it listens\n{self.log()}"
        self.url, self.admin = found[1], found[2]

    def send(self, number: signal.Signals, pid: int | None = None) -> None:
        """To the process that was started, or to the daemon's own when that is another (behind a `wrapper`)."""
        os.kill(pid or self.process.pid, number)

    async def ended(self, limit_s: float = END_S) -> int:
        """Its exit status; a signal's is negative."""
        async with asyncio.timeout(limit_s):
            return await self.process.wait()


def rows(path: Path, sql: str, *params: object) -> list[tuple[Any, ...]]:
    """Look into a database, whether a daemon is running on it, was killed, or has stopped."""
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=10)) as connection:
        return connection.execute(sql, params).fetchall()


@dataclass(frozen=True)
class Done:
    """How a command ended, and what it wrote."""

    status: int
    out: str
    err: str


async def command(*arguments: str, environ: Mapping[str, str] | None = None, stdin: bytes = b"") -> Done:
    """Run `pastebin-daemon` with these arguments, and wait for its end."""
    process = await asyncio.create_subprocess_exec(
        *python("-m", "pastebin_daemon", *arguments),
        cwd=ROOT, env=environment({}) | dict(environ or {}),
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        async with asyncio.timeout(END_S):
            out, err = await process.communicate(stdin)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode is not None
    return Done(process.returncode, out.decode(), err.decode())


@asynccontextmanager
async def child(
    directory: Path,
    settings: Mapping[str, object] | None = None,
    *,
    options: Sequence[str] = (),
    environ: Mapping[str, str] | None = None,
    wrapper: Sequence[str] = (),
    waits: bool = True,
    program: Sequence[str] = ("tests.child",),
) -> AsyncIterator[Child]:
    """`options` are tests.child's, `wrapper` a command that runs it. With `waits`, it has said where it listens.

    `program`: the module to run and its arguments, where the seams must cost nothing.
    """
    given = {
        "server.listen": "127.0.0.1:0",
        "admin.listen": "127.0.0.1:0",
        "storage.directory": directory / "state",
        "limits.creates_per_minute": 0,
    } | dict(settings or {})
    with (directory / "log").open("ab") as log:
        process = await asyncio.create_subprocess_exec(
            *wrapper, *python("-m", *program, *options),
            cwd=ROOT, env=environment(given) | dict(environ or {}),
            stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=log,
        )  # fmt: skip
    it = Child(process, directory)
    try:
        if waits:
            await it.announced()
        yield it
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
