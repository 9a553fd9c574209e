"""Colours for a text, within a time that nobody notices, whatever the text is: or none.

One child process (highlight_child.py) does it, one text at a time. It guarantees:

- **No caller waits longer than `LIMIT_S`**, for the child's start, for its turn and for the answer together. What is not
  there by then is None, and the caller shows the plain text.
- **A child that does not answer in time is killed** (its text did that, and may do it again); one that only started
  slowly, or worked for somebody else, is not.
- It is started by the first text that wants it, and ends after `IDLE_S` without one: an idle daemon pays nothing.
- The child gets no secret: its environment has a path to import from, and nothing else.

| child | text comes        | answer  | limit over      | idle        | it dies                             |
|-------|-------------------|---------|-----------------|-------------|-------------------------------------|
| none  | start it, → busy  | -       | -               | -           | -                                   |
| busy  | wait for the turn | → ready | kill it, → none | -           | None, → none                        |
| ready | → busy            | -       | -               | end, → none | the next text starts another, → busy|

A child that dies or can't be started is logged, and costs the colours alone.
"""

import asyncio
import json
import os
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from pastebin_daemon.logs import get_logger

__all__ = ["IDLE_S", "LIMIT_S", "Coloured", "Highlighter"]

log = get_logger()

LIMIT_S = 0.7
"""A page is there within a second."""
SOFT_S = 0.35
"""After this the child leaves the rest of a text plain."""
IDLE_S = 60.0
START_S = 10.0
TEXT_BYTES_MAX = 2 << 20
HTML_BYTES_MAX = 32 << 20
COMMAND = (sys.executable, "-P", "-m", "pastebin_daemon.highlight_child")


@dataclass(frozen=True, slots=True)
class Coloured:
    html: str
    """Lines of HTML, split by newlines as the text is; of markdown, the document."""
    language: str
    """Its name as Pygments spells it; "" when none is known."""


class Highlighter:
    def __init__(self, command: Sequence[str] = COMMAND, *, idle_s: float = IDLE_S) -> None:
        self._command = command
        self._idle_s = idle_s
        self._turn = asyncio.Lock()
        self._child: asyncio.Task[Process] | None = None
        self._idle: asyncio.TimerHandle | None = None
        self._ending: set[asyncio.Task[int]] = set()

    @property
    def pid(self) -> int | None:
        """Of the child that is there, starting or not."""
        child = self._child
        if child is None or not child.done() or child.cancelled() or child.exception() is not None:
            return None
        return child.result().pid

    async def __call__(
        self, text: bytes, language: str, name: str, work: Literal["highlight", "markdown"] = "highlight"
    ) -> Coloured | None:
        """`text` is UTF-8; `language` is what was asked for, `name` the file's, "" for neither."""
        if len(text) > TEXT_BYTES_MAX:
            return None
        asked = {"work": work, "language": language, "name": name, "soft_s": SOFT_S, "bytes": len(text)}
        try:
            async with asyncio.timeout(LIMIT_S):
                async with self._turn:
                    process = await self._ready()
                    return await self._ask(process, json.dumps(asked).encode() + b"\n" + text)
        except TimeoutError:
            log.info("highlighting.given_up", language=language, bytes=len(text), limit_s=LIMIT_S)
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError) as error:
            log.warning("highlighting.failed", language=language, bytes=len(text), error=repr(error))
        return None

    async def close(self) -> None:
        """End the child, and wait until it has."""
        child, self._child = self._child, None
        if self._idle is not None:
            self._idle.cancel()
        if child is not None:
            if child.done() and child.exception() is None:
                self._kill(child.result())
            child.cancel()
            await asyncio.gather(child, return_exceptions=True)
        await asyncio.gather(*self._ending)

    async def _ready(self) -> Process:
        """The child, started if need be. Who is cancelled here leaves it starting, for the next one."""
        if self._idle is not None:
            self._idle.cancel()
        child = self._child
        if child is not None and child.done() and (child.exception() or child.result().returncode is not None):
            child = None
        if child is None:
            child = self._child = asyncio.create_task(self._start(), name="highlighter")
            child.add_done_callback(lambda task: None if task.cancelled() else task.exception())
        return await asyncio.shield(child)

    async def _start(self) -> Process:
        environment = {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path), "LC_ALL": "C.UTF-8"}
        process = await asyncio.create_subprocess_exec(
            *self._command, stdin=PIPE, stdout=PIPE, stderr=DEVNULL, env=environment
        )
        assert process.stdout is not None
        try:
            async with asyncio.timeout(START_S):
                await process.stdout.readexactly(len(b"ready\n"))
        except BaseException:
            self._kill(process)
            raise
        return process

    async def _ask(self, process: Process, request: bytes) -> Coloured:
        """One question and its answer. Whatever cuts it off kills the child: half an answer would be the next one's."""
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(request)
            await process.stdin.drain()
            count, _, language = (await process.stdout.readuntil(b"\n")).decode().rstrip("\n").partition(" ")
            if int(count) > HTML_BYTES_MAX:
                raise ValueError("the answer is too long")
            body = await process.stdout.readexactly(int(count))
        except BaseException:
            self._kill(process)
            raise
        self._idle = asyncio.get_running_loop().call_later(self._idle_s, _end, process)
        return Coloured(body.decode(), language)

    def _kill(self, process: Process) -> None:
        """It is waited for beside everything else, so that no zombie and no pipe stays."""
        if process.returncode is None:
            process.kill()
        task = asyncio.create_task(process.wait())
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)


def _end(process: Process) -> None:
    """By the end of its input: it is idle, so it goes at once."""
    if process.stdin is not None:
        process.stdin.close()
