"""Bytes off the wire, each kept within a bound (G14): of size, of all uploads' memory together, and of time.

- A body over the limit is refused as soon as the limit is passed; what was read is dropped, and the server throws the
  rest away for at most 2 s (`lingering_time`), so that the client sees the answer. A client that waits to be asked
  (`Expect: 100-continue`) is asked once nothing else speaks against its request.
- Bytes in flight of all clients together count against `[uploads] memory_max` as they arrive, not as they are promised:
  a slow client holds only what it has sent.
- `Content-Encoding` is refused, and so is any transfer coding but chunked: stored decoded, it would not be the bytes
  that were sent; stored as sent, they would be served under another name.
"""

import asyncio
import warnings
from collections import deque
from collections.abc import AsyncIterator, Callable, Collection, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from io import BytesIO
from typing import cast

from aiohttp import BodyPartReader, HttpVersion11, MultipartReader, StreamReader
from aiohttp.http_exceptions import HttpProcessingError

from pastebin_daemon.errors import BadRequest, Busy, RequestTimeout, TooLarge, UnsupportedMediaType
from pastebin_daemon.web.routing import Request

__all__ = ["FRAMING_BYTES", "Form", "Hold", "Memory", "read_body", "read_form"]

FRAMING_BYTES = 64 * 1024
"""What JSON or multipart may add around a body of the largest size."""
OPTION_BYTES = 1024
PIECE_BYTES = 16 * 1024
PARTS_MAX = 16
IDLE_S = 30.0
WHOLE_S = 300.0
"""A body arrives within five minutes, and never pauses for longer than `IDLE_S`."""


