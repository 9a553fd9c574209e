"""The daemon as a program for tests: the real `serve`, wrapped at its seams, and nothing inside of it changed.

    python -m tests.child --die-at "commit inside"

There are no failpoints in the program, since everything that it does to the world happens at a seam: a transaction
given to a `Database`, a call of the body store or of the purger, an answer. Each has named points at which this process
can kill itself (SIGKILL: nothing is flushed, closed or said):

| point                   | when                                                                  |
|-------------------------|-----------------------------------------------------------------------|
| `{transaction} before`  | asked for, its group's BEGIN not yet                                  |
| `{transaction} inside`  | its statements ran, COMMIT not yet                                    |
| `{transaction} after`   | committed, whoever waits for it not yet told                          |
| `{call} before`/`after` | around the effect on the store (`store.put`) or the edge              |
| `answer {status}`       | decided, its first byte not yet sent                                  |

A transaction is named by its function, those of a dispatcher also by their kind: `commit`, `claim object-delete`. The
loops ask for some again and again; of these only the turns that have work count.
"""

import argparse
import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from pastebin_daemon import logs
from pastebin_daemon.bodies.local import LocalStore
from pastebin_daemon.cli import _loop_factory, failures_told
from pastebin_daemon.clock import SystemClock
from pastebin_daemon.config import Config, load
from pastebin_daemon.daemon import Daemon, assembled, open_purger, serve
from pastebin_daemon.database import Database, Tx
from pastebin_daemon.edge import EdgePurger
from pastebin_daemon.loops import Loop
from pastebin_daemon.outbox import Enqueued
from pastebin_daemon.web.app import App
from pastebin_daemon.web.routing import Request

CALLS = ("put", "get", "delete", "age_s")
POLLED = ("claim", "expire", "abandon")
BRISK_S = 0.05


class ChildClock(SystemClock):
    """The kernel's clocks, and how far this test is ahead of them. When time passes, all three move."""

    def __init__(self, ahead_s: float) -> None:
        self._wall_ms = int(ahead_s * 1000)
        self._passed_s = 0.0
        self.passed = False

    def now_ms(self) -> int:
        return super().now_ms() + self._wall_ms

    def monotonic(self) -> float:
        return super().monotonic() + self._passed_s

    def boottime(self) -> float:
        return super().boottime() + self._passed_s

    def let_pass(self, seconds: float) -> None:
        self._wall_ms += int(seconds * 1000)
        self._passed_s += seconds
        self.passed = True

    def step(self, seconds: float) -> None:
        """Somebody sets the clock: only the wall clock moves."""
        self._wall_ms += int(seconds * 1000)


@dataclass(frozen=True)
class Committed:
    """Emitted by every transaction that did something, so that its commit is seen before its waiter goes on."""

    name: str


class Death:
    """Comes the `count`-th time that the point `name` is reached."""

    def __init__(self, name: str, count: int) -> None:
        self._name = name
        self._left = count

    def at(self, name: str) -> None:
        if name == self._name:
            self._left -= 1
            if self._left == 0:
                os.write(sys.stderr.fileno(), f"died at: {name}\n".encode())
                os.kill(os.getpid(), signal.SIGKILL)


def name_of(function: Callable[..., Any]) -> str:
    name = getattr(function, "__name__", "").lstrip("_")
    kind = getattr(getattr(function, "__self__", None), "kind", None)
    return f"{name} {kind}" if kind else name


