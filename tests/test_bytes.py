"""Bytes are sacred (G15): what went in by any way in comes out of /raw and /download byte for byte, or was refused with
a reason. The form's route alone turns CRLF into LF, since browsers rewrite every newline of a textarea."""

import asyncio
import json
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path

import aiohttp
import pytest

from tests.real import require
from tests.support import Harness, running
from tests.wire import multipart, wire

LIMIT = 256 * 1024
BOUNDARY = "------------------------d74496d66958873e"
EMOJI = "🦉".encode()


def emoji_on_every_edge(size: int, edge: int = 8192) -> bytes:
    """An emoji across each 8 KiB edge, whatever part of it comes first."""
    text = bytearray(b"x" * size)
    for number, at in enumerate(range(edge, size - 4, edge)):
        start = at - 1 - number % 3
        text[start : start + 4] = EMOJI
    return bytes(text)


TEXTS = {
    "an empty line": b"\n",
    "two empty lines": b"\n\n",
    "CRLF": b"#!/bin/sh\r\necho ok\r\n",
    "CRLF and LF": b"a\r\nb\nc\r\n\r\n",
    "a lone CR": b"a\rb\r",
    "CR CR LF": b"a\r\r\nb",
    "NUL": b"a\0b",
    "only NULs": b"\0\0\0",
    "BOM": b"\xef\xbb\xbfhi",
    "ESC": b"\x1b[31mred\x1b[0m\x1b]0;title\x07",
    "white space around": b"  \t x \n\n ",
    "only white space": b" \n\t",
    "leading spaces": b"    if x:\n        y\n",
    "no newline at the end": b"x",
    "form syntax": b"a b+c%20&x=1",
    "JSON": b'{"a":1}',
    "HTML": b"</textarea></pre><script>alert(1)</script>&amp;&lt;",
    "a line separator": "a\u2028b\u2029c\u0085d".encode(),
    "letters of every length": "aé日🦉".encode(),
    "noncharacters": "\ufffe\uffff\ufdd0".encode(),
    "a surrogate's escape": rb"\ud83d",
    "emoji at every 8 KiB edge": emoji_on_every_edge(200_000),
    "runs of dashes": b"-" * 65_536,
    "runs of dashes in lines": b"".join(b"-" * n + b"\r\n" for n in range(400)),
    "a boundary in the middle of a line": f"x--{BOUNDARY}\r\ny".encode(),
    "a boundary after LF": f"x\n--{BOUNDARY}\ny\n--{BOUNDARY}--\n".encode(),
    "a boundary after CR": f"x\r--{BOUNDARY}\ry".encode(),
    "almost the boundary": f"x\r\n--{BOUNDARY[:-1]}\r\ny\r\n--{BOUNDARY[:-1]}f--\r\n".encode(),
    "half of the boundary at the end": f"x\r\n--{BOUNDARY[:9]}".encode(),
    "a newline at the end that is like a delimiter's": b"x\r\n",
    **{f"{size} bytes": b"line\n" * (size // 5) + b"x" * (size % 5) for size in (1, 511, 512, 513)},
    **{f"{size} bytes": b"y" * (size - 1) + b"\n" for size in (4095, 4096, 4097, 65_535, 65_536, 65_537)},
    "the limit": b"z" * LIMIT,
}  # fmt: skip
OTHER = {
    "invalid UTF-8": b"caf\xe9 \xff\xfe \xc0\x80",
    "an encoded surrogate": b"\xed\xa0\x80",
    "a letter cut off": "é".encode()[:1],
    "a letter cut off after much text": b"y" * 100_000 + "🦉".encode()[:3],
    "a wrong byte behind much text": b"y" * 100_000 + b"\xff" + b"y" * 100_000,
    "UTF-16 LE with BOM": "\ufeffhi\r\nthere".encode("utf-16-le"),
    "UTF-16 BE with BOM": "\ufeffhi\r\nthere".encode("utf-16-be"),
    "every byte": bytes(range(256)),
    "random bytes": random.Random(1).randbytes(LIMIT),
}
BODIES = TEXTS | OTHER

Way = Callable[[Harness, bytes], Awaitable[tuple[int, str]]]


async def _sent(answer: aiohttp.ClientResponse) -> tuple[int, str]:
    return answer.status, await answer.text()


async def _raw(
    it: Harness, method: str, path: str, body: object, kind: str = "application/octet-stream"
) -> tuple[int, str]:
    async with it.http.request(method, f"{it.url}{path}", data=body, headers={"Content-Type": kind}) as answer:
        return await _sent(answer)


async def _chunked(it: Harness, body: bytes) -> tuple[int, str]:
    async def pieces() -> AsyncIterator[bytes]:
        for at in range(0, len(body), 5000):
            yield body[at : at + 5000]

    return await _raw(it, "PUT", "/", pieces())


def _form(head: str) -> Way:
    async def post(it: Harness, body: bytes) -> tuple[int, str]:
        framed = multipart(BOUNDARY, (head, body))
        return await _raw(it, "POST", "/", framed, f"multipart/form-data; boundary={BOUNDARY}")

    return post


async def _api(it: Harness, body: bytes) -> tuple[int, str]:
    status, text = await _raw(it, "POST", "/api/v1/pastes", body, "text/plain; charset=latin-1")
    return status, json.loads(text).get("url", text)


async def _json(it: Harness, body: bytes) -> tuple[int, str]:
    document = json.dumps({"content": body.decode()}, ensure_ascii=False).encode()
    status, text = await _raw(it, "POST", "/api/v1/pastes", document, "application/json")
    return status, json.loads(text).get("url", text)


def _as_is(method: str, path: str, kind: str = "application/octet-stream") -> Way:
    return lambda it, body: _raw(it, method, path, body, kind)


WAYS: Mapping[str, Way] = {
    "POST /": _as_is("POST", "/"),
    "POST / as curl's --data-binary": _as_is("POST", "/", "application/x-www-form-urlencoded"),
    "POST / as JSON": _as_is("POST", "/", "application/json"),
    "POST / of an unknown type": _as_is("POST", "/", "x"),
    "PUT /": _as_is("PUT", "/"),
    "PUT /NAME": _as_is("PUT", "/notes.txt", "text/plain"),
    "PUT / chunked": _chunked,
    "-F file=@x": _form('Content-Disposition: form-data; name="file"; filename="x.txt"\r\nContent-Type: text/plain'),
    "-F content=<-": _form('Content-Disposition: form-data; name="content"'),
    "API with a body": _api,
}


async def came_back(it: Harness, url: str) -> tuple[bytes, bytes]:
    path = url.strip().removeprefix(it.daemon.config.server.public_url)
    return (await it.get(f"{path}/raw"))[1], (await it.get(f"{path}/download"))[1]


@pytest.mark.parametrize("way", WAYS)
async def test_what_goes_in_comes_out(tmp_path: Path, way: str) -> None:
    wrong = {}
    async with running(tmp_path, settings={"pastes.body_bytes_max": LIMIT}) as it:
        for name, body in BODIES.items():
            status, text = await WAYS[way](it, body)
            if status != 201 or await came_back(it, text) != (body, body):
                wrong[name] = status, text[:200]
    assert wrong == {}


async def test_text_goes_through_json_unchanged(tmp_path: Path) -> None:
    wrong = {}
    async with running(tmp_path, settings={"pastes.body_bytes_max": LIMIT}) as it:
        for name, body in TEXTS.items():
            status, text = await _json(it, body)
            if status != 201 or await came_back(it, text) != (body, body):
                wrong[name] = status, text[:200]
    assert wrong == {}


@pytest.mark.parametrize("name", OTHER)
async def test_json_that_is_no_unicode_text_is_refused(tmp_path: Path, name: str) -> None:
    async with running(tmp_path) as it:
        document = b'{"content": "' + OTHER[name] + b'"}'
        status, text = await _raw(it, "POST", "/api/v1/pastes", document, "application/json")
        assert (status, json.loads(text)["code"]) == (400, "bad_request")
        assert await it.rows("select * from pastes") == []


async def test_the_form_turns_crlf_into_lf_and_changes_nothing_else(tmp_path: Path) -> None:
    wrong = {}
    kind = f"multipart/form-data; boundary={BOUNDARY}"
    async with running(tmp_path, settings={"pastes.body_bytes_max": LIMIT}) as it:
        for name, body in BODIES.items():
            framed = multipart(BOUNDARY, ('Content-Disposition: form-data; name="content"', body))
            status, text = await _raw(it, "POST", "/new", framed, kind)
            if status != 201:
                wrong[name] = status, text[:200]
                continue
            url = text.split('readonly value="')[1].split('"')[0]
            meant = body.replace(b"\r\n", b"\n")
            if await came_back(it, url) != (meant, meant):
                wrong[name] = status, url
    assert wrong == {}


async def test_a_delimiter_inside_of_a_part_is_refused(tmp_path: Path) -> None:
    way = WAYS["-F content=<-"]
    async with running(tmp_path) as it:
        for body in (
            f"x\r\n--{BOUNDARY}\r\ny",
            f"x\r\n--{BOUNDARY}and more\r\ny",
            f"--{BOUNDARY}\r\n",
        ):
            status, text = await way(it, body.encode())
            assert status == 400, (body, text)
        assert await it.rows("select * from pastes") == []


async def test_a_letter_in_two_writes_stays_one(tmp_path: Path) -> None:
    first, second = "é".encode()[:1], "é".encode()[1:]
    async with running(tmp_path) as it:
        for head, pieces in (
            (b"Content-Length: 2", (first, second)),
            (b"Transfer-Encoding: chunked", (b"1\r\n" + first + b"\r\n", b"1\r\n" + second + b"\r\n0\r\n\r\n")),
        ):
            async with wire(it.url) as line:
                await line.send(b"PUT / HTTP/1.1\r\nHost: x\r\n" + head + b"\r\n\r\n", *pieces)
                answer = await line.answer()
            assert answer.status == 201
            assert await came_back(it, answer.body.decode()) == ("é".encode(), "é".encode())


async def test_a_form_in_pieces_of_every_size_is_the_same_form(tmp_path: Path) -> None:
    body = f"x\r\n--{BOUNDARY[:-2]}\r\n\r\n-{EMOJI.decode()}\r\n--".encode()
    framed = multipart(BOUNDARY, ('Content-Disposition: form-data; name="c"', body))
    head = (
        f"POST / HTTP/1.1\r\nHost: x\r\nContent-Type: multipart/form-data; boundary={BOUNDARY}\r\n"
        f"Content-Length: {len(framed)}\r\n\r\n"
    ).encode()
    async with running(tmp_path) as it, wire(it.url) as line:
        for size in (*range(1, 12), 36, 37, 38, 39, 40, 41, 42, 43, 44, 45, 100):
            await line.send(head, *(framed[at : at + size] for at in range(0, len(framed), size)))
            answer = await line.answer()
            assert answer.status == 201, (size, answer.body)
            assert await came_back(it, answer.body.decode()) == (body, body), size


@pytest.mark.parametrize(
    "arguments",
    [
        ["-T", "-"],
        ["-T", "body.bin"],
        ["--data-binary", "@body.bin"],
        ["-F", "file=@body.bin"],
        ["-F", "content=<-"],
        ["-F", "file=@-"],
        ["-T", "-", "-H", "Expect: 100-continue"],
    ],
    ids=" ".join,
)
async def test_curl_sends_what_it_was_given(tmp_path: Path, arguments: list[str]) -> None:
    body = BODIES["every byte"] + BODIES["emoji at every 8 KiB edge"] + b"\r\n--\r\n"
    (tmp_path / "body.bin").write_bytes(body)
    async with running(tmp_path) as it:
        curl = await asyncio.create_subprocess_exec(
            require("curl"), "-sS", "--noproxy", "*", *arguments, it.url,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, cwd=tmp_path,
        )  # fmt: skip
        async with asyncio.timeout(60):
            said, _ = await curl.communicate(body)
        assert await came_back(it, said.decode()) == (body, body), said