class Memory:
    """The budget of bytes in flight."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._used = 0

    @contextmanager
    def hold(self) -> Iterator["Hold"]:
        """What is added inside is given back at the end."""
        hold = Hold(self)
        try:
            yield hold
        finally:
            self._used -= hold.bytes

    def _add(self, count: int) -> None:
        if self._used + count > self._bytes_max:
            raise Busy(f"{self._used} bytes are being uploaded; [uploads] memory_max is {self._bytes_max}")
        self._used += count


class Hold:
    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self.bytes = 0

    def add(self, count: int) -> None:
        """Raises `Busy` over the budget."""
        self._memory._add(count)
        self.bytes += count


@dataclass(slots=True)
class Form:
    """The texts and files of a form, and its options by their names."""

    contents: list[tuple[bytes, str | None]] = field(default_factory=list)  # body, file name
    options: dict[str, object] = field(default_factory=dict)


async def _ask(request: Request, length_max: int, refusal: Callable[[], TooLarge]) -> None:
    """Refuse what can be refused before the body comes; then ask for it, should the client wait for that."""
    if request.headers.get("Content-Encoding", "identity").lower() != "identity":
        raise UnsupportedMediaType("send the bytes as they are to be stored, without Content-Encoding")
    if request.headers.get("Transfer-Encoding", "chunked").lower() != "chunked":
        raise UnsupportedMediaType("send the bytes as they are to be stored: the only transfer coding here is chunked")
    if (request.content_length or 0) > length_max:
        raise refusal()
    if request.headers.get("Expect", "").lower() == "100-continue" and request.version >= HttpVersion11:
        await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        request.writer.output_size = 0  # the answer has not begun


async def read_body(request: Request, length_max: int, refusal: Callable[[], TooLarge], hold: Hold) -> bytes:
    """The whole body of at most `length_max` bytes. Raises `refusal` for more."""
    await _ask(request, length_max, refusal)
    if request.content.is_eof():  # it came with the head: there is nothing to wait for
        body = request.content.read_nowait()
        if len(body) > length_max:
            raise refusal()
        hold.add(len(body))
        return body
    whole = BytesIO()  # which hands out its own buffer at the end: a list to join would take twice the room
    async with _patience() as patience:
        while chunk := await request.content.readany():
            if whole.tell() + len(chunk) > length_max:
                raise refusal()
            hold.add(len(chunk))
            whole.write(chunk)
            patience.renew()
    return whole.getvalue()


async def read_form(
    request: Request, limit: int, refusal: Callable[[], TooLarge], hold: Hold, options: Collection[str]
) -> Form:
    """A multipart form whose parts have at most `limit` bytes each, and not many more together. A part with the name of
    an option and without a file name is one; every other is a content. Raises `refusal` for more, `BadRequest`."""
    form = Form()
    await _ask(request, limit + FRAMING_BYTES, refusal)
    try:
        async with _patience() as patience:
            content = _Counted(request.content, limit + FRAMING_BYTES, refusal, patience)
            reader = MultipartReader(request.headers, cast(StreamReader, content))
            for _ in range(PARTS_MAX + 1):
                part = await reader.next()
                if part is None:
                    await content.expect_end()
                    return form
                coding = part.headers.get("Content-Transfer-Encoding", "binary").lower()
                plain = coding in ("7bit", "8bit", "binary") and "Content-Encoding" not in part.headers
                if not isinstance(part, BodyPartReader) or not plain:
                    raise BadRequest("a part of the form is encoded or nested; send plain parts")
                await _read_part(part, form, limit, refusal, hold, options)
    except (ValueError, AssertionError, LookupError, RuntimeError, HttpProcessingError) as error:
        # aiohttp's own words would show what stands in the body, to the log too
        raise BadRequest(
            "the multipart body is broken or cut off, or its boundary is not the one that its Content-Type names"
        ) from error
    raise BadRequest(f"the form has more than {PARTS_MAX} parts")


async def _read_part(
    part: BodyPartReader, form: Form, limit: int, refusal: Callable[[], TooLarge], hold: Hold, options: Collection[str]
) -> None:
    is_option = part.filename is None and part.name in options
    most = OPTION_BYTES if is_option else limit
    value = bytearray()
    while chunk := await part.read_chunk(PIECE_BYTES):
        if len(value) + len(chunk) > most:
            raise BadRequest(f"{part.name} is too long") if is_option else refusal()
        hold.add(len(chunk))
        value += chunk
    if is_option:
        assert part.name is not None
        try:
            form.options[part.name] = value.decode()
        except UnicodeDecodeError as error:
            raise BadRequest(f"{part.name} is not UTF-8 text") from error
    elif value or part.filename is None:
        form.contents.append((bytes(value), part.filename))


class _Counted:
    """What aiohttp's reader of forms asks of a request's content, and no more than a form may have of it, wherever the
    surplus stands: in one part or in many, in headers, before the first part or after the last."""

    def __init__(
        self, content: StreamReader, length_max: int, refusal: Callable[[], TooLarge], patience: "_Patience"
    ) -> None:
        self._content = content
        self._left = length_max
        self._refusal = refusal
        self._patience = patience
        self._last_lines: deque[bytes] = deque(maxlen=2)

    async def read(self, n: int) -> bytes:
        return self._count(await self._content.read(n))

    async def readline(self, *, max_line_length: int | None = None) -> bytes:
        line = self._count(await self._content.readline(max_line_length=max_line_length))
        self._last_lines.append(line)
        return line

    def unread_data(self, data: bytes) -> None:
        self._left += len(data)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # aiohttp's reader still has nothing else to call
            self._content.unread_data(data)

    def at_eof(self) -> bool:
        return self._content.at_eof()

    async def expect_end(self) -> None:
        """The form's end was read, and two lines more. What follows may be a paste that holds the form's boundary: it
        must not be cut off."""
        after = b"".join(self._last_lines)
        while not after.strip() and (piece := await self.read(PIECE_BYTES)):
            after = piece
        if after.strip():
            raise BadRequest("something follows the end of the form; choose a boundary that its parts don't hold")

    def _count(self, piece: bytes) -> bytes:
        self._left -= len(piece)
        if self._left < 0:
            raise self._refusal()
        self._patience.renew()
        return piece


class _Patience:
    """Bounds a body in time: as a whole, and between two pieces of it."""

    def __init__(self, scope: asyncio.Timeout) -> None:
        self._scope = scope
        self._end = asyncio.get_running_loop().time() + WHOLE_S
        self.renew()

    def renew(self) -> None:
        self._scope.reschedule(min(self._end, asyncio.get_running_loop().time() + IDLE_S))


@asynccontextmanager
async def _patience() -> AsyncIterator[_Patience]:
    try:
        async with asyncio.timeout(IDLE_S) as scope:
            yield _Patience(scope)
    except TimeoutError:
        raise RequestTimeout("the body took too long to arrive") from None
