"""The first half of a schedule: what is drawn for it, the process and its ends, and everything else that goes wrong."""

import asyncio
import random
import re
import sqlite3
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import structlog

from pastebin_daemon import ids
from pastebin_daemon.config import Config
from pastebin_daemon.database import database as files
from pastebin_daemon.errors import Permanent, Temporary
from tests.simulation.loop import SimLoop
from tests.simulation.process import Process
from tests.simulation.story import People
from tests.simulation.thread import InlineThread
from tests.simulation.watch import Watch
from tests.simulation.workshop import SWEEP_MAX_S, Connection, Workshop, config_of
from tests.simulation.world import FATES, Edge, Outage, SimClock, Store, Weather, nobodys_context

__all__ = ["Faults"]


class Faults:
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
        Connection.fault = staticmethod(self._commit_fault)
        self.process: Process
        self.people = People(self.loop, self.clock, self.weather, self.watch, self.edge, lambda: self.process)

    # --- what is drawn

    def _draw_config(self) -> Config:
        rng = self.rng
        if self.outages_only:
            return config_of("60s", "20s", "4s", 5, 3, "30s", "7d", "8d")
        lease, effect = rng.choice((("60s", "20s"), ("40s", "19s"), ("25s", "11s")))
        window, kept = rng.choice((("7d", "8d"), ("2h", "3h"), ("10m", "11m")))
        return config_of(
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
            path, isolation_level=None, cached_statements=256, check_same_thread=False, factory=Connection
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
