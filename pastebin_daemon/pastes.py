"""What can happen to a paste and to an upload, each in one transaction.

| transition   | paste       | upload  | jobs                                   | said         |
|--------------|-------------|---------|----------------------------------------|--------------|
| begin_upload |             | + row   |                                        |              |
| commit       | + row       | - row   |                                        | Created      |
| … too late   |             | (gone)  | + reap of the object (G12)             |              |
| delete       | - row       |         | + object-delete, edge-purge            | Ended        |
| take_down    | - row       |         | + object-delete, edge-purge            | Ended        |
| expire       | - rows      |         | + object-delete each                   | Ended each   |
| abandon      |             | - rows  | + reap each                            |              |

An ending's jobs are inserted in the transaction that deletes the row, so intent equals fact (G3), and a paste has
exactly one ending, since only one transaction can delete the row. Expiry needs no purge: no edge holds a copy past it
(G11). A user's delete purges at once, and once more after the longest answer that was on its way (`purge_delays_ms`):
a purge that arrives while a cache is fetching is lost on every cache tried.

The upload's row is the durable failure log: written before the PUT, deleted by the commit that takes the body over. A
kill at any instant of a create leaves a row that `abandon` turns into a reap, so nothing leaks and no bucket has to be
listed.
"""

import hmac
import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pastebin_daemon import outbox
from pastebin_daemon.database import Tx, batched_by, only
from pastebin_daemon.errors import (
    Forbidden,
    IdempotencyEnded,
    IdempotencyMismatch,
    NotFound,
    StorageFull,
)

__all__ = [
    "Created", "Ended", "Ending", "Idempotency", "NewPaste", "Paste", "abandon", "begin_upload", "commit", "delete",
    "expire", "find", "find_replay", "live_objects", "sweep_idempotency", "take_down", "uploading",
]  # fmt: skip

Ending = Literal["delete", "expiry", "takedown"]

ABSENT = "There is no paste here: it never was, has expired, or was deleted."


@dataclass(frozen=True, slots=True)
class Paste:
    """A live row. Times in milliseconds UTC; `expires_ms` None for never; `size` in bytes."""

    id: str
    object: str
    created_ms: int
    expires_ms: int | None
    size: int
    sha256: bytes
    is_text: bool
    title: str | None
    language: str | None

    def is_live(self, now_ms: int) -> bool:
        """Gone at the very instant that was promised, and not a millisecond later."""
        return self.expires_ms is None or now_ms < self.expires_ms


@dataclass(frozen=True, slots=True)
class NewPaste:
    """A paste that is to be: everything but the instant of its commit. `lifetime_ms` None for never."""

    id: str
    object: str
    lifetime_ms: int | None
    size: int
    sha256: bytes
    is_text: bool
    title: str | None
    language: str | None
    token_sha256: bytes


@dataclass(frozen=True, slots=True)
class Idempotency:
    """A client's key as it is kept, and the fingerprint of what was asked under it."""

    key_sha256: bytes
    fingerprint: bytes


@dataclass(frozen=True, slots=True)
class Created:
    paste: Paste


@dataclass(frozen=True, slots=True)
class Ended:
    id: str
    reason: Ending


_COLUMNS = "id, object, created_ms, expires_ms, size, sha256, is_text, title, language"


def _paste(row: Sequence[Any]) -> Paste:
    return Paste(*row)


def _begin_all(tx: Tx, calls: Sequence[tuple[NewPaste, int]]) -> list[StorageFull | None]:
    stored = _stored(tx, calls)
    results = [_over_quota(stored, new.size, bytes_max) for new, bytes_max in calls]
    records = [(new.object, new.id) for (new, _), refusal in zip(calls, results, strict=True) if refusal is None]
    if records:
        tx.changed(
            "insert into uploads (object, paste, started_ms) select value ->> 0, value ->> 1, ? from json_each(?)",
            (tx.now_ms, json.dumps(records)),
        )
    return results


@batched_by(_begin_all)
def begin_upload(tx: Tx, new: NewPaste, bytes_max: int) -> None:
    """Record that a body is on its way. Raises `StorageFull` over the quota (`bytes_max` 0: none)."""
    only(_begin_all(tx, [(new, bytes_max)]))


