"""A disk that is full for real, and a disk that fails: what users meet, on a daemon in a process of its own.

The state directory is a tmpfs of a few MiB in a mount namespace of the child's own.
"""

import asyncio
import errno
import os
import sqlite3
from collections.abc import Callable, Coroutine
from pathlib import Path

import aiohttp
import pytest

from tests.faulty_sqlite import FaultySqlite
from tests.process import ROOT, Child, child, environment, python, rows
from tests.real import require, wait_until
from tests.support import running

TMPFS_MIB = 44
BODY = 64 * 1024


def on_small_disk(directory: Path) -> list[str]:
    """A command that runs another with a tmpfs on the directory."""
    directory.mkdir()
    who = ["--mount"] if os.geteuid() == 0 else ["--user", "--map-root-user", "--mount"]
    mount = f'mount -t tmpfs -o size={TMPFS_MIB}m,mode=700 none "$0" && exec "$@"'
    return [require("unshare"), *who, "sh", "-c", mount, str(directory)]


class Disk:
    """The child's state directory, as it sees it."""

    def __init__(self, it: Child) -> None:
        self.directory = Path(f"/proc/{it.process.pid}/root{it.directory}/state")
        self._filler = self.directory / "filler"

    def fill(self) -> None:
        with open(self._filler, "ab", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(4096))
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise

    def free(self) -> None:
        self._filler.unlink()


async def create(http: aiohttp.ClientSession, url: str, body: bytes) -> tuple[int, dict[str, str]]:
    async with http.post(f"{url}/api/v1/pastes", data=body, headers={"Content-Type": "x/y"}) as answer:
        return answer.status, await answer.json()


async def delete(http: aiohttp.ClientSession, url: str, paste: dict[str, str]) -> int:
    headers = {"X-Delete-Token": paste["delete_token"]}
    async with http.delete(f"{url}/api/v1/pastes/{paste['id']}", headers=headers) as answer:
        return answer.status


async def read(http: aiohttp.ClientSession, url: str, paste: dict[str, str]) -> tuple[int, bytes]:
    async with http.get(f"{url}/{paste['id']}/raw") as answer:
        return answer.status, await answer.read()


async def eventually(so: Callable[[], Coroutine[object, object, bool]], what: str) -> None:
    loop = asyncio.get_running_loop()
    await asyncio.to_thread(wait_until, lambda: asyncio.run_coroutine_threadsafe(so(), loop).result(30), what)


async def drained(http: aiohttp.ClientSession, it: Child) -> None:
    async def nothing_waits() -> bool:
        async with http.get(f"{it.admin}/api/v1/jobs") as answer:
            return not (await answer.json())["jobs"]

    await eventually(nothing_waits, "the outbox is empty")
    async with http.get(f"{it.admin}/api/v1/jobs?state=dead") as answer:
        assert (await answer.json())["jobs"] == [], "a full disk is no job's fault"


@pytest.mark.parametrize(("size", "at_least"), [(64 * 1024, 50), (1024 * 1024, 5)])
async def test_a_disk_full_of_pastes_refuses_more_until_some_are_deleted(
    tmp_path: Path, size: int, at_least: int
) -> None:
    """A body that is deleted is overwritten first, so large ones take room to be deleted."""
    settings = {"outbox.poll_interval": "50ms", "cache.bytes_max": 0}
    async with (
        child(tmp_path, settings, wrapper=on_small_disk(tmp_path / "state")) as it,
        aiohttp.ClientSession() as http,
    ):
        made: list[tuple[dict[str, str], bytes]] = []
        while True:
            body = os.urandom(size)
            status, answer = await create(http, it.url, body)
            if status != 201:
                break
            made.append((answer, body))
            assert len(made) < 1000
        assert status == 507
        assert answer["code"] == "storage_full"
        assert len(made) >= at_least
        async with http.get(f"{it.admin}/readyz") as ready:
            assert ready.status == 200, "reads and deletes go on"

        for paste, body in made:
            assert await read(http, it.url, paste) == (200, body)
        for paste, _ in made[1:]:
            assert await delete(http, it.url, paste) == 204
        await drained(http, it)
        assert await read(http, it.url, made[0][0]) == (200, made[0][1])

        async def created() -> bool:
            return (await create(http, it.url, os.urandom(size)))[0] == 201

        await eventually(created, "the deleted pastes' space is found again")


