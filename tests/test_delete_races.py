"""After the 204 of a delete, or the commit of any ending, nobody gets the text, also who asked before it, and nobody gets
a 500 for having asked at a bad moment.

Each race is stood still at its worst moment: a read that has its row, a fetch that is under way, a fill that has ended.
"""

import asyncio
import random
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from pastebin_daemon import pastes
from pastebin_daemon.database import Tx
from pastebin_daemon.pastes import Ended, Paste
from tests.fakes import FakeClock, FakeStore
from tests.support import Harness, Made, running

TEXT = b"a text that nobody may get any more"
WAYS = ["{}", "{}/raw", "{}/download", "api/v1/pastes/{}"]
WITH_BODY = WAYS[:3]


@asynccontextmanager
async def scene(directory: Path) -> AsyncIterator[Harness]:
    clock = FakeClock()
    async with running(directory, clock=clock, store=FakeStore(clock)) as it:
        yield it


async def end_by_owner(it: Harness, made: Made) -> None:
    await it.delete(made)


async def end_by_operator(it: Harness, made: Made) -> None:
    asked = {"id": made.id, "reason": "spam", "by": "me"}
    async with it.http.post(f"{it.admin}/api/v1/takedown", json=asked) as answer:
        assert answer.status == 200


async def end_by_expiry(it: Harness, made: Made) -> None:
    """Behind the back of whoever has the paste in hand: only the missing row and the tombstone can hide it."""
    await it.execute("update pastes set created_ms = 1, expires_ms = 2 where id = ?", made.id)
    await it.sweep("expiry")
    assert await it.rows("select * from pastes where id = ?", made.id) == []


End = Callable[[Harness, Made], Coroutine[None, None, None]]
ENDINGS = [end_by_owner, end_by_operator, end_by_expiry]


def getting(it: Harness, made: Made, way: str) -> "asyncio.Task[tuple[int, bytes]]":
    return asyncio.create_task(it.get(way.format(made.id)))


def is_gone(answer: tuple[int, bytes]) -> bool:
    status, body = answer
    assert TEXT not in body
    return status == 404 and b"There is no paste here" in body


@pytest.mark.parametrize("end", ENDINGS)
@pytest.mark.parametrize("way", WITH_BODY)
async def test_a_get_that_began_before_and_waits_for_the_body(tmp_path: Path, way: str, end: End) -> None:
    async with scene(tmp_path) as it:
        made = await it.paste(TEXT)
        hold = it.store.faults.hold("get")
        early = getting(it, made, way)
        await hold.reached.wait()
        await end(it, made)
        hold.go.set()
        assert is_gone(await early)
        assert is_gone(await it.get(way.format(made.id)))


@pytest.mark.parametrize("way", WITH_BODY)
async def test_gets_that_join_a_fetch_before_and_after_the_delete(tmp_path: Path, way: str) -> None:
    async with scene(tmp_path) as it:
        made = await it.paste(TEXT)
        hold = it.store.faults.hold("get")
        first = getting(it, made, way)
        await hold.reached.wait()
        early = [getting(it, made, other) for other in WITH_BODY * 3]
        await it.rows("select 1")  # they have come as far as they come
        await it.delete(made)
        late = [getting(it, made, other) for other in WAYS]
        for answer in late:
            assert is_gone(await answer), "it waits for no fetch: nothing can come of it"
        assert not first.done()
        hold.go.set()
        assert all(map(is_gone, await asyncio.gather(first, *early)))
        assert [operation for operation, _ in it.store.calls] == ["put", "get"], "one fetch for all of them"


@pytest.mark.parametrize("end", ENDINGS)
@pytest.mark.parametrize("way", WAYS)
async def test_a_get_that_has_read_the_row_but_not_gone_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str, end: End
) -> None:
    """The reader's thread stands with the live row in its hand while the ending commits."""
    loop = asyncio.get_running_loop()
    reached, go = asyncio.Event(), threading.Event()
    find = pastes.find

    def find_and_stand(tx: Tx, paste_id: str) -> Paste | None:
        found = find(tx, paste_id)
        if not reached.is_set():
            assert found is not None
            loop.call_soon_threadsafe(reached.set)
            assert go.wait(60)
        return found

    async with scene(tmp_path) as it:
        made = await it.paste(TEXT)
        with monkeypatch.context() as patch:
            patch.setattr(pastes, "find", find_and_stand)
            early = getting(it, made, way)
            await reached.wait()
        ending = asyncio.create_task(end(it, made))
        ended = asyncio.Event()
        it.database.subscribe(Ended, lambda event: ended.set())
        await ended.wait()
        go.set()
        await ending
        assert is_gone(await early)


@pytest.mark.parametrize("way", WITH_BODY)
async def test_a_get_whose_body_was_removed_under_it(tmp_path: Path, way: str) -> None:
    async with scene(tmp_path) as it:
        made = await it.paste(TEXT)
        hold = it.store.faults.hold("get")
        early = getting(it, made, way)
        await hold.reached.wait()
        await it.delete(made)
        await it.drain()
        assert it.store.objects == {}
        hold.go.set()
        assert is_gone(await early)
        assert it.metric("pastebin_body_missing_total") == 0


@pytest.mark.parametrize("way", WITH_BODY)
async def test_a_get_whose_row_and_body_are_gone_needs_no_tombstone_to_be_a_404(tmp_path: Path, way: str) -> None:
    """As after a restart between the commit and the get's second look at the row: nothing is left in memory."""
    async with scene(tmp_path) as it:
        made = await it.paste(TEXT)
        hold = it.store.faults.hold("get")
        early = getting(it, made, way)
        await hold.reached.wait()
        await it.execute("delete from pastes")
        it.store.objects.clear()
        hold.go.set()
        assert is_gone(await early)
        assert it.metric("pastebin_body_missing_total") == 0


