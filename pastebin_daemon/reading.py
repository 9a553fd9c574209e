"""Reading a paste: the origin cache, else the row and then the body, and never a text that has ended.

What a reader is told (an outage is never called a 404, and a 404 never an outage):

| row                | body                   | answer                                     |
|--------------------|------------------------|--------------------------------------------|
| live               | there                  | the entry                                  |
| absent or expired  | (not asked)            | `NotFound`                                 |
| live               | missing, row gone now  | `NotFound`: it ended while we looked       |
| live               | missing, row still live| `BodyMissing`, alarmed                     |
| live               | not the bytes stored   | `BodyMissing`, alarmed                     |
| live               | store down             | `StoreUnavailable`                         |

A handler calls `read` or `look` and then writes its first header without an await in between, since `read` and `look`
check the tombstone last of all (G2). One that has to await in between calls `check` afterwards.
"""

import hashlib
from dataclasses import dataclass

from multidict import CIMultiDict

from pastebin_daemon import pastes
from pastebin_daemon.bodies import BodyStore
from pastebin_daemon.clock import Clock
from pastebin_daemon.database import Database
from pastebin_daemon.errors import BodyMissing, EffectError, NotFound, StoreUnavailable
from pastebin_daemon.logs import get_logger
from pastebin_daemon.metrics import Metrics
from pastebin_daemon.origin_cache import OriginCache
from pastebin_daemon.pastes import ABSENT, Paste

__all__ = ["Entry", "Reading", "Representation", "weigh"]

log = get_logger()


@dataclass(frozen=True, slots=True)
class Representation:
    """One of the ways in which a paste is served."""

    body: bytes
    etag: str
    headers: CIMultiDict[str]
    """Those that don't change from one request to the next."""


@dataclass(slots=True, eq=False)
class Entry:
    """A live paste with its body: what the origin cache holds. What was made of it is put beside it once somebody has
    asked."""

    paste: Paste
    body: bytes
    raw: Representation | None = None
    """Its body is the entry's own."""
    page: Representation | None = None


def weigh(entry: Entry) -> int:
    """What an entry takes of `[cache] bytes_max`: its body, its page, and the objects around them (1.9 KB measured, of which
    two thirds are the headers)."""
    return len(entry.body) + 2048 + (0 if entry.page is None else len(entry.page.body) + 1024)


class Reading:
    def __init__(
        self, database: Database, store: BodyStore, cache: OriginCache[Entry], clock: Clock, metrics: Metrics
    ) -> None:
        self._database = database
        self._store = store
        self._cache = cache
        self._clock = clock
        self._metrics = metrics

    async def read(self, paste_id: str) -> Entry:
        """The live paste and its body. Raises `NotFound`, `BodyMissing`, `StoreUnavailable`."""
        entry = self._cache.get(paste_id)
        if entry is not None:  # which has looked for a tombstone, and no time has passed
            if not entry.paste.is_live(self._clock.now_ms()):
                raise NotFound(ABSENT)
            return entry
        began = self._clock.monotonic()
        try:
            entry = await self._cache.fetch(paste_id, self._load)
        except TimeoutError as error:
            raise StoreUnavailable(f"fetching the body of {paste_id} took too long") from error
        if entry is None:
            raise NotFound(ABSENT)
        self.check(entry.paste, began)
        return entry

    async def look(self, paste_id: str) -> Paste:
        """The live paste without its body. Raises `NotFound`, `StoreUnavailable`."""
        began = self._clock.monotonic()
        entry = self._cache.get(paste_id)
        paste = entry.paste if entry is not None else await self._database.read(pastes.find, paste_id)
        if paste is None:
            raise NotFound(ABSENT)
        self.check(paste, began)
        return paste

    def keep_page(self, entry: Entry, page: Representation) -> None:
        """Keep a page with its entry, should the cache still hold it and have the room."""
        entry.page = page
        if not self._cache.weigh_again(entry.paste.id, entry):
            entry.page = None

    def check(self, paste: Paste, began: float) -> None:
        """Is the paste that was read since `began` (monotonic) still live? Raises `NotFound`, `StoreUnavailable`."""
        if self._clock.monotonic() - began > self._cache.life_s:  # the process stood still: its tombstone may have gone
            raise StoreUnavailable(f"reading {paste.id} took longer than a tombstone stays")
        if self._cache.is_buried(paste.id) or not paste.is_live(self._clock.now_ms()):
            raise NotFound(ABSENT)

    async def _load(self, paste_id: str) -> Entry | None:
        paste = await self._database.read(pastes.find, paste_id)
        if paste is None:
            return None
        try:
            body = await self._store.get(paste.object)
        except EffectError as error:
            log.error("body.unavailable", paste=paste_id, error=str(error))
            raise StoreUnavailable(str(error)) from error
        if body is not None and hashlib.sha256(body).digest() == paste.sha256:
            return Entry(paste, body)
        if await self._database.read(pastes.find, paste_id) is None:
            return None
        self._metrics.body_missing.inc()
        what = "missing" if body is None else "not the bytes that were stored"
        log.critical("body.missing", paste=paste_id, object=paste.object, what=what)
        raise BodyMissing(f"the body of the live paste {paste_id} is {what}")
