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
from collections.abc import Callable, Coroutine
from typing import Any

from pastebin_daemon.database import database as files
from tests.simulation.faults import Faults
from tests.simulation.watch import Rows, Violation
from tests.simulation.workshop import SWEEP_MAX_S, Workshop

__all__ = ["Schedule", "Workshop"]

DRAINED_MAX_S = 4 * 3600.0
"""Twice the longest wait of a job (an hour's backoff, a pause of an hour by Retry-After), and the reap floor."""
STEPS_MAX = 400_000


class Schedule(Faults):
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