@pytest.mark.parametrize("end", ENDINGS)
@pytest.mark.parametrize("way", WAYS)
async def test_a_cached_paste(tmp_path: Path, way: str, end: End) -> None:
    async with scene(tmp_path) as it:
        made = await it.paste(TEXT)
        for each in WAYS:
            assert (await it.get(each.format(made.id)))[0] == 200
        await end(it, made)
        assert is_gone(await it.get(way.format(made.id)))
        assert [operation for operation, _ in it.store.calls].count("get") == 1


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("warm", [True, False])
async def test_a_delete_whose_client_went_away_right_after_the_commit(tmp_path: Path, way: str, warm: bool) -> None:
    async with scene(tmp_path) as it:
        made = await it.paste(TEXT)
        if warm:
            await it.get(f"{made.id}/raw")
        hold = it.store.faults.hold("get")
        early = None if warm else getting(it, made, "{}/raw")
        if early is not None:
            await hold.reached.wait()

        host, port = it.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        committed = asyncio.Event()

        def go_away(event: Ended) -> None:
            writer.transport.abort()
            committed.set()

        it.database.subscribe(Ended, go_away)
        writer.write(
            f"DELETE /api/v1/pastes/{made.id} HTTP/1.1\r\nHost: x\r\nX-Delete-Token: {made.token}\r\n\r\n".encode()
        )
        await committed.wait()
        assert await reader.read() == b"", "it never got its 204"

        assert is_gone(await it.get(way.format(made.id)))
        hold.go.set()
        if early is not None:
            assert is_gone(await early)
        assert await it.rows("select kind from outbox") == [("object-delete",)]
        assert await it.try_delete(made) == 404


async def test_a_delete_that_finds_no_row_buries_what_is_cached_all_the_same(tmp_path: Path) -> None:
    async with scene(tmp_path) as it:
        made = await it.paste(TEXT)
        await it.get(f"{made.id}/raw")
        await it.execute("delete from pastes")
        assert (await it.get(f"{made.id}/raw"))[0] == 200, "as if a tombstone had been lost"
        assert await it.try_delete(made) == 404
        assert is_gone(await it.get(f"{made.id}/raw"))


async def test_the_effect_buries_what_is_cached_once_more(tmp_path: Path) -> None:
    async with scene(tmp_path) as it:
        made = await it.paste(TEXT)
        await it.delete(made)
        it.clock.advance(120)
        it.daemon.cache.sweep()
        assert not it.daemon.cache.is_buried(made.id)
        await it.drain()
        assert it.daemon.cache.is_buried(made.id)


async def test_a_tombstone_lives_longer_than_the_longest_fetch_and_then_goes(tmp_path: Path) -> None:
    async with scene(tmp_path) as it:
        made = await it.paste(TEXT)
        await it.delete(made)
        longest_s = it.daemon.config.bodies.s3.timeout + 5
        it.clock.advance(longest_s + 1)
        it.daemon.cache.sweep()
        assert it.daemon.cache.is_buried(made.id)
        it.clock.advance(longest_s)
        it.daemon.cache.sweep()
        assert not it.daemon.cache.is_buried(made.id)
        assert is_gone(await it.get(f"{made.id}/raw"))


async def test_many_readers_while_pastes_are_deleted_get_the_text_or_a_404_and_after_the_204_only_that(
    tmp_path: Path,
) -> None:
    """No moment is chosen here; whatever comes of it must hold. The store is the embedded one."""
    chance = random.Random(7)
    deleted: set[str] = set()
    async with running(tmp_path, settings={"cache.bytes_max": 4096}) as it:
        made = [await it.paste(TEXT) for _ in range(25)]

        async def read() -> None:
            for _ in range(40):
                paste = chance.choice(made)
                was_deleted = paste.id in deleted
                status, body = await it.get(chance.choice(WAYS).format(paste.id))
                assert status in (200, 404)
                if was_deleted:
                    assert is_gone((status, body))

        async def delete(some: list[Made]) -> None:
            for paste in some:
                await it.delete(paste)
                deleted.add(paste.id)
                await it.drain()

        async with asyncio.TaskGroup() as group:
            for _ in range(12):
                group.create_task(read())
            group.create_task(delete(made[:12]))
            group.create_task(delete(made[12:]))
        assert len(deleted) == 25
        assert it.metric("pastebin_body_missing_total") == 0


@pytest.mark.parametrize("way", WITH_BODY)
async def test_a_process_that_stood_still_in_a_fetch_until_the_tombstone_was_over(tmp_path: Path, way: str) -> None:
    async with scene(tmp_path) as it:
        made, other = await it.paste(TEXT), await it.paste(b"another")
        hold = it.store.faults.hold("get")
        early = getting(it, made, way)
        await hold.reached.wait()
        await it.delete(made)
        it.clock.advance(150)
        await it.delete(other)  # whose tombstone lets the old ones go
        assert not it.daemon.cache.is_buried(made.id)
        hold.go.set()
        assert (await early)[0] == 503, "whether it is gone can't be told any more"
        assert is_gone(await it.get(way.format(made.id))), "and nothing was kept"


async def test_a_process_that_stood_still_in_a_look_at_the_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with scene(tmp_path) as it:
        made, other = await it.paste(TEXT), await it.paste(b"another")
        read = it.database.read

        async def slow(function: Any, *args: Any) -> Any:
            found = await read(function, *args)
            monkeypatch.undo()
            await it.delete(made)
            it.clock.advance(150)
            await it.delete(other)
            return found

        monkeypatch.setattr(it.database, "read", slow)
        assert (await it.get(f"api/v1/pastes/{made.id}"))[0] == 503
        assert is_gone(await it.get(f"api/v1/pastes/{made.id}"))