def _commit_all(tx: Tx, calls: Sequence[tuple[NewPaste, Idempotency | None, int]]) -> list[Paste | StorageFull | None]:
    """Raises `LookupError` when one of several uploads has no record any more: it can't tell which."""
    stored = _stored(tx, calls)
    results: list[Paste | StorageFull | None] = []
    made: list[tuple[Paste, bytes]] = []
    refused: list[str] = []
    for new, _, bytes_max in calls:
        refusal = _over_quota(stored, new.size, bytes_max)
        if refusal is not None:
            refused.append(new.object)  # its record stays, and the sweeper reaps the body
            results.append(refusal)
            continue
        stored += new.size
        paste = _made(new, tx.now_ms)
        made.append((paste, new.token_sha256))
        results.append(paste)
    known = _insert(tx, made) if made else 0
    if refused:
        known += len(uploading(tx, refused))
    if known < len(calls):
        if len(calls) > 1:
            raise LookupError("an upload's record is gone")
        outbox.enqueue(tx, outbox.REAP, [{"object": calls[0][0].object}])
        return [None]
    for (_, idempotency, _), result in zip(calls, results, strict=True):
        if not isinstance(result, Paste):
            continue
        if idempotency is not None:
            # A row that is in the way is past its retention: find_replay saw no other, and the key is held in memory.
            tx.changed(
                "insert or replace into idempotency (key_sha256, fingerprint, paste, created_ms) values (?, ?, ?, ?)",
                (idempotency.key_sha256, idempotency.fingerprint, result.id, tx.now_ms),
            )
        tx.emit(Created(result))
    return results


@batched_by(_commit_all)
def commit(tx: Tx, new: NewPaste, idempotency: Idempotency | None, bytes_max: int) -> Paste | None:
    """Take the stored body over. None when the upload's record is gone: then its object is reaped, and nothing else.

    Raises `StorageFull` over the quota.
    """
    return only(_commit_all(tx, [(new, idempotency, bytes_max)]))


def _made(new: NewPaste, now_ms: int) -> Paste:
    return Paste(
        new.id, new.object, now_ms, None if new.lifetime_ms is None else now_ms + new.lifetime_ms,
        new.size, new.sha256, new.is_text, new.title, new.language,
    )  # fmt: skip


def _insert(tx: Tx, made: Sequence[tuple[Paste, bytes]]) -> int:
    """Pastes and the hashes of their tokens, in the place of their uploads, which a trigger removes. Hashes, which JSON
    can't hold, come in two values of 32 bytes a paste. The result: how many had an upload, and so are pastes now."""
    rows = [(p.id, p.object, p.created_ms, p.expires_ms, p.size, p.is_text, p.title, p.language) for p, _ in made]
    return tx.changed(
        f"insert into pastes ({_COLUMNS}, token_sha256)"
        " select value ->> 0, value ->> 1, value ->> 2, value ->> 3, value ->> 4, substr(:bodies, 32 * key + 1, 32),"
        " value ->> 5, value ->> 6, value ->> 7, substr(:tokens, 32 * key + 1, 32) from json_each(:rows)"
        " where exists (select 1 from uploads where object = value ->> 1)",
        {
            "rows": json.dumps(rows),
            "bodies": b"".join(paste.sha256 for paste, _ in made),
            "tokens": b"".join(token for _, token in made),
        },
    )


def _stored(tx: Tx, calls: Sequence[tuple[Any, ...]]) -> int:
    """What counts against the quota, the last of a call's arguments; nothing where there is none."""
    if not calls[0][-1]:
        return 0
    ((stored,),) = tx.rows("select bytes from totals")
    return int(stored)


def _over_quota(stored: int, size: int, bytes_max: int) -> StorageFull | None:
    if not bytes_max or stored + size <= bytes_max:
        return None
    return StorageFull(f"{stored} bytes are stored, {size} more would pass [bodies] bytes_max = {bytes_max}")


def _find_all(tx: Tx, calls: Sequence[tuple[str]]) -> list[Paste | None]:
    rows = tx.rows(
        f"select {_COLUMNS} from pastes where id in (select value from json_each(?))",
        (json.dumps([paste_id for (paste_id,) in calls]),),
    )
    found = {paste.id: paste for paste in map(_paste, rows) if paste.is_live(tx.now_ms)}
    return [found.get(paste_id) for (paste_id,) in calls]


@batched_by(_find_all)
def find(tx: Tx, paste_id: str) -> Paste | None:
    """The live paste, or None."""
    return only(_find_all(tx, [(paste_id,)]))


def find_replay(tx: Tx, idempotency: Idempotency, retention_ms: int) -> Paste | None:
    """The paste that was made under this key, or None when the key is new.

    Raises `IdempotencyMismatch` when something else was asked under it, `IdempotencyEnded` when that paste has ended.
    """
    row = tx.row(
        "select fingerprint, paste from idempotency where key_sha256 = ? and created_ms > ?",
        (idempotency.key_sha256, tx.now_ms - retention_ms),
    )
    if row is None:
        return None
    fingerprint, paste_id = row
    if fingerprint != idempotency.fingerprint:
        raise IdempotencyMismatch("this Idempotency-Key was used for another request; use a new key for a new paste")
    paste = find(tx, paste_id)
    if paste is None:
        raise IdempotencyEnded("the paste made under this Idempotency-Key has ended; use a new key to make another")
    return paste


