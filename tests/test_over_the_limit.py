"""A body over the limit is refused as soon as the limit is passed (G14): with a declared length before a byte of it is
asked for, without one in the middle. The sender sees the 413 while still sending, the server keeps no more than the
limit and 64 KiB, and throws the rest away for at most 2 s."""

import asyncio
import select
import socket
import time
import tracemalloc
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from pastebin_daemon.web.intake import FORM_SURPLUS_BYTES
from pastebin_daemon.web.receiving import Hold
from tests.support import running
from tests.wire import multipart, request, wire

LIMIT = 1024 * 1024
SETTINGS = {"pastes.body_bytes_max": LIMIT}
FRAMING = 64 * 1024
BEGIN = b"--b\r\nContent-Disposition: form-data; name=c\r\n\r\n"
FORM = "Content-Type: multipart/form-data; boundary=b\r\n"
WAYS = {
    "POST /": ("POST / ", "", LIMIT),
    "PUT /": ("PUT / ", "", LIMIT),
    "PUT /NAME": ("PUT /x.txt ", "", LIMIT),
    "form to /": ("POST / ", FORM, LIMIT + FRAMING),
    "form of the page": ("POST /new ", FORM, LIMIT + FORM_SURPLUS_BYTES + FRAMING),  # to give the text back
    "API": ("POST /api/v1/pastes ", "Content-Type: text/plain\r\n", LIMIT),
    "JSON": ("POST /api/v1/pastes ", "Content-Type: application/json\r\n", LIMIT + FRAMING),
}


def head(way: str, *fields: str) -> bytes:
    first, kind, _ = WAYS[way]
    return (f"{first}HTTP/1.1\r\nHost: x\r\n{kind}" + "".join(f"{field}\r\n" for field in fields) + "\r\n").encode()


@pytest.mark.parametrize("way", WAYS)
async def test_a_declared_length_over_the_limit_is_refused_before_the_body_comes(tmp_path: Path, way: str) -> None:
    over = f"Content-Length: {WAYS[way][2] + 1}"
    async with running(tmp_path, settings=SETTINGS) as it:
        for fields in ((over,), (over, "Expect: 100-continue")):
            answer = await request(it.url, head(way, *fields))
            assert answer.status == 413, "no byte of the body was sent, nor asked for"
            assert "1MiB" in answer.body.decode()


@pytest.mark.parametrize("way", WAYS)
async def test_a_body_within_the_limit_is_asked_for(tmp_path: Path, way: str) -> None:
    async with running(tmp_path, settings=SETTINGS) as it, wire(it.url) as line:
        await line.send(head(way, f"Content-Length: {WAYS[way][2]}", "Expect: 100-continue"))
        assert (await line.answer()).status == 100


async def test_a_body_is_asked_for_only_when_nothing_else_speaks_against_it(tmp_path: Path) -> None:
    expecting = head("PUT /", "Content-Length: 2", "Expect: 100-continue")
    async with running(tmp_path, settings={"server.read_only": True}) as it:
        assert (await request(it.url, expecting)).status == 503
    async with running(tmp_path, settings={"limits.creates_per_minute": 1}) as it, wire(it.url) as line:
        await line.send(expecting)
        assert (await line.answer()).status == 100
        await line.send(b"hi")
        assert (await line.answer()).status == 201
        await line.send(expecting)
        assert (await line.answer()).status == 429


async def test_whoever_does_not_wait_to_be_asked_is_not_asked(tmp_path: Path) -> None:
    async with running(tmp_path) as it, wire(it.url) as line:
        await line.send(head("PUT /", "Content-Length: 2", "Expect: 100-continue") + b"hi")
        answers = [await line.answer()]
        if answers[0].status == 100:  # allowed, not needed
            answers.append(await line.answer())
        assert answers[-1].status == 201


@pytest.mark.parametrize("way", WAYS)
async def test_a_chunked_body_is_refused_in_the_middle(tmp_path: Path, way: str) -> None:
    begin = BEGIN if "form" in way else b""
    async with running(tmp_path, settings=SETTINGS) as it, wire(it.url) as line:
        await line.send(head(way, "Transfer-Encoding: chunked"))
        for piece in (begin, b'{"content": "' if way == "JSON" else b"", b"x" * WAYS[way][2], b"x"):
            if piece:
                await line.send(b"%x\r\n%s\r\n" % (len(piece), piece))
        answer = await line.answer()
        assert answer.status == 413, "the body is not at its end, and nobody waited for it"
        assert await it.rows("select * from uploads") == []


@dataclass
class Flood:
    """What a client saw that sends on and on."""

    answer: bytes = b""
    sent_before: int = 0
    sent_after: int = 0
    seconds_after: float = 0.0


def flood(url: str, start: bytes, piece: bytes) -> Flood:
    """Send pieces for ever: until the server closes. In a thread: blocking, and from one buffer, so that what the
    process allocates meanwhile is the server's."""
    parts = urlsplit(url)
    seen = Flood()
    answered = 0.0
    with socket.create_connection((parts.hostname, parts.port), 60) as line:
        line.sendall(start)
        line.setblocking(False)
        view = memoryview(piece)
        at = 0
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            readable, writable, _ = select.select([] if answered else [line], [line], [], 1)
            try:
                if readable and (read := line.recv(65536)):
                    seen.answer += read
                    answered = time.monotonic()
                count = line.send(view[at:]) if writable else 0
            except ConnectionError:
                break
            at = (at + count) % len(piece)
            if answered:
                seen.sent_after += count
            else:
                seen.sent_before += count
        seen.seconds_after = time.monotonic() - answered
    return seen


