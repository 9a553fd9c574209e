"""Time enters the program here and nowhere else (the linter holds it).

Three clocks, never mixed:

- `now_ms` is the wall clock, in whole milliseconds UTC. It is what goes into rows, since rows outlive the process.
- `monotonic` is for spans inside one process, in seconds. It stands still while the machine is suspended.
- `boottime` is monotonic too but goes on while the machine is suspended, in seconds. Only the detector of clock steps
  asks it: wall minus boottime changes when, and only when, somebody sets the clock.
"""

import time
from datetime import UTC, datetime
from functools import lru_cache
from typing import Protocol

__all__ = ["Clock", "SystemClock", "log_stamp", "rfc3339", "spoken_time"]


class Clock(Protocol):
    """What a component asks for the time. Tests give one that they turn by hand."""

    def now_ms(self) -> int: ...
    def monotonic(self) -> float: ...
    def boottime(self) -> float: ...


class SystemClock:
    """The clocks of the kernel."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        return time.monotonic()

    def boottime(self) -> float:
        return time.clock_gettime(time.CLOCK_BOOTTIME)


def rfc3339(ms: int) -> str:
    """`2026-12-04T09:30:00Z`: whole seconds, rounded down, as the API gives times."""
    return _second(ms // 1000) + "Z"


def log_stamp() -> str:
    """`2026-12-04T09:30:00.000000Z`, by the wall clock: for a line of the log, on which no decision hangs."""
    micros = time.time_ns() // 1000
    return f"{_second(micros // 1_000_000)}.{micros % 1_000_000:06}Z"


@lru_cache(256)
def _second(seconds: int) -> str:
    """Most times that are written stand in a second that another one stood in a moment ago."""
    return datetime.fromtimestamp(seconds, UTC).isoformat()[: -len("+00:00")]


def spoken_time(ms: int) -> str:
    """`4 December 2026, 09:30 UTC`, for people: whole minutes, rounded down."""
    at = datetime.fromtimestamp(ms // 1000, UTC)
    return f"{at.day} {_MONTHS[at.month - 1]} {at.year}, {at:%H:%M} UTC"


_MONTHS = (
    "January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November",
    "December",
)  # fmt: skip
