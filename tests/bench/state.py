"""A state directory with pastes in it, made by the daemon's own transactions, many in a commit."""

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path

from pastebin_daemon import pastes
from pastebin_daemon.bodies.local import _insert, open_local
from pastebin_daemon.clock import SystemClock
from pastebin_daemon.database import Tx, open_database
from pastebin_daemon.ids import new_id, token_sha256
from pastebin_daemon.pastes import NewPaste

__all__ = ["TOKEN", "fill"]

TOKEN = "bench"
"""The delete token of all of them."""
AT_ONCE = 2000


async def fill(directory: Path, count: int, *, size: int = 4096, lifetime_ms: int | None = None) -> list[str]:
    """Make `count` pastes of random text in `directory`/state, and say their ids."""
    state = directory / "state"
    state.mkdir(mode=0o700, exist_ok=True)
    clock = SystemClock()
    ids: list[str] = []
    async with (
        open_database(state / "pastebin.sqlite", "metadata", clock) as database,
        open_local(state / "bodies.sqlite", clock) as store,
    ):
        while len(ids) < count:
            bodies = {new_id(): os.urandom(size // 2).hex().encode() for _ in range(min(AT_ONCE, count - len(ids)))}
            made = [_new(key, body, lifetime_ms) for key, body in bodies.items()]
            await store.database.write(_put, list(bodies.items()))
            await database.write(_commit, made)
            ids += [new.id for new in made]
    return ids


def _new(key: str, body: bytes, lifetime_ms: int | None) -> NewPaste:
    return NewPaste(
        new_id(), key, lifetime_ms, len(body), hashlib.sha256(body).digest(), True, None, None, token_sha256(TOKEN)
    )


def _put(tx: Tx, bodies: Sequence[tuple[str, bytes]]) -> None:
    for key, body in bodies:
        _insert(tx, key, body)


def _commit(tx: Tx, made: Sequence[NewPaste]) -> None:
    for new in made:
        pastes.begin_upload(tx, new, 0)
        pastes.commit(tx, new, None, 0)
