"""Which handler answers what: by the path as it stands, by its last part, by its first, and else 405 or 404."""

from pathlib import Path

import pytest

from tests.support import running
from tests.wire import request

ASKED = [
    # method, target, status, Allow
    ("GET", "/help", 200, None),
    ("GET", "/%68elp", 200, None),
    ("PUT", "/help", 201, None),  # a file of that name
    ("DELETE", "/help", 405, "GET,HEAD,PUT"),
    ("DELETE", "/", 405, "GET,HEAD,POST,PUT"),
    ("PUT", "/new", 201, None),
    ("GET", "/new", 404, None),  # no paste has that id, nor would its page be another's
    ("POST", "/000000000000000000", 405, "GET,HEAD,PUT"),
    ("PUT", "/a/raw", 405, "GET,HEAD"),
    ("PUT", "/a%2Fb", 201, None),
    ("PUT", "/%7Bid%7D", 201, None),
    ("GET", "/{}", 404, None),
    ("GET", "/{}/raw", 404, None),
    ("PATCH", "/help", 405, "GET,HEAD,PUT"),
    ("GET", "/static/", 404, None),
    ("GET", "//raw", 404, None),
    ("GET", "//", 404, None),
    ("GET", "/a/raw/", 404, None),
    ("GET", "/a/b/c/d", 404, None),
    ("GET", "/api/v1/pastes/", 404, None),
    ("GET", "/api/v1/pastes", 405, "POST"),
    ("GET", "/..%2fhelp", 404, None),
    ("GET", "/%ff", 404, None),
    ("OPTIONS", "*", 404, None),
    ("GET", "http://elsewhere/help", 200, None),
]


@pytest.mark.parametrize(("method", "target", "status", "allow"), ASKED, ids=lambda value: str(value))
async def test_every_method_and_path_has_one_answer(
    tmp_path: Path, method: str, target: str, status: int, allow: str | None
) -> None:
    async with running(tmp_path) as it:
        body = "Content-Length: 1\r\n\r\nx" if method in ("PUT", "POST") else "\r\n"
        answer = await request(it.url, f"{method} {target} HTTP/1.1\r\nHost: x\r\n{body}".encode())
        assert answer.status == status
        assert answer.headers.get("Allow") == allow
        assert answer.headers["X-Request-Id"]


async def test_a_file_name_is_decoded_once(tmp_path: Path) -> None:
    names = {"/a%2Fb.txt": "a/b.txt", "/100%25.txt": "100%.txt", "/%252F": "%2F", "/%C3%BC%20b": "ü b"}
    async with running(tmp_path) as it:
        for target in names:
            raw = f"PUT {target} HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\nx".encode()
            assert (await request(it.url, raw)).status == 201
        assert {title for (title,) in await it.rows("select title from pastes")} == set(names.values())


async def test_what_is_counted_has_the_routes_name_and_never_the_path(tmp_path: Path) -> None:
    async with running(tmp_path) as it:
        for path in ("/help", "/000000000000000000/raw", "/wholly/unheard/of"):
            await it.get(path)
        async with it.http.get(f"{it.admin}/metrics") as answer:
            text = await answer.text()
    for line in (
        'pastebin_http_request_seconds_count{method="GET",route="help",status="200"} 1.0',
        'pastebin_http_request_seconds_count{method="GET",route="raw",status="404"} 1.0',
        'pastebin_http_request_seconds_count{method="GET",route="none",status="404"} 1.0',
        'pastebin_http_request_seconds_bucket{le="+Inf",method="GET",route="help",status="200"} 1.0',
    ):
        assert line in text, text
    assert "unheard" not in text
