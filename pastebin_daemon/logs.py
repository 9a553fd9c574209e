"""One log: an event and its fields, one line each, on standard error.

- **Shape.** A line of JSON, or, on a terminal, a line for people. `timestamp` (RFC 3339, UTC), `level`, `event`, then
  the fields and, inside of a request, its id (`REQUEST_ID`). An exception is a field too. The time is the system's: no
  decision hangs on it, and it is needed before there's a Clock.
- **Bounded (G14).** A value is cut after 2,000 characters and then ends in `…`. A traceback keeps up to 16,000: its
  beginning, and its end, which says what was raised.
- **Nothing in a value can forge a line or steer a terminal.** JSON escapes by itself. In the console format every
  character that doesn't print is escaped, and the lines of a traceback are indented: what stands at the margin was
  begun by this module.
- **No secrets, no pastes.** No caller should pass them. If one does, the value of a key with such a name is replaced by
  `(withheld)`, at any depth, and bytes are replaced by their number. The key stays, so that the mistake is seen.
- **Logging never fails.** A value whose repr raises is said to be so; a standard error that nobody reads any more
  (EPIPE) or that is closed loses the line, and not the daemon.
- **Libraries** that log by way of `logging` (aiohttp, asyncio, botocore) come out in the same shape, from `warning` up
  whatever the level is: below that, botocore writes down requests with their signatures. What aiohttp says of a request
  that it can't read is reduced to its kind.

The level is fixed by a logger's first line (`cache_logger_on_first_use`: a call that is filtered out costs an empty
method). Format and stream may be configured again at any time.
"""

import json
import logging
import math
import sys
import threading
from collections.abc import Mapping
from contextvars import ContextVar
from functools import lru_cache
from typing import Literal, TextIO

import structlog
from structlog.processors import format_exc_info
from structlog.typing import EventDict, FilteringBoundLogger, Processor, WrappedLogger

from pastebin_daemon.clock import log_stamp

__all__ = ["REQUEST_ID", "Format", "configure", "get_logger"]

Format = Literal["auto", "json", "console"]

REQUEST_ID: ContextVar[str] = ContextVar("REQUEST_ID")
"""Set by a request in its own context (structlog's way to bind one costs six times as much)."""

VALUE_CHARS_MAX = 2_000
TRACEBACK_CHARS_MAX = 16_000
_DEPTH_MAX = 4

_WITHHELD = frozenset({
    "authorization", "body", "content", "delete_token", "idempotency_key", "secret", "secret_access_key", "token",
    "x_delete_token",
})  # fmt: skip


def get_logger() -> FilteringBoundLogger:
    """`log = get_logger()` at the top of a module. It takes effect with `configure`, whichever comes first."""
    logger: FilteringBoundLogger = structlog.get_logger()
    return logger


def configure(format: Format, level: str, stream: TextIO | None = None) -> None:
    """Begin to log to `stream` (standard error when not given). `level` is debug, info, warning, error or critical."""
    _output.stream = sys.stderr if stream is None else stream
    terminal = _output.stream.isatty()
    console = format == "console" or (format == "auto" and terminal)
    _processors[:] = [
        _shaped,
        *(_for_people(colors=terminal) if console else [_as_json]),
    ]
    level_number = logging.getLevelNamesMapping()[level.upper()]
    structlog.configure(
        processors=_processors,
        wrapper_class=structlog.make_filtering_bound_logger(level_number),
        logger_factory=lambda *_: _output,
        cache_logger_on_first_use=True,
    )
    root = logging.getLogger()
    if _libraries not in root.handlers:
        root.addHandler(_libraries)
    root.setLevel(max(level_number, logging.WARNING))
    logging.captureWarnings(True)


class _Output:
    """The end of every line, whatever thread it comes from."""

    def __init__(self) -> None:
        self.stream: TextIO = sys.stderr
        self._lock = threading.Lock()

    def msg(self, line: str) -> None:
        with self._lock:
            try:
                self.stream.write(line + "\n")
                self.stream.flush()
            except (OSError, ValueError):
                pass  # nobody reads it (EPIPE), it would block, or it is closed; there is no other place to say so

    debug = info = warning = error = critical = msg


_output = _Output()
# Loggers that have been used keep a reference to this list, so it is changed in place.
_processors: list[Processor] = []


