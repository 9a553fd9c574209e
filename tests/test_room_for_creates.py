"""Creates take what room there is and give it back: the memory of uploads, the quota of bytes. And where creating needs a
token, nobody creates without one."""

import asyncio
from pathlib import Path

import pytest

from pastebin_daemon.errors import Misconfigured
from tests.fakes import FakeClock, FakeStore
from tests.support import Harness, running
from tests.wire import Line, multipart, request, wire

API = "/api/v1/pastes"
FORM = {"Content-Type": "multipart/form-data; boundary=b"}


async def put(it: Harness, body: bytes, **headers: str) -> int:
    async with it.http.put(f"{it.url}/", data=body, headers=headers) as answer:
        return answer.status


async def begin(line: Line, declared: int, sent: int) -> None:
    """A slow upload: what it promised, and what came of it so far and was taken in."""
    head = f"PUT / HTTP/1.1\r\nHost: x\r\nContent-Length: {declared}\r\nExpect: 100-continue\r\n\r\n"
    await line.send(head.encode())
    assert (await line.answer()).status == 100
    await line.send(b"x" * sent)


async def test_slow_clients_hold_what_they_sent_and_not_what_they_promised(tmp_path: Path) -> None:
    settings = {"uploads.memory_max": 10_000, "pastes.body_bytes_max": 9000}
    async with running(tmp_path, settings=settings) as it, wire(it.url) as first, wire(it.url) as second:
        await begin(first, 9000, 500)
        await begin(second, 9000, 500)
        assert await put(it, b"x" * 9000) == 201
        await first.send(b"x" * 8000)
        assert await put(it, b"x" * 9000) == 503
        assert await put(it, b"x" * 100) == 201, "what there is room for goes on"
        await first.send(b"x" * 500)
        assert (await first.answer()).status == 201
        assert await put(it, b"x" * 9000) == 201, "a body that is stored holds nothing"
        await second.send(b"x" * 8500)
        assert (await second.answer()).status == 201


async def test_memory_is_given_back_whatever_became_of_the_create(tmp_path: Path) -> None:
    clock = FakeClock()
    store = FakeStore(clock)
    settings = {"uploads.memory_max": 10_000, "pastes.body_bytes_max": 9000, "bodies.bytes_max": 60_000}
    full = b"x" * 9000
    async with running(tmp_path, clock=clock, store=store, settings=settings) as it:
        assert await put(it, b"x" * 9001) == 413
        chunked = b"PUT / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n2329\r\n" + b"x" * 9001
        assert (await request(it.url, chunked)).status == 413
        assert await put(it, b"x" * 9000, **{"Idempotency-Key": "short"}) == 400
        store.faults.fail("put")
        assert await put(it, full) == 503
        async with it.http.post(it.url + API, json={"content": "x" * 8900, "expires_in": "soon"}) as answer:
            assert answer.status == 400
        body = multipart(
            "b", ("Content-Disposition: form-data; name=a", full), ("Content-Disposition: form-data; name=b", full)
        )
        async with it.http.post(f"{it.url}/", data=body, headers=FORM) as answer:
            assert answer.status == 503, "the second part is one too many"
        assert await put(it, full) == 201
        assert await put(it, full) == 201


async def test_the_quota_is_kept_to_the_byte_and_freed_by_every_ending(tmp_path: Path) -> None:
    clock = FakeClock()
    store = FakeStore(clock)
    async with running(tmp_path, clock=clock, store=store, settings={"bodies.bytes_max": 1000}) as it:
        made = await it.paste(b"x" * 600)
        await it.paste(b"x" * 399, expires_in="10m")
        assert await put(it, b"xx") == 507
        assert await put(it, b"x") == 201
        assert await put(it, b"x") == 507
        assert (len(store.objects), await it.rows("select * from uploads")) == (3, []), (
            "refused before anything is stored"
        )
        assert (await it.get(f"{made.id}/raw"))[0] == 200
        await it.delete(made)
        assert await put(it, b"x" * 600) == 201
        assert await put(it, b"x") == 507
        clock.advance(600)
        await it.sweep("expiry")
        assert await put(it, b"x" * 399) == 201


async def test_two_creates_at_once_do_not_pass_the_quota_together(tmp_path: Path) -> None:
    clock = FakeClock()
    store = FakeStore(clock)
    async with running(tmp_path, clock=clock, store=store, settings={"bodies.bytes_max": 1000}) as it:
        holds = [store.faults.hold("put") for _ in range(2)]
        creates = [asyncio.create_task(put(it, b"x" * 600)) for _ in holds]
        for hold in holds:
            await hold.reached.wait()
        for hold in holds:
            hold.go.set()
        assert sorted(await asyncio.gather(*creates)) == [201, 507]
        assert await it.rows("select bytes from totals") == [(600,)]
        clock.advance(3601)
        await it.sweep("uploads")
        await it.drain()
        assert len(store.objects) == 1, "and what the refused one had stored is reaped"


