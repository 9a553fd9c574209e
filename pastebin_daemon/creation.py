"""Creating a paste: durable before it is answered (G1), and nothing left behind when it is not.

    idempotency lookup → [tx: upload record] → PUT the body → [tx: paste row + idempotency row - upload record] → made

A crash or a failure at any arrow leaves at most the upload record and perhaps an object; the uploads sweeper turns the
record into a reap. There is no queue, no early answer, and no outbox row for a create.

| the same idempotency key        | answer                                                     |
|---------------------------------|------------------------------------------------------------|
| the same request, paste live    | the same paste and delete token again, marked as replayed  |
| another request                 | `IdempotencyMismatch`                                      |
| its create is still under way   | `IdempotencyInProgress` (known in memory only, so that a crash blocks nobody) |
| that paste has ended            | `IdempotencyEnded`, never a second create                  |

The fingerprint covers what was meant (body, title, language, lifetime, create token) and not how it was framed.
"""

import hashlib
import json
from codecs import getincrementaldecoder
from dataclasses import dataclass

from pastebin_daemon import pastes
from pastebin_daemon.bodies import BodyStore
from pastebin_daemon.clock import Clock
from pastebin_daemon.database import Database
from pastebin_daemon.errors import EffectError, IdempotencyInProgress, StoreUnavailable, UploadExpired
from pastebin_daemon.ids import delete_token, new_id, token_sha256
from pastebin_daemon.logs import get_logger
from pastebin_daemon.pastes import Idempotency, NewPaste, Paste

__all__ = ["Creation", "Draft", "Made"]

log = get_logger()

PIECE_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class Draft:
    """What somebody asked to have pasted, parsed and within the limits. `lifetime_s` None for never."""

    body: bytes
    lifetime_s: int | None
    title: str | None
    language: str | None
    create_token: str = ""


@dataclass(frozen=True, slots=True)
class Made:
    paste: Paste
    delete_token: str
    replayed: bool


class Creation:
    def __init__(
        self, database: Database, store: BodyStore, clock: Clock, secret: bytes, *,
        bytes_max: int, put_limit_s: float, idempotency_retention_s: float,
    ) -> None:  # fmt: skip
        """`secret` derives delete tokens; `bytes_max` is the quota; a PUT starts within `put_limit_s` of its record."""
        self._database = database
        self._store = store
        self._clock = clock
        self._secret = secret
        self._bytes_max = bytes_max
        self._put_limit_s = put_limit_s
        self._retention_ms = int(idempotency_retention_s * 1000)
        self._under_way: set[bytes] = set()

    async def create(self, draft: Draft, idempotency_key: str | None) -> Made:
        """Raises the idempotency refusals, `StorageFull`, `StoreUnavailable`, `UploadExpired`, `DatabaseUnavailable`."""
        sha256 = hashlib.sha256(draft.body).digest()
        if idempotency_key is None:
            return await self._make(draft, sha256, None)
        asked = Idempotency(hashlib.sha256(idempotency_key.encode()).digest(), _fingerprint(draft, sha256))
        if asked.key_sha256 in self._under_way:
            raise IdempotencyInProgress("a request with this Idempotency-Key is still under way", retry_after_s=1)
        self._under_way.add(asked.key_sha256)
        try:
            paste = await self._database.read(pastes.find_replay, asked, self._retention_ms)
            if paste is not None:
                return Made(paste, delete_token(self._secret, paste.id), replayed=True)
            return await self._make(draft, sha256, asked)
        finally:
            self._under_way.discard(asked.key_sha256)

    async def _make(self, draft: Draft, sha256: bytes, idempotency: Idempotency | None) -> Made:
        paste_id = new_id()
        token = delete_token(self._secret, paste_id)
        new = NewPaste(
            paste_id, new_id(), None if draft.lifetime_s is None else draft.lifetime_s * 1000, len(draft.body), sha256,
            is_utf8(draft.body), draft.title, draft.language, token_sha256(token),
        )  # fmt: skip
        began = self._clock.monotonic()
        await self._database.grow(pastes.begin_upload, new, self._bytes_max)
        if self._clock.monotonic() - began > self._put_limit_s:
            raise UploadExpired("writing the upload's record took longer than a PUT may")
        try:
            await self._store.put(new.object, draft.body)
        except EffectError as error:
            log.error("body.not_stored", object=new.object, error=str(error))
            raise StoreUnavailable(str(error)) from error
        paste = await self._database.grow(pastes.commit, new, idempotency, self._bytes_max)
        if paste is None:
            log.error("upload.expired", paste=paste_id, object=new.object)
            raise UploadExpired("the upload's record was gone before its commit")
        log.info("paste.created", paste=paste.id, size=paste.size, expires_ms=paste.expires_ms)
        return Made(paste, token, replayed=False)


def is_utf8(body: bytes) -> bool:
    """A large one in pieces: a text takes up to four times the room of its bytes, and an error about it keeps a copy."""
    try:
        if len(body) <= PIECE_BYTES:
            body.decode()
            return True
        decoder = getincrementaldecoder("utf-8")()
        for start in range(0, len(body), PIECE_BYTES):
            decoder.decode(body[start : start + PIECE_BYTES])
        decoder.decode(b"", final=True)
    except UnicodeDecodeError:
        return False
    return True


def _fingerprint(draft: Draft, sha256: bytes) -> bytes:
    meant = [sha256.hex(), draft.title, draft.language, draft.lifetime_s, draft.create_token]
    return hashlib.sha256(json.dumps(meant).encode()).digest()
