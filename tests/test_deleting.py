"""Only the token deletes, by header or by the page's form; a wrong one never does; and one paste's delete is nothing to
another's, whatever bytes they share."""

import hashlib
from pathlib import Path

import pytest

from tests.fakes import FakeClock, FakeStore
from tests.support import Harness, running
from tests.wire import request

API = "/api/v1/pastes"
ABSENT = "a" * 18


async def delete(it: Harness, paste: str, headers: dict[str, str], query: str = "") -> int:
    async with it.http.delete(f"{it.url}{API}/{paste}{query}", headers=headers) as answer:
        assert answer.status != 204 or await answer.read() == b""
        return answer.status


async def by_form(it: Harness, paste: str, fields: dict[str, str]) -> tuple[int, str]:
    async with it.http.post(f"{it.url}/{paste}/delete", data=fields) as answer:
        return answer.status, await answer.text()


@pytest.mark.parametrize(
    "headers",
    [
        {"X-Delete-Token": "{}"},
        {"x-delete-token": "{}"},
        {"Authorization": "Bearer {}"},
        {"Authorization": "bearer {}"},
        {"Authorization": "Bearer  {} "},
        {"Authorization": "Basic eDp5", "X-Delete-Token": "{}"},
    ],
)
async def test_the_token_deletes_once(tmp_path: Path, headers: dict[str, str]) -> None:
    async with running(tmp_path) as it:
        made = await it.paste()
        sent = {name: value.format(made.token) for name, value in headers.items()}
        assert await delete(it, made.id, sent) == 204
        assert (await it.get(made.id))[0] == 404
        assert await delete(it, made.id, sent) == 404
        assert await it.rows("select * from pastes") == []
        assert it.metric("pastebin_pastes_ended_total", reason="delete") == 1


async def test_a_wrong_token_never_deletes(tmp_path: Path) -> None:
    async with running(tmp_path) as it:
        made, other = await it.paste(b"hi"), await it.paste(b"hi")
        for token in (
            other.token, made.id, made.token[:-1], made.token + "0", made.token.swapcase() + "x", "é", "*", "null",
            hashlib.sha256(made.token.encode()).hexdigest(), "0" * 40, "x" * 4000,
        ):  # fmt: skip
            assert await delete(it, made.id, {"X-Delete-Token": token}) == 403, token
            assert await delete(it, made.id, {"Authorization": f"Bearer {token}"}) == 403, token
            assert (await by_form(it, made.id, {"token": token}))[0] == 403, token
        no_text = f"DELETE {API}/{made.id} HTTP/1.1\r\nHost: x\r\nX-Delete-Token: ".encode() + b"\xff\xfe\r\n\r\n"
        assert (await request(it.url, no_text)).status == 403
        assert await it.get(f"{made.id}/raw") == (200, b"hi")
        assert await it.rows("select * from outbox") == []


async def test_no_token_is_no_token(tmp_path: Path) -> None:
    async with running(tmp_path) as it:
        made = await it.paste(b"hi")
        for headers in (
            {},
            {"X-Delete-Token": ""},
            {"Authorization": "Bearer"},
            {"Authorization": "Bearer "},
            {"Authorization": f"Basic {made.token}"},
            {"Authorization": made.token},
            {"Cookie": f"token={made.token}"},
        ):
            assert await delete(it, made.id, headers) == 401, headers
            assert await delete(it, made.id, headers, f"?token={made.token}") == 401, "a link must not delete"
        assert await it.get(f"{made.id}/raw") == (200, b"hi")


async def test_first_the_token_then_the_row_then_the_right(tmp_path: Path) -> None:
    clock = FakeClock()
    async with running(tmp_path, clock=clock) as it:
        made, expired = await it.paste(), await it.paste(expires_in="1s")
        clock.advance(1)
        token = {"X-Delete-Token": "wrong"}
        for paste in (ABSENT, "x", "%00", expired.id):
            assert await delete(it, paste, {}) == 401
            assert await delete(it, paste, token) == 404
        assert await delete(it, expired.id, {"X-Delete-Token": expired.token}) == 404, "expired, though not swept"
        assert await delete(it, made.id, {}) == 401
        assert await delete(it, made.id, token) == 403
        await it.delete(made)
        assert await delete(it, made.id, token) == 404, "a deleted paste does not tell right tokens from wrong ones"


