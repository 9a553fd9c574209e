"""Calls of one function that wait together run as one, and nobody can tell: neither by a result, nor by what is said, nor
by a row. Two databases get the same calls, one of them together and the other one by one."""

import asyncio
import json
import sqlite3
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from pastebin_daemon import pastes
from pastebin_daemon.bodies.local import BATCH_BYTES, open_local
from pastebin_daemon.database import Database, Tx, batched_by, only, open_database
from pastebin_daemon.database.batch import BATCH_MAX
from pastebin_daemon.errors import DatabaseUnavailable, Forbidden, NotFound, StorageFull, Temporary
from pastebin_daemon.ids import token_sha256
from pastebin_daemon.outbox import Enqueued
from pastebin_daemon.pastes import Created, Ended, Idempotency, NewPaste
from tests.driving import new_paste
from tests.fakes import FakeClock
from tests.faulty_sqlite import FaultySqlite, stalled

TABLES = {
    "pastes": "*",
    "uploads": "*",
    "idempotency": "*",
    "outbox": "kind, payload, created_ms, first_due_ms, due_ms, state",  # the order of ids is nobody's business
    "totals": "*",
}
Call = tuple[Callable[..., Any], tuple[Any, ...]]


class Side:
    def __init__(self, database: Database, clock: FakeClock) -> None:
        self.database = database
        self.clock = clock
        self.said: list[object] = []
        for event in (Created, Ended, Enqueued):
            database.subscribe(event, self.said.append)

    def tell(self) -> Counter[object]:
        """What was said since; jobs by their number, since a batch says how many there are of it."""
        said, self.said = self.said, []
        told: Counter[object] = Counter()
        for event in said:
            if isinstance(event, Enqueued):
                told[event.kind, event.due_ms] += event.count
            else:
                told[event] += 1
        return told

    async def rows(self) -> dict[str, list[tuple[Any, ...]]]:
        def all_of(tx: Tx) -> dict[str, list[tuple[Any, ...]]]:
            return {
                table: sorted(tx.rows(f"select {columns} from {table}"), key=repr) for table, columns in TABLES.items()
            }

        return await self.database.read(all_of)

    async def together(self, calls: Sequence[Call]) -> list[object]:
        async with stalled(self.database):
            waiting = [asyncio.ensure_future(self.database.write(function, *args)) for function, args in calls]
            await asyncio.sleep(0)
        return [spoken(result) for result in await asyncio.gather(*waiting, return_exceptions=True)]

    async def one_by_one(self, calls: Sequence[Call]) -> list[object]:
        results: list[object] = []
        for function, args in calls:
            try:
                results.append(spoken(await self.database.write(function, *args)))
            except Exception as error:  # noqa: BLE001  compared, whatever it is
                results.append(spoken(error))
        return results


def spoken(result: object) -> object:
    return (type(result), str(result)) if isinstance(result, BaseException) else result


@asynccontextmanager
async def side(path: Path) -> AsyncIterator[Side]:
    clock = FakeClock()
    async with open_database(path, "metadata", clock) as database:
        yield Side(database, clock)


def drawn(random: Random, numbers: list[int], begun: dict[int, NewPaste], made: dict[int, NewPaste]) -> list[Call]:
    """Calls that may come at the same time, since none of them waits for another."""
    calls: list[Call] = []
    for number in [numbers.pop() for _ in range(random.randrange(4))]:
        lifetime_ms = random.choice([None, 1, 50_000, 10**9])
        title, language = random.choice([None, 'a"b\\c', "ü😀\u202e.txt", ""]), random.choice([None, "C++", "null"])
        begun[number] = replace(new_paste(number, lifetime_ms), title=title, language=language)
        calls.append((pastes.begin_upload, (begun[number], 0)))
    ready = [number for number in begun if (pastes.begin_upload, (begun[number], 0)) not in calls]
    for number in random.sample(ready, min(len(ready), random.randrange(4))):
        made[number] = begun.pop(number)
        key = Idempotency(bytes([number % 256]) * 32, b"f" * 32) if random.random() < 0.3 else None
        calls.append((pastes.commit, (made[number], key, 0)))
    for number in random.choices(sorted(made), k=random.randrange(6)) if made else []:
        if all(function is not pastes.commit or args[0] is not made[number] for function, args in calls):
            token = made[number].token_sha256 if random.random() < 0.7 else token_sha256("wrong")
            calls.append((pastes.delete, (made[number].id, token, (0, 30_000))))
    if random.random() < 0.3:  # an upload that was given up meanwhile
        calls.append((pastes.commit, (new_paste(numbers.pop()), None, 0)))
    random.shuffle(calls)
    return calls


