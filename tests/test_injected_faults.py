"""Single system calls of the running daemon fail, and no answer is a lie (tests/machine/injected.py says what is judged).

By hand: `python -m tests.machine injected --minutes 60`; one again: `python -m tests.machine injected --seed 7`.
"""

import asyncio
from pathlib import Path

import aiohttp
import pytest

from tests.machine.clients import Record
from tests.machine.injected import Fault, inject, injected_once, strace
from tests.machine.judge import SETTINGS, hold_to_account
from tests.process import child

SEEDS = 6
METADATA, BODIES = "pastebin.sqlite-wal", "bodies.sqlite-wal"


@pytest.mark.parametrize("first", range(0, SEEDS, 2))
async def test_a_fault_at_random_makes_no_answer_a_lie(tmp_path: Path, first: int) -> None:
    async with asyncio.TaskGroup() as group:
        for seed in (first, first + 1):
            (tmp_path / str(seed)).mkdir()
            group.create_task(injected_once(tmp_path / str(seed), seed))


@pytest.mark.parametrize("file", [METADATA, BODIES])
async def test_a_sync_that_fails_ends_the_process_and_undoes_nothing(tmp_path: Path, file: str) -> None:
    record = Record()
    await inject(tmp_path, record, 1, Fault("fdatasync", "error=EIO", file, "25"))
    assert record.heard["POST 201"] > 0
    assert record.heard["POST 503"] > 0, "whoever waited was told that it is not known"
    assert "database.failed" in (tmp_path / "log").read_text()


async def test_killed_between_a_write_and_its_sync_it_keeps_its_word(tmp_path: Path) -> None:
    record = Record()
    await inject(tmp_path, record, 2, Fault("fdatasync", "signal=SIGKILL", METADATA, "25"))
    assert record.heard["none"] > 0


async def test_a_disk_that_is_full_from_now_on_refuses_creates_and_the_process_goes_on(tmp_path: Path) -> None:
    record = Record()
    await inject(tmp_path, record, 3, Fault("pwrite64", "error=ENOSPC", BODIES, "60+"))
    assert record.heard["POST 201"] > 0
    assert record.heard["POST 507"] > 0
    assert "database.failed" not in (tmp_path / "log").read_text()


async def test_a_reserve_that_can_not_be_removed_leaves_nobody_without_an_answer(tmp_path: Path) -> None:
    record = Record()
    full = Fault("pwrite64", "error=ENOSPC", METADATA, "60+")
    stuck = Fault("unlink", "error=EIO", "pastebin.sqlite.reserve", "1+")
    async with asyncio.timeout(60):
        await inject(tmp_path, record, 4, full, stuck)
    assert record.heard["POST 507"] > 0
    assert record.heard["none"] == 0


async def test_a_slow_disk_makes_creates_slow_and_hinders_no_read(tmp_path: Path) -> None:
    record = Record(sizes=(100,))
    slow = Fault("fdatasync", "delay_enter=2000000", BODIES, "8+")
    async with child(tmp_path, SETTINGS, wrapper=strace(tmp_path, slow)) as it:
        async with aiohttp.ClientSession() as http:
            made = await record.create(http, it.url, b"before")
            assert made is not None
            while record.slowest["POST 201"] < 2:
                assert len(record.pastes) < 20, record.slowest
                await record.create(http, it.url, b"more")
            creating = asyncio.create_task(record.create(http, it.url, b"slow"))
            reads = 0
            while not creating.done():
                assert await record.read(http, it.url, made) == 200
                reads += 1
            await creating
        assert reads > 10
        assert record.slowest["GET 200"] < 1.5
    assert record.lies == []
    await hold_to_account(tmp_path, SETTINGS, record)
