"""A create that stalls for an hour fails instead of pointing at a body that was reaped (G12), and what it had stored by
then is reaped all the same."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from pastebin_daemon import pastes
from pastebin_daemon.database import Database
from tests.fakes import FakeClock, FakeStore
from tests.support import Harness, running


async def put(it: Harness) -> int:
    async with it.http.put(f"{it.url}/", data=b"hi") as answer:
        assert (answer.status == 201) != ("Retry-After" in answer.headers)
        return answer.status


async def stalled(it: Harness, seconds: float) -> int:
    """A create whose PUT takes so long, while everything else of the daemon turns."""
    hold = it.store.faults.hold("put")
    create = asyncio.create_task(put(it))
    await hold.reached.wait()
    it.clock.advance(seconds)
    await it.sweep("uploads")
    await it.drain()
    hold.go.set()
    return await create


async def test_a_put_that_takes_less_than_an_hour_makes_a_paste(tmp_path: Path) -> None:
    clock = FakeClock()
    store = FakeStore(clock)
    async with running(tmp_path, clock=clock, store=store) as it:
        assert await stalled(it, 3599) == 201
        clock.advance(7200)
        await it.sweep("uploads")
        await it.drain()
        assert len(store.objects) == 1
        assert await it.rows("select * from outbox") == []


async def test_a_put_that_takes_an_hour_fails_and_its_body_is_reaped_late(tmp_path: Path) -> None:
    clock = FakeClock()
    store = FakeStore(clock)
    async with running(tmp_path, clock=clock, store=store) as it:
        assert await stalled(it, 3600) == 503
        assert await it.rows("select * from pastes") == []
        assert await it.rows("select kind from outbox") == [("reap",)] * 2, "the first found nothing; a fresh one"
        await it.drain()
        assert len(store.objects) == 1, "never sooner than an hour after it was stored"
        clock.advance(3601)
        await it.drain()
        assert store.objects == {}
        assert await it.rows("select id from outbox union all select id from dead_letters") == []
        assert await put(it) == 201


async def test_no_put_is_started_long_after_its_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = FakeClock()
    store = FakeStore(clock)
    grow = Database.grow

    async def slow(database: Database, change: Any, *args: Any) -> Any:
        done = await grow(database, change, *args)
        if change is pastes.begin_upload:
            clock.advance(10.1)  # a put may take 10 s
        return done

    async with running(tmp_path, clock=clock, store=store) as it:
        monkeypatch.setattr(Database, "grow", slow)
        assert await put(it) == 503
        assert store.calls == []
        clock.advance(3600)
        await it.sweep("uploads")
        clock.advance(3600)
        await it.drain()
        assert await it.rows("select object from uploads union all select object from pastes") == []
        assert await it.rows("select * from outbox") == []