async def test_two_pastes_of_the_same_bytes_have_nothing_in_common(tmp_path: Path) -> None:
    clock = FakeClock()
    store = FakeStore(clock)
    async with running(tmp_path, clock=clock, store=store) as it:
        first, second = await it.paste(b"the same"), await it.paste(b"the same")
        assert first.token != second.token
        assert await delete(it, second.id, {"X-Delete-Token": first.token}) == 403
        await it.delete(first)
        await it.drain()
        assert (await it.get(f"{first.id}/raw"))[0] == 404
        assert await it.get(f"{second.id}/raw") == (200, b"the same")
        assert len(store.objects) == 1
        await it.delete(second)
        await it.drain()
        assert store.objects == {}


async def test_the_form_deletes_with_scripts_off(tmp_path: Path) -> None:
    async with running(tmp_path) as it:
        made = await it.paste(b"hi")
        page = (await it.get(made.id))[1].decode()
        assert f'<form class="delete" method="post" action="/{made.id}/delete">' in page
        assert 'name="token"' in page
        assert (await by_form(it, made.id, {}))[0] == 401
        assert (await by_form(it, made.id, {"token": "  "}))[0] == 401
        assert (await by_form(it, ABSENT, {"token": made.token}))[0] == 404
        status, text = await by_form(it, made.id, {"token": f" {made.token}\r\n"})
        assert (status, "Deleted" in text) == (200, True)
        assert (await it.get(f"{made.id}/raw"))[0] == 404
        assert (await by_form(it, made.id, {"token": made.token}))[0] == 404


@pytest.mark.parametrize(
    ("kind", "body", "status"),
    [
        ("text/plain", b"token={}", 400),
        ("application/json", b'{"token": "{}"}', 400),
        ("multipart/form-data; boundary=b", b"--b--", 400),
        ("application/x-www-form-urlencoded", b"", 401),
        ("application/x-www-form-urlencoded", b"token", 401),
        ("application/x-www-form-urlencoded", b"token=&token=", 401),
        ("application/x-www-form-urlencoded", b"token=%ff", 403),
        ("application/x-www-form-urlencoded", b"token=\xff", 403),
        ("application/x-www-form-urlencoded", b"token=%", 403),
        ("application/x-www-form-urlencoded", b"&" * 4096, 401),
        ("application/x-www-form-urlencoded", b"token=" + b"x" * 4096, 413),
        ("application/x-www-form-urlencoded; charset=unheard-of", b"token=x", 403),
        ("application/x-www-form-urlencoded; charset=utf-16", b"token=x", 403),
    ],
)
async def test_a_form_that_is_not_the_pages_deletes_nothing(
    tmp_path: Path, kind: str, body: bytes, status: int
) -> None:
    async with running(tmp_path) as it:
        made = await it.paste(b"hi")
        filled = body.replace(b"{}", made.token.encode())
        async with it.http.post(f"{made.url}/delete", data=filled, headers={"Content-Type": kind}) as answer:
            assert answer.status == status
        assert await it.get(f"{made.id}/raw") == (200, b"hi")


async def test_the_token_is_kept_only_as_a_hash_and_never_shown_again(tmp_path: Path) -> None:
    async with running(tmp_path) as it:
        made = await it.paste(b"hi")
        for path in (made.id, f"{made.id}/raw", f"{API}/{made.id}"):
            async with it.http.get(f"{it.url}/{path.lstrip('/')}") as answer:
                assert made.token not in await answer.text() + repr(answer.headers)
        assert await it.rows("select token_sha256 from pastes") == [(hashlib.sha256(made.token.encode()).digest(),)]
    for file in (tmp_path / "state").iterdir():
        assert made.token.encode() not in file.read_bytes(), file
