"""A disk that is full, read-only or limited under the running daemon: honest refusals, and a good start afterwards."""

import asyncio
import signal
from pathlib import Path
from random import Random

import aiohttp
import pytest

from tests.machine.clients import Record
from tests.machine.cut import attached, mounted, new_image
from tests.machine.full import full_once, heard_more
from tests.machine.judge import SETTINGS, hold_to_account
from tests.process import child
from tests.real import require, wait_until

FULL = 2


@pytest.mark.parametrize("seed", range(FULL))
async def test_a_disk_that_is_filled_and_freed_at_random_makes_no_answer_a_lie(tmp_path: Path, seed: int) -> None:
    record = await full_once(tmp_path, seed)
    assert record.heard["POST 507"] > 0
    assert record.heard["POST 503"] == record.heard["none"] == 0


async def test_a_file_system_that_turns_read_only_ends_the_process_and_undoes_nothing(tmp_path: Path) -> None:
    """As ext4 does it after an error of the disk."""
    record = Record()
    image = new_image(tmp_path)
    async with child(tmp_path, SETTINGS, wrapper=mounted(tmp_path)) as it, aiohttp.ClientSession() as http:
        for number in range(5):
            assert await record.create(http, it.url, b"%d" % number) is not None
        assert await record.delete(http, it.url, record.pastes[0]) == 204
        enter = [require("nsenter"), "--target", str(it.process.pid), "--mount", "--wd=/"]
        remount = await asyncio.create_subprocess_exec(*enter, "mount", "-o", "remount,abort", str(tmp_path / "state"))
        await remount.wait()  # says that it failed, since the result is read-only
        assert await record.delete(http, it.url, record.pastes[1]) != 204
        assert await record.create(http, it.url, b"x" * 5000) is None
        assert await it.ended() == 1
    assert "database.failed" in it.log()
    await asyncio.to_thread(wait_until, lambda: not attached(image), "the file system is unmounted")
    await hold_to_account(tmp_path, SETTINGS, record, wrapper=mounted(tmp_path))


async def test_a_limit_on_the_size_of_files_refuses_creates_and_undoes_nothing(tmp_path: Path) -> None:
    """RLIMIT_FSIZE: EFBIG, which SQLite takes for a failed write."""
    record = Record(sizes=(400_000,))
    limited = [require("prlimit"), f"--fsize={12 * 1024 * 1024}", "--"]
    async with child(tmp_path, SETTINGS, wrapper=limited) as it:
        async with record.load(it.url, Random(1)):
            await heard_more(record, record.heard.copy(), "POST 201", 5)
            async with asyncio.timeout(60):
                while it.process.returncode is None and record.heard["POST 507"] + record.heard["POST 503"] == 0:
                    await heard_more(record, record.heard.copy(), "", 1)
        if it.process.returncode is None:
            it.send(signal.SIGTERM)
        status = await it.ended()
    if "database.failed" in it.log():  # then it ends by itself: the signal may find its handler taken down
        assert status in (1, -signal.SIGTERM), it.log()[-2000:]
    else:
        assert status == 0, it.log()[-2000:]
    assert "database.failed" in it.log() or record.heard["POST 507"] > 0
    await hold_to_account(tmp_path, SETTINGS, record)
