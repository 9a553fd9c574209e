"""Colours come from a child process, in time or not at all, and whatever the text does to that child, nobody else waits."""

import asyncio
import html
import os
import re
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from pastebin_daemon.highlight_child import highlight, markdown
from pastebin_daemon.highlighting import LIMIT_S, Highlighter
from pastebin_daemon.loops import measure_lag
from pastebin_daemon.reading import weigh
from tests.real import poll
from tests.support import running
from tests.test_what_people_see import BODIES

SPAN = re.compile(r"<span class=[a-z]>|</span>")
PYTHON = b"def f(x):\n    return 'text' + str(x)  # why\n"

STUCK = """
import re, sys, time
sys.stdout.buffer.write(b"ready\\n"); sys.stdout.buffer.flush()
sys.stdin.buffer.readline()
re.match(r"(a+)+$", "a" * 64 + "!")
"""
"""A child with a lexer that never comes back: what a text does to Pygments that Pygments' authors have not met yet."""
SLOW_START = "import time; time.sleep(30)"
CRASHING = """
import sys
sys.stdout.buffer.write(b"ready\\n"); sys.stdout.buffer.flush()
sys.stdin.buffer.readline()
sys.exit(3)
"""


@pytest.fixture
async def highlighter() -> AsyncIterator[Highlighter]:
    it = Highlighter()
    yield it
    await it.close()


def is_over(pid: int) -> bool:
    """Gone, or a zombie that nobody has asked about yet."""
    try:
        return "\nState:\tZ" in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):  # the second: reaped between the open and the read
        return True