@pytest.fixture
def tokens(tmp_path: Path) -> dict[str, object]:
    file = tmp_path / "tokens"
    file.write_text("first-token\n\n  second-token  \r\nthïrd\n", "utf-8")
    return {"access.create_tokens_file": str(file)}


async def test_where_creating_needs_a_token_every_way_in_asks_for_it(tmp_path: Path, tokens: dict[str, object]) -> None:
    text = ('Content-Disposition: form-data; name="content"', b"x")
    async with running(tmp_path, settings=tokens) as it:
        for method, path in (("PUT", "/"), ("PUT", "/x"), ("POST", "/"), ("POST", API)):
            for sent, status in (
                ({}, 401),
                ({"Authorization": "Bearer wrong"}, 401),
                ({"Authorization": "Bearer "}, 401),
                ({"Authorization": "Bearer first-token second-token"}, 401),
                ({"Authorization": "Basic first-token"}, 401),
                ({"X-Delete-Token": "first-token"}, 401),
                ({"Authorization": "Bearer first-token"}, 201),
                ({"Authorization": "bearer second-token"}, 201),
                ({"Authorization": "Bearer thïrd"}, 201),
            ):
                async with it.http.request(method, it.url + path, data=b"x", headers=sent) as answer:
                    assert answer.status == status, (method, path, sent)
                    assert ("WWW-Authenticate" in answer.headers) == (status == 401)
        for token, status in (("", 401), ("wrong", 401), ("first-token", 201)):
            part = ('Content-Disposition: form-data; name="create_token"', token.encode())
            async with it.http.post(f"{it.url}/new", data=multipart("b", part, text), headers=FORM) as answer:
                assert answer.status == status
        async with it.http.post(f"{it.url}/new", data=multipart("b", text), headers=FORM) as answer:
            assert answer.status == 401
        assert await it.rows("select count(*) from pastes") == [(13,)]


async def test_reading_and_deleting_need_no_create_token(tmp_path: Path, tokens: dict[str, object]) -> None:
    async with running(tmp_path, settings=tokens) as it:
        headers = {"Authorization": "Bearer first-token"}
        async with it.http.put(f"{it.url}/", data=b"x", headers=headers) as answer:
            paste, token = (await answer.text()).strip().rpartition("/")[2], answer.headers["X-Delete-Token"]
        assert await it.get(f"{paste}/raw") == (200, b"x")
        async with it.http.delete(f"{it.url}{API}/{paste}", headers=headers) as answer:
            assert answer.status == 403, "who may create may not delete what others made"
        async with it.http.delete(f"{it.url}{API}/{paste}", headers={"X-Delete-Token": token}) as answer:
            assert answer.status == 204


async def test_an_idempotency_key_belongs_to_the_token_it_came_with(tmp_path: Path, tokens: dict[str, object]) -> None:
    async with running(tmp_path, settings=tokens) as it:
        for token, status in (("first-token", 201), ("second-token", 422), ("wrong", 401), ("first-token", 201)):
            sent = {"Authorization": f"Bearer {token}", "Idempotency-Key": "a-secret-of-mine"}
            assert await put(it, b"x", **sent) == status
        assert await it.rows("select count(*) from pastes") == [(1,)]


async def test_the_pages_say_that_a_token_is_needed(tmp_path: Path, tokens: dict[str, object]) -> None:
    async with running(tmp_path, settings=tokens) as it:
        async with it.http.get(it.url, headers={"Accept": "text/html"}) as answer:
            assert 'name="create_token"' in await answer.text()
        assert b"Authorization: Bearer TOKEN" in (await it.get("/help"))[1]
    async with running(tmp_path) as it:
        async with it.http.get(it.url, headers={"Accept": "text/html"}) as answer:
            assert "create_token" not in await answer.text()
        assert b"Authorization" not in (await it.get("/help"))[1]


@pytest.mark.parametrize("content", [None, b"", b" \n\r\n", b"\xff\xfe"])
async def test_a_file_without_tokens_does_not_open_the_door(tmp_path: Path, content: bytes | None) -> None:
    file = tmp_path / "tokens"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(Misconfigured, match="create_tokens_file"):
        async with running(tmp_path, settings={"access.create_tokens_file": str(file)}):
            pass
