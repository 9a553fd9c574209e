"""The dispatcher against endpoints that answer at once: beside a plain loop with the same SQL, and beside full tables."""

import sqlite3
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from statistics import median

from pastebin_daemon import inbox, logs, outbox
from pastebin_daemon.breaker import Breaker
from pastebin_daemon.clock import SystemClock
from pastebin_daemon.consumers import Done, Outcome
from pastebin_daemon.database import Database, Tx, open_database
from pastebin_daemon.dispatcher import Dispatcher, Limits, Turns
from pastebin_daemon.errors import EffectError
from pastebin_daemon.metrics import Metrics
from pastebin_daemon.outbox import OBJECT_DELETE, Claim
from tests.bench.table import Row

__all__ = ["dispatching", "grow_inbox", "tables"]

BATCH = 100
JOBS = 20_000
LEASE_MS = 60_000
DEAD, PENDING, INBOX = 1_000_000, 10_000_000, 20_000_000
TICKS = 300
INBOX_ROWS_WANTED = 80_200_000
"""116 endings/s for the 8 days of the retention."""


class Instant:
    """A consumer whose effect costs nothing."""

    kind, number, batch_max = OBJECT_DELETE, 1, BATCH

    async def run(self, claims: Sequence[Claim]) -> Mapping[int, Outcome]:
        return {claim.job: Done("deleted") for claim in claims}

    async def probe(self) -> EffectError | None:
        return None


def _dispatcher(database: Database) -> Dispatcher:
    consumer, clock = Instant(), SystemClock()
    limits = Limits(BATCH, LEASE_MS, 20.0, 8, 3_600_000)
    breaker = Breaker(consumer.kind, consumer.probe, clock, 20.0)
    return Dispatcher(database, consumer, breaker, Turns(), "bench", clock, limits, Metrics(), wake_at=1)


def _enqueue(tx: Tx, count: int) -> None:
    outbox.enqueue(
        tx, OBJECT_DELETE, [{"object": f"o{number:017}", "paste": f"p{number:017}"} for number in range(count)]
    )


async def dispatching(directory: Path, rounds: int, seconds: int) -> AsyncIterator[Row]:
    """`seconds` is not used: a round is a number of jobs."""
    logs.configure("json", "warning")
    ours: list[float] = []
    plain: list[float] = []
    async with _database(directory / "ours.sqlite") as database, _database(directory / "plain.sqlite") as other:
        dispatcher = _dispatcher(database)
        for _ in range(rounds):
            await database.write(_enqueue, JOBS)
            began = time.perf_counter()
            while await dispatcher.tick():
                pass
            ours.append(JOBS / (time.perf_counter() - began))
            await other.write(_enqueue, JOBS)
            plain.append(await other._writer.run(_plain_loop))
    ratio = median(one / two for one, two in zip(ours, plain, strict=True))
    rate = median(ours)
    yield Row(
        "dispatcher against instant endpoints, beside a plain loop with the same SQL", ">= 0.5, >= 5,000/s",
        f"{ratio:.2g}, {rate:,.0f}/s", f"{rate:,.0f}/s of {median(plain):,.0f}/s", ratio >= 0.5 and rate >= 5000,
    )  # fmt: skip


def _plain_loop(connection: sqlite3.Connection) -> float:
    """Claim, inbox and ack in groups of the same size, one after the other on one thread. The result: jobs a second."""
    began, done = time.perf_counter(), 0
    while True:
        connection.execute("begin immediate")
        claims = outbox.claim(Tx(connection, _now_ms()), OBJECT_DELETE, "bench", LEASE_MS, BATCH)
        connection.execute("commit")
        if not claims:
            return done / (time.perf_counter() - began)
        connection.execute("begin immediate")
        tx = Tx(connection, _now_ms())
        inbox.record(tx, 1, [claim.job for claim in claims])
        done += len(outbox.ack(tx, "bench", claims))
        connection.execute("commit")


