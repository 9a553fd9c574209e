"""Files that are not there: few that may be open, which it bears; and a database that somebody moved away, on whose place no
new and empty one is ever begun."""

import asyncio
import os
import signal
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp

from tests.machine.clients import Record
from tests.machine.judge import SETTINGS, hold_to_account
from tests.process import child
from tests.real import poll, require

FILES = 64


async def test_more_connections_than_files_are_borne_and_forgotten(tmp_path: Path) -> None:
    record = Record()
    limited = [require("prlimit"), f"--nofile={FILES}:{FILES}", "--"]
    async with child(tmp_path, SETTINGS, wrapper=limited) as it, aiohttp.ClientSession() as http:
        made = await record.create(http, it.url, b"x")
        assert made is not None
        address = urlsplit(it.url)
        idle = [await asyncio.open_connection(address.hostname, address.port) for _ in range(2 * FILES)]

        async def is_short() -> bool:
            return len(os.listdir(f"/proc/{it.process.pid}/fd")) >= FILES - 1

        await poll(is_short, "no more files can be opened")
        assert await record.read(http, it.url, made) == 200, "who was connected before is served"
        assert await record.delete(http, it.url, made) == 204
        for _, writer in idle:
            writer.close()
        async with aiohttp.ClientSession() as fresh:

            async def served() -> bool:
                return await record.create(fresh, it.url, b"y") is not None

            await poll(served, "new connections are taken again")
        assert record.lies == []
        it.send(signal.SIGTERM)
        assert await it.ended() == 0, it.log()[-2000:]
    await hold_to_account(tmp_path, SETTINGS, record)


async def test_a_database_that_was_moved_away_is_missed_and_not_begun_anew(tmp_path: Path) -> None:
    record = Record()
    state, away = tmp_path / "state", tmp_path / "away"
    async with child(tmp_path, SETTINGS) as it, aiohttp.ClientSession() as http:
        made = await record.create(http, it.url, b"x")
        assert made is not None
        away.mkdir()
        for file in state.glob("pastebin.sqlite*"):
            if not file.name.endswith(".reserve"):
                file.rename(away / file.name)
        assert await record.create(http, it.url, b"into a file that no start will find") is None
        assert await it.ended() == 1, it.log()[-2000:]
        assert "was moved or replaced while it was in use" in it.log()
    async with child(tmp_path, SETTINGS, waits=False) as it:
        assert await it.ended() == 1
        assert "pastebin.sqlite is gone" in it.log()
        assert "put it back" in it.log()
    assert not (state / "pastebin.sqlite").exists()
    for file in away.iterdir():
        file.rename(state / file.name)
    await hold_to_account(tmp_path, SETTINGS, record)
