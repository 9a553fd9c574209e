"""What a daemon that was killed owes to those who heard its answers: the clients' own record, held against what is there."""

import hashlib
import signal
import time
from pathlib import Path
from typing import Any

import aiohttp

from tests.process import Child, child, rows
from tests.real import poll
from tests.real.moto import Bucket
from tests.traffic import Edge, Ledger

__all__ = ["JUMP_S", "SETTINGS", "ask_again", "check_promises", "heal", "look", "owned", "read", "stored"]

JUMP_S = 7200
NOT_THERE = "the object is not there"

SETTINGS: dict[str, object] = {
    "outbox.poll_interval": "50ms",
    "outbox.lease": "1s",
    "outbox.effect_timeout": "450ms",
    "outbox.attempts_max": 20,
    "outbox.retry_span": "2s",
    "edge.http.timeout": "400ms",
    "bodies.s3.timeout": "400ms",
    "bodies.s3.connect_timeout": "200ms",
}


async def heal(
    directory: Path, settings: dict[str, object], ledger: Ledger, cache: Edge | None, *, ahead_s: int = 0,
    bucket: Bucket | None = None,
) -> None:  # fmt: skip
    """Start it again where it died, and hold it to every promise, before time passes and after."""
    options = ["--brisk", "--ahead", str(ahead_s), "--jump", str(JUMP_S)]
    async with child(directory, settings, options=options) as it, aiohttp.ClientSession() as http:
        await check_promises(it, http, ledger, expired=ahead_s > 0)
        await ask_again(it, http, ledger)

        async def is_quiet() -> bool:
            now_ms = time.time() * 1000 + ahead_s * 1000
            return look(directory, "select id from outbox where state = 'leased' or due_ms <= ?", now_ms) == []

        await poll(is_quiet, "what was due is done")
        await check_promises(it, http, ledger, expired=ahead_s > 0)
        gone = [paste for paste in ledger.asked if (await read(http, it, paste))[0] == 404]
        assert cache is None or all(cache.purged[paste] >= 1 for paste in gone)

        it.send(signal.SIGUSR1)

        async def is_empty() -> bool:
            uploads = look(directory, "select object from uploads")  # first, since they become jobs
            jobs = look(directory, "select last_error from outbox")
            if jobs and all(error is not None and error.startswith(NOT_THERE) for (error,) in jobs):
                it.send(signal.SIGUSR1)  # reaps that found nothing look once more, when they are as old as the floor
            stored_now = stored(directory) if bucket is None else set(await bucket.keys())
            return not uploads and not jobs and owned(directory) == stored_now

        await poll(is_empty, "every job is done, and the store holds what live rows have")
        assert look(directory, "select * from dead_letters") == []
        await check_promises(it, http, ledger, expired=True)
        assert cache is None or all(cache.purged[paste] >= 2 for paste in gone), (
            "and once more after the longest answer"
        )
        it.send(signal.SIGTERM)
        assert await it.ended() == 0, it.log()


async def check_promises(it: Child, http: aiohttp.ClientSession, ledger: Ledger, *, expired: bool) -> None:
    for told in ledger.pastes.values():
        found = await read(http, it, told.id)
        if told.id in ledger.ended or (told.mortal and expired):
            assert found[0] == 404, told
        elif told.id in ledger.asked and found[0] == 404:
            ledger.ended.add(told.id)  # nobody had an answer, but gone is gone, for ever after
        else:
            assert found == (200, told.body), told
    for (paste,) in look(it.directory, "select id from pastes"):
        assert paste in ledger.ended or (await read(http, it, paste))[0] in (200, 404), "a live row without its body"


async def ask_again(it: Child, http: aiohttp.ClientSession, ledger: Ledger) -> None:
    """Whoever got no answer to a create asks again under the same key, and gets the one paste of that key."""
    for key, (body, mortal) in list(ledger.lost.items()):

        async def told(key: str = key, body: bytes = body, mortal: bool = mortal) -> bool:
            return await ledger.create(http, it.url, key, body, mortal=mortal) is not None

        await poll(told, "the store has time for it")
        made = [(told.id,) for told in ledger.pastes.values() if told.body == body]
        sha256 = hashlib.sha256(body).digest()
        assert look(it.directory, "select id from pastes where sha256 = ?", sha256) == made


async def read(http: aiohttp.ClientSession, it: Child, paste: str) -> tuple[int, bytes]:
    """Status and body; of a store that had no time on a busy machine it is asked again."""
    found = (503, b"")

    async def is_told() -> bool:
        nonlocal found
        async with http.get(f"{it.url}/{paste}/raw") as answer:
            found = answer.status, await answer.read()
        return found[0] != 503

    await poll(is_told, "the store has time for it")
    return found


def look(directory: Path, sql: str, *params: object, file: str = "pastebin.sqlite") -> list[tuple[Any, ...]]:
    return rows(directory / "state" / file, sql, *params)


def owned(directory: Path) -> set[str]:
    return {key for (key,) in look(directory, "select object from pastes")}


def stored(directory: Path) -> set[str]:
    return {key for (key,) in look(directory, "select key from objects", file="bodies.sqlite")}
