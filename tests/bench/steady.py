"""Readers who go on reading while something large goes on beside them: a million pastes expire at once."""

import asyncio
import os
import re
import sqlite3
import time
from collections.abc import AsyncIterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp

from tests.bench.load import Seen, daemon, wrk
from tests.bench.state import TOKEN, fill
from tests.bench.table import Row
from tests.process import Child
from tests.real.faults import FaultProxy
from tests.real.moto import new_bucket, running_moto

__all__ = ["bulk", "expiry", "tenfold"]

EXPIRING = 1_000_000
BULK = 5000
READS_PER_S = 5000
CREATES_PER_S, DELETES_PER_S = 1160, 350
WHOLE_S = 400


@dataclass
class Watch:
    """What `/metrics` said, second by second."""

    lag_s: float = 0.0
    age_s: float = 0.0
    left: list[tuple[float, float]] = field(default_factory=list)
    """(when, pastes and jobs that wait)"""


async def expiry(directory: Path, rounds: int, seconds: int) -> AsyncIterator[Row]:
    """`rounds` and `seconds` are not used: it takes as long as it takes, and at most `WHOLE_S`."""
    (paste, *_) = await fill(directory, 1)
    await _expired(directory, EXPIRING)
    async with daemon(directory) as it:
        watch = Watch()
        watching = asyncio.create_task(_watch(it, watch, 1))
        runs: list[Seen] = []
        while not watching.done():
            runs.append(await _offered(f"{it.url}/{paste}/raw", READS_PER_S, 10))
        await watching
    (began, first), (ended, last) = watch.left[0], watch.left[-1]
    rate = (first - last) / 2 / (ended - began)  # each of them is a row, and then a job
    p99 = max(run.p99_s for run in runs)
    failed = sum(run.failed for run in runs)
    read = sum(run.rate for run in runs) / len(runs)
    yield Row(
        f"{EXPIRING:,} pastes expiring at once: event-loop lag throughout", "<= 50 ms", f"{watch.lag_s * 1000:.0f} ms",
        "the daemon's own measure", watch.lag_s <= 0.05,
    )  # fmt: skip
    yield Row(
        f"the same: reads, {READS_PER_S:,}/s offered", "none fails, p99 < 50 ms", f"{failed} fail, {p99 * 1000:.0f} ms",
        f"{read:,.0f}/s answered; the worst p99 of 10 s", failed == 0 and p99 < 0.05,
    )  # fmt: skip
    yield Row(
        "the same: rows and jobs drained", ">= 3,500/s", f"{rate:,.0f}/s", f"{last:,.0f} left after {ended - began:.0f} s",
        rate >= 3500 and last == 0,
    )  # fmt: skip


async def bulk(directory: Path, rounds: int, seconds: int) -> AsyncIterator[Row]:
    """What ended pastes cost of a bucket. `rounds` and `seconds` are not used."""
    await _expired(directory, BULK)
    with running_moto() as port:
        async with FaultProxy(port) as proxy:
            async with daemon(directory, new_bucket(port).settings(proxy.url)) as it:
                watch = Watch()
                await _watch(it, watch, 0)
            asked = len(proxy.seen)
    left = watch.left[-1][1]
    yield Row(
        "S3 requests for each ended paste, bulk delete", "<= 0.02", f"{asked / BULK:.3g}",
        f"{asked} requests for {BULK:,}, {left:.0f} left", asked / BULK <= 0.02 and left == 0,
    )  # fmt: skip


