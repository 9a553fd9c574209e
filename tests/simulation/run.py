"""One schedule: everything that happens in it is drawn from its seed.

**First the faults**, for a minute or two of simulated time and perhaps some hours more: people make, read and delete
pastes; calls are refused, throttled, lost, silent and late; services are out; the process is killed at any callback and
starts again, is stopped in good order, or stands still; its rivals too; commits fail without saying whether they
happened; the wall clock is set; the operator replays, discards, and now and then goes back to an older copy of the
database.

**Then everything is well again**, and within a bound of simulated time all must be done: no job, no upload, no dead
letter once they were replayed, no inbox row past its retention, and in the store exactly the objects of live rows.
"""

import asyncio
import functools
import gc
import random
import re
import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Coroutine
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import structlog

from pastebin_daemon import daemon, ids
from pastebin_daemon.config import Config
from pastebin_daemon.database import database as files
from pastebin_daemon.database import lane
from pastebin_daemon.errors import Permanent, Temporary
from tests.simulation.loop import SimLoop
from tests.simulation.process import Process
from tests.simulation.story import People
from tests.simulation.thread import InlineThread
from tests.simulation.watch import Rows, Violation, Watch
from tests.simulation.world import FATES, Edge, Outage, SimClock, Store, Weather, nobodys_context
from tests.support import configured

__all__ = ["Schedule", "Workshop"]

DRAINED_MAX_S = 4 * 3600.0
"""Twice the longest wait of a job (an hour's backoff, a pause of an hour by Retry-After), and the reap floor."""
STEPS_MAX = 400_000
SWEEP_MAX_S = 15.0
"""The longest interval of a sweeper here."""


class _Connection(sqlite3.Connection):
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
def _config(lease: str, effect: str, poll: str, batch: int, attempts: int, span: str, window: str, kept: str) -> Config:
    return configured(
        Path("/nowhere"),
        {
            "outbox.lease": lease, "outbox.effect_timeout": effect, "outbox.poll_interval": poll, "outbox.batch": batch,
            "outbox.attempts_max": attempts, "outbox.retry_span": span, "outbox.replay_window": window,
            "inbox.retention": kept, "edge.driver": "http", "edge.http.url": "http://127.0.0.1:1{path}",
        },
    )  # fmt: skip


