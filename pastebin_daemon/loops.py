"""The loops: each turns one tick, for ever, and is seen to turn.

A tick does one bounded piece of work and says whether to come again at once. Expected failures end inside the tick; one
that raises ends the process with its reason, and the supervisor starts it anew. A loop that stops turning without
raising is what the watchdog is for: `overdue` names it.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable

from pastebin_daemon.clock import Clock

__all__ = ["Loop", "measure_lag", "overdue"]

LAG_INTERVAL_S = 0.25
LAG_KEPT = 40


class Loop:
    def __init__(
        self, name: str, tick: Callable[[], Awaitable[bool]], interval_s: float, tick_max_s: float, clock: Clock,
        woken: asyncio.Event | None = None,
    ) -> None:  # fmt: skip
        """`woken` ends the wait early. `tick_max_s`: a tick that takes longer is stuck."""
        self.name = name
        self._tick = tick
        self._interval_s = interval_s
        self._limit_s = interval_s + tick_max_s
        self._clock = clock
        self._woken = woken or asyncio.Event()
        self._stopping = False
        self._turned = clock.monotonic()

    async def run(self) -> None:
        while not self._stopping:
            again = await self._tick()
            self._turned = self._clock.monotonic()
            if again:
                await asyncio.sleep(0)  # a backlog must not starve the requests
                continue
            try:
                async with asyncio.timeout(self._interval_s):
                    await self._woken.wait()
            except TimeoutError:
                pass

    def stop(self) -> None:
        """Let the tick that runs be the last."""
        self._stopping = True
        self._woken.set()

    def is_overdue(self) -> bool:
        return self._clock.monotonic() - self._turned > self._limit_s


async def measure_lag(report: Callable[[float], None]) -> None:
    """Report how late the event loop comes to a timer: the worst of the last ten seconds, in seconds."""
    loop = asyncio.get_running_loop()
    lags: deque[float] = deque(maxlen=LAG_KEPT)
    while True:
        due = loop.time() + LAG_INTERVAL_S
        await asyncio.sleep(LAG_INTERVAL_S)
        lags.append(max(0.0, loop.time() - due))
        report(max(lags))


def overdue(loops: Iterable[Loop]) -> list[str]:
    """The names of the loops that do not turn."""
    return [loop.name for loop in loops if loop.is_overdue()]
