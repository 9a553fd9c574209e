"""The caches in front of the daemon: the seam that every purger stands behind. One file per kind of edge.

The rules of the seam: a purge of what is not cached succeeds (so a 404 or 412 from a cache is success); every call is
bounded in time by the purger itself; errors are `Temporary` or `Permanent` and stand in the results, one per target,
so that one bad target cannot fail the rest. Purges are idempotent, which is all that at-least-once delivery asks.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from pastebin_daemon.errors import EffectError

__all__ = ["EdgePurger", "Target"]


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
