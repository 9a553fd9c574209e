"""Every transaction that there is, in an order in which each of its statements runs at least once; and tables full
of rows."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from pastebin_daemon import inbox, operating, outbox, pastes
from pastebin_daemon.bodies.local import BATCH_BYTES, LocalStore
from pastebin_daemon.database import Database, Tx, open_database
from pastebin_daemon.pastes import Idempotency, NewPaste
from tests.fakes import START_MS, FakeClock
from tests.faulty_sqlite import FaultySqlite

__all__ = ["drive", "drive_bodies", "fill", "traced"]


@asynccontextmanager
async def traced(path: Path, schema: str) -> AsyncIterator[tuple[Database, FakeClock, FaultySqlite]]:
    sqlite, clock = FaultySqlite(), FakeClock()
    async with open_database(path, schema, clock, connect=sqlite.connect) as database:
        sqlite.seen.clear()
        yield database, clock, sqlite


TOKEN = b"t" * 32
OWNER = "me"
LEASE_MS = 60_000
DAY_MS = 86_400_000


def new_paste(number: int, lifetime_ms: int | None = None) -> NewPaste:
    return NewPaste(
        f"{number:018}", f"object{number}", lifetime_ms, 1, b"s" * 32, True, None, None, TOKEN
    )  # fmt: skip


async def drive(database: Database, clock: FakeClock) -> None:
    write, read = database.write, database.read
    kind = outbox.OBJECT_DELETE
    key = Idempotency(b"k" * 32, b"f" * 32)

    # pastes and uploads: three that live, one that expires, one that is late, one that is given up
    for number in range(5):
        new = new_paste(number, 1000 if number == 3 else None)
        await write(pastes.begin_upload, new, 10**9)
        await write(pastes.commit, new, key if number == 0 else None, 10**9)
    await write(pastes.commit, new_paste(5), None, 0)
    await write(pastes.begin_upload, new_paste(6), 0)
    assert await read(pastes.find, f"{0:018}")
    assert await read(pastes.find_replay, key, DAY_MS)
    assert await read(pastes.live_objects, ["object0", "nothing"]) == {"object0"}
    assert await read(pastes.uploading, ["object6", "nothing"]) == {"object6"}
    await write(pastes.delete, f"{0:018}", TOKEN, (0, 20_000))
    await write(pastes.take_down, f"{1:018}", (0, 20_000))
    clock.advance(5000)
    assert await write(pastes.expire, 100, clock.now_ms()) == 1
    assert await write(pastes.abandon, 1000, 100) == 1
    assert await write(pastes.sweep_idempotency, 1000, 100) == 1

    # jobs, by every way that a claim can end
    await write(outbox.enqueue, kind, [{"object": str(n)} for n in range(20)])
    claims = await write(outbox.claim, kind, OWNER, LEASE_MS, 10)
    assert len(claims) == 10
    assert await write(outbox.ack, OWNER, claims[:2])
    assert await write(outbox.retry, OWNER, [(claims[2], clock.now_ms(), "no")])
    assert await write(outbox.give_back, OWNER, [(claims[3], "no")])
    assert await write(outbox.postpone, OWNER, [(claims[4], clock.now_ms(), "not yet")])
    assert await write(outbox.bury, OWNER, [(claim, "poison", "no") for claim in claims[5:8]])
    await write(inbox.record, 1, [claims[8].job, claims[5].job])
    assert await read(inbox.seen, 1, [claims[8].job]) == {claims[8].job}
    clock.advance(61)
    assert await write(outbox.expired_kinds, outbox.KINDS) == [kind]
    acked, buried = await write(outbox.bury_exhausted, kind, 1, 1, 100)
    assert (acked, buried) == ({claims[8].job}, {claims[9].job})
    assert await write(outbox.claim, kind, OWNER, LEASE_MS, 1)
    clock.advance(61)
    assert await write(outbox.reclaim, kind, OWNER, LEASE_MS, 8)

    # what the operator asks for and does
    await read(operating.totals)
    assert [queue.kind for queue in await read(operating.queues)] == list(outbox.KINDS)
    assert await read(operating.jobs, "waiting", 0)
    dead = await read(operating.jobs, "dead", 0)
    assert [job["id"] for job in dead] == await read(operating.dead_ids)
    assert await read(operating.one_job, dead[0]["id"])
    assert await write(operating.replay, [dead[0]["id"]], "me", DAY_MS)
    assert await write(outbox.discard, dead[1]["id"])
    clock.advance(9 * 86_400)
    assert await write(inbox.sweep, 0, 8 * DAY_MS, 2000) == (1, claims[8].job)


async def drive_bodies(database: Database) -> None:
    store = LocalStore(database)
    await store.put("a", b"x")
    await store.put("large", bytes(BATCH_BYTES + 1))
    assert await store.get("a") == b"x"
    assert await store.age_s("a") == 0
    assert await store.delete(["a", "b"]) == {"a": "deleted", "b": "missing"}


FILL = {
    "metadata": [
        "insert into pastes select printf('%018d', n), 'o' || n, :now, :now + 1000 + n % 97, 1, zeroblob(32), 1,"
        " null, null, zeroblob(32) from many",
        "insert into uploads select 'u' || n, printf('%018d', n), :now + n from many",
        "insert into idempotency select cast(printf('%032d', n) as blob), zeroblob(32), printf('%018d', n), :now + n"
        " from many",
        "insert into outbox (kind, payload, created_ms, first_due_ms, due_ms)"
        " select iif(n % 100, 'reap', 'object-delete'), '{}', :now, :now, :now - n from many",
        "insert into outbox (kind, payload, created_ms, first_due_ms, due_ms, state, attempts, generation, owner,"
        " lease_ms) select 'edge-purge', '{}', :now, :now, :now, 'leased', 1, 1, 'x', :now - n from many",
        "insert into dead_letters select 1000000 + n, 'reap', '{}', 1, 8, 8, 'no', 'attempts_exhausted', :now, null,"
        " null from many",
        "insert into inbox select n, 1, :now + n from many",
    ],
    "bodies": ["insert into objects select 'o' || n, :now, x'00' from many"],
}


def fill(tx: Tx, schema: str, count: int) -> None:
    many = f"with recursive many (n) as (select 1 union all select n + 1 from many where n < {count}) "
    for insert in FILL[schema]:
        values = insert.index("select")
        tx.changed(f"{insert[:values]}{many}{insert[values:]}", {"now": START_MS})
