"""Where the bytes of pastes are kept: the seam that every body store stands behind.

The rules of the seam, held by the contract tests that every store passes:

- `put` returns only when the store has made the object durable (G1).
- Every call is bounded in time by the store itself.
- Two errors cross the seam, `Temporary` and `Permanent` (errors.py), and nothing else. A missing object is an answer
  and no error: `get` and `age_s` say None, `delete` says `missing`, where the store can tell.
- An object is written once under a random key and never overwritten, so no call depends on conditional requests, which
  are not portable (Swift answers 501 to them, other stores ignore them).
"""

from collections.abc import Mapping, Sequence
from typing import Literal, Protocol

from pastebin_daemon.errors import EffectError

__all__ = ["BodyStore", "Deletion"]

Deletion = Literal["deleted", "missing"] | EffectError
"""What became of one object of a `delete`: gone now, was not there (where the store tells), or why it stays."""


class BodyStore(Protocol):
    async def put(self, key: str, body: bytes) -> None:
        """Store `body` durably under `key`."""

    async def get(self, key: str) -> bytes | None:
        """The body, or None when there is no such object."""

    async def delete(self, keys: Sequence[str]) -> Mapping[str, Deletion]:
        """Remove up to 1,000 objects, one result per key. An error stands in the result; nothing is raised."""

    async def age_s(self, key: str) -> float | None:
        """How old the object is, in seconds by the store's own clock, or None when there is no such object."""
