"""Reads: what the origin cache holds, the page of a source, and what has to be fetched from the embedded store."""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path

import aiohttp

from tests.bench.load import Seen, bare, daemon, in_turn, wrk
from tests.bench.state import fill
from tests.bench.table import Row, interleaved, ratio_row

__all__ = ["reads"]

CONNECTIONS = 32
UNCACHED = 5000
OURS = frozenset({"date", "server", "content-length", "x-request-id"})
"""Headers that a server makes for each answer, the bare one too (all but the request's id)."""


async def reads(directory: Path, rounds: int, seconds: int) -> AsyncIterator[Row]:
    source = (Path(__file__).parents[1] / "promises.py").read_bytes() * 4
    ids = await fill(directory, UNCACHED)
    async with daemon(directory, {"limits.creates_per_minute": 0}) as it, aiohttp.ClientSession() as http:
        async with http.put(f"{it.url}/x.py", data=source[: 20 * 1024]) as answer:
            page = answer.headers["Location"].rpartition("/")[2]
        for what, reach, path in (
            ("read of a cached 4 KiB paste, /raw", 0.85, f"/{ids[0]}/raw"),
            ("page of a 20 KB source, cached", 0.80, f"/{page}"),
        ):
            yield await _beside_bare(it.url, [path], what, reach, rounds, seconds)
    # A cache with no room, so that each read looks up the row and the body.
    async with daemon(directory, {"cache.bytes_max": 0}) as it:
        paths = [f"/{paste}/raw" for paste in ids]
        yield await _beside_bare(it.url, paths, "read of an uncached 4 KiB paste, local store", 0.30, rounds, seconds)


async def _beside_bare(url: str, paths: Sequence[str], what: str, reach: float, rounds: int, seconds: int) -> Row:
    async with aiohttp.ClientSession(auto_decompress=False) as http, http.get(url + paths[0]) as answer:
        assert answer.status == 200
        body = await answer.read()
        headers = {name: value for name, value in answer.headers.items() if name.lower() not in OURS}
    lua = in_turn(paths) if len(paths) > 1 else ""

    def turn(target: str) -> Callable[[], Awaitable[Seen]]:
        return lambda: wrk(target, connections=CONNECTIONS, seconds=seconds, lua=lua)

    async with bare(headers, body) as bare_url:
        single = "" if len(paths) > 1 else paths[0]
        seen = await interleaved(rounds, {"ours": turn(url + single), "bare": turn(bare_url + single)})
    return ratio_row(what, reach, seen["ours"], seen["bare"])