class _Libraries(logging.Handler):
    """Hands what libraries log to the same processors."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            # Only the five known levels have a method; a library may have made up one in between.
            level = min(record.levelno // 10 * 10, logging.CRITICAL)
            log = get_logger()  # a new one each time: no earlier configuration's level sticks to it
            error = record.exc_info[1] if record.exc_info else None
            if type(error).__module__ == "aiohttp.http_exceptions":
                # Somebody sent what is no HTTP. That is no error of ours, and aiohttp's words quote what was sent.
                log.info("request.unreadable", kind=type(error).__name__)
                return
            log.log(level, "library.logged", logger=record.name, message=record.getMessage(), exc_info=record.exc_info)
        except Exception:  # noqa: BLE001  a record that can't be formatted is the library's bug; logging has a way to say so
            self.handleError(record)


_libraries = _Libraries(logging.WARNING)


def _shaped(logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
    """What people look for first in front, then every value small, plain and fit to be seen.

    It is one processor, not structlog's four and ours, since there's a line for each create: 7 microseconds, not 15.
    """
    if "exc_info" in event:
        event = format_exc_info(logger, method, event)
    traceback = event.pop("exception", None)
    shown: EventDict = {"timestamp": log_stamp(), "level": _LEVELS.get(method, method)}
    if "event" in event:
        shown["event"] = _value("event", event.pop("event"))
    for key, value in event.items():
        if key not in shown:
            shown[key] = _value(key, value)
    request_id = REQUEST_ID.get("")
    if request_id:
        shown["request_id"] = request_id
    if traceback is not None:
        shown["exception"] = _cut_middle(str(traceback), TRACEBACK_CHARS_MAX)
    return shown


_LEVELS = {"warn": "warning", "exception": "error"}


def _as_json(_logger: WrappedLogger, _method: str, event: EventDict) -> str:
    return _encode(event)


_encode = json.JSONEncoder().encode


def _value(key: str, value: object) -> object:
    if (type(value) is str and len(value) <= VALUE_CHARS_MAX) or (type(value) is int and -(2**63) <= value < 2**63):
        return "(withheld)" if _is_withheld(key) else value  # nearly all
    plain = _plain(key, value, 0)
    if isinstance(plain, str):
        return _cut(plain)
    if isinstance(plain, dict | list) and len(text := json.dumps(plain)) > VALUE_CHARS_MAX:
        return _cut(text)
    return plain


def _plain(key: str, value: object, depth: int) -> object:
    """What JSON knows, with nothing withheld left in it."""
    if _is_withheld(key):
        return "(withheld)"
    match value:
        case str():
            return str(value)
        case None | bool():
            return value
        case int() if -(2**63) <= value < 2**64:
            return int(value)
        case float() if math.isfinite(value):
            return float(value)
        case bytes() | bytearray() | memoryview():
            return f"({len(value)} bytes)"
        case Mapping() if depth < _DEPTH_MAX:
            return {str(inner): _plain(str(inner), item, depth + 1) for inner, item in value.items()}
        case list() | tuple() | set() | frozenset() if depth < _DEPTH_MAX:
            return [_plain("", item, depth + 1) for item in value]
        case int():
            return hex(value)  # str() of a huge one raises
        case Mapping() | list() | tuple() | set() | frozenset():
            return "…"  # its repr would show what is withheld
        case _:
            return _repr(value)


@lru_cache(1024)
def _is_withheld(key: str) -> bool:
    return key.lower().replace("-", "_") in _WITHHELD


def _repr(value: object) -> str:
    try:
        return repr(value)
    except Exception as error:  # noqa: BLE001  any object may come here
        return f"({type(value).__name__}, whose repr raised {type(error).__name__})"


def _cut(text: str) -> str:
    return text if len(text) <= VALUE_CHARS_MAX else text[:VALUE_CHARS_MAX] + "…"


def _cut_middle(text: str, chars_max: int) -> str:
    if len(text) <= chars_max:
        return text
    half = chars_max // 2
    return f"{text[:half]}\n…\n{text[-half:]}"


def _for_people(*, colors: bool) -> list[Processor]:
    renderer = structlog.dev.ConsoleRenderer(
        colors=colors, exception_formatter=structlog.dev.plain_traceback, sort_keys=False, pad_event_to=0
    )
    return [_escape, renderer]


def _escape(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    shown: EventDict = {}
    for key, value in event.items():
        if key == "exception":
            shown[key] = _indented(value)
        else:
            shown[key] = _printable(value if isinstance(value, str) else json.dumps(value))
    return shown


def _printable(text: str) -> str:
    """Every character that doesn't print, line breaks, escapes and bidirectional marks among them, as its escape."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _indented(traceback: str) -> str:
    return "\n".join("    " + _printable(line) for line in traceback.split("\n"))
