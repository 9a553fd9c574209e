"""From the start to ready, and what it takes of memory: idle, and with many large uploads at once."""

import asyncio
import os
import re
import time
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from statistics import median

import aiohttp

from tests.bench.load import daemon, in_turn, wrk
from tests.bench.state import fill
from tests.bench.table import Row
from tests.process import Child
from tests.real.moto import new_bucket, running_moto

__all__ = ["memory", "starting"]

MB = 1e6
UPLOADS, UPLOAD_BYTES = 200, 10 << 20
CACHE_BYTES = UPLOADS_BYTES = 64 << 20
"""The defaults of `[cache] bytes_max` and `[uploads] memory_max`."""


async def starting(directory: Path, rounds: int, seconds: int) -> AsyncIterator[Row]:
    """`seconds` is not used."""
    local = [await _start(directory, {}) for _ in range(rounds + 1)][1:]  # the first one makes the files
    yield _row("start to ready, local store", 0.6, local)
    with running_moto() as port:
        bucket = new_bucket(port)
        remote = [await _start(directory, bucket.settings()) for _ in range(rounds + 1)][1:]
    yield _row("start to ready, S3", 1.5, remote)


async def _start(directory: Path, settings: Mapping[str, object]) -> float:
    began = time.perf_counter()
    async with daemon(directory, settings) as it, aiohttp.ClientSession() as http:
        async with http.get(f"{it.admin}/readyz") as answer:
            assert answer.status == 200
        return time.perf_counter() - began


def _row(what: str, most_s: float, seen: list[float]) -> Row:
    return Row(
        what,
        f"<= {most_s:g} s",
        f"{median(seen):.2f} s",
        f"{min(seen):.2f} to {max(seen):.2f} s",
        median(seen) <= most_s,
    )


async def memory(directory: Path, rounds: int, seconds: int) -> AsyncIterator[Row]:
    """`rounds` is not used."""
    ids = await fill(directory, 20_000)
    settings = {"limits.creates_per_minute": 0, "pastes.body_bytes_max": UPLOAD_BYTES}
    async with daemon(directory, settings) as it:
        await asyncio.sleep(3)  # so that what the start leaves for later has been done
        idle = _memory(it, "VmRSS")
        yield Row("memory when idle, local store", "<= 60 MB", f"{idle:.0f} MB", "resident", idle <= 60)
        lua = in_turn([f"/{paste}/raw" for paste in ids])
        body = os.urandom(2048).hex()
        for run in (
            wrk(it.url, connections=64, seconds=seconds, lua=lua),
            wrk(f"{it.url}/", connections=64, seconds=seconds, lua=f'wrk.method, wrk.body = "POST", "{body}"\n'),
        ):
            assert (await run).failed == 0
        statuses = await _uploads(it)
        most = _memory(it, "VmHWM")
    bound = (CACHE_BYTES + UPLOADS_BYTES) / MB + 100
    yield Row(
        f"memory at most: reads of 20,000 pastes, creates, {UPLOADS} uploads of 10 MiB at once", f"<= {bound:.0f} MB",
        f"{most:.0f} MB", f"resident; the uploads got {statuses}", most <= bound,
    )  # fmt: skip


async def _uploads(it: Child) -> dict[int, int]:
    """All begin before the first one ends. The result: how often each status was given."""
    body = os.urandom(UPLOAD_BYTES)
    statuses: dict[int, int] = {}
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:

        async def upload() -> None:
            try:
                async with http.post(f"{it.url}/", data=body) as answer:
                    statuses[answer.status] = statuses.get(answer.status, 0) + 1
            except aiohttp.ClientError:  # refused, and cut off while it went on sending
                statuses[0] = statuses.get(0, 0) + 1

        await asyncio.gather(*(upload() for _ in range(UPLOADS)))
    return statuses


def _memory(it: Child, which: str) -> float:
    """In MB. The child is `setpriv` turned into the daemon: one process."""
    status = Path(f"/proc/{it.process.pid}/status").read_text()
    found = re.search(rf"^{which}:\s+(\d+) kB$", status, re.MULTILINE)
    assert found is not None
    return int(found[1]) * 1024 / MB
