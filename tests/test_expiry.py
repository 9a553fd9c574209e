"""Expiry: the sweeper ends what is past its time, all or nothing, in bounded batches, and never by a clock that has
just been set."""

import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from pastebin_daemon.database import Database
from tests.fakes import FakeClock, FakeEdge, FakeStore
from tests.jobs import OBJECT_DELETE, jobs, shown
from tests.support import Harness, running

REFUSE_JOBS = "create trigger refuse before insert on outbox begin select raise(abort, 'no job today'); end"


@pytest_asyncio.fixture
async def it(tmp_path: Path) -> AsyncIterator[Harness]:
    clock = FakeClock()
    async with running(tmp_path, clock=clock, store=FakeStore(clock), edge=FakeEdge()) as it:
        yield it


async def pastes(it: Harness, count: int, lifetime_s: int) -> None:
    """Many rows at once, without their bodies."""
    await it.execute(
        "with recursive n (i) as (select 1 union all select i + 1 from n where i < ?)"
        " insert into pastes (id, object, created_ms, expires_ms, size, sha256, is_text, token_sha256)"
        " select printf('paste%013d', i), printf('object%04d', i), ?, ?, 1, zeroblob(32), 1, zeroblob(32) from n",
        count, it.clock.now_ms(), it.clock.now_ms() + lifetime_s * 1000,
    )  # fmt: skip


async def live(it: Harness) -> int:
    return len(await it.rows("select 1 from pastes"))


async def test_the_rows_go_and_their_jobs_come_in_one_commit(it: Harness) -> None:
    await pastes(it, 3, 60)
    it.clock.advance(60)
    await it.sweep("expiry")
    assert await live(it) == 0
    assert [job.kind for job in await jobs(it)] == [OBJECT_DELETE] * 3, "and no purge: no edge keeps a copy so long"
    assert it.metric("pastebin_pastes_ended_total", reason="expiry") == 3


async def test_when_the_jobs_can_not_be_written_no_paste_has_ended(it: Harness) -> None:
    await pastes(it, 3, 60)
    it.clock.advance(60)
    await it.execute(REFUSE_JOBS)
    with pytest.raises(sqlite3.IntegrityError, match="no job today"):
        await it.sweep("expiry")
    assert await live(it) == 3
    assert it.metric("pastebin_pastes_ended_total", reason="expiry") == 0
    assert await it.rows("select pastes, pending from totals") == [(3, 0)]

    await it.execute("drop trigger refuse")
    await it.sweep("expiry")

    assert await live(it) == 0
    assert len(await jobs(it)) == 3


async def test_a_sweep_ends_500_at_a_time_and_comes_again_at_once(it: Harness) -> None:
    await pastes(it, 1200, 60)
    it.clock.advance(60)
    left = []
    for again in (True, True, False):
        assert await it.sweep("expiry") is again
        left.append(await live(it))
    assert left == [700, 200, 0]
    assert len(await jobs(it)) == 1200


async def test_what_expired_first_is_swept_first(it: Harness) -> None:
    await pastes(it, 501, 60)
    ((first_by_id,),) = await it.rows("select min(id) from pastes")
    await it.execute("update pastes set expires_ms = expires_ms + 1 where id = ?", first_by_id)
    it.clock.advance(61)
    await it.sweep("expiry")
    assert await it.rows("select id from pastes") == [(first_by_id,)]


async def test_a_paste_that_never_expires_is_never_swept(tmp_path: Path) -> None:
    clock = FakeClock()
    async with running(tmp_path, clock=clock, store=FakeStore(clock), settings={"pastes.expiry_max": "0"}) as it:
        await it.paste(expires_in="never")
        clock.advance(100 * 365 * 86_400)
        await it.sweep("expiry")
        assert await live(it) == 1


