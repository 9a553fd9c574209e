"""The breaker of one consumer: tells an outage from a poisoned job, since an outage must not bury anything.

| state  | may claim | becomes                                                                              |
|--------|-----------|--------------------------------------------------------------------------------------|
| closed | yes       | open: a job failed as by its surroundings, and then the neutral probe failed too     |
|        |           | paused: the provider asked for less (429, SlowDown)                                  |
| open   | no        | closed: the neutral probe, sent every 10 s, succeeded; nothing else closes it        |
| paused | no        | closed: the pause is over (its Retry-After, one hour at most)                        |

The probe is an effect on something that never existed: the delete of a random missing key, the purge of a URL that
never was. When it succeeds, the failure was the job's own and counts; so a lone job in an outage loses no attempt, and
a poisoned job in a healthy system cannot stop the others.
"""

import asyncio
from collections.abc import Awaitable, Callable

from pastebin_daemon.clock import Clock
from pastebin_daemon.errors import EffectError, Temporary
from pastebin_daemon.logs import get_logger

__all__ = ["PAUSE_MAX_S", "Breaker"]

log = get_logger()

PROBE_INTERVAL_S = 10.0
PAUSE_S = 5.0
"""The pause after a 429 that names no time."""
PAUSE_MAX_S = 3600.0
"""A Retry-After is believed up to one hour: beyond, it is a mistake or an attack."""


class Breaker:
    def __init__(
        self, consumer: str, probe: Callable[[], Awaitable[EffectError | None]], clock: Clock, probe_timeout_s: float
    ) -> None:
        """The probe's result is its error, or None when the surroundings are well."""
        self.consumer = consumer
        self.is_open = False
        self.why = ""
        """The last reason for not claiming, for people."""
        self._send = probe
        self._probe_timeout_s = probe_timeout_s
        self._clock = clock
        self._probe_at = 0.0
        self._paused_until = 0.0

    def may_claim(self) -> bool:
        return not self.is_open and self._clock.monotonic() >= self._paused_until

    async def turn(self) -> bool:
        """Send the probe when it is due. Says whether jobs may be claimed now."""
        if self.is_open and self._clock.monotonic() >= self._probe_at:
            error = await self._probe()
            if error is None:
                self.is_open = False
                log.info("breaker.closed", consumer=self.consumer)
            else:
                self._stay_open(error)
        return self.may_claim()

    async def doubt(self, failure: Temporary) -> bool:
        """After a failure that may be the surroundings': probe them. True when they are to blame; then it is open."""
        error = await self._probe()
        if error is None:
            return False
        if not self.is_open:
            log.error("breaker.opened", consumer=self.consumer, failure=str(failure), probe=str(error))
        self.is_open = True
        self._stay_open(error)
        return True

    def pause(self, retry_after_s: float | None) -> None:
        """Claim nothing for a while, since the provider asked for it."""
        seconds = min(PAUSE_S if retry_after_s is None else max(retry_after_s, 1.0), PAUSE_MAX_S)
        self._paused_until = max(self._paused_until, self._clock.monotonic() + seconds)
        self.why = f"asked to slow down, for {seconds:.0f} s"
        log.warning("consumer.paused", consumer=self.consumer, seconds=round(seconds), asked_s=retry_after_s)

    async def _probe(self) -> EffectError | None:
        try:
            async with asyncio.timeout(self._probe_timeout_s):
                return await self._send()
        except TimeoutError:
            return Temporary(f"the probe took longer than {self._probe_timeout_s:g} s")

    def _stay_open(self, error: EffectError) -> None:
        self.why = str(error)
        self._probe_at = self._clock.monotonic() + PROBE_INTERVAL_S
