"""Killed with SIGKILL at any step of create, delete, expiry and dispatch, the daemon loses nothing and leaks nothing.

For each point (tests/child.py names them) a daemon under load dies there, starts again on the same directory and works
off what it finds. Then every promise that a client had heard must be kept: what was answered 201 is there with its
bytes, what was answered 204 is gone, no job is lost or dead; and once time has passed the reap floor, the store holds
exactly the objects of live rows.
"""

import asyncio
import hashlib
import re
import signal
import time
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.process import ROOT, Child, child, rows
from tests.real import poll
from tests.real.moto import Bucket, new_bucket, running_moto
from tests.traffic import Edge, Ledger, edge, press

JUMP_S = 7200
KINDS = ("object-delete", "edge-purge", "reap")
CREATE, DELETE, EXPIRY = ("begin_upload", "insert", "commit"), ("delete", "take_down"), ("expire",)
OTHERS = {"sweep", "sweep_idempotency", "replay", "discard", "lambda"}
"""Transactions that are no step of create, delete, expiry or dispatch."""


def steps(*names: str) -> list[str]:
    return [f"{name} {when}" for name in names for when in ("before", "inside", "after")]


def around(*calls: str) -> list[str]:
    return [f"{call} {when}" for call in calls for when in ("before", "after")]


UNDER_LOAD = [
    *steps(*CREATE, *DELETE),
    *around("store.put"),
    "answer 201",
    "answer 204",
    *steps("claim object-delete", "claim edge-purge", "settle object-delete", "settle edge-purge", "remove"),
    *around("store.delete", "edge.purge"),
]
WHEN_TIME_PASSES = steps(*EXPIRY)
WITH_AN_ORPHAN = [
    *steps("abandon", "claim reap", "settle reap"),
    *around("store.age_s", "store.delete"),
]
ON_S3 = [
    *steps("begin_upload", "commit", "delete", "claim object-delete", "settle object-delete"),
    *around("store.put", "store.delete"),
    "answer 201",
    "answer 204",
]

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


@pytest.fixture(scope="module")
def moto() -> Iterator[int]:
    with running_moto() as port:
        yield port


AT_ONCE = 3
NOT_THERE = "the object is not there"
ENOUGH = 300
"""Turns of load in which every point is reached that load reaches."""


def some_at_once(points: list[str]) -> pytest.MarkDecorator:
    """A few daemons die side by side, since each waits for its leases and its store for most of the time."""
    groups = [points[start : start + AT_ONCE] for start in range(0, len(points), AT_ONCE)]
    return pytest.mark.parametrize("points", groups, ids=[", ".join(group) for group in groups])


async def side_by_side(
    directory: Path, points: list[str], scenario: Callable[[Path, str], Coroutine[None, None, None]]
) -> None:
    async with asyncio.TaskGroup() as group:
        for number, point in enumerate(points):
            own = directory / str(number)
            own.mkdir()
            group.create_task(scenario(own, point))


def test_every_transaction_of_the_program_is_among_the_steps() -> None:
    given = re.compile(r"database\.(?:write|grow)\(\s*([\w.]+)")
    sources = (ROOT / "pastebin_daemon").rglob("*.py")
    found = {name.rpartition(".")[2].lstrip("_") for path in sources for name in given.findall(path.read_text())}
    tried = {point.split()[0] for point in (*UNDER_LOAD, *WHEN_TIME_PASSES, *WITH_AN_ORPHAN)}
    assert found - OTHERS == {name for name in tried if "." not in name and name != "answer"}


@some_at_once(UNDER_LOAD)
async def test_killed_under_load_it_keeps_every_promise(tmp_path: Path, points: list[str]) -> None:
    async def scenario(directory: Path, point: str) -> None:
        async with edge() as cache:
            settings = SETTINGS | cache.settings()
            ledger = Ledger()
            await die(directory, settings, ledger, point, count=2)
            await heal(directory, settings, ledger, cache)

    await side_by_side(tmp_path, points, scenario)


