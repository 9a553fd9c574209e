"""A client's connection that tells apart what other clients call one error: no answer at all, and one that was cut.

async with connected(it.url) as client:
    answer = await client.ask("GET", f"/{paste}/raw", pause_s=0.02)      # a slow reader
"""

import asyncio
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from urllib.parse import urlsplit

__all__ = ["Answer", "Connection", "CutError", "connected"]

PIECE_BYTES = 128 * 1024
PATIENCE_S = 60.0


class CutError(AssertionError):
    """The connection ended inside an answer."""


@dataclass(frozen=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    """Names in small letters."""
    body: bytes


class Connection:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writer = writer
        self.received = 0
        """Bytes of the body that is being read."""
        self.begun = asyncio.Event()
        """Set by the head of an answer."""
        self._reader = reader

    async def ask(
        self, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None, *, pause_s: float = 0
    ) -> Answer | None:
        """The whole answer, or None when the connection ended before the first byte of one. Raises `CutError`."""
        try:
            await self.send(method, path, body, headers)
        except ConnectionError:
            return None
        return await self.answer(pause_s=pause_s)

    async def send(self, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None) -> None:
        lines = {"Host": "127.0.0.1", "Content-Length": str(len(body))} | dict(headers or {})
        head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
        self.writer.write(f"{method} {path} HTTP/1.1\r\n{head}\r\n".encode() + body)
        await self.writer.drain()

    async def answer(self, *, pause_s: float = 0, go: asyncio.Event | None = None) -> Answer | None:
        """`pause_s` is waited before each piece of the body is read, and `go` before the first."""
        async with asyncio.timeout(PATIENCE_S):
            try:
                head = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            except asyncio.IncompleteReadError as error:
                if error.partial:
                    raise CutError(f"inside the head: {error.partial!r}") from error
                return None
            except ConnectionError:
                return None
            self.begun.set()
            if go is not None:
                await go.wait()
            status_line, *lines = head.rstrip("\r\n").split("\r\n")
            headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
            body = await self._body(int(headers.get("content-length", "0")), pause_s)
            return Answer(int(status_line.split(" ")[1]), headers, body)

    async def _body(self, length: int, pause_s: float) -> bytes:
        pieces: list[bytes] = []
        self.received = 0
        while self.received < length:
            if pause_s:
                await asyncio.sleep(pause_s)
            try:
                piece = await self._reader.read(min(PIECE_BYTES, length - self.received))
            except ConnectionError as error:
                raise CutError(f"after {self.received} of {length} bytes: {error!r}") from error
            if not piece:
                raise CutError(f"after {self.received} of {length} bytes")
            pieces.append(piece)
            self.received += len(piece)
        return b"".join(pieces)


@asynccontextmanager
async def connected(url: str, *, receive_bytes: int = 0) -> AsyncIterator[Connection]:
    """To `http://host:port` or `unix:path`. `receive_bytes` keeps the kernel from reading far ahead."""
    if url.startswith("unix:"):
        made = socket.socket(socket.AF_UNIX)
        address: str | tuple[str | None, int | None] = url.removeprefix("unix:")
    else:
        parts = urlsplit(url)
        made = socket.socket(socket.AF_INET)
        address = (parts.hostname, parts.port)
    made.setblocking(False)
    if receive_bytes:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    try:
        await asyncio.get_running_loop().sock_connect(made, address)
    except OSError:
        made.close()
        raise
    reader, writer = await asyncio.open_connection(sock=made)
    try:
        yield Connection(reader, writer)
    finally:
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()
