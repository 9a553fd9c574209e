"""The sweepers: bounded passes that end, move or forget rows whose time has come. No sweep is a job of the outbox, since
a stuck outbox must not stop what feeds it.

A tick is one batch in one transaction of at most about 20 ms (500 rows of the widest kind measured 6 ms), and says
whether there is more. Creates and deletes that wait meanwhile share the next commit.

| sweeper     | what                                             | when                                   |
|-------------|--------------------------------------------------|----------------------------------------|
| expiry      | pastes past their time → object-delete jobs      | every second                           |
| uploads     | records older than the reap floor → reap jobs    | every 10 s                             |
| inbox       | rows past their retention that no job needs      | every minute, one pass                 |
| idempotency | keys past their retention                        | every minute                           |

The clock can be wrong, and an expiry that ran ahead of it can't be taken back. A step of more than a minute between
the wall clock and CLOCK_BOOTTIME, while running, pauses the expiry sweeper for ten minutes; then the new time is
accepted, and no one has to confirm it. Reads go by the clock meanwhile.
"""

from collections.abc import Awaitable, Callable

from pastebin_daemon import inbox, pastes
from pastebin_daemon.clock import Clock
from pastebin_daemon.database import Database
from pastebin_daemon.errors import Busy, StorageFull
from pastebin_daemon.logs import get_logger
from pastebin_daemon.metrics import Metrics

__all__ = ["BATCH", "ClockWatch", "Sweeper", "expiry", "forgotten_keys", "inbox_rows", "uploads"]

log = get_logger()

BATCH = 500
INBOX_BATCH = 500
"""As small as the others, though its rows are: the 99th percentile of creates beside it is 1.7 times theirs with 2,000."""
STEP_S = 60.0
PAUSE_S = 600.0


class ClockWatch:
    """Notices steps of the wall clock. Slow drift (NTP's slewing) is followed and is no step."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._offset = clock.now_ms() / 1000 - clock.boottime()
        self._paused_until = 0.0

    def steady_ms(self) -> int | None:
        """Until when expiry may go now, or None. Ask often: a step shows against the last time it was asked. It is a time
        and no mere yes, since the step may come before the transaction."""
        wall_ms = self._clock.now_ms()
        offset = wall_ms / 1000 - self._clock.boottime()
        step, self._offset = offset - self._offset, offset
        now = self._clock.monotonic()
        if abs(step) > STEP_S:
            self._paused_until = now + PAUSE_S
            log.error("clock.stepped", seconds=round(step), expiry_paused_s=PAUSE_S)
        return wall_ms if now >= self._paused_until else None


class Sweeper:
    """A named sweep; `sweep` does one batch and says whether there is more."""

    def __init__(
        self, name: str, interval_s: float, sweep: Callable[[], Awaitable[bool]], clock: Clock, metrics: Metrics
    ) -> None:
        self.name = name
        self.interval_s = interval_s
        self._sweep = sweep
        self._clock = clock
        self._seconds = metrics.sweep_seconds.labels(name)

    async def tick(self) -> bool:
        started = self._clock.monotonic()
        try:
            return await self._sweep()
        except (Busy, StorageFull) as error:
            log.warning("sweep.failed", sweeper=self.name, error=str(error))
            return False
        finally:
            self._seconds.observe(self._clock.monotonic() - started)


def expiry(database: Database, clock: Clock, metrics: Metrics) -> Callable[[], Awaitable[bool]]:
    watch = ClockWatch(clock)

    async def sweep() -> bool:
        until_ms = watch.steady_ms()
        metrics.expiry_paused.set(until_ms is None)
        if until_ms is None:
            return False
        ended = await database.write(pastes.expire, BATCH, until_ms)
        if ended:
            log.info("pastes.expired", count=ended)
        return ended == BATCH

    return sweep


def uploads(database: Database, metrics: Metrics, reap_after_s: float) -> Callable[[], Awaitable[bool]]:
    async def sweep() -> bool:
        abandoned = await database.write(pastes.abandon, int(reap_after_s * 1000), BATCH)
        if abandoned:
            metrics.abandoned.inc(abandoned)
            log.info("uploads.abandoned", count=abandoned)
        return abandoned == BATCH

    return sweep


def inbox_rows(database: Database, metrics: Metrics, retention_s: float) -> Callable[[], Awaitable[bool]]:
    """A pass goes on where the last batch stopped; after a restart it begins at the oldest row again."""
    after = 0

    async def sweep() -> bool:
        nonlocal after
        removed, after = await database.write(inbox.sweep, after, int(retention_s * 1000), INBOX_BATCH)
        metrics.inbox_swept.inc(removed)
        return after != 0

    return sweep


def forgotten_keys(database: Database, retention_s: float) -> Callable[[], Awaitable[bool]]:
    async def sweep() -> bool:
        return await database.write(pastes.sweep_idempotency, int(retention_s * 1000), BATCH) == BATCH

    return sweep
