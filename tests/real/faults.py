"""A proxy between the daemon and an HTTP server that goes wrong as a test says.

    async with FaultProxy(port_of_the_server) as proxy:
        proxy.next(Answer(503, error_xml("SlowDown")))      # the next request; further ones pass
        proxy.next(Hang(), times=2, method="PUT")           # the two PUTs that come next
        ...
        proxy.seen[-1].headers["expect"]                    # every request as it was on the wire

With an `ssl` context it speaks TLS to its clients, and is so a TLS front too. One request for each connection.
"""

import asyncio
import re
import socket
import ssl
import struct
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from email.utils import format_datetime, parsedate_to_datetime
from http import HTTPStatus
from types import TracebackType
from typing import Self

__all__ = [
    "Answer", "Cut", "FailKeys", "Fault", "FaultProxy", "Hang", "Hold", "LoseAnswer", "Reset", "Seen", "error_xml",
]  # fmt: skip


@dataclass(frozen=True)
class Answer:
    """Answers by itself; the server never sees the request."""

    status: int
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Hang:
    """Takes the request and says nothing."""


@dataclass(frozen=True)
class Hold:
    """The server answers, and the answer stays on its way until the test lets it go."""

    answered: asyncio.Event = field(default_factory=asyncio.Event)
    go: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass(frozen=True)
class Reset:
    """Takes the request and resets the connection; the server never sees it."""


@dataclass(frozen=True)
class LoseAnswer:
    """The server does it, and the connection is reset instead of the answer."""


@dataclass(frozen=True)
class Cut:
    """Passes the answer's head and the first bytes of its body; then the end of the connection, or silence."""

    after: int
    silent: bool = False


@dataclass(frozen=True)
class FailKeys:
    """Of a DeleteObjects, these keys fail with these codes, and are said first; the server deletes the others."""

    codes: Mapping[str, str]


Fault = Answer | Hang | Hold | Reset | LoseAnswer | Cut | FailKeys


@dataclass(frozen=True)
class Seen:
    method: str
    target: str
    headers: Mapping[str, str]
    """Names in small letters."""
    body: bytes


@dataclass
class _Script:
    fault: Fault
    times: int | None
    method: str | None


def error_xml(code: str, message: str = "scripted") -> bytes:
    return (
        '<?xml version="1.0" encoding="UTF-8"?>'
        f"<Error><Code>{code}</Code><Message>{message}</Message><RequestId>1</RequestId></Error>"
    ).encode()