@some_at_once(WHEN_TIME_PASSES)
async def test_killed_while_pastes_expire_it_keeps_every_promise(tmp_path: Path, points: list[str]) -> None:
    async def scenario(directory: Path, point: str) -> None:
        async with edge() as cache:
            settings = SETTINGS | cache.settings()
            ledger = Ledger()
            await die(directory, settings, ledger, point, turns=8)
            await heal(directory, settings, ledger, cache, ahead_s=JUMP_S)

    await side_by_side(tmp_path, points, scenario)


@some_at_once(WITH_AN_ORPHAN)
async def test_killed_while_it_reaps_what_a_kill_left_it_leaks_nothing(tmp_path: Path, points: list[str]) -> None:
    async def scenario(directory: Path, point: str) -> None:
        async with edge() as cache:
            settings = SETTINGS | cache.settings()
            ledger = Ledger()
            # So early that nobody has deleted anything: what is done to the store afterwards is the reap's doing.
            await die(directory, settings, ledger, "store.put after", count=2)
            assert owned(directory) < stored(directory), "a body is stored that no row has"
            await die(directory, settings, ledger, point, turns=1)
            await heal(directory, settings, ledger, cache, ahead_s=JUMP_S)

    await side_by_side(tmp_path, points, scenario)


@some_at_once(ON_S3)
async def test_killed_with_its_bodies_in_s3_it_keeps_every_promise(
    tmp_path: Path, moto: int, points: list[str]
) -> None:
    async def scenario(directory: Path, point: str) -> None:
        bucket = new_bucket(moto)
        async with edge() as cache:
            settings = SETTINGS | cache.settings() | bucket.settings() | {"uploads.reap_after": "1700ms"}
            ledger = Ledger()
            await die(directory, settings, ledger, point, count=2)
            await heal(directory, settings, ledger, cache, bucket=bucket)

    await side_by_side(tmp_path, points, scenario)


async def die(
    directory: Path, settings: dict[str, object], ledger: Ledger, point: str, *, count: int = 1, turns: int = ENOUGH
) -> None:
    """Under load until it dies at the point; or after so few turns that it lives, when time passes then."""
    options = ["--brisk", "--die-at", point, "--die-on", str(count), "--jump", str(JUMP_S)]
    async with child(directory, settings, options=options) as it:
        await press(it, ledger, turns=turns)
        if turns != ENOUGH:
            it.send(signal.SIGUSR1)
        assert await it.ended() == -signal.SIGKILL, it.log()
    assert it.log().splitlines().count(f"died at: {point}") == 1


async def heal(
    directory: Path, settings: dict[str, object], ledger: Ledger, cache: Edge, *, ahead_s: int = 0,
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
        assert all(cache.purged[paste] >= 1 for paste in gone)

        it.send(signal.SIGUSR1)

        async def is_empty() -> bool:
            jobs = look(directory, "select last_error from outbox")
            if jobs and all(error is not None and error.startswith(NOT_THERE) for (error,) in jobs):
                it.send(signal.SIGUSR1)  # reaps that found nothing look once more, when they are as old as the floor
            return not jobs and not look(directory, "select object from uploads")

        await poll(is_empty, "every job is done")
        assert look(directory, "select * from dead_letters") == []
        await check_promises(it, http, ledger, expired=True)
        assert all(cache.purged[paste] >= 2 for paste in gone), "and once more after the longest answer"
        assert owned(directory) == (stored(directory) if bucket is None else set(await bucket.keys()))
        it.send(signal.SIGTERM)
        assert await it.ended() == 0, it.log()


async def check_promises(it: Child, http: aiohttp.ClientSession, ledger: Ledger, *, expired: bool) -> None:
    for told in ledger.pastes.values():
        found = await read(http, it, told.id)
        if told.id in ledger.ended or (told.mortal and expired):
            assert found[0] == 404, told
        elif told.id not in ledger.asked or found[0] != 404:
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