async def tables(directory: Path, rounds: int, seconds: int) -> AsyncIterator[Row]:
    """Claim and settle beside full tables, and what the inbox takes. `rounds` and `seconds` are not used."""
    logs.configure("json", "warning")
    async with _database(directory / "empty.sqlite") as empty, _database(directory / "full.sqlite") as full:
        half = INBOX // 2
        sizes = [
            await full._writer.run(partial(grow_inbox, first=1 + part * half, count=half, done_s=_now_ms() // 1000))
            for part in (0, 1)
        ]
        await full._writer.run(_grow_outbox)
        await empty.write(_enqueue, 2 * TICKS * BATCH)
        ours: dict[str, list[float]] = {"empty": [], "full": []}
        dispatchers = {"empty": _dispatcher(empty), "full": _dispatcher(full)}
        for _ in range(TICKS):
            for name, dispatcher in dispatchers.items():
                began = time.perf_counter()
                assert await dispatcher.tick()
                ours[name].append(time.perf_counter() - began)
    ratio = median(ours["full"]) / median(ours["empty"])
    yield Row(
        f"claim and settle of {BATCH} beside {DEAD:,} dead letters, {PENDING:,} pending and {INBOX:,} inbox rows",
        "<= 1.5 times empty tables", f"{ratio:.3g}",
        f"{median(ours['full']) * 1000:.2f} ms, {median(ours['empty']) * 1000:.2f} ms", ratio <= 1.5,
    )  # fmt: skip
    a_row = (sizes[1] - sizes[0]) / (INBOX // 2)
    whole = (sizes[0] + a_row * (INBOX_ROWS_WANTED - INBOX // 2)) / 1e9
    yield Row(
        f"inbox at {INBOX_ROWS_WANTED:,} rows", "<= 1.6 GB", f"{whole:.2f} GB",
        f"{a_row:.1f} bytes a row, from {INBOX // 2:,} and {INBOX:,} rows", whole <= 1.6,
    )  # fmt: skip


def grow_inbox(connection: sqlite3.Connection, *, first: int, count: int, done_s: int) -> int:
    """Rows with ascending ids, as they come. The result: how large the file is then, in bytes."""
    connection.execute(
        "with recursive n (i) as (select ? union all select i + 1 from n where i < ?)"
        " insert into inbox (outbox_id, consumer, done_s) select i, 1 + i % 2, ? + i / 100000 from n",
        (first, first + count - 1, done_s),
    )
    (pages,) = connection.execute("pragma page_count").fetchone()
    (size,) = connection.execute("pragma page_size").fetchone()
    return int(pages * size)


def _grow_outbox(connection: sqlite3.Connection) -> None:
    """Jobs that have been due for as long as it took to make them, and dead letters, above the ids of the inbox."""
    numbers = "with recursive n (i) as (select 1 union all select i + 1 from n where i < ?)"
    now_ms = _now_ms()
    connection.execute(
        f"{numbers} insert into dead_letters (id, kind, payload, created_ms, attempts, generation, reason, died_ms)"
        ' select i, ?, \'{"object":"o","paste":"p"}\', ?, 8, 8, \'permanent\', ? from n',
        (DEAD, OBJECT_DELETE, now_ms, now_ms),
    )
    connection.execute("update sqlite_sequence set seq = ? where name = 'outbox'", (INBOX,))
    connection.execute("insert into sqlite_sequence (name, seq) select 'outbox', ? where changes() = 0", (INBOX,))
    connection.execute(
        f"{numbers} insert into outbox (kind, payload, created_ms, first_due_ms, due_ms)"
        " select ?, json_object('object', printf('o%017d', i), 'paste', printf('p%017d', i)), ?, ? + i / 1000, ? + i / 1000"
        " from n",
        (PENDING, OBJECT_DELETE, now_ms, now_ms - PENDING // 1000, now_ms - PENDING // 1000),
    )


def _now_ms() -> int:
    return SystemClock().now_ms()


@asynccontextmanager
async def _database(path: Path) -> AsyncIterator[Database]:
    async with open_database(path, "metadata", SystemClock()) as database:
        yield database