class FaultProxy:
    def __init__(self, upstream_port: int, ssl: ssl.SSLContext | None = None, port: int = 0) -> None:
        """`port` 0: any that is free."""
        self.seen: list[Seen] = []
        self.answered: list[int] = []
        """The status of every answer of the server."""
        self.arrived = asyncio.Event()
        """Set by every request."""
        self.port = port
        self.ahead_s = 0.0
        """How far the `Date` of the server's answers is moved, so that a test need not wait for the server's clock."""
        self._upstream_port = upstream_port
        self._ssl = ssl
        self._scripts: list[_Script] = []
        self._conversations: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        return f"{'https' if self._ssl else 'http'}://127.0.0.1:{self.port}"

    def next(self, fault: Fault, times: int | None = 1, method: str | None = None) -> None:
        """What happens to the next requests (with this method; None: to all), after what was scripted before."""
        self._scripts.append(_Script(fault, times, method))

    def clear(self) -> None:
        """All is well again. Who hangs already goes on hanging."""
        self._scripts.clear()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._on_connection, "127.0.0.1", self.port, ssl=self._ssl)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.close()
        for conversation in self._conversations:
            conversation.cancel()
        await asyncio.gather(*self._conversations, return_exceptions=True)

    def _on_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        conversation = asyncio.ensure_future(self._converse(reader, writer))
        self._conversations.add(conversation)
        conversation.add_done_callback(self._conversations.discard)

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            seen = await _read_request(reader)
            self.seen.append(seen)
            self.arrived.set()
            await self._act(self._fault_for(seen), seen, reader, writer)
        except (OSError, asyncio.IncompleteReadError):
            pass  # either side has gone: what a proxy is there to bear
        finally:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()

    def _fault_for(self, seen: Seen) -> Fault | None:
        for script in self._scripts:
            if script.method in (None, seen.method):
                if script.times is not None:
                    script.times -= 1
                    if script.times == 0:
                        self._scripts.remove(script)
                return script.fault
        return None

    async def _act(
        self, fault: Fault | None, seen: Seen, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        match fault:
            case Answer(status, body, headers):
                writer.write(_answer(status, headers, body))
                await writer.drain()
            case Hang():
                await reader.read()  # until the client goes
            case Hold(answered, go):
                head, body = await self._forward(seen)
                answered.set()
                await go.wait()
                writer.write(head + body)
                await writer.drain()
            case Reset():
                _reset(writer)
            case LoseAnswer():
                await self._forward(seen)
                _reset(writer)
            case Cut(after, silent):
                head, body = await self._forward(seen)
                writer.write(head + body[:after])
                await writer.drain()
                if silent:
                    await reader.read()
            case FailKeys(codes):
                head, body = await self._forward(_without_keys(seen, codes))
                errors = "".join(f"<Error><Key>{key}</Key><Code>{code}</Code></Error>" for key, code in codes.items())
                body = re.sub(rb"(<DeleteResult[^>]*>)", rb"\1" + errors.encode(), body, count=1)
                writer.write(_answer(200, {"Content-Type": "application/xml"}, body))
                await writer.drain()
            case None:
                head, body = await self._forward(seen)
                writer.write(head + body)
                await writer.drain()

    async def _forward(self, seen: Seen) -> tuple[bytes, bytes]:
        """The answer of the server, as it was sent: its head and its body."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self._upstream_port)
        try:
            dropped = ("content-length", "transfer-encoding", "connection", "expect")
            headers = {name: value for name, value in seen.headers.items() if name not in dropped}
            headers |= {"content-length": str(len(seen.body)), "connection": "close"}
            writer.write(f"{seen.method} {seen.target} HTTP/1.1\r\n".encode() + _header_lines(headers) + seen.body)
            await writer.drain()
            answer = await reader.read()
        finally:
            writer.close()
            await writer.wait_closed()
        head, gap, body = answer.partition(b"\r\n\r\n")
        if head:
            self.answered.append(int(head.split(maxsplit=2)[1]))
        return _later(head, self.ahead_s) + gap, body


async def _read_request(reader: asyncio.StreamReader) -> Seen:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    request_line, *lines = head.rstrip("\r\n").split("\r\n")
    method, target, _ = request_line.split(" ")
    headers = {}
    for line in lines:
        name, _, value = line.partition(":")
        headers[name.lower()] = value.strip()
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    return Seen(method, target, headers, body)


def _later(head: bytes, seconds: float) -> bytes:
    def move(date: re.Match[bytes]) -> bytes:
        moved = parsedate_to_datetime(date[2].decode()) + timedelta(seconds=seconds)
        return date[1] + format_datetime(moved, usegmt=True).encode()

    return re.sub(rb"(?i)(\r\ndate: )([^\r]+)", move, head) if seconds else head


def _without_keys(seen: Seen, codes: Mapping[str, str]) -> Seen:
    body = seen.body
    for key in codes:
        body = body.replace(f"<Object><Key>{key}</Key></Object>".encode(), b"")
    return Seen(seen.method, seen.target, seen.headers, body)


def _answer(status: int, headers: Mapping[str, str], body: bytes) -> bytes:
    whole = {**headers, "Content-Length": str(len(body)), "Connection": "close"}
    return f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\n".encode() + _header_lines(whole) + body


def _header_lines(headers: Mapping[str, str]) -> bytes:
    return "".join(f"{name}: {value}\r\n" for name, value in headers.items()).encode("latin-1") + b"\r\n"


def _reset(writer: asyncio.StreamWriter) -> None:
    """An RST instead of a FIN."""
    connection = writer.get_extra_info("socket")
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
