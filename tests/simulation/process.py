"""The daemon without its listeners: the real parts, wired as daemon.py wires them, in one life on the simulated loop.

What is replaced: the clocks, the thread of each connection, the store and the edge. What is left out: HTTP. A request is
a task of the process, and its answer is decided in the step in which its handler returns, as the first byte of a real
answer is written in that step.
"""

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, cast

from pastebin_daemon.config import Config
from pastebin_daemon.creation import Creation
from pastebin_daemon.daemon import FETCH_MARGIN_S, _dispatchers, _follow_commits, _loops, _sweepers
from pastebin_daemon.database import Database
from pastebin_daemon.database import database as files
from pastebin_daemon.database.lane import Lane
from pastebin_daemon.dispatcher import Dispatcher
from pastebin_daemon.errors import DatabaseUnavailable, PastebinError
from pastebin_daemon.highlighting import Highlighter
from pastebin_daemon.loops import Loop, overdue
from pastebin_daemon.metrics import Metrics
from pastebin_daemon.origin_cache import OriginCache
from pastebin_daemon.reading import Entry, Reading, weigh
from pastebin_daemon.web.deletes import Deletes
from pastebin_daemon.web.paste_page import PastePages
from pastebin_daemon.web.reads import Reads
from pastebin_daemon.web.site import Site
from tests.simulation.loop import Life, SimLoop
from tests.simulation.thread import InlineThread
from tests.simulation.watch import Watch
from tests.simulation.world import Edge, SimClock, Store

__all__ = ["METRICS", "SECRET", "ConnectionLost", "Process", "purge_delays_ms"]

METRICS = Metrics()
"""One for all: nobody judges by it."""
SECRET = b"s" * 32
URL = "http://127.0.0.1:8080"


class ConnectionLost(Exception):
    """What a client sees of a process that dies, or is not there."""


def purge_delays_ms(config: Config) -> tuple[int, int]:
    return 0, int((config.bodies.s3.timeout + 2 * FETCH_MARGIN_S) * 1000)


