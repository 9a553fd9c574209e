"""What the log says of requests: a line for each create, delete, refusal and error, and never a body, a token, a key or a
secret, whatever went wrong."""

import io
import json
import logging
import re
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog
from structlog.testing import CapturingLogger

from pastebin_daemon import logs
from pastebin_daemon.errors import Temporary
from tests.fakes import FakeClock, FakeStore
from tests.support import running
from tests.wire import multipart, request, wire

API = "/api/v1/pastes"
BODY = "hunter2-is-in-the-body"
KEY = "hunter2-is-in-the-key"
TOKEN = "hunter2-is-in-the-token"


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> CapturingLogger:
    """What every module of the daemon logs from now on."""
    everything = CapturingLogger()
    for name, module in list(sys.modules.items()):
        if name.startswith("pastebin_daemon") and hasattr(module, "log"):
            monkeypatch.setattr(module, "log", everything)
    return everything


def events(log: CapturingLogger) -> list[str]:
    return [call.args[0] for call in log.calls]


def fields(log: CapturingLogger, event: str) -> dict[str, Any]:
    (found,) = [call.kwargs for call in log.calls if call.args[0] == event]
    return dict(found)


async def test_a_life_is_a_line_for_each_turn_and_reads_are_none(tmp_path: Path, log: CapturingLogger) -> None:
    async with running(tmp_path) as it:
        made = await it.paste(BODY.encode())
        assert fields(log, "paste.created")["paste"] == made.id
        log.calls.clear()
        for path in (made.id, f"{made.id}/raw", "/", "/help"):
            await it.get(path)
        assert [call for call in log.calls if call.method_name != "debug"] == [], "the proxy in front logs reads"
        await it.delete(made)
        assert fields(log, "paste.deleted") == {"paste": made.id}
        log.calls.clear()
        assert await it.try_delete(made) == 404
        assert fields(log, "request.refused")["code"] == "not_found"


async def test_no_refusal_and_no_trouble_shows_what_was_sent(tmp_path: Path, log: CapturingLogger) -> None:
    clock = FakeClock()
    store = FakeStore(clock)
    file = tmp_path / "tokens"
    file.write_text(f"{TOKEN}\n")
    text = ('Content-Disposition: form-data; name="content"', BODY.encode())
    settings = {"pastes.body_bytes_max": 200, "access.create_tokens_file": str(file)}
    form = "multipart/form-data; boundary=b"
    async with running(tmp_path, clock=clock, store=store, settings=settings) as it:
        sent: list[tuple[str, str, bytes, str]] = [
            ("PUT", "/", BODY.encode(), "text/plain"),
            ("PUT", "/", BODY.encode() * 100, "text/plain"),
            ("POST", API, json.dumps({"content": BODY}).encode(), "application/json"),
            ("POST", API, json.dumps({"content": BODY, BODY: BODY, "title": [BODY]}).encode(), "application/json"),
            ("POST", API, json.dumps({"content": BODY, "title": BODY + "\n", "expires_in": BODY}).encode(), "application/json"),
            ("POST", API, f'"{BODY}'.encode(), "application/json"),
            ("POST", API, BODY.encode() + b"\xff", "application/json"),
            ("POST", "/", BODY.encode(), form),
            ("POST", "/", multipart("b", text, text), form),
            ("POST", "/", multipart("b", ("Content-Disposition: form-data", f"x\r\n--b\r\n{BODY}".encode())), form),
            ("POST", "/", multipart("b", text) + BODY.encode(), form),
            ("POST", "/", multipart("b", ('Content-Disposition: form-data; name="title"', BODY.encode() * 99), text), form),
            ("POST", "/new", multipart("b", text), form),
            ("POST", f"/{'a' * 18}/delete", f"token={TOKEN}".encode(), "application/x-www-form-urlencoded"),
        ]  # fmt: skip
        headers = {"Authorization": f"Bearer {TOKEN}", "X-Delete-Token": TOKEN, "Idempotency-Key": KEY}
        for turn in range(2):
            if turn:
                store.faults.fail("put", Temporary("unreachable"), times=None)
            for method, path, body, kind in sent:
                for extra in (headers, headers | {"Idempotency-Key": KEY + "é"}, {"Authorization": f"Bearer {TOKEN}x"}):
                    fields = extra | {"Content-Type": kind}
                    async with it.http.request(method, it.url + path, data=body, headers=fields) as answer:
                        assert answer.status != 500
            async with it.http.delete(f"{it.url}{API}/{'a' * 18}", headers=headers) as answer:
                assert answer.status == 404
        assert len(log.calls) > 80
        assert "hunter2" not in repr(log.calls)


async def test_a_crash_is_logged_without_the_body(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, log: CapturingLogger
) -> None:
    async def crash(*_: object) -> None:
        raise RuntimeError("a bug")

    async with running(tmp_path) as it:
        monkeypatch.setattr(it.daemon.store, "put", crash)
        async with it.http.put(f"{it.url}/", data=BODY.encode()) as answer:
            assert (answer.status, await answer.text()) == (500, "Something went wrong here. It has been logged.\n")
        assert events(log).count("request.crashed") == 1
        assert "hunter2" not in repr(log.calls)


async def test_a_path_is_never_logged_since_it_names_the_paste_or_worse(tmp_path: Path, log: CapturingLogger) -> None:
    async with running(tmp_path) as it:
        for path in ("hunter2", "hunter2/raw", "hunter2/x/y", "api/v1/pastes/hunter2", "x?token=hunter2"):
            assert (await it.get(path))[0] in (400, 404)
        await request(it.url, b"PUT /hunter2/x HTTP/1.1\r\nHost: hunter2\r\nContent-Length: 0\r\n\r\n")
        assert events(log).count("request.refused") == 6
        assert "hunter2" not in repr(log.calls)


@pytest.fixture
def lines() -> Iterator[io.StringIO]:
    """The log as the daemon writes it, that of libraries too."""
    root = logging.getLogger()
    level, handlers, shown = root.level, list(root.handlers), warnings.showwarning
    stream = io.StringIO()
    logs.configure("json", "info", stream)
    yield stream
    logging.captureWarnings(False)
    warnings.showwarning = shown
    root.setLevel(level)
    root.handlers[:] = handlers
    structlog.reset_defaults()


@pytest.mark.parametrize(
    "raw",
    [
        b"PUT / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nhunter2\r\n",
        b"PUT / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nhunter2",
        b"PUT / HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer hunter2\x00\r\n\r\n",
        b"PUT / HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer hunter2" + b"x" * 9000 + b"\r\n\r\n",
        b"PUT / HTTP/1.1\r\nHost: x\r\nContent-Length: hunter2\r\n\r\n",
        b"GET /hunter2 hunter2 HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET /hunter2" + b"x" * 9000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
        b"HELP hunter2\r\n\r\n",
        b"PUT / HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\nhihunter2 hunter2\r\n\r\n",
    ],
)
async def test_what_is_no_http_is_a_400_and_one_short_line(tmp_path: Path, lines: io.StringIO, raw: bytes) -> None:
    async with running(tmp_path) as it, wire(it.url) as line:
        await line.send(raw)
        answers = await line.rest()
        assert re.findall(rb"HTTP/1.. (\d+) ", answers)[-1] == b"400"
    written = lines.getvalue()
    assert "hunter2" not in written
    assert "Traceback" not in written
    said = [json.loads(each) for each in written.splitlines()]
    assert {each["level"] for each in said} <= {"info"}, "strangers send such things all day"
