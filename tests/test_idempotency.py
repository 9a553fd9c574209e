"""Sending a create again under its Idempotency-Key is safe: the same answer with the same token, never a second paste,
and no crash blocks a key. The key itself is a secret and is kept only as a hash."""

import asyncio
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from tests.fakes import FakeClock, FakeStore
from tests.support import Harness, Made, running
from tests.wire import multipart, wire

API = "/api/v1/pastes"
KEY = "a-secret-of-mine"


async def create(it: Harness, body: bytes = b"hi", key: str = KEY, **options: str) -> tuple[int, Any, bool]:
    headers = {"Idempotency-Key": key, "Content-Type": "x/y"}
    async with it.http.post(it.url + API, data=body, headers=headers, params=options) as answer:
        replayed = answer.headers.get("Idempotency-Replayed")
        assert replayed in (None, "true")
        return answer.status, json.loads(await answer.read()), replayed == "true"


async def made(it: Harness) -> Made:
    _, said, _ = await create(it)
    return Made(said["id"], said["delete_token"], said["url"])


async def pastes(it: Harness) -> int:
    return len(await it.rows("select id from pastes"))


async def test_the_same_request_again_gets_the_same_answer(tmp_path: Path) -> None:
    clock = FakeClock()
    async with running(tmp_path, clock=clock) as it:
        first = await create(it, title="t")
        clock.advance(3600)
        again = await create(it, title="t")
        assert first == (201, first[1], False)
        assert again == (201, first[1], True)
        assert await pastes(it) == 1
        assert len(await it.rows("select * from uploads")) == 0
        await it.delete(Made(again[1]["id"], again[1]["delete_token"], ""))


async def test_the_terminal_gets_the_same_link_and_token_again(tmp_path: Path) -> None:
    async with running(tmp_path) as it:
        answers = []
        for _ in range(2):
            async with it.http.put(f"{it.url}/x.txt", data=b"hi", headers={"Idempotency-Key": KEY}) as answer:
                names = ("Location", "X-Delete-Token", "X-Expires-At")
                answers.append((answer.status, await answer.text(), *(answer.headers[name] for name in names)))
        assert answer.headers["Idempotency-Replayed"] == "true"
        assert answers[0] == answers[1]
        assert await pastes(it) == 1


async def test_what_was_meant_counts_and_not_how_it_was_framed(tmp_path: Path) -> None:
    async with running(tmp_path) as it:
        first = await create(it, b"hi", title="x.txt", expires_in="1h")
        headers = {"Idempotency-Key": KEY}
        ids = set()
        for boundary in ("a", "b"):
            part = ('Content-Disposition: form-data; name="f"; filename="x.txt"', b"hi")
            option = ('Content-Disposition: form-data; name="expires_in"', b"60m")
            kind = headers | {"Content-Type": f"multipart/form-data; boundary={boundary}"}
            async with it.http.post(f"{it.url}/", data=multipart(boundary, part, option), headers=kind) as answer:
                ids.add((await answer.text()).strip().rpartition("/")[2])
        asked = {"expires_in": 3600, "title": "x.txt", "content": "hi"}
        async with it.http.post(it.url + API, json=asked, headers=headers) as answer:
            ids.add((await answer.json())["id"])
        assert ids == {first[1]["id"]}


@pytest.mark.parametrize(
    ("body", "options"),
    [
        (b"ho", {}),
        (b"hi\n", {}),
        (b"hi", {"title": "t"}),
        (b"hi", {"language": "c"}),
        (b"hi", {"expires_in": "1h"}),
    ],
)
async def test_another_request_under_the_same_key_is_refused(
    tmp_path: Path, body: bytes, options: dict[str, str]
) -> None:
    async with running(tmp_path) as it:
        await create(it)
        status, problem, _ = await create(it, body, **options)
        assert (status, problem["code"]) == (422, "idempotency_mismatch")
        assert await pastes(it) == 1


async def test_while_the_first_is_under_way_the_second_is_told_to_wait(tmp_path: Path) -> None:
    clock = FakeClock()
    store = FakeStore(clock)
    async with running(tmp_path, clock=clock, store=store) as it:
        hold = store.faults.hold("put")
        first = asyncio.create_task(create(it))
        await hold.reached.wait()
        headers = {"Idempotency-Key": KEY}
        async with it.http.post(it.url + API, data=b"hi", headers=headers) as answer:
            assert (answer.status, (await answer.json())["code"]) == (409, "idempotency_in_progress")
            assert int(answer.headers["Retry-After"]) >= 1
        assert (await create(it, key="another-secret"))[0] == 201, "only the same key waits"
        hold.go.set()
        status, said, _ = await first
        assert status == 201
        assert await create(it) == (201, said, True)
        assert await pastes(it) == 2


