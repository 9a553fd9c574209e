"""Creates, durable before they are answered, and deletes, which wait for neither store nor edge."""

import os
import sqlite3
from asyncio import StreamReader, StreamWriter, start_server
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, closing
from pathlib import Path
from statistics import median

from tests.bench.dispatching import grow_inbox
from tests.bench.load import Seen, bare, daemon, wrk
from tests.bench.state import TOKEN, fill
from tests.bench.table import Row, interleaved, ratio_row
from tests.process import child, rows

__all__ = ["sweep", "writes"]

OPEN: dict[str, object] = {"limits.creates_per_minute": 0}
OLD_ROWS = 10_000_000
DELETES_PER_S = 6000
"""More pastes than can be deleted in a turn are at hand for it."""


async def writes(directory: Path, rounds: int, seconds: int) -> AsyncIterator[Row]:
    body = os.urandom(2048).hex()
    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        places = [directory / name for name in ("ours", "single")]
        for place in places:
            place.mkdir()
        ours = await enter(daemon(places[0], OPEN))
        single = await enter(child(places[1], OPEN, program=("tests.bench.single", "serve")))
        handler = await enter(bare({"Content-Type": "text/plain"}, b"x" * 40))

        def create(url: str, connections: int) -> Callable[[], Awaitable[Seen]]:
            lua = f'wrk.method, wrk.body = "POST", "{body}"\n'
            return lambda: wrk(f"{url}/", connections=connections, seconds=seconds, lua=lua)

        seen = await interleaved(
            rounds, {"ours": create(ours.url, 64), "bare": create(handler, 64), "single": create(single.url, 64)}
        )
        yield ratio_row(
            "durable create, 4 KiB, 64 connections, local store, beside a bare handler",
            0.22,
            seen["ours"],
            seen["bare"],
        )
        yield ratio_row("the same beside one commit for each transaction", 3, seen["ours"], seen["single"])
        few = await interleaved(rounds, {"ours": create(ours.url, 8)})
        yield _latencies(few["ours"])
    async for row in _deletes(directory, rounds, seconds, seen["ours"]):
        yield row


def _latencies(seen: Sequence[Seen]) -> Row:
    p50, p99, p999 = (median(each) for each in zip(*((run.p50_s, run.p99_s, run.p999_s) for run in seen), strict=True))
    return Row(
        "durable create, 8 connections: p99 beside the median, and p99.9", "<= 8, <= 30 ms",
        f"{p99 / p50:.2g}, {p999 * 1000:.1f} ms",
        f"median {p50 * 1000:.2f} ms, p99 {p99 * 1000:.2f} ms",
        p99 <= 8 * p50 and p999 <= 0.03,
    )  # fmt: skip


async def sweep(directory: Path, rounds: int, seconds: int) -> AsyncIterator[Row]:
    """Creates while the inbox is swept, beside creates while there is nothing to sweep."""
    places = {name: directory / name for name in ("sweeping", "resting")}
    for place in places.values():
        place.mkdir()
        await fill(place, 1)
    with closing(sqlite3.connect(places["sweeping"] / "state" / "pastebin.sqlite", isolation_level=None)) as connection:
        grow_inbox(connection, first=1, count=OLD_ROWS, done_s=1)
    lua = f'wrk.method, wrk.body = "POST", "{os.urandom(2048).hex()}"\n'
    async with daemon(places["sweeping"], OPEN) as sweeping, daemon(places["resting"], OPEN) as resting:

        def create(url: str) -> Callable[[], Awaitable[Seen]]:
            return lambda: wrk(f"{url}/", connections=8, seconds=seconds, lua=lua)

        seen = await interleaved(rounds, {"sweeping": create(sweeping.url), "resting": create(resting.url)})
    left = rows(places["sweeping"] / "state" / "pastebin.sqlite", "select inbox from totals")[0][0]
    p99 = {name: median(run.p99_s for run in runs) for name, runs in seen.items()}
    ratio = p99["sweeping"] / p99["resting"]
    yield Row(
        "create p99, 8 connections, while the inbox is swept, beside at rest", "<= 1.5", f"{ratio:.2g}",
        f"{p99['sweeping'] * 1000:.1f} ms of {p99['resting'] * 1000:.1f} ms; swept {OLD_ROWS - left:,} of {OLD_ROWS:,}",
        ratio <= 1.5 and left > 0,
    )  # fmt: skip


async def _deletes(directory: Path, rounds: int, seconds: int, creates: list[Seen]) -> AsyncIterator[Row]:
    count = rounds * seconds * DELETES_PER_S
    ids: dict[str, list[str]] = {}
    for name in ("alone", "answering", "hanging"):
        (directory / name).mkdir()
        ids[name] = await fill(directory / name, count)
    async with (
        _silent() as port,
        bare({}, b"") as edge,
        daemon(directory / "alone") as alone,
        daemon(directory / "answering", _edge(edge)) as answering,
        daemon(directory / "hanging", _edge(f"http://127.0.0.1:{port}") | _store(port)) as hanging,
    ):
        places = {"alone": alone, "answering": answering, "hanging": hanging}
        turns = {name: _delete(it.url, ids[name], rounds, seconds) for name, it in places.items()}
        seen = await interleaved(rounds, turns)
    yield ratio_row("delete to 204, 64 connections, no edge, beside creates", 1, seen["alone"], creates)
    yield ratio_row(
        "the same while store and edge hang, beside while they answer", 0.9, seen["hanging"], seen["answering"]
    )


def _delete(url: str, ids: Sequence[str], rounds: int, seconds: int) -> Callable[[], Awaitable[Seen]]:
    """Each turn has pastes of its own, each of which is deleted once; a turn may end early for lack of them."""
    size = len(ids) // rounds
    slices = iter([ids[start : start + size] for start in range(0, size * rounds, size)])

    async def turn() -> Seen:
        quoted = ", ".join(f'"{paste}"' for paste in next(slices))
        lua = (
            f"local ids, n = {{{quoted}}}, 0\n"
            f'local headers = {{["X-Delete-Token"] = "{TOKEN}"}}\n'
            "request = function()\n"
            "  n = n + 1\n"
            "  if n > #ids - 64 then wrk.thread:stop() end\n"
            '  return wrk.format("DELETE", "/api/v1/pastes/" .. (ids[n] or "none"), headers)\n'
            "end\n"
        )
        return await wrk(url, connections=64, seconds=seconds, lua=lua)

    return turn


def _edge(url: str) -> dict[str, object]:
    return {
        "edge.driver": "http",
        "edge.http.method": "POST",
        "edge.http.url": f"{url}/{{id}}",
        "edge.http.rate_per_second": 0,
    }


def _store(port: int) -> dict[str, object]:
    return {
        "bodies.store": "s3",
        "bodies.s3.endpoint_url": f"http://127.0.0.1:{port}",
        "bodies.s3.access_key_id": "key",
        "bodies.s3.secret_access_key": "secret",
    }


@asynccontextmanager
async def _silent() -> AsyncIterator[int]:
    """The port of something that takes connections and never says a word."""

    async def keep(reader: StreamReader, writer: StreamWriter) -> None:
        while await reader.read(65536):
            pass
        writer.close()

    server = await start_server(keep, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