def environment_of(pid: int) -> set[bytes]:
    return {pair.partition(b"=")[0] for pair in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")}


def text_of(lines: str) -> str:
    return html.unescape(SPAN.sub("", lines))


@pytest.mark.parametrize(
    "language", ["python", "html", "c", "json", "markdown", "batch", "php", "bash", "text", "diff", ""]
)
@pytest.mark.parametrize(
    "text", [*BODIES, PYTHON.decode(), "\r\n\r\n", "a\r\n\r", "\ufeff\n\ufeff", "\x00\x1b[31m\n", "a" * 5000]
)
def test_the_lines_are_the_text_and_no_span_crosses_one(language: str, text: str) -> None:
    lines, _ = highlight(text, language, "", 10)
    assert text_of(lines) == text
    for line in lines.split("\n"):
        depth = 0
        for span in SPAN.findall(line):
            depth += -1 if span == "</span>" else 1
            assert 0 <= depth <= 1
        assert depth == 0
        assert not re.search(r"<(?!/?span)", line)


def test_the_language_is_found_by_its_alias_its_name_or_the_files_name() -> None:
    for language, name, found in (
        ("python", "", "Python"),
        ("c++", "", "C++"),
        ("plain text", "", ""),
        ("no such language", "x.py", ""),
        ("", "x.py", "Python"),
        ("", "Makefile", "Makefile"),
        ("", "no.such-ending", ""),
        ("", "", ""),
    ):
        assert highlight("x = 1\n", language, name, 10)[1] == found


def test_what_takes_too_long_is_coloured_as_far_as_that_goes() -> None:
    text = PYTHON.decode() * 5000
    lines, language = highlight(text, "python", "", 0.01)
    assert (text_of(lines), language) == (text, "Python")
    assert "<span" in lines[:500]
    assert "<span" not in lines[-500:]


@pytest.mark.parametrize(
    "text",
    [
        "<script>alert(1)</script>",
        '<img src=x onerror="alert(1)">',
        "[x](javascript:alert(1))",
        "[x](JaVaScRiPt:alert(1))",
        "[x](data:text/html;base64,PHNjcmlwdD4=)",
        "[x](vbscript:x)",
        "<javascript:alert(1)>",
        "![x](javascript:alert(1))",
        "![x](http://x/y.png)",
        '![x" onerror="alert(1)](http://x/" onerror="alert(1))',
        '[x](http://x/"onmouseover="alert(1))',
        "```<script>\nx\n```",
        "| <b> |\n|-|\n| <script> |",
        "[x]: javascript:alert(1)\n\n[x]",
        "&lt;script&gt;",
    ],
)
def test_markdown_makes_no_markup_but_its_own(text: str) -> None:
    rendered, _ = markdown(text, "", "", 1)
    assert set(re.findall(r"<([a-z0-9]+)", rendered)) <= {
        "p", "a", "em", "pre", "code", "table", "thead", "tbody", "tr", "th", "td",
    }  # fmt: skip
    for tag in re.findall(r"<[a-z][^>]*>", rendered):
        assert set(re.findall(r' ([a-z]+)="', tag)) <= {"href", "rel", "class"}
    for target in re.findall(r'href="([^"]*)"', rendered):
        assert target.startswith("http://x/")


async def test_the_child_begins_with_the_first_text_and_ends_when_idle() -> None:
    it = Highlighter(idle_s=0.05)
    pids = [it.pid]
    coloured = await it(PYTHON, "python", "")
    assert coloured is not None
    assert coloured.html.startswith("<span class=k>def </span><span class=f>f</span>(x):\n")
    pids.append(it.pid)

    async def has_ended() -> bool:
        return pids[1] is not None and is_over(pids[1])

    await poll(has_ended, "the child ended")
    assert await it(PYTHON, "python", "") == coloured
    pids.append(it.pid)
    assert pids[0] is None
    assert len(set(pids)) == 3
    await it.close()


async def test_the_child_has_no_secret_of_the_daemons(
    monkeypatch: pytest.MonkeyPatch, highlighter: Highlighter
) -> None:
    monkeypatch.setenv("PASTEBIN_BODIES__S3__SECRET_ACCESS_KEY", "hunter2")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hunter2")
    await highlighter(PYTHON, "python", "")
    assert highlighter.pid is not None
    names = environment_of(highlighter.pid)
    assert names <= {b"PYTHONPATH", b"LC_ALL", b""}


async def test_a_text_that_never_ends_costs_its_limit_and_its_child() -> None:
    it = Highlighter((sys.executable, "-c", STUCK))
    began = time.monotonic()
    assert await it(b"x", "python", "") is None
    assert LIMIT_S <= time.monotonic() - began < LIMIT_S + 1
    pid = it.pid
    assert pid is not None

    async def is_dead() -> bool:
        return is_over(pid)

    await poll(is_dead, "it was killed")
    it._command = (sys.executable, "-P", "-m", "pastebin_daemon.highlight_child")

    async def is_well() -> bool:
        return await it(PYTHON, "python", "") is not None

    await poll(is_well, "the next text has another child")
    await it.close()


async def test_whoever_waits_for_a_stuck_child_waits_no_longer_than_the_limit() -> None:
    it = Highlighter((sys.executable, "-c", STUCK))
    began = time.monotonic()
    assert await asyncio.gather(*(it(b"x", "python", "") for _ in range(20))) == [None] * 20
    assert time.monotonic() - began < LIMIT_S + 1
    await it.close()


async def test_a_child_that_only_starts_slowly_is_not_killed_for_it() -> None:
    it = Highlighter((sys.executable, "-c", SLOW_START))
    assert await it(b"x", "python", "") is None
    child = it._child
    assert child is not None
    assert not child.done()
    assert await it(b"x", "python", "") is None
    assert it._child is child, "and not started twice"
    await it.close()


@pytest.mark.parametrize(
    "command",
    [
        (sys.executable, "-c", CRASHING),
        ("/no/such/program",),
        (sys.executable, "-c", "print('rubbish')"),
        ("/bin/true",),
    ],
)
async def test_a_child_that_fails_costs_the_colours_alone(command: tuple[str, ...]) -> None:
    it = Highlighter(command)
    for _ in range(3):
        assert await it(PYTHON, "python", "") is None
    await it.close()


HOSTILE = {
    "scripts": ("<script>" * 3750, "html"),
    "brackets": ("[" * 30_000, "json"),
    "brackets-in-python": ("[({" * 10_000, "python"),
    "one-line": ("x" * (1 << 20), "javascript"),
    "batch": ('if "!' + "a" * 30_000 + '!" equ', "batch"),
    "batch-lines": (('if "!' + "a" * 3000 + '!" equ\n') * 10, "batch"),
    "quotes": ("'\"" * 20_000, "perl"),
    "angles": ("<" * 30_000, "php"),
    "markdown": ("[" * 20_000 + "](" * 20_000, "markdown"),
}


@pytest.mark.parametrize("name", HOSTILE)
async def test_a_catastrophic_input_is_shown_within_a_second_and_nobody_else_waits(tmp_path: Path, name: str) -> None:
    body, language = HOSTILE[name]
    async with running(tmp_path) as it:
        other = await it.paste(b"other")
        await it.get(f"{other.id}/raw")
        made = await it.paste(body.encode(), language=language)
        lags: list[float] = []
        lag = asyncio.create_task(measure_lag(lags.append))
        began = time.monotonic()
        shown = asyncio.create_task(it.get(made.id))
        while not shown.done():
            asked = time.monotonic()
            assert (await it.get(f"{other.id}/raw"))[0] == 200
            lags.append(time.monotonic() - asked)
        status, page = await shown
        took = time.monotonic() - began
        lag.cancel()
        assert status == 200
        assert (
            html.unescape(
                re.sub(
                    r"<[^>]*>",
                    "",
                    page.decode().partition('id="text"')[2].partition("<code>")[2].partition("</code>")[0],
                )
            )
            == body
        )
        busy = max(
            1.0, (os.getloadavg()[0] + 1) / (os.cpu_count() or 1)
        )  # a second and 50 ms on a machine with nothing else to do
        assert took < 1.0 * busy
        assert sorted(lags)[len(lags) * 95 // 100] < 0.05 * busy


async def test_a_page_is_made_once_and_kept_beside_its_body(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bytes] = []
    colour = Highlighter.__call__

    async def counted(it: Highlighter, text: bytes, *args: str) -> object:
        asked.append(text)
        return await colour(it, text, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(Highlighter, "__call__", counted)
    async with running(tmp_path, settings={"cache.bytes_max": "100KiB"}) as it:
        made = await it.paste(PYTHON, title="x.py")
        pages = await asyncio.gather(*(it.get(made.id) for _ in range(10)))
        assert len(set(pages)) == 1
        assert len(asked) == 1
        await it.get(made.id)
        assert len(asked) == 1
        large = await it.paste(PYTHON * 100, title="x.py")
        await it.get(large.id)
        await it.get(large.id)
        assert len(asked) == 3, "a page that would take too much of the cache is made again"
        cache = it.daemon.cache
        assert set(cache._values) == {made.id, large.id}
        assert cache._bytes == sum(weigh(entry) for entry, _ in cache._values.values()) < 100 * 1024
        await it.delete(made)
        assert (await it.get(made.id))[0] == 404
        await it.delete(large)
        assert (cache._bytes, len(cache._values)) == (0, 0)


async def test_a_paste_that_ends_while_its_page_is_made_is_404(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entered, go = asyncio.Event(), asyncio.Event()

    async def held(*_: object) -> None:
        entered.set()
        await go.wait()

    async with running(tmp_path) as it:
        made = await it.paste(PYTHON, title="x.py")
        monkeypatch.setattr(Highlighter, "__call__", held)
        reading = asyncio.create_task(it.get(made.id))
        await entered.wait()
        await it.delete(made)
        go.set()
        assert (await reading)[0] == 404
