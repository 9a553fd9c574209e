"""The load: wrk in a process of its own, the daemon as it is installed, and the bare handler beside it."""

import asyncio
import json
import tempfile
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.process import ROOT, Child, child, python
from tests.real import require

__all__ = ["Seen", "bare", "daemon", "in_turn", "wrk"]

_DONE = """
done = function(summary, latency, requests)
  local e = summary.errors
  io.write(string.format('\\n{"answers": %d, "seconds": %f, "p50": %f, "p99": %f, "p999": %f, "failed": %d}\\n',
    summary.requests, summary.duration / 1e6, latency:percentile(50) / 1e6, latency:percentile(99) / 1e6,
    latency:percentile(99.9) / 1e6, e.connect + e.read + e.write + e.timeout + e.status))
end
"""


@dataclass(frozen=True)
class Seen:
    """Of one run of wrk."""

    rate: float
    """Answers a second."""
    p50_s: float
    p99_s: float
    p999_s: float
    failed: int
    """Answers that were no 2xx or 3xx, and connections that broke."""


async def wrk(url: str, *, connections: int, seconds: int, lua: str = "") -> Seen:
    """`lua` is a script for wrk: what is asked (GET of `url` where it says nothing)."""
    with tempfile.NamedTemporaryFile("w", suffix=".lua") as script:
        script.write(lua + _DONE)
        script.flush()
        process = await asyncio.create_subprocess_exec(
            require("wrk"), "-t1", f"-c{connections}", f"-d{seconds}s", "--timeout", "10s", "-s", script.name, url,
            stdout=PIPE,
        )  # fmt: skip
        text = (await process.communicate())[0].decode()
    assert process.returncode == 0, text
    said = json.loads(text.strip().splitlines()[-1])
    return Seen(said["answers"] / said["seconds"], said["p50"], said["p99"], said["p999"], said["failed"])


def in_turn(paths: Iterable[str]) -> str:
    """A script that asks for each of the paths, and then again."""
    asked = ", ".join(f'"{path}"' for path in paths)
    return (
        f"local paths, n = {{{asked}}}, 0\n"
        "request = function() n = n % #paths + 1; return wrk.format(nil, paths[n]) end\n"
    )


def daemon(directory: Path, settings: Mapping[str, object] | None = None) -> AbstractAsyncContextManager[Child]:
    """The daemon as it is installed: no seam of the tests is in the way."""
    return child(directory, settings, program=("pastebin_daemon", "serve"))


@asynccontextmanager
async def bare(headers: Mapping[str, str], body: bytes) -> AsyncIterator[str]:
    """The URL of a handler that answers this."""
    process = await asyncio.create_subprocess_exec(*python("-m", "tests.bench.bare"), cwd=ROOT, stdin=PIPE, stdout=PIPE)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write(json.dumps({"headers": dict(headers), "bytes": len(body)}).encode() + b"\n" + body)
        await process.stdin.drain()
        yield f"http://127.0.0.1:{int(await process.stdout.readline())}"
    finally:
        process.kill()
        await process.wait()
