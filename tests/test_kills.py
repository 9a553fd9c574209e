"""Killed with SIGKILL at any step of create, delete, expiry and dispatch, the daemon loses nothing and leaks nothing.

For each point (tests/child.py names them) a daemon under load dies there, starts again on the same directory and works
off what it finds. Then every promise that a client had heard must be kept: what was answered 201 is there with its
bytes, what was answered 204 is gone, no job is lost or dead; and once time has passed the reap floor, the store holds
exactly the objects of live rows.
"""

import asyncio
import re
import signal
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path

import pytest

from tests.process import ROOT, child
from tests.promises import JUMP_S, SETTINGS, heal, owned, stored
from tests.real.moto import new_bucket, running_moto
from tests.traffic import Ledger, edge, press

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


@pytest.fixture(scope="module")
def moto() -> Iterator[int]:
    with running_moto() as port:
        yield port


AT_ONCE = 3
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