async def tenfold(directory: Path, rounds: int, seconds: int) -> AsyncIterator[Row]:
    """Ten times the sizing, all at once, for as many minutes as there are rounds (10 are asked for)."""
    length = 60 * rounds
    (paste, *ids) = await fill(directory, 1 + DELETES_PER_S * (length + 30))
    quoted = ", ".join(f'"{each}"' for each in ids)
    deletes = (
        f"local ids, n = {{{quoted}}}, 0\n"
        f'local headers = {{["X-Delete-Token"] = "{TOKEN}"}}\n'
        'request = function() n = n + 1; return wrk.format("DELETE", "/api/v1/pastes/" .. ids[n], headers) end\n'
    )
    creates = f'wrk.method, wrk.body = "POST", "{os.urandom(2048).hex()}"\n'
    async with daemon(directory, {"limits.creates_per_minute": 0, "log.level": "warning"}) as it:
        watch = Watch()
        watching = asyncio.create_task(_watch(it, watch, -1))
        made, gone, read = await asyncio.gather(
            _offered(f"{it.url}/?expires_in=30", CREATES_PER_S, length, clients=400, answer_ms=30, lua=creates),
            _offered(it.url, DELETES_PER_S, length, clients=120, answer_ms=15, lua=deletes),
            _offered(f"{it.url}/{paste}/raw", READS_PER_S, length),
        )
        watching.cancel()
    failed = made.failed + gone.failed + read.failed
    yield Row(
        f"10 times the sizing at once, {rounds} min: 1,160 creates and endings, 350 deletes, 5,000 reads a second",
        "no error, age < 5 s, p99 create < 100 ms",
        f"{failed} errors, {watch.age_s:.1f} s, {made.p99_s * 1000:.0f} ms",
        f"{made.rate:,.0f} creates/s, {gone.rate:,.0f} deletes/s, {read.rate:,.0f} reads/s; p99 of a read"
        f" {read.p99_s * 1000:.0f} ms, of a delete {gone.p99_s * 1000:.0f} ms; loop lag {watch.lag_s * 1000:.0f} ms",
        failed == 0 and watch.age_s < 5 and made.p99_s < 0.1,
    )  # fmt: skip


async def _expired(directory: Path, count: int) -> None:
    """Make pastes that are all past their time."""
    await fill(directory, count, size=1000, lifetime_ms=86_400_000)
    with closing(sqlite3.connect(directory / "state" / "pastebin.sqlite", isolation_level=None)) as connection:
        connection.execute("update pastes set created_ms = 0, expires_ms = 1 where expires_ms is not null")


async def _offered(
    url: str, rate: float, seconds: int, *, clients: int = 250, answer_ms: float = 2, lua: str = ""
) -> Seen:
    """So many clients that the rate hangs little on how long an answer takes (about `answer_ms`), and each waits for a
    random time before it asks again: a load that comes in step would be one of wrk's making."""
    mean_ms = 1000 * clients / rate - answer_ms
    lua += f"delay = function() return 0.5 - {mean_ms} * math.log(1 - math.random()) end\n"
    return await wrk(url, connections=clients, seconds=seconds, lua=lua)


async def _watch(it: Child, watch: Watch, live: int) -> None:
    """Until nothing but `live` pastes is left, or the time is over."""
    began = time.monotonic()
    async with aiohttp.ClientSession() as http:
        while time.monotonic() - began < WHOLE_S:
            async with http.get(f"{it.admin}/metrics") as answer:
                text = await answer.text()
            pastes = value(text, "pastebin_pastes_live")
            jobs = sum(value(text, f'pastebin_outbox_jobs{{state="{state}"}}') for state in ("pending", "leased"))
            waiting = pastes - live + jobs
            # A paste that has not ended yet has two steps to go, a job one.
            watch.left.append((time.monotonic(), waiting + pastes - live))
            watch.lag_s = max(watch.lag_s, value(text, "pastebin_event_loop_lag_seconds"))
            watch.age_s = max(watch.age_s, value(text, "pastebin_outbox_oldest_unpublished_age_seconds"))
            if waiting == 0:
                return
            await asyncio.sleep(1)


def value(text: str, name: str) -> float:
    found = re.search(rf"^{re.escape(name)} ([0-9.e+-]+)$", text, re.MULTILINE)
    assert found is not None, name
    return float(found[1])
