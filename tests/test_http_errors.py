"""Every refusal and every trouble has its status, a stable `code` and one shape: problem+json for programs, one plain
line on the terminal's routes, a small page where a person looks. None is kept by a cache, and none says what is inside."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, cast

import aiohttp
import pytest

from pastebin_daemon.database import Database
from pastebin_daemon.errors import DatabaseUnavailable, EffectError, Temporary
from tests.fakes import FakeClock, FakeStore
from tests.support import Harness, running
from tests.wire import multipart

API = "/api/v1/pastes"
ABSENT = "a" * 18
SECRET = "bucket-of-ours.example.org"

Send = Callable[..., "aiohttp.client._RequestContextManager"]


async def forget(it: Harness) -> None:
    """Empty the origin cache, so that the next read asks the store."""
    for (paste,) in await it.rows("select id from pastes"):
        it.daemon.cache.bury(paste)
    it.clock.advance(1000)
    it.daemon.cache.sweep()


async def _bad_request(it: Harness, create: Send) -> Any:
    return create(data=b"")


async def _unsupported(it: Harness, create: Send) -> Any:
    return create(data=b"hi", headers={"Content-Encoding": "gzip"})


async def _too_large(it: Harness, create: Send) -> Any:
    return create(data=b"x" * 1001)


async def _rate_limited(it: Harness, create: Send) -> Any:
    for _ in range(9):
        await it.paste()
    return create(data=b"hi")


async def _store_unavailable(it: Harness, create: Send) -> Any:
    it.store.faults.fail("put", Temporary(SECRET))
    return create(data=b"hi")


async def _internal(it: Harness, create: Send) -> Any:
    it.store.faults.fail("put", cast(EffectError, RuntimeError(SECRET)))
    return create(data=b"hi")


async def _storage_full(it: Harness, create: Send) -> Any:
    await it.paste(b"x" * 500)
    await it.paste(b"x" * 500)
    return create(data=b"hi")


async def _mismatch(it: Harness, create: Send) -> Any:
    async with create(data=b"ho", headers={"Idempotency-Key": "12345678"}) as answer:
        assert answer.status == 201
    return create(data=b"hi", headers={"Idempotency-Key": "12345678"})


async def _ended(it: Harness, create: Send) -> Any:
    async with create(data=b"hi", headers={"Idempotency-Key": "12345678"}) as answer:
        assert answer.status == 201
    it.clock.advance(600)
    return create(data=b"hi", headers={"Idempotency-Key": "12345678"})


CREATES: dict[str, tuple[int, Callable[[Harness, Send], Awaitable[Any]]]] = {
    "bad_request": (400, _bad_request),
    "idempotency_ended": (410, _ended),
    "too_large": (413, _too_large),
    "unsupported_media_type": (415, _unsupported),
    "idempotency_mismatch": (422, _mismatch),
    "rate_limited": (429, _rate_limited),
    "internal": (500, _internal),
    "store_unavailable": (503, _store_unavailable),
    "storage_full": (507, _storage_full),
}
RETRY_LATER = {"rate_limited", "busy", "store_unavailable", "storage_full", "database_unavailable"}
SETTINGS = {
    "pastes.body_bytes_max": 1000,
    "pastes.expiry_default": "10m",
    "bodies.bytes_max": 1000,
    "limits.creates_per_minute": 9,
}


async def settled(answer: aiohttp.ClientResponse, status: int) -> str:
    """The text of an error that has everything that each must have."""
    assert answer.status == status
    assert answer.headers["Cache-Control"] == "no-store"
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert answer.headers["Referrer-Policy"] == "no-referrer"
    assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
    assert len(answer.headers["X-Request-Id"]) == 16
    assert not {"ETag", "Cache-Tag", "Surrogate-Key", "X-Delete-Token", "Location"} & set(answer.headers)
    text = await answer.text()
    assert SECRET not in text
    assert "Traceback (most" not in text
    return text


async def problem(answer: aiohttp.ClientResponse, status: int, code: str) -> None:
    text = await settled(answer, status)
    assert answer.headers["Content-Type"] == "application/problem+json"
    said = json.loads(text)
    assert said.keys() == {"type", "title", "status", "code", "detail"}
    assert (said["status"], said["code"], said["type"]) == (status, code, "about:blank")
    assert said["detail"]
    assert ("Retry-After" in answer.headers) == (code in RETRY_LATER)
    assert int(answer.headers.get("Retry-After", "1")) >= 1


@pytest.mark.parametrize("code", CREATES)
async def test_a_program_gets_a_problem_and_a_terminal_one_line(tmp_path: Path, code: str) -> None:
    status, provoke = CREATES[code]
    for path in (API, "/"):
        clock = FakeClock()
        directory = tmp_path / path.strip("/").replace("/", "-")
        async with running(directory, clock=clock, store=FakeStore(clock), settings=SETTINGS) as it:

            def create(**kwargs: Any) -> Any:
                headers = {"Content-Type": "text/plain"} | kwargs.pop("headers", {})
                return it.http.post(it.url + path, headers=headers, **kwargs)  # noqa: B023  called within the turn

            async with await provoke(it, create) as answer:
                if path == API:
                    await problem(answer, status, code)
                else:
                    text = await settled(answer, status)
                    assert answer.headers["Content-Type"] == "text/plain; charset=utf-8"
                    assert text.count("\n") == 1
                    assert text.endswith("\n")
                    assert ("Retry-After" in answer.headers) == (code in RETRY_LATER)


async def test_when_too_much_is_being_uploaded_the_next_waits(tmp_path: Path) -> None:
    clock = FakeClock()
    store = FakeStore(clock)
    settings = {"uploads.memory_max": 1500, "pastes.body_bytes_max": 1000}
    async with running(tmp_path, clock=clock, store=store, settings=settings) as it:
        hold = store.faults.hold("put")
        first = asyncio.create_task(it.paste(b"x" * 1000))
        await hold.reached.wait()
        async with it.http.post(it.url + API, data=b"x" * 501) as answer:
            await problem(answer, 503, "busy")
        async with it.http.post(f"{it.url}/", data=b"x" * 501) as answer:
            assert (await settled(answer, 503)).startswith("Too much is being uploaded")
        await it.paste(b"x" * 500)
        hold.go.set()
        await first
        await it.paste(b"x" * 1000)


async def test_a_read_only_pastebin_refuses_creates_and_nothing_else(tmp_path: Path) -> None:
    async with running(tmp_path) as it:
        made = await it.paste(b"hi")
    async with running(tmp_path, settings={"server.read_only": True}) as it:
        async with it.http.post(it.url + API, data=b"hi") as answer:
            await problem(answer, 503, "read_only")
        for method, path in (("POST", "/"), ("PUT", "/"), ("PUT", "/x")):
            async with it.http.request(method, it.url + path, data=b"hi") as answer:
                await settled(answer, 503)
        form = multipart("b", ("Content-Disposition: form-data; name=content", b"typed <here>"))
        kind = {"Content-Type": "multipart/form-data; boundary=b"}
        async with it.http.post(f"{it.url}/new", data=form, headers=kind) as answer:
            assert "\ntyped &lt;here&gt;</textarea>" in await settled(answer, 503), "a text is not lost by a refusal"
        assert await it.get(f"{made.id}/raw") == (200, b"hi")
        await it.delete(made)


async def test_a_delete_is_refused_by_token_then_by_row_then_by_right(tmp_path: Path) -> None:
    async with running(tmp_path) as it:
        made = await it.paste(b"hi")
        for paste, token, status, code in (
            (ABSENT, None, 401, "unauthorized"),
            (made.id, None, 401, "unauthorized"),
            (ABSENT, made.token, 404, "not_found"),
            ("x", made.token, 404, "not_found"),
            (made.id, "wrong", 403, "forbidden"),
        ):
            headers = {} if token is None else {"X-Delete-Token": token}
            async with it.http.delete(f"{it.url}{API}/{paste}", headers=headers) as answer:
                await problem(answer, status, code)
                assert ("WWW-Authenticate" in answer.headers) == (status == 401)


async def test_a_body_that_the_store_lost_or_does_not_give_is_a_trouble_and_no_404(tmp_path: Path) -> None:
    clock = FakeClock()
    store = FakeStore(clock)
    async with running(tmp_path, clock=clock, store=store) as it:
        made = await it.paste(b"hi")
        await forget(it)
        store.faults.fail("get", Temporary(SECRET), times=2)
        async with it.http.get(f"{it.url}/{made.id}/raw") as answer:
            await problem(answer, 503, "store_unavailable")
        async with it.http.get(f"{it.url}/{made.id}") as answer:
            assert "<p>" in await settled(answer, 503)
        store.objects.clear()
        async with it.http.get(f"{it.url}/{made.id}/download") as answer:
            await problem(answer, 500, "body_missing")
        async with it.http.get(f"{it.url}/{made.id}") as answer:
            assert "alarmed" in await settled(answer, 500)
        assert it.metric("pastebin_body_missing_total") == 2


async def test_a_database_that_failed_is_said_without_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: object) -> None:
        raise DatabaseUnavailable(SECRET)

    async with running(tmp_path) as it:
        monkeypatch.setattr(Database, "read", fail)
        async with it.http.get(f"{it.url}{API}/{ABSENT}") as answer:
            await problem(answer, 503, "database_unavailable")


async def test_what_is_not_there_is_said_in_the_shape_of_what_was_asked_for(tmp_path: Path) -> None:
    async with running(tmp_path) as it:
        for path in (f"{API}/{ABSENT}", f"/{ABSENT}/raw", f"/{ABSENT}/download", "/api/v2/x", "/a/b/c", f"{API}/"):
            async with it.http.get(it.url + path) as answer:
                await problem(answer, 404, "not_found")
        for path in (f"/{ABSENT}", "/x", "/favicon.ico", f"/{ABSENT}/", f"/{ABSENT}/other", "/new"):
            async with it.http.get(it.url + path) as answer:
                assert answer.headers["Content-Type"] == "text/html; charset=utf-8"
                assert "<title>Nothing here · Pastebin</title>" in await settled(answer, 404)
        async with it.http.put(f"{it.url}/x/y", data=b"hi") as answer:
            assert await settled(answer, 404) == "There is nothing here.\n"


async def test_a_method_that_is_not_taken_is_answered_with_those_that_are(tmp_path: Path) -> None:
    async with running(tmp_path) as it:
        for method, path, allowed in (
            ("GET", API, "POST"),
            ("PUT", f"{API}/{ABSENT}", "DELETE,GET,HEAD"),
            ("POST", f"/{ABSENT}/raw", "GET,HEAD"),
            ("PATCH", f"/{ABSENT}", "GET,HEAD,PUT"),
            ("DELETE", "/", "GET,HEAD,POST,PUT"),
            ("OPTIONS", "/help", "GET,HEAD,PUT"),
        ):
            async with it.http.request(method, it.url + path) as answer:
                text = await settled(answer, 405)
                assert answer.headers["Allow"] == allowed
                if path.startswith("/api/"):
                    assert method == "PUT" or json.loads(text)["code"] == "method_not_allowed"


async def test_the_way_out_of_an_error_page_leads_to_the_form(tmp_path: Path) -> None:
    async with running(tmp_path) as it:
        for method, path in (
            ("GET", f"/{ABSENT}"),
            ("GET", f"/{ABSENT}/"),
            ("POST", f"/{ABSENT}/delete"),
            ("POST", "/new"),
        ):
            async with it.http.request(method, it.url + path) as answer:
                assert '<p><a href="/">New paste</a></p>' in await answer.text()
