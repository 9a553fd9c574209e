"""HTTP by hand, for what no client library would send or show: half a request, two writes for one letter, a request
line that is none, the bytes of an interim answer.

    async with wire(it.url) as line:
        await line.send(b"PUT / HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n", b"hi")
        answer = await line.answer()
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from urllib.parse import urlsplit

from multidict import CIMultiDict

__all__ = ["Answer", "Line", "multipart", "request", "wire"]

PATIENCE_S = 60.0
"""When nothing comes for so long, nothing ever will. Only a bound: no test waits for it."""


@dataclass(frozen=True)
class Answer:
    status: int
    headers: CIMultiDict[str]
    body: bytes


class Line:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def send(self, *pieces: bytes) -> None:
        """Each piece is a write of its own, and has left before the next one."""
        for piece in pieces:
            self.writer.write(piece)
            async with asyncio.timeout(PATIENCE_S):
                await self.writer.drain()

    async def answer(self, method: str = "GET") -> Answer:
        """The next answer, an interim one (100) too. `method`: what was asked with, since HEAD's has no body."""
        async with asyncio.timeout(PATIENCE_S):
            head = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            first, *rest = head.strip().split("\r\n")
            fields = (field.partition(": ") for field in rest)
            headers = CIMultiDict((name, value) for name, _, value in fields)
            status = int(first.split(" ")[1])
            if method == "HEAD" or status in (204, 304) or status < 200:
                return Answer(status, headers, b"")
            return Answer(status, headers, await self.reader.readexactly(int(headers["Content-Length"])))

    async def rest(self) -> bytes:
        """What else comes until the other side closes."""
        async with asyncio.timeout(PATIENCE_S):
            try:
                return await self.reader.read()
            except ConnectionError:
                return b""


@asynccontextmanager
async def wire(url: str) -> AsyncIterator[Line]:
    parts = urlsplit(url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    try:
        yield Line(reader, writer)
    finally:
        writer.transport.abort()


async def request(url: str, raw: bytes) -> Answer:
    """Send these very bytes on a connection of their own; the answer."""
    async with wire(url) as line:
        await line.send(raw)
        return await line.answer(raw.split(b" ", 1)[0].decode())


def multipart(boundary: str, *parts: tuple[str, bytes]) -> bytes:
    """A multipart body: of each part its headers, and its bytes."""
    framed = (b"--%s\r\n%s\r\n\r\n%s\r\n" % (boundary.encode(), head.encode(), body) for head, body in parts)
    return b"".join(framed) + b"--%s--\r\n" % boundary.encode()