async def test_a_disk_that_something_else_filled(tmp_path: Path) -> None:
    settings = {"outbox.poll_interval": "50ms", "cache.bytes_max": 0}
    async with (
        child(tmp_path, settings, wrapper=on_small_disk(tmp_path / "state")) as it,
        aiohttp.ClientSession() as http,
    ):
        disk = Disk(it)
        made = [(await create(http, it.url, b"%d" % number))[1] for number in range(200)]
        status = 201
        while status == 201:  # the logs have some room left that is theirs already
            disk.fill()
            status, answer = await create(http, it.url, os.urandom(1024 * 1024))
        assert (status, answer["code"]) == (507, "storage_full")

        for number, paste in enumerate(made):
            assert await read(http, it.url, paste) == (200, b"%d" % number)
            assert await delete(http, it.url, paste) == 204
        await drained(http, it)

        disk.free()

        async def created() -> bool:
            return (await create(http, it.url, os.urandom(BODY)))[0] == 201

        await eventually(created, "there is space again")


async def test_a_full_disk_is_named_to_the_operator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sqlite = FaultySqlite()
    monkeypatch.setattr(sqlite3, "connect", lambda path, **_: sqlite.connect(path))
    monkeypatch.setattr("pastebin_daemon.database.database.RESERVE_BYTES", 2**60)  # what no disk has
    async with running(tmp_path) as it:
        made = await it.paste(b"x")
        sqlite.fail("insert into objects", "SQLITE_FULL")
        assert (await create(it.http, it.url, b"x"))[0] == 507
        await it.store.database.tend()
        status, answer = await create(it.http, it.url, b"x")
        assert (status, answer["code"]) == (507, "storage_full")
        async with it.http.get(f"{it.admin}/readyz") as ready:
            assert ready.status == 200, "reads and deletes go on"
            assert "full" in (await ready.json())["troubles"]["disk of bodies.sqlite"]
        async with it.http.get(f"{it.admin}/metrics") as shown:
            assert 'pastebin_disk_full{file="bodies.sqlite"} 1.0' in await shown.text()
        assert await read(it.http, it.url, {"id": made.id}) == (200, b"x")
        await it.delete(made)
        await it.drain()


async def test_a_database_that_was_moved_away_is_no_longer_ready(tmp_path: Path) -> None:
    async with running(tmp_path) as it:
        (tmp_path / "state" / "pastebin.sqlite").rename(tmp_path / "elsewhere")
        assert (await create(it.http, it.url, b"x"))[0] == 503
        async with it.http.get(f"{it.admin}/readyz") as ready:
            assert ready.status == 503


FAILING = """
import sqlite3, sys
from pastebin_daemon.cli import main
from tests.faulty_sqlite import FaultySqlite, sqlite_error

class FailingDisk(FaultySqlite):
    '''The COMMIT of a paste with this title fails.'''
    def meet(self, connection, sql, params):
        if sql.startswith("insert into pastes") and "unlucky" in str(params):
            self.fail("commit", "SQLITE_IOERR")
        return super().meet(connection, sql, params)

sqlite3.connect = lambda path, **_: FailingDisk().connect(path)
sys.argv = ["pastebin-daemon", "serve"]
main()
"""


async def test_a_commit_whose_outcome_is_unknown_ends_the_process(tmp_path: Path) -> None:
    given = {"server.listen": "127.0.0.1:0", "admin.listen": "127.0.0.1:0", "storage.directory": tmp_path / "state"}
    with (tmp_path / "log").open("ab") as log:
        process = await asyncio.create_subprocess_exec(
            *python("-c", FAILING), cwd=ROOT, env=environment(given),
            stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=log,
        )  # fmt: skip
    it = Child(process, tmp_path)
    try:
        await it.announced()
        async with aiohttp.ClientSession() as http:
            assert (await create(http, it.url, b"x"))[0] == 201
            async with http.put(f"{it.url}/?title=unlucky", data=b"x") as answer:
                assert answer.status == 503
                assert "not known whether" in await answer.text()
        assert await it.ended() == 1
        assert "database.failed" in it.log()
        assert "scripted SQLITE_IOERR" in it.log()
        assert rows(tmp_path / "state" / "pastebin.sqlite", "select count(*) from pastes") == [(1,)]
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
