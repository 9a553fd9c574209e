"""Taking a paste in: every way in gives the same bytes, or a reason (G15), and nothing is kept without a bound (G14).

- A body over the limit is refused as soon as the limit is passed; what was read is dropped, and the server throws the
  rest away for at most 2 s (`lingering_time`), so that the client sees the answer.
- Bytes in flight of all clients together count against `[uploads] memory_max` as they arrive, not as they are promised:
  a slow client holds only what it has sent.
- `Content-Encoding` is refused: stored decoded, it would not be the bytes that were sent; stored as sent, they would be
  served under another name.
- JSON is text: what is not Unicode text (a lone surrogate) is refused. The HTML form's route alone turns CRLF into LF,
  since browsers rewrite every newline of a textarea on submit.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from difflib import get_close_matches

from aiohttp import BodyPartReader, web
from aiohttp.http_exceptions import HttpProcessingError
from pydantic import BaseModel, ConfigDict, ValidationError

from pastebin_daemon.creation import Draft
from pastebin_daemon.errors import BadRequest, Busy, RequestTimeout, TooLarge, UnsupportedMediaType
from pastebin_daemon.quantities import duration_text, lifetime, size_text

__all__ = ["FRAMING_BYTES", "Expiries", "Memory", "draft_of_form", "draft_of_json", "draft_of_terminal", "has_room"]

FRAMING_BYTES = 64 * 1024
"""What JSON or multipart may add around a body of the largest size."""
OPTION_BYTES = 1024
PARTS_MAX = 16
IDLE_S = 30.0
WHOLE_S = 300.0
"""A body arrives within five minutes, and never pauses for longer than `IDLE_S`."""
TITLE_CHARS = 200
OPTIONS = ("expires_in", "title", "language")

_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff\u2028\u2029]")
_LANGUAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9+#._ -]{0,39}")


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


@dataclass(frozen=True, slots=True)
class Expiries:
    """The section `[pastes]` as far as lifetimes go, in seconds; None: never, or no limit."""

    default_s: int | None
    max_s: int | None

    def read(self, value: object) -> int | None:
        """The lifetime for an `expires_in`, or the default for none. Raises `BadRequest`."""
        if value is None:
            return self.default_s
        try:
            wanted = lifetime(int(value) if isinstance(value, str) and re.fullmatch(r"[0-9]{1,12}", value) else value)
        except ValueError as error:
            raise BadRequest(f'expires_in {error}, or "never" where that is allowed') from error
        if self.max_s is not None and (wanted is None or wanted > self.max_s):
            raise BadRequest(
                f'expires_in is more than this pastebin keeps a paste; write at most "{duration_text(self.max_s)}"'
            )
        return wanted


def has_room(request: web.Request, limit: int) -> bool:
    """Whether a declared length is within the limit; one that is not declared may be."""
    declared = request.content_length
    return declared is None or declared <= limit


async def draft_of_terminal(request: web.Request, limit: int, expiries: Expiries, hold: Hold) -> Draft:
    """A raw body whatever its type, or multipart with one part. Options from the query, or from parts of their names."""
    options = _query_options(request)
    title = _file_title(request.match_info.get("name"))
    if request.content_type == "multipart/form-data":
        form = await _read_form(request, limit, hold)
        if len(form.contents) != 1:
            raise BadRequest(f"the form has {len(form.contents)} parts with content; send one (-F file=@NAME)")
        (body, file_name) = form.contents[0]
        title = _file_title(file_name) or title
        options = form.options | options
    else:
        body = await _read(request, limit, limit, hold)
    return _draft(body, options, expiries, title)


async def draft_of_json(request: web.Request, limit: int, expiries: Expiries, hold: Hold) -> Draft:
    """A JSON document, or any other type as the body itself with its options in the query."""
    options = _query_options(request)
    if request.content_type != "application/json":
        return _draft(await _read(request, limit, limit, hold), options, expiries, None)
    if options:
        raise BadRequest("options of a JSON request stand in the document, not in the query")
    document = await _read(request, limit + FRAMING_BYTES, limit, hold)
    try:
        asked = _Asked.model_validate_json(document)
    except ValidationError as error:
        problems = [
            f"{'.'.join(map(str, e['loc'])) or 'document'}: {e['msg']}" for e in error.errors(include_url=False)
        ]
        raise BadRequest("the JSON is not what is taken here: " + "; ".join(problems[:10])[:1000]) from error
    try:
        body = asked.content.encode()
    except UnicodeEncodeError as error:
        raise BadRequest("content is not Unicode text (a lone surrogate); send the bytes as the body itself") from error
    if len(body) > limit:
        raise _too_large(limit)
    given = {name: getattr(asked, name) for name in OPTIONS if getattr(asked, name) is not None}
    return _draft(body, given, expiries, None)


async def draft_of_form(request: web.Request, limit: int, expiries: Expiries, hold: Hold) -> tuple[Draft, str]:
    """The page's form: the draft with LF newlines, and the create token typed in ("" for none)."""
    if request.content_type != "multipart/form-data":
        raise UnsupportedMediaType("the form posts multipart/form-data; use POST / for anything else")
    form = await _read_form(request, limit, hold, extra=("create_token",))
    if not form.contents:
        raise BadRequest("there is no text to paste")
    body = form.contents[0][0].replace(b"\r\n", b"\n")
    options = {name: value for name, value in form.options.items() if value}
    token = str(options.pop("create_token", ""))
    return _draft(body, options, expiries, None), token