async def test_a_flood_is_answered_meanwhile_kept_out_of_memory_and_cut_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = count_what_is_held(monkeypatch)
    piece = b"10000\r\n" + b"x" * 0x10000 + b"\r\n"
    async with running(tmp_path, settings=SETTINGS) as it:
        await it.paste()  # whatever is allocated once is there
        tracemalloc.start()
        try:
            seen = await asyncio.to_thread(flood, it.url, head("PUT /", "Transfer-Encoding: chunked"), piece)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert seen.answer.startswith(b"HTTP/1.1 413 ")
        assert seen.sent_after > 0, "the answer came while the client was sending"
        assert seen.seconds_after < 20, "two, and then the connection is closed"
        assert max(held) <= LIMIT
        # What the body may take, and what is on its way to it: the loop reads 256 KiB at a time, and aiohttp copies
        # that up to twice when it cuts it into the pieces of a chunked body.
        assert peak <= LIMIT + FRAMING + 4 * 256 * 1024
        assert seen.sent_before + seen.sent_after > 2 * LIMIT


def count_what_is_held(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The bytes of each upload, at each step of its way in."""
    held: list[int] = [0]
    add = Hold.add

    def counted(hold: Hold, count: int) -> None:
        add(hold, count)
        held.append(hold.bytes)

    monkeypatch.setattr(Hold, "add", counted)
    return held


@pytest.mark.parametrize("way", ["form to /", "form of the page"])
@pytest.mark.parametrize(
    "piece",
    [
        pytest.param(b"x" * 5000, id="one part"),
        pytest.param(
            b"x\r\n" * 100_000 + b"--b\r\n" + b"Content-Disposition: form-data; name=d\r\n\r\n", id="many parts"
        ),
        pytest.param(b"\r\n--b\r\n" + b"A: " + b"h" * 8000 + b"\r\n\r\n", id="headers"),
    ],
)
async def test_a_form_is_bounded_as_a_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str, piece: bytes
) -> None:
    held = count_what_is_held(monkeypatch)
    async with running(tmp_path, settings=SETTINGS) as it, wire(it.url) as line:
        await line.send(head(way, "Transfer-Encoding: chunked"))
        await line.send(b"%x\r\n%s\r\n" % (len(BEGIN), BEGIN))
        answer = asyncio.create_task(line.answer())
        while not answer.done():
            await line.send(b"%x\r\n%s\r\n" % (len(piece), piece))
        assert (await answer).status in (400, 413)
        assert max(held) <= WAYS[way][2]


@pytest.mark.parametrize("way", ["form to /", "form of the page"])
async def test_what_stands_before_the_first_part_or_after_the_last_is_bounded_too(tmp_path: Path, way: str) -> None:
    async with running(tmp_path, settings=SETTINGS) as it:
        for begin in (b"", multipart("b", ("Content-Disposition: form-data; name=c", b"hi"))):
            async with wire(it.url) as line:
                await line.send(head(way, "Transfer-Encoding: chunked"))
                for piece in (begin, *[b" " * 1000 + b"\r\n"] * (WAYS[way][2] // 1000)):
                    if piece:
                        await line.send(b"%x\r\n%s\r\n" % (len(piece), piece))
                assert (await line.answer()).status == 413


async def test_a_form_may_have_its_framing_on_top_of_the_limit(tmp_path: Path) -> None:
    parts = [(f"Content-Disposition: form-data; name={name}", b"1h") for name in ("expires_in",)]
    disposition = "Content-Disposition: form-data; name=file; filename=x\r\nX-Filling: " + "f" * 8000
    async with running(tmp_path, settings=SETTINGS) as it:
        for size, status in ((LIMIT, 201), (LIMIT + 1, 413)):
            body = multipart("b", *parts, (disposition, b"x" * size))
            answer = await request(it.url, head("form to /", f"Content-Length: {len(body)}") + body)
            assert answer.status == status


async def test_a_json_document_may_have_its_framing_on_top_of_the_limit(tmp_path: Path) -> None:
    async with running(tmp_path, settings=SETTINGS) as it:
        for content, status in ((b"x" * LIMIT, 201), (b"x" * (LIMIT + 1), 413), (rb"\n" * (LIMIT // 2 + 40_000), 413)):
            body = b'{"content": "' + content + b'"}'
            answer = await request(it.url, head("JSON", f"Content-Length: {len(body)}") + body)
            assert answer.status == status
        assert b"as the body itself" in answer.body, "a text within the limit whose escapes pass it has a way in"


async def test_after_a_refusal_in_the_middle_the_connection_says_that_it_closes(tmp_path: Path) -> None:
    async with running(tmp_path, settings=SETTINGS) as it, wire(it.url) as line:
        await line.send(head("PUT /", f"Content-Length: {LIMIT + 1}", "Expect: 100-continue"))
        answer = await line.answer()
        assert answer.headers["Connection"] == "close", "what comes next would be taken for the rest of the body"
        assert await line.rest() == b""


async def test_after_a_refusal_of_a_whole_request_the_connection_goes_on(tmp_path: Path) -> None:
    async with running(tmp_path, settings=SETTINGS) as it, wire(it.url) as line:
        for _ in range(2):
            await line.send(b"PUT /x/y HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\nhi")
            assert (await line.answer()).status == 404