class Schedule:
    def __init__(self, seed: int, workshop: Workshop, *, trace: bool = False) -> None:
        self.seed = seed
        self.rng = rng = random.Random(seed)
        self.lines: list[str] = []
        self._trace = trace
        self._log_to_trace()
        self._fix_ids()
        self.path = workshop.path()
        self.loop = SimLoop(rng)  # type: ignore[abstract]  # it needs no sockets, signals and processes
        self.clock = SimClock(self.loop)
        self.outages_only = rng.random() < 0.04
        self.config = self._draw_config()
        outbox = self.config.outbox
        self.watch = Watch(
            self.clock, self.loop.time, attempts_max=outbox.attempts_max, reap_after_s=self.config.uploads.reap_after,
            retention_ms=int(self.config.inbox.retention * 1000), purges=2, say=self.say,
            halt=self.loop.halt,
        )  # fmt: skip
        self.busy_s = 40.0 if self.outages_only else rng.choice((6.0, 15.0, 40.0))
        brisk = self.busy_s == 6.0 and rng.random() < 0.5
        self._sweep_s = (0.3, 2.0) if brisk else (4.0, SWEEP_MAX_S)
        self.ends_at = self.loop.now + self.busy_s
        self.weather = self._draw_weather()
        self.store = Store(self.loop, self.weather, self.watch)
        self.edge = Edge(self.loop, self.weather, self.watch)
        self.watch.store, self.watch.edge = self.store, self.edge
        self.watch.outages_only = self.outages_only
        self.faulty = True
        self._kill_rate = rng.choice((0.0, 0.0, 0.01, 0.04))
        self._rival_kill_rate = rng.choice((0.0, 0.0, 0.02))
        self._commit_fault_rate = rng.choice((0.0, 0.0, 0.0, 0.02))
        self._rivals = rng.choice((0, 0, 1, 2))
        if self.outages_only:
            self._kill_rate = self._rival_kill_rate = self._commit_fault_rate = 0.0
        self._kill_in = -1
        self._seen = 0
        self._number = 0
        self.kills = 0
        self._copy: tuple[bytes, float] | None = None
        delays = rng.choice(((0.0,), (0.0, 0.0, 0.03), (0.0, 0.005, 0.4)))
        InlineThread.delay = staticmethod(lambda: rng.choice(delays) * rng.random())
        _Connection.fault = staticmethod(self._commit_fault)
        self.process: Process
        self.people = People(self.loop, self.clock, self.weather, self.watch, self.edge, lambda: self.process)

    # --- what is drawn

    def _draw_config(self) -> Config:
        rng = self.rng
        if self.outages_only:
            return _config("60s", "20s", "4s", 5, 3, "30s", "7d", "8d")
        lease, effect = rng.choice((("60s", "20s"), ("40s", "19s"), ("25s", "11s")))
        window, kept = rng.choice((("7d", "8d"), ("2h", "3h"), ("10m", "11m")))
        return _config(
            lease, effect, rng.choice(("4s", "8s", "12s")), rng.choice((1, 2, 5, 100)), rng.choice((1, 2, 3, 8)),
            rng.choice(("30s", "5m", "1h")), window, kept,
        )  # fmt: skip

    def _draw_weather(self) -> Weather:
        rng = self.rng
        if self.outages_only:
            return self._draw_outages()
        weather = Weather(rng, late_max_s=rng.choice((30.0, self.config.uploads.reap_after / 2)))
        for service in ("store", "edge"):
            if rng.random() < 0.6:
                rate = rng.choice((0.02, 0.1, 0.3))
                weather.rates[service] = tuple(rate * rng.random() / 2 for _ in FATES)
            if rng.random() < 0.4:
                begins = self.loop.now + rng.random() * self.busy_s
                fate = rng.choice(("refused", "refused", "silent", "throttled", "lost", "late"))
                weather.outages.append(Outage(service, begins, begins + rng.random() * self.busy_s, fate))
        weather.slow = rng.choice((0.0, 0.05, 0.3))
        return weather

    def _draw_outages(self) -> Weather:
        """Nothing but outages, of hours: a leap in the middle of one makes it so."""
        rng = self.rng
        outages = []
        for service in ("store", "edge"):
            begins = self.loop.now + rng.random() * self.busy_s / 2
            fate = rng.choice(("refused", "silent", "throttled", "lost"))
            outages.append(Outage(service, begins, begins + rng.random() * self.busy_s, fate))
        return Weather(rng, outages=outages)

    def _commit_fault(self) -> str:
        if not self.faulty or self.rng.random() >= self._commit_fault_rate:
            return ""
        return self.rng.choice(("done", "undone", "full"))

    # --- the process, and its end

    def _start(self) -> None:
        self._number += 1
        self.process = Process(
            self._number, self.config, self.path, self.loop, self.clock, self.store, self.edge, self.watch, self._connect,
            self._died, lambda: self.rng.uniform(*self._sweep_s), self._rivals,
        )  # fmt: skip
        self.watch.stepped = None  # what the clock says at the start is believed
        self.process.start()

    def _connect(self, path: Path) -> sqlite3.Connection:
        return sqlite3.connect(
            path, isolation_level=None, cached_statements=256, check_same_thread=False, factory=_Connection
        )

    def _died(self, why: str) -> None:
        if not self.process.life.dead:
            self.say(f"{self.process.life.name} ends: {why}")
            self._kill()

    def _kill(self) -> None:
        if self.process.life.dead:
            return
        self.kills += 1
        self.say(f"{self.process.life.name} is killed")
        self.process.kill()
        self._kill_in = -1
        down_s = self.rng.choice((0.1, 1.0, 5.0, 70.0)) if self.faulty else 0.1
        self.loop.call_later(down_s, self._start, context=nobodys_context())

    def _after_step(self) -> None:
        events = self.watch.commits + self.watch.effects
        if events != self._seen:
            self._seen = events
            if self.faulty:
                if self._kill_in < 0 and self._kill_rate and self.rng.random() < self._kill_rate:
                    self._kill_in = self.rng.randrange(8)
                if self._rival_kill_rate and self.process.rivals and self.rng.random() < self._rival_kill_rate:
                    life = self.rng.choice(self.process.rivals)
                    self.say(f"{life.name} is killed")
                    life.end()
        if self._kill_in >= 0:
            self._kill_in -= 1
            if self._kill_in < 0:
                self._kill()

    # --- what else goes wrong

    async def _trouble(self) -> None:
        """One more misfortune, at a moment of its own."""
        rng = self.rng
        await asyncio.sleep(rng.random() * self.busy_s)
        if not self.faulty:
            return
        match rng.choice(
            (
                "step",
                "step in a create",
                "halt",
                "halt rival",
                "leap",
                "stop",
                "replay",
                "discard",
                "copy",
                "kill",
                "bug",
            )
        ):
            case "step":
                self._step(rng.choice((-7200.0, -90.0, -20.0, 45.0, 90.0, 7200.0)))
            case "step in a create":
                self.weather.slow = 0.3
                for _ in range(40):
                    if self.watch.rows.uploads:
                        break
                    await asyncio.sleep(0.1)
                if self.faulty:
                    self._step(7200.0)
            case "halt":
                seconds = rng.choice((3.0, 30.0, 150.0))
                self.say(f"{self.process.life.name} stands still for {seconds:.0f} s")
                for life in (self.process.life, *self.process.rivals):
                    life.halted_until = max(life.halted_until, self.loop.now + seconds)
            case "halt rival" if self.process.rivals:
                life = rng.choice(self.process.rivals)
                seconds = rng.choice((10.0, 45.0, 100.0))
                self.say(f"{life.name} stands still for {seconds:.0f} s")
                life.halted_until = max(life.halted_until, self.loop.now + seconds)
            case "leap":
                self._leap(rng.choice((600.0, 3700.0, 6 * 3600.0)))
            case "stop":
                await self._stop_and_start()
            case "replay":
                await self.people.replay(self._window_ms())
            case "discard":
                await self.people.discard(bugs=False)
            case "copy" if rng.random() < 0.3:
                await self._go_back()
            case "kill":
                self._kill()
            case "bug":
                await self.people.enqueue_rogue()

    def _step(self, seconds: float) -> None:
        if seconds > 3600 and self.clock.stepped_s > 0:
            seconds = 90.0  # two steps past the reap floor, while one PUT is on its way, are beyond G12
        self.say(f"the wall clock is set by {seconds:+.0f} s")
        once = not self.clock.steps and self.process.is_up and abs(seconds) > 60
        self.watch.stepped = (self.loop.now, seconds) if once else None
        self.clock.step_wall(seconds)

    def _leap(self, seconds: float) -> None:
        self.say(f"{seconds:.0f} s pass")
        self.loop.leap(seconds)
        self.ends_at += seconds
        for number, outage in enumerate(self.weather.outages):
            if outage.ends > self.loop.now - seconds:
                self.weather.outages[number] = Outage(
                    outage.service, outage.begins, outage.ends + seconds, outage.fate
                )  # fmt: skip

    async def _stop_and_start(self) -> None:
        process = self.process
        if not process.is_up or process.life.dead:
            return
        self.say(f"{process.life.name} is stopped")
        await process.stop(grace_s=self.rng.choice((4.0, 25.0)))
        if not process.life.dead:
            self.say(f"{process.life.name} has stopped")
            process.kill()
            self.loop.call_later(0.5, self._start, context=nobodys_context())

    async def _go_back(self) -> None:
        """Copy the database, and much later put the copy in its place."""
        if not self.process.is_up:
            return
        with sqlite3.connect(self.path) as source:
            copy = source.serialize()
        source.close()
        self.say("the database is copied")
        await asyncio.sleep(self.rng.random() * self.busy_s / 2)
        if self.process.life.dead or not self.faulty:
            return
        self.say("the copy is put in the place of the database")
        self._kill()
        for leftover in self.path.parent.glob("pastebin.sqlite-*"):
            leftover.unlink()
        self.path.write_bytes(copy)
        connection = files.connect(self.path)
        self.weather.epoch += 1
        self.watch.restored(connection)
        connection.close()

    def _window_ms(self) -> int:
        return int(self.config.outbox.replay_window * 1000)

    # --- the two phases

    def run(self) -> list[Violation]:
        rng, loop = self.rng, self.loop
        asyncio._set_running_loop(loop)
        try:
            self._start()
            actors = [
                loop.create_task(self.people.client(number, rng.random() * self.busy_s * 0.7, self.busy_s))
                for number in range(rng.choice((2, 5, 9)))
            ]
            if self.outages_only:
                for _ in range(2):
                    loop.call_later(rng.random() * self.busy_s, self._leap, rng.choice((600.0, 3700.0, 6 * 3600.0)))
            else:
                actors += [loop.create_task(self._trouble()) for _ in range(rng.choice((0, 1, 2, 4)))]
                for _ in range(rng.choice((0, 0, 1, 3))):
                    loop.call_later(rng.random() * self.busy_s, self._poison)
        finally:
            asyncio._set_running_loop(None)
        while loop.now < self.ends_at and not self.watch.violations:  # a leap puts it off
            self._turn(self.ends_at)
        self._heal()
        self._turn(self.process.life.halted_until)
        self._go(lambda: all(actor.done() for actor in actors) and self.process.is_up, limit_s=1800.0)
        for actor in actors:
            if actor.done() and not self.watch.violations:
                actor.result()
        self._settle()
        return self.watch.violations

    def _go(self, until: Callable[[], bool], limit_s: float) -> None:
        """Turn the crank until the condition holds, which must be within the limit of simulated time."""
        began = self.loop.now
        self._turn(began + limit_s, until)
        if not self.watch.violations and not until():
            self.watch.fail("G5", f"it never came to its end: {self.loop.now - began:.0f} s, {self.loop.steps} steps")

    def _run_on(self, seconds: float) -> None:
        self._turn(self.loop.now + seconds)

    def _turn(self, ends: float, until: Callable[[], bool] = lambda: False) -> None:
        """Ends at once when something was violated, and what asyncio would only have logged is a violation."""
        if self.watch.violations:
            return
        self.loop.run(ends, self._after_step, until)
        for error in self.loop.errors:
            self.watch.fail("500", f"{error.get('message')}: {error.get('exception')!r}")
        self.loop.errors.clear()
        if self.loop.steps > STEPS_MAX:
            self.watch.fail("G5", f"it does not come to rest: {self.loop.steps} steps")

    def _poison(self) -> None:
        if not self.faulty:
            return
        rng = self.rng
        if self.store.objects and rng.random() < 0.7:
            key = rng.choice(sorted(self.store.objects))
            error = rng.choice((Permanent("403 for this key"), Temporary("500 for this key")))
            self.say(f"{key} can't be removed: {error}")
            self.store.poison[key] = error
        elif self.watch.rows.pastes:
            self.edge.stuck.add(rng.choice(sorted(self.watch.rows.pastes)))

    def _heal(self) -> None:
        self.say("all is well from here on")
        self.faulty = False
        self._kill_in = -1
        self.weather.clear(max(self.loop.now, self.process.life.halted_until))
        self.store.poison.clear()
        self.edge.stuck.clear()
        self._rivals = 0
        for life in self.process.rivals:  # what they hold, their leases will give back
            life.end()

    def _settle(self) -> None:
        """All that waits is done within its bound, and what is kept for a time goes after it."""
        kept_s = max(self.config.inbox.retention, self.config.idempotency.retention) + abs(self.clock.stepped_s) + 60
        for _ in range(2):
            self._drain()
            self.loop.leap(kept_s)  # whatever may expire has expired then, and is ended and drained in the second round
            self._run_on(SWEEP_MAX_S + 1.0)
        if not self.watch.violations:
            self._judge_end()

    def _have(self, done: Coroutine[Any, Any, Any]) -> None:
        task = self.loop.create_task(done)
        self._go(task.done, limit_s=60.0)

    def _drain(self) -> None:
        watch, waited_s = self.watch, 0.0
        bound_s = DRAINED_MAX_S + 2 * abs(self.clock.stepped_s)
        while not watch.violations:
            before = watch.rows.jobs
            self._run_on(self.config.outbox.poll_interval + 3.0)
            rows, now_ms = watch.rows, self.clock.now_ms()
            if rows.dead:
                self._have(self.people.discard(bugs=True))
                self._have(self.people.replay(self._window_ms()))
                continue
            dues = [job.due_ms if job.lease_ms is None else job.lease_ms for job in rows.jobs.values()]
            dues += [started + int(self.config.uploads.reap_after * 1000) for started in rows.uploads.values()]
            dues += [now_ms for _, expires_ms, _ in rows.pastes.values() if expires_ms and expires_ms <= now_ms]
            if not dues:
                return
            if waited_s > bound_s:
                watch.fail("G5", f"after {waited_s:.0f} s without a fault there still are {rows}")
                return
            first = min(dues)
            wait_s = (max(due for due in dues if due < first + 60_000) - now_ms) / 1000
            if wait_s < 0:  # what is due waits for a turn, or for a breaker's next probe
                wait_s = 0.0 if rows.jobs != before else 10.0
            if wait_s > 8.0:
                wait_s -= self.rng.choice((0.0, 0.0, 4.0))  # and perhaps there is a turn just before it is due
            self.say(f"{wait_s:.0f} s pass")
            self.loop.leap(wait_s)
            waited_s += wait_s + self.config.outbox.poll_interval + 3.0

    def _judge_end(self) -> None:
        watch, rows = self.watch, self.watch.rows
        if rows.inbox:
            watch.fail("G9", f"inbox rows past their retention are there: {rows.inbox}")
        owned = {key for key, _, _ in rows.pastes.values()}
        for key in sorted(set(self.store.objects) - owned - watch.discarded - watch.leaked):
            watch.fail("G5", f"the object {key} is in the store and nobody will ever remove it")
        for paste, (key, _, _) in rows.pastes.items():
            if key not in self.store.objects and not watch.told[paste].revived:
                watch.fail("G4", f"the object {key} of the live paste {paste} is not in the store")
        if stuck := self.process.stuck():
            watch.fail("G14", f"loops do not turn: {stuck}")
        connection = files.connect(self.path)
        keys = connection.execute("select count(*) from idempotency").fetchone()[0]
        found = Rows.of(connection)
        connection.close()
        if keys:
            watch.fail("G14", f"{keys} idempotency keys are kept past their retention")
        if found != rows:
            watch.fail("G1", f"the file holds {found}, and {rows} was committed")

    # --- how it is told

    def say(self, text: str) -> None:
        if self._trace:
            short = re.sub(r"0{9,}", "", text)
            self.lines.append(f"{self.loop.now - 1000:10.3f}  {short}" if hasattr(self, "loop") else short)

    def _log_to_trace(self) -> None:
        def told(_logger: Any, _method: str, event: Any) -> Any:
            fields = " ".join(f"{key}={value}" for key, value in event.items() if key != "event")
            self.say(f"  {event['event']} {fields}")
            raise structlog.DropEvent

        structlog.configure(
            processors=[told],
            wrapper_class=structlog.make_filtering_bound_logger(10 if self._trace else 50),
            cache_logger_on_first_use=True,
        )

    def _fix_ids(self) -> None:
        """Ids are counted, so that a seed gives the same ones, and short ones to read."""
        count = 61

        def token_bytes(size: int) -> bytes:
            nonlocal count
            count += 1
            return (count * 62**15).to_bytes(size)

        def token_hex(size: int) -> str:
            return f"{self.rng.getrandbits(8 * size):0{2 * size}x}"

        vars(ids).update(secrets=SimpleNamespace(token_bytes=token_bytes, token_hex=token_hex), random=self.rng)
