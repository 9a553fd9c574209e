"""A process that is stopped while its leases run out, and a foreign program on its database: nothing is lost or told twice."""

import asyncio
import signal
import sqlite3
from contextlib import closing
from pathlib import Path
from random import Random

import aiohttp

from tests.machine.clients import Record
from tests.machine.full import heard_more
from tests.machine.judge import SETTINGS, hold_to_account, work_off
from tests.process import child
from tests.real import poll
from tests.traffic import edge


async def test_stopped_in_an_effect_for_longer_than_its_lease_it_settles_nothing_that_it_lost(tmp_path: Path) -> None:
    """The clock moves while the process stands still: SIGSTOP, the order to jump, SIGCONT."""
    record = Record()
    settings = SETTINGS | {"outbox.effect_timeout": "5s", "outbox.lease": "20s", "edge.http.timeout": "4s"}
    async with edge() as cache:
        settings |= cache.settings()
        async with (
            child(tmp_path, settings, options=["--brisk", "--jump", "120"]) as it,
            aiohttp.ClientSession() as http,
        ):
            made = await record.create(http, it.url, b"x")
            assert made is not None
            async with http.post(it.url, data=b"until the clock has moved", params={"expires_in": "60"}) as answer:
                mortal = (await answer.text()).strip().rpartition("/")[2]
            cache.hang()
            assert await record.delete(http, it.url, made) == 204
            await poll(lambda: _is_in(made.id, cache.hanging), "the purge is on its way")
            it.send(signal.SIGSTOP)
            it.send(signal.SIGUSR1)  # stays pending until it goes on
            it.send(signal.SIGCONT)

            async def has_moved() -> bool:
                async with http.get(f"{it.url}/{mortal}/raw") as answer:
                    return answer.status == 404

            await poll(has_moved, "the clock has moved")
            cache.answer()

            async def was_lost() -> bool:
                return "claim.lost" in it.log()

            await poll(was_lost, "the ack comes too late and is refused")
            async with record.load(it.url, Random(1)):
                await heard_more(record, record.heard.copy(), "DELETE 204", 5)
            await work_off(it, http, record)
            assert it.process.returncode is None
            asked = [paste.id for paste in record.pastes if paste.ended]
            assert all(cache.purged[paste] >= 1 for paste in asked)
            it.send(signal.SIGTERM)
            assert await it.ended() == 0, it.log()[-2000:]


async def _is_in(paste: str, hanging: set[str]) -> bool:
    return paste in hanging


async def test_a_foreign_program_that_holds_the_write_lock_makes_it_busy_and_not_dishonest(tmp_path: Path) -> None:
    record = Record()
    async with child(tmp_path, SETTINGS, options=["--brisk"]) as it, aiohttp.ClientSession() as http:
        made = await record.create(http, it.url, b"x")
        assert made is not None
        with closing(sqlite3.connect(tmp_path / "state" / "pastebin.sqlite", isolation_level=None)) as shell:
            shell.execute("begin immediate")
            refused = asyncio.create_task(record.create(http, it.url, b"y"))
            assert await record.read(http, it.url, made) == 200, "reads go on"
            assert await refused is None
            assert record.heard["POST 503"] == 1
            shell.execute("rollback")
        assert await record.create(http, it.url, b"z") is not None
        assert await record.delete(http, it.url, made) == 204
        it.send(signal.SIGTERM)
        assert await it.ended() == 0, it.log()[-2000:]
    await hold_to_account(tmp_path, SETTINGS, record)