@pytest.mark.parametrize("seed", range(5))
async def test_together_and_one_by_one_come_to_the_same(tmp_path: Path, seed: int) -> None:
    random, numbers = Random(seed), list(range(1, 2000))
    begun: dict[int, NewPaste] = {}
    made: dict[int, NewPaste] = {}
    kinds: Counter[object] = Counter()
    async with side(tmp_path / "together.sqlite") as together, side(tmp_path / "alone.sqlite") as alone:
        for _ in range(60):
            calls = drawn(random, numbers, begun, made)
            results = await together.together(calls)
            assert results == await alone.one_by_one(calls)
            assert together.tell() == alone.tell()
            assert await together.rows() == await alone.rows()
            kinds.update(result[0] if isinstance(result, tuple) else type(result) for result in results)
            seconds = random.choice([0, 0, 1, 60])
            together.clock.advance(seconds)
            alone.clock.advance(seconds)
    assert set(kinds) >= {type(None), pastes.Paste, NotFound, Forbidden}, "the draw met every outcome"


async def test_reads_that_wait_together_each_get_their_own(tmp_path: Path) -> None:
    async with side(tmp_path / "some.sqlite") as it:
        for number in range(1, 101):
            await it.database.write(pastes.begin_upload, new_paste(number), 0)
            await it.database.write(pastes.commit, new_paste(number, 1000 if number % 3 == 0 else None), None, 0)
        it.clock.advance(1)
        asked = [*range(1, 101), 50, 2000, 50]
        found = await asyncio.gather(*(it.database.read(pastes.find, new_paste(number).id) for number in asked))
        for number, paste in zip(asked, found, strict=True):
            assert (paste is None) == (number % 3 == 0 or number == 2000)
            assert paste is None or paste.id == new_paste(number).id


async def test_a_quota_that_is_too_small_for_all_takes_those_that_fit(tmp_path: Path) -> None:
    news = [new_paste(number) for number in range(1, 6)]
    limit = 3 * news[0].size
    async with side(tmp_path / "some.sqlite") as it:
        await it.one_by_one([(pastes.begin_upload, (new, 0)) for new in news])
        results = await it.together([(pastes.commit, (new, None, limit)) for new in news])
        assert [isinstance(result, pastes.Paste) for result in results] == [True, True, True, False, False]
        assert {result[0] for result in results[3:] if isinstance(result, tuple)} == {StorageFull}
        rows = await it.rows()
        assert len(rows["pastes"]) == 3
        assert len(rows["uploads"]) == 2, "the others' records stay, and the sweeper reaps what they left"


async def test_an_upload_that_was_given_up_is_told_from_one_over_the_quota(tmp_path: Path) -> None:
    kept, over, gone = (new_paste(number) for number in (1, 2, 3))
    async with side(tmp_path / "some.sqlite") as it:
        await it.one_by_one([(pastes.begin_upload, (new, 0)) for new in (kept, over)])
        one, two, three = await it.together([(pastes.commit, (new, None, kept.size)) for new in (kept, over, gone)])
        assert isinstance(one, pastes.Paste)
        assert isinstance(two, tuple)
        assert two[0] is StorageFull
        assert three is None
        (job,) = await it.database.read(lambda tx: tx.rows("select kind, payload from outbox"))
        assert job == ("reap", json.dumps({"object": gone.object}, separators=(",", ":")))


async def test_bodies_that_are_put_together_come_back_as_they_went_in(tmp_path: Path) -> None:
    random, clock = Random(1), FakeClock()
    sizes = [
        1,
        2,
        0,
        100,
        4096,
        BATCH_BYTES,
        BATCH_BYTES + 1,
        300_000,
        *[random.randrange(1, 9000) for _ in range(150)],
    ]
    bodies = {f"k{number}": random.randbytes(size) for number, size in enumerate(sizes)}
    async with open_local(tmp_path / "bodies.sqlite", clock) as store:
        await asyncio.gather(*(store.put(key, body) for key, body in bodies.items()))
        found = await asyncio.gather(*(store.get(key) for key in (*bodies, "absent")))
        assert found == [*bodies.values(), None]


