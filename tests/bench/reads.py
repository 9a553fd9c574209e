"""Reads: what the origin cache holds, the page of a source, and what has to be fetched from the embedded store."""

import os
from collections.abc import AsyncIterator
from pathlib import Path
from statistics import median

import aiohttp

from tests.bench.load import bare, wrk
from tests.bench.table import Row
from tests.process import Child, child

__all__ = ["reads"]

CONNECTIONS = 32
OURS = frozenset({"date", "server", "content-length", "x-request-id"})
"""Headers that a server makes for each answer, the bare one too (all but the request's id)."""


async def reads(directory: Path, rounds: int, seconds: int) -> AsyncIterator[Row]:
    source = (Path(__file__).parents[1] / "promises.py").read_bytes() * 4
    async with child(directory, {"limits.creates_per_minute": 0, "log.level": "warning"}) as it:
        text = await _paste(it, os.urandom(2048).hex().encode())
        page = await _paste(it, source[: 20 * 1024], "x.py")
        yield await _beside_bare(it, f"/{text}/raw", "read of a cached 4 KiB paste, /raw", 0.85, rounds, seconds)
        yield await _beside_bare(it, f"/{page}", "page of a 20 KB source, cached", 0.80, rounds, seconds)
    # A cache with no room, so that each read looks up the row and the body.
    settings = {"limits.creates_per_minute": 0, "log.level": "warning", "cache.bytes_max": 0}
    async with child(directory, settings) as it:
        text = await _paste(it, os.urandom(2048).hex().encode())
        what = "read of an uncached 4 KiB paste, local store"
        yield await _beside_bare(it, f"/{text}/raw", what, 0.30, rounds, seconds)


async def _paste(it: Child, body: bytes, title: str = "") -> str:
    async with (
        aiohttp.ClientSession() as http,
        http.post(
            f"{it.url}/api/v1/pastes", data=body, params={"title": title}, headers={"Content-Type": "x/y"}
        ) as answer,
    ):
        assert answer.status == 201, await answer.text()
        paste: str = (await answer.json())["id"]
        return paste


async def _beside_bare(it: Child, path: str, what: str, reach: float, rounds: int, seconds: int) -> Row:
    async with aiohttp.ClientSession(auto_decompress=False) as http, http.get(it.url + path) as answer:
        assert answer.status == 200
        body = await answer.read()
        headers = {name: value for name, value in answer.headers.items() if name.lower() not in OURS}
    ours: list[float] = []
    theirs: list[float] = []
    async with bare(headers, body) as url:
        for _ in range(rounds):
            for target, seen in ((it.url + path, ours), (url + path, theirs)):
                run = await wrk(target, connections=CONNECTIONS, seconds=seconds)
                assert run.failed == 0, run
                seen.append(run.rate)
    ratios = [one / other for one, other in zip(ours, theirs, strict=True)]
    return Row(
        what,
        f">= {reach}",
        median(ratios),
        f"{median(ours):,.0f}/s of {median(theirs):,.0f}/s",
        median(ratios) >= reach,
    )