def watch_transactions(database: Database, clock: ChildClock, death: Death) -> None:
    has_work: set[str] = set()
    database.subscribe(Enqueued, lambda event: has_work.add(f"claim {event.kind}"))
    database.subscribe(Committed, lambda event: death.at(f"{event.name} after"))

    def watched(submit: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def run(function: Callable[..., Any], *args: Any) -> Any:
            name = name_of(function)
            polled = name.startswith(POLLED)
            if not polled or name in has_work or (clock.passed and not name.startswith("claim")):
                death.at(f"{name} before")

            def transaction(tx: Tx, *args: Any) -> Any:
                result = function(tx, *args)
                if not polled or (result[0] if isinstance(result, tuple) else result):
                    tx.emit(Committed(name))
                    death.at(f"{name} inside")
                return result

            return await submit(transaction, *args)

        return run

    vars(database).update(write=watched(database.write), grow=watched(database.grow))


def watch_calls(target: object, prefix: str, names: tuple[str, ...], death: Death) -> None:
    def watched(name: str, call: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def run(*args: Any) -> Any:
            death.at(f"{prefix}.{name} before")
            result = await call(*args)
            death.at(f"{prefix}.{name} after")
            return result

        return run

    vars(target).update({name: watched(name, getattr(target, name)) for name in names})


def watch_answers(app: App, death: Death) -> None:
    decide = app.answer

    async def answer(request: Request) -> web.StreamResponse:
        response = await decide(request)
        death.at(f"answer {response.status}")
        return response

    vars(app).update(answer=answer)


def hasten(daemon: Daemon, clock: ChildClock) -> None:
    """Turn the sweepers as often as the dispatchers."""
    daemon.loops[:] = [
        *(loop for loop in daemon.loops if not loop.name.startswith("sweep ")),
        *(Loop(f"sweep {name}", sweeper.tick, BRISK_S, 60.0, clock) for name, sweeper in daemon.sweepers.items()),
    ]


def add_stuck_loop(daemon: Daemon, clock: ChildClock) -> None:
    daemon.loops.append(Loop("the stuck one", asyncio.Event().wait, BRISK_S, 0.5, clock))


async def set_synchronous(database: Database, mode: str) -> None:
    await database._writer.run(lambda connection: connection.execute(f"pragma synchronous = {mode}").fetchall())


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tests.child")
    parser.add_argument("--die-at", default="", help="the name of a point")
    parser.add_argument("--die-on", type=int, default=1, help="the time at which it is reached that counts")
    parser.add_argument("--ahead", type=float, default=0.0, help="how far the wall clock is ahead, in seconds")
    parser.add_argument("--jump", type=float, default=7200.0, help="how much time passes at a SIGUSR1, in seconds")
    parser.add_argument("--step", type=float, default=0.0, help="by how much a SIGUSR2 sets the clock, in seconds")
    parser.add_argument("--brisk", action="store_true", help="turn the sweepers every 50 ms")
    parser.add_argument("--stuck", action="store_true", help="have one more loop, which hangs")
    parser.add_argument("--synchronous", default="", help="in the place of FULL")
    return parser.parse_args()


def main() -> None:
    options = arguments()
    clock = ChildClock(options.ahead)
    death = Death(options.die_at, options.die_on)

    @asynccontextmanager
    async def purger_watched(config: Config, clock: ChildClock) -> AsyncIterator[EdgePurger | None]:
        async with open_purger(config, clock) as purger:
            if purger is not None:
                watch_calls(purger, "edge", ("purge",), death)
            yield purger

    @asynccontextmanager
    async def assemble(config: Config, environ: Mapping[str, str]) -> AsyncIterator[Daemon]:
        asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, clock.let_pass, options.jump)
        asyncio.get_running_loop().add_signal_handler(signal.SIGUSR2, clock.step, options.step)
        async with assembled(config, environ, clock=clock, open_purger=purger_watched) as daemon:
            databases = [daemon.database]
            if isinstance(daemon.store, LocalStore):
                databases.append(daemon.store.database)
            for database in databases:
                watch_transactions(database, clock, death)
                if options.synchronous:
                    await set_synchronous(database, options.synchronous)
            watch_calls(daemon.store, "store", CALLS, death)
            watch_answers(daemon.public, death)
            if options.brisk:
                hasten(daemon, clock)
            if options.stuck:
                add_stuck_loop(daemon, clock)
            yield daemon

    with failures_told():
        config = load(None, os.environ)
        logs.configure(config.log.format, config.log.level)
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            runner.run(serve(config, os.environ, lambda line: print(line, flush=True), assemble=assemble))


if __name__ == "__main__":
    main()
