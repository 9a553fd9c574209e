"""The caches in front of the daemon: the seam that every purger stands behind. One file per kind of edge.

The rules of the seam: a purge of what is not cached succeeds (so a 404 or 412 from a cache is success); every call is
bounded in time by the purger itself; errors are `Temporary` or `Permanent` and stand in the results, one per target,
so that one bad target cannot fail the rest. Purges are idempotent, which is all that at-least-once delivery asks.
"""

from collections.abc import Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from pastebin_daemon.clock import Clock
from pastebin_daemon.errors import EffectError
from pastebin_daemon.section import Seconds, Section, default

__all__ = ["Driver", "DriverSettings", "EdgePurger", "NoEdge", "Target"]


@dataclass(frozen=True, slots=True)
class Target:
    """All copies of one paste: its cache tag (`paste-{id}`), and its absolute public URLs for edges that know no tags."""

    id: str
    tag: str
    urls: tuple[str, ...]


class EdgePurger(Protocol):
    batch_max: int
    """How many targets one `purge` may be given (the provider's limit)."""

    async def purge(self, targets: Sequence[Target]) -> Sequence[EffectError | None]:
        """Drop every copy of the targets: per target, in their order, None or why not. Nothing is raised."""


class NoEdge:
    """The purger of `driver = "none"`: where no copies are, they are gone. Purges are not enqueued then, but some may wait
    from before the driver was changed, and they must not wait for ever (G5)."""

    batch_max = 1000

    async def purge(self, targets: Sequence[Target]) -> Sequence[EffectError | None]:
        return [None] * len(targets)


class DriverSettings(Section):
    """The table of a driver: `[edge.NAME]`."""

    timeout: Seconds = default("5s")
    """Bounds one whole `purge`."""


class Driver(Protocol):
    """A module of this package. drivers.py finds it; nothing else needs to know of it."""

    Settings: type[DriverSettings]

    def contradictions(self, settings: Any) -> Iterator[tuple[tuple[str, ...], str]]:
        """What holds between the keys of the table and is broken: the keys, the one to change first, and the remedy.
        Asked only of the driver in use."""

    def open_purger(self, settings: Any, clock: Clock) -> AbstractAsyncContextManager[EdgePurger]:
        """The purger under these settings, an instance of `Settings`."""