@pytest.mark.parametrize("step_s", [61, -61, 86_400, -86_400])
async def test_a_step_of_the_clock_stops_expiry_for_ten_minutes(it: Harness, step_s: int) -> None:
    await pastes(it, 1, 60)
    await it.sweep("expiry")
    it.clock.advance(86_500)
    it.clock.step_wall(step_s)
    await it.execute("update pastes set created_ms = 0, expires_ms = 1")

    assert not await it.sweep("expiry")
    assert await live(it) == 1
    assert await shown(it, "pastebin_expiry_paused") == 1
    it.clock.advance(599.999)
    await it.sweep("expiry")
    assert await live(it) == 1

    it.clock.advance(0.001)
    await it.sweep("expiry")
    assert await live(it) == 0, "the new time is accepted, and nobody had to confirm it"
    assert await shown(it, "pastebin_expiry_paused") == 0


async def test_a_second_step_begins_the_ten_minutes_anew(it: Harness) -> None:
    await pastes(it, 1, 60)
    it.clock.advance(3600)
    it.clock.step_wall(7200)
    await it.sweep("expiry")
    it.clock.advance(500)
    it.clock.step_wall(-7200)
    await it.sweep("expiry")
    it.clock.advance(599)
    await it.sweep("expiry")
    assert await live(it) == 1
    it.clock.advance(1)
    await it.sweep("expiry")
    assert await live(it) == 0


@pytest.mark.parametrize("step_s", [60, -60, 1, -1])
async def test_a_small_step_stops_nothing(it: Harness, step_s: int) -> None:
    await pastes(it, 1, 60)
    it.clock.advance(3600)
    it.clock.step_wall(step_s)
    await it.sweep("expiry")
    assert await live(it) == 0
    assert await shown(it, "pastebin_expiry_paused") == 0


async def test_drift_that_is_slewed_away_is_no_step_however_much_it_adds_up_to(it: Harness) -> None:
    await pastes(it, 1, 7200)
    for _ in range(100):
        it.clock.advance(60)
        it.clock.step_wall(1)
        await it.sweep("expiry")
        assert it.metric("pastebin_expiry_paused") == 0
    it.clock.advance(1200)
    await it.sweep("expiry")
    assert await live(it) == 0


class SleepyClock(FakeClock):
    slept_s = 0.0

    def suspend(self, seconds: float) -> None:
        """The machine sleeps: the wall clock and boottime go on, monotonic stands still."""
        self._now_ms += seconds * 1000
        self.slept_s += seconds

    def boottime(self) -> float:
        return self.monotonic() + self.slept_s


async def test_a_machine_that_slept_has_not_set_its_clock(tmp_path: Path) -> None:
    clock = SleepyClock()
    async with running(tmp_path, clock=clock, store=FakeStore(clock)) as it:
        await pastes(it, 1, 60)
        clock.suspend(86_400)
        await it.sweep("expiry")
        assert await live(it) == 0


async def test_while_expiry_is_stopped_reads_go_by_the_clock(it: Harness) -> None:
    made = await it.paste(b"hi", expires_in="1h")
    it.clock.step_wall(3600)
    await it.sweep("expiry")
    assert await live(it) == 1
    assert (await it.get(f"{made.id}/raw"))[0] == 404
    it.clock.step_wall(-3600)
    assert await it.get(f"{made.id}/raw") == (200, b"hi"), "a clock that was wrong for a while has cost nothing"


@pytest.mark.parametrize("step_s", [7200, -7200])
async def test_a_step_between_the_look_at_the_clock_and_the_commit_ends_nothing_that_lives(
    it: Harness, monkeypatch: pytest.MonkeyPatch, step_s: int
) -> None:
    made = await it.paste(b"hi", expires_in="1h")
    if step_s < 0:
        it.clock.advance(3600)
    write = Database.write

    async def stepped(database: Database, function: Any, *args: Any) -> Any:
        it.clock.step_wall(step_s)
        return await write(database, function, *args)

    with monkeypatch.context() as patch:
        patch.setattr(Database, "write", stepped)
        await it.sweep("expiry")
    assert await it.rows("select id from pastes") == [(made.id,)]
