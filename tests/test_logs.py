"""A line of the log: its shape, its bounds, and what must never be in it."""

import io
import json
import logging
import re
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import structlog

from pastebin_daemon import logs


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def _as_it_was() -> Iterator[None]:
    """The log belongs to the process: put back what the other tests began with."""
    root = logging.getLogger()
    level, handlers, shown = root.level, list(root.handlers), warnings.showwarning
    before = logs.REQUEST_ID.set("")
    yield
    logs.REQUEST_ID.reset(before)
    logging.captureWarnings(False)
    warnings.showwarning = shown
    root.setLevel(level)
    root.handlers[:] = handlers
    structlog.reset_defaults()


@pytest.fixture
def out() -> io.StringIO:
    stream = io.StringIO()
    logs.configure("json", "info", stream)
    return stream


def line(out: io.StringIO) -> dict[str, Any]:
    """The only line."""
    (text,) = out.getvalue().splitlines()
    parsed: dict[str, Any] = json.loads(text)
    return parsed


def test_a_line_is_json_with_time_level_event_fields_and_the_request(out: io.StringIO) -> None:
    logs.REQUEST_ID.set("ab12")
    logs.get_logger().info("paste.created", id="x", size=3, ratio=0.5, title=None, live=True)
    seen = line(out)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d+Z", seen.pop("timestamp"))
    assert seen == {
        "level": "info", "event": "paste.created", "request_id": "ab12",
        "id": "x", "size": 3, "ratio": 0.5, "title": None, "live": True,
    }  # fmt: skip


def test_what_is_below_the_level_is_not_written(out: io.StringIO) -> None:
    log = logs.get_logger()
    log.debug("tick.ended")
    assert out.getvalue() == ""
    logs.configure("json", "error", out)
    logs.get_logger().warning("claim.lost")
    assert out.getvalue() == ""


def test_auto_means_json_unless_somebody_looks() -> None:
    for stream, begins in ((io.StringIO(), "{"), (Terminal(), "\x1b[2m20")):
        logs.configure("auto", "info", stream)
        logs.get_logger().info("daemon.started")
        assert stream.getvalue().startswith(begins)


def test_the_console_has_colours_only_on_a_terminal() -> None:
    stream = io.StringIO()
    logs.configure("console", "info", stream)
    logs.get_logger().info("daemon.started", port=8080)
    assert re.fullmatch(r"\S+Z \[info +\] daemon\.started port=8080\n", stream.getvalue())


def test_a_used_logger_follows_to_another_stream(out: io.StringIO) -> None:
    log = logs.get_logger()
    log.info("one")
    other = io.StringIO()
    logs.configure("console", "info", other)
    log.info("two")
    assert "two" not in out.getvalue()
    assert "two" in other.getvalue()


def test_an_exception_is_whole_and_on_the_same_line(out: io.StringIO) -> None:
    try:
        raise ValueError("first\nsecond") from KeyError("cause")
    except ValueError:
        logs.get_logger().exception("tick.failed")
    seen = line(out)
    assert seen["level"] == "error"
    assert seen["exception"].startswith("KeyError: 'cause'")
    assert seen["exception"].endswith("ValueError: first\nsecond")


def test_a_long_traceback_keeps_its_beginning_and_its_end(out: io.StringIO) -> None:
    try:
        raise ValueError("x" * 100_000 + "the end")
    except ValueError:
        logs.get_logger().exception("tick.failed")
    seen = line(out)["exception"]
    assert len(seen) < 16_010
    assert seen.startswith("Traceback")
    assert seen.endswith("the end")


def test_long_values_are_cut(out: io.StringIO) -> None:
    logs.get_logger().info("e" * 3_000, exact="x" * 2_000, text="x" * 2_001, numbers=list(range(5_000)), huge=10**9_000)
    seen = line(out)
    assert seen["event"] == "e" * 2_000 + "…"
    assert seen["exact"] == "x" * 2_000
    assert seen["text"] == "x" * 2_000 + "…"
    assert len(seen["numbers"]) == len(seen["huge"]) == 2_001
    assert seen["numbers"].startswith("[0, 1, 2, ")


@pytest.mark.parametrize("format", ["json", "console"])
@pytest.mark.parametrize(
    "key", ["token", "delete_token", "secret", "authorization", "idempotency_key", "body", "content", "Authorization"]
)
def test_secrets_and_pastes_are_withheld_wherever_they_stand(key: str, format: logs.Format) -> None:
    out = io.StringIO()
    logs.configure(format, "info", out)
    deep: object = {key: "hunter2"}
    for _ in range(10):
        deep = {"inner": [deep]}
    logs.get_logger().info("paste.created", **{key: "hunter2"}, headers={key: "hunter2"}, deep=deep, raw=b"hunter2")
    assert "hunter2" not in out.getvalue()
    assert out.getvalue().count("(withheld)") == 2
    assert out.getvalue().count(key) == 2
    assert "(7 bytes)" in out.getvalue()


