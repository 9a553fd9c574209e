"""The other sweepers: uploads that nobody took over become reaps, and what has served its time is forgotten (G9, G12)."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.fakes import FakeClock, FakeStore
from tests.jobs import REAP, all_done, jobs
from tests.support import Harness, running

HOUR_S = 3600


@pytest_asyncio.fixture
async def it(tmp_path: Path) -> AsyncIterator[Harness]:
    clock = FakeClock()
    async with running(tmp_path, clock=clock, store=FakeStore(clock)) as it:
        yield it


async def try_to_paste(it: Harness, **headers: str) -> tuple[int, str | None, str]:
    """Status, whether the answer is a replayed one, and where the paste is."""
    async with it.http.put(f"{it.url}/x", data=b"hi", headers=headers) as answer:
        text = await answer.text()
        return answer.status, answer.headers.get("Idempotency-Replayed"), text


async def uploads(it: Harness, count: int) -> None:
    await it.execute(
        "with recursive n (i) as (select 1 union all select i + 1 from n where i < ?)"
        " insert into uploads (object, paste, started_ms) select printf('object%04d', i), 'x', ? from n",
        count, it.clock.now_ms(),
    )  # fmt: skip


async def test_an_upload_becomes_a_reap_when_it_is_an_hour_old_and_not_earlier(it: Harness) -> None:
    await uploads(it, 2)
    it.clock.advance(HOUR_S - 0.001)
    await it.sweep("uploads")
    assert await jobs(it) == []
    it.clock.advance(0.001)
    await it.sweep("uploads")
    assert [job.kind for job in await jobs(it)] == [REAP, REAP]
    assert await it.rows("select * from uploads") == []
    assert it.metric("pastebin_uploads_abandoned_total") == 2


async def test_when_the_reaps_can_not_be_written_the_uploads_are_still_on_record(it: Harness) -> None:
    await uploads(it, 2)
    it.clock.advance(HOUR_S)
    await it.execute("create trigger refuse before insert on outbox begin select raise(abort, 'no job today'); end")
    with pytest.raises(sqlite3.IntegrityError, match="no job today"):
        await it.sweep("uploads")
    assert len(await it.rows("select * from uploads")) == 2
    await it.execute("drop trigger refuse")
    await it.sweep("uploads")
    assert len(await jobs(it)) == 2


async def test_uploads_are_swept_500_at_a_time(it: Harness) -> None:
    await uploads(it, 1200)
    it.clock.advance(HOUR_S)
    assert [await it.sweep("uploads") for _ in range(3)] == [True, True, False]
    assert len(await jobs(it)) == 1200


async def test_a_create_that_stalls_for_an_hour_fails_and_leaves_nothing_behind(it: Harness) -> None:
    hold = it.store.faults.hold("put")
    creating = asyncio.create_task(try_to_paste(it))
    await hold.reached.wait()
    it.clock.advance(HOUR_S)
    await it.sweep("uploads")
    await it.drain()
    assert len(await jobs(it)) == 1, "the reap found nothing, and waits: the body is still on its way"

    hold.go.set()
    status, _, text = await creating
    assert status == 503, text
    assert len(it.store.objects) == 1, "now it has arrived"
    assert await it.rows("select * from pastes") == []

    assert [job.kind for job in await jobs(it)] == [REAP, REAP], "and the failing commit left a fresh reap"
    await it.drain()
    assert len(it.store.objects) == 1, "which is late, as every reap"
    it.clock.advance(HOUR_S + 2)
    await it.drain()
    assert it.store.objects == {}
    assert await all_done(it)


async def test_a_create_that_was_given_up_can_be_sent_again_under_its_key(it: Harness) -> None:
    key = {"Idempotency-Key": "0123456789abcdef"}
    hold = it.store.faults.hold("put")
    creating = asyncio.create_task(try_to_paste(it, **key))
    await hold.reached.wait()
    it.clock.advance(HOUR_S)
    await it.sweep("uploads")
    hold.go.set()
    assert (await creating)[0] == 503
    status, replayed, _ = await try_to_paste(it, **key)
    assert (status, replayed) == (201, None)


async def test_an_idempotency_key_is_known_for_25_hours_and_then_forgotten(it: Harness) -> None:
    key = {"Idempotency-Key": "0123456789abcdef"}
    _, _, first = await try_to_paste(it, **key)
    it.clock.advance(25 * HOUR_S - 0.001)
    await it.sweep("idempotency")
    assert await try_to_paste(it, **key) == (201, "true", first)

    it.clock.advance(0.001)
    await it.sweep("idempotency")

    assert await it.rows("select * from idempotency") == []
    status, replayed, second = await try_to_paste(it, **key)
    assert (status, replayed) == (201, None)
    assert second != first


async def test_a_key_past_its_time_is_new_even_before_it_is_swept(it: Harness) -> None:
    key = {"Idempotency-Key": "0123456789abcdef"}
    _, _, first = await try_to_paste(it, **key)
    it.clock.advance(25 * HOUR_S)
    status, replayed, second = await try_to_paste(it, **key)
    assert (status, replayed) == (201, None)
    assert second != first


async def test_keys_are_swept_500_at_a_time(it: Harness) -> None:
    await it.execute(
        "with recursive n (i) as (select 1 union all select i + 1 from n where i < 1200)"
        " insert into idempotency (key_sha256, fingerprint, paste, created_ms)"
        " select cast(printf('%032d', i) as blob), zeroblob(32), 'x', ? from n",
        it.clock.now_ms(),
    )
    it.clock.advance(25 * HOUR_S)
    assert [await it.sweep("idempotency") for _ in range(3)] == [True, True, False]
    assert await it.rows("select * from idempotency") == []


async def test_a_sweep_that_finds_the_database_busy_tries_again_later(it: Harness) -> None:
    await uploads(it, 2)
    it.clock.advance(HOUR_S)
    await it.database._writer.run(lambda connection: connection.execute("pragma busy_timeout = 0"))  # so no one waits
    shell = sqlite3.connect(it.database.path, isolation_level=None)
    shell.execute("begin immediate")
    assert not await it.sweep("uploads")
    shell.execute("rollback")
    shell.close()
    await it.sweep("uploads")
    assert len(await jobs(it)) == 2