async def test_a_key_that_is_there_already_fails_its_own_put_alone(tmp_path: Path) -> None:
    async with open_local(tmp_path / "bodies.sqlite", FakeClock()) as store:
        await store.put("b", b"first")
        async with stalled(store.database):
            waiting = [asyncio.ensure_future(store.put(key, key.encode())) for key in "abcc"]
            await asyncio.sleep(0)
        results = await asyncio.gather(*waiting, return_exceptions=True)
        assert [type(result) for result in results] == [type(None), Temporary, type(None), Temporary]
        assert [await store.get(key) for key in "abc"] == [b"a", b"first", b"c"]


# --- the mechanism itself

SIZES: list[int] = []


def note_all(tx: Tx, calls: Sequence[tuple[str]]) -> list[object]:
    SIZES.append(len(calls))
    for (key,) in calls:
        tx.changed("insert into objects (key, stored_ms, body) values (?, ?, x'00')", (key, tx.now_ms))
        tx.emit(key)
    if any(key == "puzzling" for (key,) in calls):
        raise LookupError("whose is it?")
    return [Forbidden(key) if key == "refused" else key for (key,) in calls]


@batched_by(note_all)
def note(tx: Tx, key: str) -> object:
    return only(note_all(tx, [(key,)]))


@pytest.fixture(autouse=True)
def sizes() -> list[int]:
    SIZES.clear()
    return SIZES


@asynccontextmanager
async def noting(tmp_path: Path, sqlite_: FaultySqlite | None = None) -> AsyncIterator[tuple[Database, list[str]]]:
    said: list[str] = []
    connect = (sqlite_ or FaultySqlite()).connect
    async with open_database(tmp_path / "some.sqlite", "bodies", FakeClock(), connect=connect) as database:
        database.subscribe(str, said.append)
        yield database, said


async def noted(database: Database, keys: Sequence[str]) -> list[object]:
    async with stalled(database):
        waiting = [asyncio.ensure_future(database.write(note, key)) for key in keys]
        await asyncio.sleep(0)
    return [spoken(result) for result in await asyncio.gather(*waiting, return_exceptions=True)]


async def test_a_batch_is_bounded_and_keeps_the_order_of_its_calls(tmp_path: Path, sizes: list[int]) -> None:
    keys = [str(number) for number in range(2 * BATCH_MAX + 5)]
    async with noting(tmp_path) as (database, said):
        assert await noted(database, keys) == keys
        assert said == keys
        assert sizes == [BATCH_MAX, BATCH_MAX, 5]


async def test_a_batch_that_cannot_tell_whose_an_error_is_is_undone_and_each_runs_alone(tmp_path: Path) -> None:
    async with noting(tmp_path) as (database, said):
        results = await noted(database, ["a", "puzzling", "b"])
        assert results == ["a", (LookupError, "whose is it?"), "b"]
        assert said == ["a", "b"], "once each, and nothing of what was undone"
        rows = await database.read(lambda tx: tx.rows("select key from objects order by rowid"))
        assert rows == [("a",), ("b",)]


async def test_a_full_disk_in_a_batch_refuses_nobody_who_fits_alone(tmp_path: Path, sizes: list[int]) -> None:
    faulty = FaultySqlite()
    async with noting(tmp_path, faulty) as (database, said):
        faulty.fail("insert", "SQLITE_FULL")
        assert await noted(database, ["a", "b"]) == ["a", "b"]
        assert said == ["a", "b"]
        assert sizes == [2, 1, 1]


async def test_an_error_that_is_nobodys_own_ends_the_whole_group(tmp_path: Path) -> None:
    faulty = FaultySqlite()
    async with noting(tmp_path, faulty) as (database, said):
        faulty.fail("insert", "SQLITE_IOERR")
        results = await noted(database, ["a", "b"])
        assert [result[0] for result in results if isinstance(result, tuple)] == [DatabaseUnavailable] * 2
        assert said == []
        assert database.failed.done()


async def test_a_call_alone_and_a_batch_of_it_agree_on_a_refusal(tmp_path: Path) -> None:
    async with noting(tmp_path) as (database, _):
        assert (await noted(database, ["a", "refused"]))[1] == (Forbidden, "refused")
        with pytest.raises(Forbidden, match="refused"):
            only([Forbidden("refused")])
        with pytest.raises(sqlite3.IntegrityError):
            await database.write(note, "a")