def test_a_header_is_known_with_hyphens_too(out: io.StringIO) -> None:
    logs.get_logger().info("request.refused", headers={"X-Delete-Token": "a", "Idempotency-Key": "b", "Accept": "*/*"})
    assert line(out)["headers"] == {
        "X-Delete-Token": "(withheld)",
        "Idempotency-Key": "(withheld)",
        "Accept": "*/*",
    }


FORGED = "a\n2026-01-01T00:00:00Z [info     ] forged\r\x1b[2J\x9b1m\x00\x7f\u2028\u202e\ud800"


def test_control_characters_break_no_line_of_the_console() -> None:
    out = io.StringIO()
    logs.configure("console", "info", out)
    logs.get_logger().info(FORGED, field=FORGED, inner={"x": [FORGED]})
    text = out.getvalue()
    assert text.removesuffix("\n").isprintable()
    assert r"a\n2026-01-01T00:00:00Z" in text
    assert text.encode()


def test_a_traceback_on_the_console_stays_off_the_margin() -> None:
    out = io.StringIO()
    logs.configure("console", "info", out)
    try:
        raise ValueError(FORGED)
    except ValueError:
        logs.get_logger().exception("tick.failed")
    first, *rest = out.getvalue().split("\n")
    assert first.endswith("tick.failed")
    assert rest.pop() == ""
    assert all(line.startswith("    ") and line.isprintable() for line in rest)
    assert any("forged" in line for line in rest)


def test_control_characters_break_no_line_of_json(out: io.StringIO) -> None:
    logs.get_logger().info(FORGED, field=FORGED)
    assert line(out)["field"] == FORGED
    assert out.getvalue().isascii()


def test_what_json_does_not_know_is_described(out: io.StringIO) -> None:
    class Odd:
        def __repr__(self) -> str:
            raise RuntimeError

    logs.get_logger().info("x", nan=float("nan"), odd=Odd(), kind=ValueError("no"), several=(1, {2}), keys={1: 2})
    seen = line(out)
    assert seen["nan"] == "nan"
    assert seen["odd"] == "(Odd, whose repr raised RuntimeError)"
    assert seen["kind"] == "ValueError('no')"
    assert seen["several"] == [1, [2]]
    assert seen["keys"] == {"1": 2}


class Broken(io.StringIO):
    def write(self, text: str) -> int:
        raise BrokenPipeError(32, "Broken pipe")


def test_a_stream_that_nobody_reads_loses_the_line_and_not_the_daemon() -> None:
    closed = io.StringIO()
    closed.close()
    logs.configure("json", "info", Broken())
    logs.get_logger().info("paste.created")
    logging.getLogger("aiohttp.server").error("oops")
    logs.configure("json", "info", stream := io.StringIO())
    stream.close()
    logs.get_logger().info("paste.created")


def test_what_libraries_warn_of_has_the_same_shape(out: io.StringIO) -> None:
    logging.getLogger("botocore.hooks").info("a signature")
    logging.getLogger("aiohttp.access").info("GET /")
    logging.getLogger("asyncio").warning("took %s %%", "long")
    seen = line(out)
    assert (seen["level"], seen["event"], seen["logger"]) == ("warning", "library.logged", "asyncio")
    assert seen["message"] == "took long %"


def test_debug_does_not_open_the_mouth_of_libraries() -> None:
    logs.configure("json", "debug", out := io.StringIO())
    logging.getLogger("botocore.auth").debug("StringToSign")
    logging.getLogger("botocore.auth").info("StringToSign")
    assert out.getvalue() == ""


def test_an_exception_or_an_odd_level_of_a_library_comes_out(out: io.StringIO) -> None:
    try:
        raise OSError("no route")
    except OSError:
        logging.getLogger("aiohttp.server").exception("Error handling request")
    assert line(out)["exception"].endswith("OSError: no route")
    logging.getLogger("x").log(35, "between")
    logging.getLogger("x").log(99, "beyond")
    assert [json.loads(text)["level"] for text in out.getvalue().splitlines()] == ["error", "warning", "critical"]


def test_configuring_twice_does_not_double_the_lines(out: io.StringIO) -> None:
    logs.configure("json", "info", out)
    logging.getLogger("asyncio").error("once")
    assert line(out)["message"] == "once"


def test_a_warning_of_python_is_a_line_too(out: io.StringIO) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        logs.configure("json", "info", out)
        warnings.warn("old ways", DeprecationWarning, stacklevel=1)
    assert "old ways" in line(out)["message"]
