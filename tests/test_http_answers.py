"""What every answer has, whatever was asked and however oddly: a request id, the security headers, a HEAD that is its
GET without the body, and never a 500 for a path that somebody made up."""

from pathlib import Path

import aiohttp
import pytest

from tests.support import Harness, Made, running
from tests.wire import request

API = "/api/v1/pastes"
RAW_CSP = "default-src 'none'; sandbox"


def gets(made: Made) -> dict[str, int]:
    """Every route that takes GET, and what it answers."""
    return {
        "/": 200, "/help": 200, "/robots.txt": 200,
        f"/{made.id}": 200, f"/{made.id}/raw": 200, f"/{made.id}/download": 200, f"{API}/{made.id}": 200,
        f"/{made.id}/raw?x=1": 200, f"/{made.id}?fbclid=x": 200,
        "/x": 404, "/x/raw": 404, "/x/download": 404, f"{API}/x": 404, "/new": 404, f"/{made.id}/delete": 405, API: 405,
    }  # fmt: skip


def has_what_every_answer_has(answer: aiohttp.ClientResponse) -> bool:
    csp = answer.headers["Content-Security-Policy"]
    kind = answer.headers.get("Content-Type", "")
    page = kind.startswith("text/html")
    return (
        answer.headers["X-Content-Type-Options"] == "nosniff"
        and answer.headers["Referrer-Policy"] == "no-referrer"
        and len(answer.headers["X-Request-Id"]) == 16
        and csp.startswith("default-src 'none'; ")
        and ("form-action 'self'; base-uri 'none'; frame-ancestors 'none'" in csp or not page)
        and "unsafe" not in csp
        and ("script-src 'self'; " in csp or not page)
        and answer.headers["Server"] == "pastebin"
        and (answer.status in (200, 304) or answer.headers["Cache-Control"] == "no-store")
    )


async def test_every_answer_has_its_headers(tmp_path: Path) -> None:
    async with running(tmp_path) as it:
        made = await it.paste(b"<script>alert(1)</script>")
        ids = set()
        for path, status in gets(made).items():
            for method in ("GET", "HEAD"):
                async with it.http.request(method, it.url + path) as answer:
                    assert answer.status == status, path
                    assert has_what_every_answer_has(answer), (path, answer.headers)
                    ids.add(answer.headers["X-Request-Id"])
        assert len(ids) == 2 * len(gets(made)), "an id belongs to one request"


async def test_changes_have_their_headers_too(tmp_path: Path) -> None:
    async with running(tmp_path) as it:
        made = await it.paste()
        for method, path, status, headers in (
            ("POST", "/", 201, {}),
            ("PUT", "/", 201, {}),
            ("PUT", "/x.txt", 201, {}),
            ("POST", API, 201, {"Content-Type": "x/y"}),
            ("POST", API, 400, {"Content-Type": "application/json"}),
            ("DELETE", f"{API}/{made.id}", 204, {"X-Delete-Token": made.token}),
            ("DELETE", f"{API}/{made.id}", 404, {"X-Delete-Token": made.token}),
            ("POST", f"/{made.id}/delete", 400, {}),
            ("PATCH", "/x", 405, {}),
        ):
            async with it.http.request(method, it.url + path, data=b"hi", headers=headers) as answer:
                assert answer.status == status, (method, path)
                assert has_what_every_answer_has(answer), (method, path)
                assert answer.headers["Cache-Control"] == "no-store"


async def test_a_not_modified_has_its_headers_and_no_body(tmp_path: Path) -> None:
    async with running(tmp_path) as it:
        made = await it.paste()
        for path in (f"/{made.id}", f"/{made.id}/raw", f"/{made.id}/download", f"{API}/{made.id}"):
            for method in ("GET", "HEAD"):
                async with it.http.request(method, it.url + path, headers={"If-None-Match": "*"}) as answer:
                    assert answer.status == 304
                    assert has_what_every_answer_has(answer)
                    assert "Content-Type" not in answer.headers
                    assert await answer.read() == b""


async def test_head_is_get_without_the_body(tmp_path: Path) -> None:
    async with running(tmp_path) as it:
        for made in (await it.paste(b"text\n" * 100, title="a b"), await it.paste(b"\xff\x00" * 100)):
            for path in gets(made):
                for fields in ("", "If-None-Match: *\r\n", "Accept: text/html\r\n", "Range: bytes=0-1\r\n"):
                    get = await request(it.url, f"GET {path} HTTP/1.1\r\nHost: x\r\n{fields}\r\n".encode())
                    head = await request(it.url, f"HEAD {path} HTTP/1.1\r\nHost: x\r\n{fields}\r\n".encode())
                    assert head.status == get.status
                    for headers in (get.headers, head.headers):
                        del headers["X-Request-Id"], headers["Date"]
                    assert dict(head.headers) == dict(get.headers), path
                    assert get.status == 304 or int(get.headers["Content-Length"]) == len(get.body)