def _delete_all(tx: Tx, calls: Sequence[tuple[str, bytes, Sequence[int]]]) -> list[NotFound | Forbidden | None]:
    # In one row, since each row would be one more handoff of the interpreter's lock.
    ((found,),) = tx.rows(
        "select json_group_array(json_array(id, expires_ms, hex(token_sha256))) from pastes"
        " where id in (select value from json_each(?))",
        (json.dumps([paste_id for paste_id, _, _ in calls]),),
    )
    live = {
        paste_id: bytes.fromhex(token)
        for paste_id, expires_ms, token in json.loads(found)
        if expires_ms is None or tx.now_ms < expires_ms
    }
    results: list[NotFound | Forbidden | None] = []
    ending: list[str] = []
    for paste_id, token_sha256, _ in calls:
        if paste_id not in live:
            results.append(NotFound(ABSENT))
        elif not hmac.compare_digest(live[paste_id], token_sha256):
            results.append(Forbidden("this is not the delete token of this paste"))
        else:
            del live[paste_id]  # a second delete of it comes too late
            ending.append(paste_id)
            results.append(None)
    (_, _, purge_delays_ms) = calls[0]  # a setting, the same for all
    _end(tx, ending, "delete", purge_delays_ms)
    return results


@batched_by(_delete_all)
def delete(tx: Tx, paste_id: str, token_sha256: bytes, purge_delays_ms: Sequence[int]) -> None:
    """End a paste at its owner's word. Raises `NotFound`, or `Forbidden` for a wrong token."""
    only(_delete_all(tx, [(paste_id, token_sha256, purge_delays_ms)]))


def take_down(tx: Tx, paste_id: str, purge_delays_ms: Sequence[int]) -> None:
    """End a paste at the operator's word. Raises `NotFound`. An expired one that is not swept yet counts as there."""
    if tx.row("select 1 from pastes where id = ?", (paste_id,)) is None:
        raise NotFound(ABSENT)
    _end(tx, [paste_id], "takedown", purge_delays_ms)


def _end(tx: Tx, ids: Sequence[str], reason: Ending, purge_delays_ms: Sequence[int]) -> None:
    """End pastes that are there."""
    if not ids:
        return
    ((found,),) = tx.rows(
        "select json_group_array(json_array(id, object)) from pastes where id in (select value from json_each(?))",
        (json.dumps(ids),),
    )
    objects = dict(json.loads(found))
    tx.changed("delete from pastes where id in (select value from json_each(?))", (json.dumps(ids),))
    outbox.enqueue(tx, outbox.OBJECT_DELETE, [{"object": objects[paste_id], "paste": paste_id} for paste_id in ids])
    for number, delay_ms in enumerate(purge_delays_ms):
        again = {} if number == 0 else {"again": number}
        outbox.enqueue(tx, outbox.EDGE_PURGE, [{"paste": paste_id, **again} for paste_id in ids], tx.now_ms + delay_ms)
    for paste_id in ids:
        tx.emit(Ended(paste_id, reason))


def expire(tx: Tx, limit: int, until_ms: int) -> int:
    """End up to `limit` pastes whose time was over at `until_ms`, and still is; how many there were."""
    ((found,),) = tx.rows(
        "select json_group_array(json_array(id, object)) from"
        " (select id, object from pastes where expires_ms <= ? order by expires_ms limit ?)",
        (min(until_ms, tx.now_ms), limit),
    )
    rows = json.loads(found)
    if rows:
        tx.changed(
            "delete from pastes where id in (select value from json_each(?))",
            (json.dumps([paste_id for paste_id, _ in rows]),),
        )
    outbox.enqueue(tx, outbox.OBJECT_DELETE, [{"object": key, "paste": paste_id} for paste_id, key in rows])
    for paste_id, _ in rows:
        tx.emit(Ended(paste_id, "expiry"))
    return len(rows)


def abandon(tx: Tx, age_ms: int, limit: int) -> int:
    """Turn up to `limit` upload records older than `age_ms` into reaps; how many there were."""
    rows = tx.rows(
        "delete from uploads where object in"
        " (select object from uploads where started_ms <= ? order by started_ms limit ?) returning object",
        (tx.now_ms - age_ms, limit),
    )
    outbox.enqueue(tx, outbox.REAP, [{"object": key} for (key,) in rows])
    return len(rows)


def sweep_idempotency(tx: Tx, retention_ms: int, limit: int) -> int:
    """Forget up to `limit` keys past their retention; how many there were."""
    return tx.changed(
        "delete from idempotency where key_sha256 in"
        " (select key_sha256 from idempotency where created_ms <= ? order by created_ms limit ?)",
        (tx.now_ms - retention_ms, limit),
    )


def live_objects(tx: Tx, objects: Collection[str]) -> set[str]:
    """Those of the objects that a row has. An expired row that is not swept yet still has its object (G4)."""
    rows = tx.rows(
        "select p.object from json_each(?) j cross join pastes p on p.object = j.value", (json.dumps(list(objects)),)
    )  # fmt: skip
    return {key for (key,) in rows}


def uploading(tx: Tx, objects: Collection[str]) -> set[str]:
    """Those of the objects that an upload is in progress of."""
    ((found,),) = tx.rows(
        "select json_group_array(u.object) from json_each(?) j cross join uploads u on u.object = j.value",
        (json.dumps(list(objects)),),
    )
    return set(json.loads(found))
