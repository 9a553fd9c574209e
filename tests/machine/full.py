"""A small file system is filled and freed at random while clients create, delete and read.

Every answer holds, a refusal is a 507 or a 503, the process lives, and when the space is back creates are taken again.
"""

import os
import signal
from collections import Counter
from contextlib import suppress
from pathlib import Path
from random import Random

import aiohttp

from tests.machine.clients import Record
from tests.machine.judge import SETTINGS, inside, work_off
from tests.process import child
from tests.real import poll, require

__all__ = ["full_once", "on_tmpfs"]

MIB = 1024 * 1024


def on_tmpfs(directory: Path, size_mib: int, options: str = "") -> list[str]:
    """A command that runs another with a tmpfs on the state directory."""
    (directory / "state").mkdir(exist_ok=True)
    who = ["--mount"] if os.geteuid() == 0 else ["--user", "--map-root-user", "--mount"]
    mount = f'mount -t tmpfs -o size={size_mib}m,mode=700{options} none "$0" && exec "$@"'
    return [require("unshare"), *who, "sh", "-c", mount, str(directory / "state")]


def fill_to(file: Path, leave_bytes: int) -> None:
    """Let the file take all but that much of what is free."""
    with file.open("ab") as filler:
        while True:
            free = os.statvfs(file.parent)
            wanted = free.f_bavail * free.f_frsize - leave_bytes
            if wanted <= 0:
                return
            with suppress(OSError):  # the daemon took some of it meanwhile
                os.posix_fallocate(filler.fileno(), os.fstat(filler.fileno()).st_size, wanted)


async def full_once(directory: Path, seed: int) -> Record:
    chance = Random(seed)
    record = Record(sizes=(10, 3000, 40_000, 400_000))
    settings = SETTINGS | {"pastes.body_bytes_max": MIB}
    wrapper = on_tmpfs(directory, 40)
    async with child(directory, settings, options=["--brisk"], wrapper=wrapper) as it, aiohttp.ClientSession() as http:
        filler = inside(it) / "filler"
        async with record.load(it.url, chance):
            for _ in range(3):
                heard = record.heard.copy()
                fill_to(filler, chance.choice((0, 0, 4096, 100_000, 2 * MIB)))
                await heard_more(record, heard, "POST 507")
                fill_to(filler, chance.choice((0, 0, 0, 4096)))
                await heard_more(record, record.heard.copy(), "", chance.randrange(20, 120))
                filler.unlink()
                await _free(http, it.url, record)
                await heard_more(record, record.heard.copy(), "POST 201")
        assert it.process.returncode is None, it.log()[-3000:]
        await _free(http, it.url, record)
        await poll(lambda: _creates(record, http, it.url), "creates are taken again")
        await record.check(http, it.url)
        assert record.lies == [], record.lies[:5]
        await work_off(it, http, record)
        it.send(signal.SIGTERM)
        assert await it.ended() == 0, it.log()[-3000:]
    return record


async def _free(http: aiohttp.ClientSession, url: str, record: Record) -> None:
    """Delete most of what is there: the pastes themselves may be what fills the disk."""
    for paste in [paste for paste in record.pastes if not paste.asked][3:]:
        await record.delete(http, url, paste)


async def heard_more(record: Record, before: Counter[str], answer: str, count: int = 1) -> None:
    async def has() -> bool:
        if answer:
            return record.heard[answer] >= before[answer] + count
        return record.heard.total() >= before.total() + count

    await poll(has, f"the clients hear {answer}")


async def _creates(record: Record, http: aiohttp.ClientSession, url: str) -> bool:
    return await record.create(http, url, b"x" * 1000) is not None