async def test_a_head_sends_no_byte_of_a_body(tmp_path: Path) -> None:
    async with running(tmp_path) as it:
        made = await it.paste()
        for path in gets(made):
            async with it.http.head(it.url + path) as first, it.http.get(it.url + "/help") as second:
                assert (await first.read(), second.status) == (b"", 200), "the connection is in step"


@pytest.mark.parametrize("method", ["GET", "HEAD", "DELETE", "POST", "PUT", "OPTIONS"])
async def test_a_made_up_path_is_never_a_500(tmp_path: Path, method: str) -> None:
    paths = [
        "/..%2f", "/..%2f..%2fetc%2fpasswd", "/../../etc/passwd", "/%2e%2e/", "/%00", "/%00/raw", "/a%00b", "//", "///",
        "//evil.example.org/x", "/%", "/%zz", "/%ff", "/%c0%ae", "/%ed%a0%80/raw", "/%0d%0aX:%20y", "/a/b/c/d/e",
        "/" + "a" * 4096, "/" + "a" * 4096 + "/raw", "/" + "%61" * 1300, "/{x}", "/{x}/raw", "/[", "/;", "/'", '/"', "/<x>",
        "/\u00e9", "/?", "/?%00", "/?expires_in", "/?title=%ff", "/?title=%00", "/?" + "&" * 4000, "/?" + "title=x&" * 500,
        "http://evil.example.org/", "http://evil.example.org/x/raw", "*", f"{API}/", f"{API}/%00", f"{API}/..%2f", f"{API}//",
        "/x/delete", "/%00/delete", "/help/", "/robots.txt/raw", "/./help", "/#x", "/a#b/raw",
    ]  # fmt: skip
    fields = "Host: x\r\nContent-Length: 0\r\nX-Delete-Token: x\r\n" if method not in ("GET", "HEAD") else "Host: x\r\n"
    async with running(tmp_path) as it:
        for path in paths:
            answer = await request(it.url, f"{method} {path} HTTP/1.1\r\n{fields}\r\n".encode())
            assert answer.status < 500, path
            if answer.status in (301, 302, 303, 307, 308) or "Location" in answer.headers:
                raise AssertionError(f"{path} leads elsewhere")
        assert await it.rows("select * from uploads") == []


async def test_an_id_spelt_with_escapes_is_the_same_paste_but_no_copy_for_caches(tmp_path: Path) -> None:
    async with running(tmp_path) as it:
        made = await it.paste(b"hi")
        odd = f"%{ord(made.id[0]):02x}{made.id[1:]}"
        for path in (f"/{odd}/raw", f"/{made.id}/%72aw", f"/{made.id}/raw?", f"/{made.id}/raw?x", f"/{made.id}/raw#x"):
            answer = await request(it.url, f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            assert (answer.status, answer.body) == (200, b"hi")
            assert answer.headers["Cache-Control"] == "no-store", path


@pytest.mark.parametrize(
    ("name", "title"),
    [
        ("notes.txt", "notes.txt"),
        ("a%20b.txt", "a b.txt"),
        ("a%7Bb%7D.txt", "a{b}.txt"),
        ("%D0%B4%2Fx", "д/x"),
        ("..%2F..%2Fetc%2Fpasswd", "../../etc/passwd"),
        ("help", "help"),
        ("new", "new"),
        ("robots.txt", "robots.txt"),
        ("-", None),
        ("a%0D%0Ab", "a__b"),
        ("%00", "_"),
        ("%FF", "%FF"),
        ("x" * 4096, "x" * 200),
    ],
)
async def test_any_file_name_is_taken_as_a_title(tmp_path: Path, name: str, title: str | None) -> None:
    async with running(tmp_path) as it:
        answer = await request(it.url, f"PUT /{name} HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\nhi".encode())
        assert answer.status == 201
        assert await it.rows("select title from pastes") == [(title,)]


async def test_get_changes_nothing(tmp_path: Path) -> None:
    async with running(tmp_path) as it:
        made = await it.paste(b"hi")
        before = await everything(it)
        for path in gets(made):
            for headers in ({}, {"X-Delete-Token": made.token}, {"X-HTTP-Method-Override": "DELETE"}):
                async with it.http.get(it.url + path, headers=headers) as answer:
                    await answer.read()
        assert await everything(it) == before


async def everything(it: Harness) -> list[list[tuple[object, ...]]]:
    tables = ("pastes", "uploads", "outbox", "inbox", "dead_letters", "idempotency", "totals")
    return [await it.rows(f"select * from {table}") for table in tables]