class _Asked(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, hide_input_in_errors=True)

    content: str
    title: str | None = None
    language: str | None = None
    expires_in: int | str | None = None


@dataclass(slots=True)
class _Form:
    contents: list[tuple[bytes, str | None]] = field(default_factory=list)  # body, file name
    options: dict[str, object] = field(default_factory=dict)


def _draft(body: bytes, options: Mapping[str, object], expiries: Expiries, title: str | None) -> Draft:
    if not body:
        raise BadRequest("there is nothing to paste: the body has zero bytes")
    given = options.get("title")
    if isinstance(given, str) and given:
        if len(given) > TITLE_CHARS or _UNPRINTABLE.search(given):
            raise BadRequest(f"title is longer than {TITLE_CHARS} characters, or holds control characters")
        title = given
    language = options.get("language")
    if isinstance(language, str) and language:
        if not _LANGUAGE.fullmatch(language):
            raise BadRequest("language is not a name of one; write one such as python, or leave it out")
        language = language.lower()
    else:
        language = None
    return Draft(body, expiries.read(options.get("expires_in")), title, language)


def _query_options(request: web.Request) -> dict[str, object]:
    options: dict[str, object] = {}
    for name, value in request.query.items():
        if name not in OPTIONS:
            guess = get_close_matches(name, OPTIONS, 1)
            hint = f"did you mean {guess[0]}?" if guess else f"the options are {', '.join(OPTIONS)}"
            raise BadRequest(f"an option of that name is not known; {hint}")
        options[name] = value
    return options


def _file_title(name: str | None) -> str | None:
    """A file's name as a title: cleaned and cut, never refused, since nobody wrote it as one. "-" is standard input."""
    if not name or name == "-":
        return None
    return _UNPRINTABLE.sub("_", name)[:TITLE_CHARS]


def _too_large(limit: int) -> TooLarge:
    return TooLarge(f"a paste may have {size_text(limit)} ({limit} bytes) here; this is more")


def _refuse_encodings(request: web.Request) -> None:
    if request.headers.get("Content-Encoding", "identity").lower() != "identity":
        raise UnsupportedMediaType("send the bytes as they are to be stored, without Content-Encoding")


async def _read(request: web.Request, length_max: int, limit: int, hold: Hold) -> bytes:
    """The whole body of at most `length_max` bytes. `limit` is the paste's, for the message."""
    _refuse_encodings(request)
    if not has_room(request, length_max):
        raise _too_large(limit)
    chunks: list[bytes] = []
    total = 0
    async with _patience() as patience:
        while chunk := await request.content.readany():
            total += len(chunk)
            if total > length_max:
                raise _too_large(limit)
            hold.add(len(chunk))
            chunks.append(chunk)
            patience.renew()
    return chunks[0] if len(chunks) == 1 else b"".join(chunks)


async def _read_form(request: web.Request, limit: int, hold: Hold, extra: tuple[str, ...] = ()) -> _Form:
    _refuse_encodings(request)
    if not has_room(request, limit + FRAMING_BYTES):
        raise _too_large(limit)
    form = _Form()
    try:
        async with _patience() as patience:
            reader = await request.multipart()
            for _ in range(PARTS_MAX + 1):
                part = await reader.next()
                if part is None:
                    return form
                if not isinstance(part, BodyPartReader) or part.headers.keys() & {
                    "Content-Encoding",
                    "Content-Transfer-Encoding",
                }:
                    raise BadRequest("a part of the form is encoded or nested; send plain parts")
                await _read_part(part, form, limit, hold, extra, patience)
    except (ValueError, AssertionError, LookupError, RuntimeError, HttpProcessingError) as error:
        raise BadRequest(f"the multipart body can't be read: {str(error)[:200] or type(error).__name__}") from error
    raise BadRequest(f"the form has more than {PARTS_MAX} parts")


async def _read_part(
    part: BodyPartReader, form: _Form, limit: int, hold: Hold, extra: tuple[str, ...], patience: "_Patience"
) -> None:
    is_option = part.filename is None and part.name in (*OPTIONS, *extra)
    most = OPTION_BYTES if is_option else limit
    value = bytearray()
    while chunk := await part.read_chunk(FRAMING_BYTES):
        if len(value) + len(chunk) > most:
            raise BadRequest(f"{part.name} is too long") if is_option else _too_large(limit)
        hold.add(len(chunk))
        value += chunk
        patience.renew()
    if is_option:
        assert part.name is not None
        try:
            form.options[part.name] = value.decode()
        except UnicodeDecodeError as error:
            raise BadRequest(f"{part.name} is not UTF-8 text") from error
    elif value or part.filename is None:
        form.contents.append((bytes(value), part.filename))


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