class Process:
    def __init__(
        self, number: int, config: Config, path: Path, loop: SimLoop, clock: SimClock, store: Store, edge: Edge,
        watch: Watch, connect: Callable[[Path], sqlite3.Connection], died: Callable[[str], None],
        interval_s: Callable[[], float], rivals: int,
    ) -> None:  # fmt: skip
        """`died` hears of an end by itself: the supervisor would start it anew. `interval_s` draws a sweeper's."""
        self.life = Life(f"process {number}")
        self.rivals = [Life(f"process {number}, rival {rival}") for rival in range(1, rivals + 1)]
        self.is_up = False
        self.owners: set[str] = set()
        self._config = config
        self._path = path
        self._loop = loop
        self._clock = clock
        self._store = store
        self._edge = edge
        self._watch = watch
        self._connect = connect
        self._died = died
        self._interval_s = interval_s
        self._waiting: dict[asyncio.Future[Any], None] = {}  # in their order: a set's would differ from run to run
        self._running: list[asyncio.Task[None]] = []
        self._lanes: list[Lane] = []
        self.dispatchers: list[Dispatcher] = []
        self.loops: list[Loop] = []
        self._own = 0
        self.database: Database
        self.cache: OriginCache[Entry]
        self.creation: Creation
        self.reading: Reading
        self.deletes: Deletes
        self.reads: Reads

    def start(self) -> None:
        self._watch.say(f"{self.life.name} starts")
        self._spawn(self._open(), self.life)

    def _spawn(self, coro: Any, life: Life) -> asyncio.Task[None]:
        return self._loop.create_task(coro, context=life.context)

    async def _open(self) -> None:
        config, clock = self._config, self._clock
        database = Database(self._path, clock, lambda members, seconds: None)
        database._writer = Lane(
            self._path, self._connect, files._prepare_writer("metadata"), database._group.take, database._written
        )
        database._reader = Lane(
            self._path, self._connect, files._prepare_reader, database._take_reads, lambda members: None
        )
        self._lanes = [database._reader, database._writer]
        await database._writer.open()
        await database._reader.open()
        thread = cast(InlineThread, database._writer._connection)
        thread.begins, thread.has_changed = self._watch.settling.clear, self._watch.committed
        self._watch.opened(thread._conn)
        self.database = database
        fetch_max_s = config.bodies.s3.timeout + FETCH_MARGIN_S
        self.cache = OriginCache(clock, 20_000, weigh, fetch_max_s)
        _follow_commits(database, self.cache, METRICS)
        sweeps = _sweepers(config, database, clock, METRICS)
        for sweeper in sweeps.values():
            sweeper.interval_s = self._interval_s()
        dispatchers = self._dispatchers()
        self.loops = _loops(config, dispatchers, sweeps, [database], self.cache, clock)
        self._own = len(self.loops)
        self.creation = Creation(
            database, self._store, clock, SECRET, bytes_max=0, put_limit_s=config.bodies.s3.timeout,
            idempotency_retention_s=config.idempotency.retention,
        )  # fmt: skip
        self.reading = Reading(database, self._store, self.cache, clock, METRICS)
        site = Site(URL)
        pages = PastePages(site, Highlighter(), self.reading.keep_page)  # nothing here asks for a page
        self.reads = Reads(self.reading, clock, site, pages, config.edge.max_age)
        self.deletes = Deletes(database, self.cache, purge_delays_ms(config), site, config.edge.max_age)
        self._running = [self._spawn(self._turn(each), self.life) for each in self.loops]
        for life in self.rivals:
            if life.dead:
                continue
            for kind, dispatcher in self._dispatchers().items():
                each = Loop(kind, dispatcher.tick, config.outbox.poll_interval, 600.0, clock, dispatcher.woken)
                self.loops.append(each)
                self._running.append(self._spawn(self._turn(each), life))
        database.failed.add_done_callback(self._failed, context=self.life.context)
        self.is_up = True

    def _dispatchers(self) -> dict[str, Dispatcher]:
        """A set with an owner of its own."""
        made = _dispatchers(
            self._config, self.database, self._store, self._edge, self.cache, self._clock, METRICS
        )  # fmt: skip
        for dispatcher in made.values():
            self.owners.add(dispatcher._owner)
            self._tell_settlements(dispatcher)
            self._tell_effects(dispatcher)
        self.dispatchers += made.values()
        return made

    def _tell_settlements(self, dispatcher: Dispatcher) -> None:
        settle, settling = dispatcher._settle, self._watch.settling

        def told(tx: Any, plan: Any) -> Any:
            lists = (plan.retry, plan.give_back, plan.postpone, plan.bury)
            for claim in (*plan.ack, *(claim for each in lists for claim, *_ in each)):
                settling.add((dispatcher._owner, claim.job, claim.generation))
            return settle(tx, plan)

        dispatcher._settle = told  # type: ignore[method-assign]  # so that the judge knows whose word a change was

    def _tell_effects(self, dispatcher: Dispatcher) -> None:
        consumer = dispatcher._consumer
        run = consumer.run

        async def told(claims: Any) -> Any:
            self._watch.running([(claim.job, claim.generation) for claim in claims])
            return await run(claims)

        vars(consumer)["run"] = told

    async def _turn(self, each: Loop) -> None:
        try:
            await each.run()
        except DatabaseUnavailable as error:
            self._died(f"the loop {each.name}: {error}")
        except Exception as error:  # noqa: BLE001  the judge wants it, whatever it is
            self._watch.fail("G6", f"the loop {each.name} raised {error!r}")

    def _failed(self, failed: asyncio.Future[BaseException]) -> None:
        if not failed.cancelled():  # the end takes a few steps of the loop, in which requests go on
            self._loop.call_later(0.01, self._died, f"the database failed: {failed.result()!r}")

    # --- what clients do

    async def ask(self, handler: Callable[["Process"], Awaitable[Any]]) -> Any:
        """Its result, or what it raised. Raises `ConnectionLost` when the process is not there, or dies meanwhile."""
        if not self.is_up:
            raise ConnectionLost
        answered: asyncio.Future[Any] = self._loop.create_future()
        self._waiting[answered] = None

        async def handle() -> None:
            result: Any = None
            error: Exception | None = None
            try:
                result = await handler(self)
            except PastebinError as refused:
                error = refused
            except Exception as bug:  # noqa: BLE001  a 500
                self._watch.fail("500", repr(bug))
                error = bug
            if not answered.done():
                if error is None:
                    answered.set_result(result)
                else:
                    answered.set_exception(error)

        self._spawn(handle(), self.life)
        try:
            return await answered
        finally:
            self._waiting.pop(answered, None)

    # --- how it ends

    def kill(self) -> None:
        self.is_up = False
        for life in (self.life, *self.rivals):
            life.end()
        for answered in list(self._waiting):
            if not answered.done():
                answered.set_exception(ConnectionLost())
        for lane in self._lanes:
            connection = getattr(lane._connection, "_conn", None)
            if connection is not None:
                connection.close()

    async def stop(self, grace_s: float) -> None:
        """As `serve` stops: nothing more is claimed, what is held is finished or given back."""
        stopped = self._loop.create_future()
        self._spawn(self._stop(grace_s, stopped), self.life)
        self._waiting[stopped] = None
        try:
            await stopped
        except ConnectionLost:
            pass
        finally:
            self._waiting.pop(stopped, None)

    async def _stop(self, grace_s: float, stopped: asyncio.Future[None]) -> None:
        self.is_up = False
        for dispatcher in self.dispatchers:
            dispatcher.drain(within_s=0.6 * grace_s)
        for each in self.loops:
            each.stop()
        await asyncio.wait(self._running, timeout=0.9 * grace_s)
        late = [task for task in self._running if not task.done()]
        for task in late:
            task.cancel()
        await self.cache.close()
        for lane in self._lanes:
            await lane.close()
        self._lanes = []
        now_ms = self._clock.now_ms()
        leased = [
            job for job in self._watch.rows.jobs.values() if job.owner in self.owners and (job.lease_ms or 0) > now_ms
        ]
        if leased and not late:
            self._watch.fail("G5", f"the stop left jobs leased: {leased}")
        if not stopped.done():
            stopped.set_result(None)

    def stuck(self) -> Sequence[str]:
        return overdue(self.loops[: self._own])