async def test_a_client_that_went_away_finds_its_paste_under_its_key(tmp_path: Path) -> None:
    clock = FakeClock()
    store = FakeStore(clock)
    async with running(tmp_path, clock=clock, store=store) as it:
        hold = store.faults.hold("put")
        async with wire(it.url) as line:
            head = f"POST {API} HTTP/1.1\r\nHost: x\r\nContent-Type: x/y\r\nIdempotency-Key: {KEY}\r\nContent-Length: 2\r\n\r\n"
            await line.send(head.encode() + b"hi")
            await hold.reached.wait()
        hold.go.set()
        async with asyncio.timeout(60):
            while (answer := await create(it))[0] == 409:
                pass
        assert answer[0] == 201
        assert await pastes(it) == 1
        assert len([call for call in store.calls if call[0] == "put"]) == (1 if answer[2] else 2)


async def test_a_failed_create_blocks_nobody(tmp_path: Path) -> None:
    clock = FakeClock()
    store = FakeStore(clock)
    async with running(tmp_path, clock=clock, store=store) as it:
        for lost in (False, True):
            store.faults.fail("put", lost=lost)
            assert (await create(it))[0] == 503
        status, said, replayed = await create(it)
        assert (status, replayed) == (201, False)
        assert await it.get(f"{said['id']}/raw") == (200, b"hi")
        assert await pastes(it) == 1


async def test_a_crash_in_the_middle_blocks_nobody(tmp_path: Path) -> None:
    clock = FakeClock()
    async with running(tmp_path, clock=clock, store=FakeStore(clock)) as it:
        it.store.faults.fail("put")
        await create(it)
    store = FakeStore(clock)
    async with running(tmp_path, clock=clock, store=store) as it:
        status, _, replayed = await create(it)
        assert (status, replayed) == (201, False)


async def test_a_replay_after_a_restart_has_the_same_token(tmp_path: Path) -> None:
    clock = FakeClock()
    async with running(tmp_path, clock=clock) as it:
        _, said, _ = await create(it)
    async with running(tmp_path, clock=clock) as it:
        assert await create(it) == (201, said, True)


async def test_a_paste_that_ended_is_never_made_again(tmp_path: Path) -> None:
    clock = FakeClock()
    async with running(tmp_path, clock=clock, settings={"pastes.expiry_default": "2h"}) as it:
        paste = await made(it)
        await it.delete(paste)
        assert [await create(it) for _ in range(2)][1][1]["code"] == "idempotency_ended"

        assert (await create(it, key="another-secret"))[0] == 201
        clock.advance(7200)
        for _ in range(2):
            status, problem, _ = await create(it, key="another-secret")
            assert (status, problem["code"]) == (410, "idempotency_ended")
            await it.sweep("expiry")
        assert await pastes(it) == 0


async def test_another_request_under_the_key_of_an_ended_paste_is_still_another(tmp_path: Path) -> None:
    async with running(tmp_path) as it:
        await it.delete(await made(it))
        assert (await create(it, b"ho"))[0] == 422


@pytest.mark.parametrize("key", ["", "1234567", "x" * 256, "schlüssel-ganz-geheim", "with\ttab-in-it"])
async def test_a_key_that_is_no_good_secret_is_refused(tmp_path: Path, key: str) -> None:
    async with running(tmp_path) as it:
        status, problem, _ = await create(it, key=key)
        assert (status, problem["code"]) == (400, "bad_request")
        assert "Idempotency-Key" in problem["detail"]
        assert await it.rows("select * from uploads") == []


@pytest.mark.parametrize("key", ["12345678", "x" * 255, "6f9619ff-8b86-d011-b42d-00cf4fc964ff", '"quoted, with space"'])
async def test_other_keys_are_taken(tmp_path: Path, key: str) -> None:
    async with running(tmp_path) as it:
        assert (await create(it, key=key))[0] == 201
        assert (await create(it, key=key))[2]


async def test_only_the_hash_of_a_key_is_kept(tmp_path: Path) -> None:
    async with running(tmp_path) as it:
        await create(it)
        assert await it.rows("select key_sha256 from idempotency") == [(hashlib.sha256(KEY.encode()).digest(),)]
    for file in (tmp_path / "state").iterdir():
        assert KEY.encode() not in file.read_bytes(), file


async def test_a_key_is_good_for_a_day_and_forgotten_an_hour_later(tmp_path: Path) -> None:
    clock = FakeClock()
    async with running(tmp_path, clock=clock) as it:
        _, first, _ = await create(it)
        clock.advance(24 * 3600)
        await it.sweep("idempotency")
        assert await create(it) == (201, first, True), "as promised"
        clock.advance(3600 - 0.001)
        await it.sweep("idempotency")
        assert (await create(it))[2]
        clock.advance(0.001)
        status, second, replayed = await create(it)
        assert (status, replayed) == (201, False), "also before a sweep"
        assert second["id"] != first["id"]
        clock.advance(25 * 3600)
        await it.sweep("idempotency")
        assert await it.rows("select * from idempotency") == []
        assert await pastes(it) == 2


async def test_without_a_key_twice_is_two(tmp_path: Path) -> None:
    async with running(tmp_path) as it:
        first, second = await it.paste(b"hi"), await it.paste(b"hi")
        assert first.id != second.id
        assert first.token != second.token
        assert await it.rows("select * from idempotency") == []
