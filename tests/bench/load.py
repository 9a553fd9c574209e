"""The load: wrk in a process of its own, and the bare handler beside the daemon."""

import asyncio
import json
import re
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.process import ROOT, python
from tests.real import require

__all__ = ["Seen", "bare", "wrk"]

_UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0}
_LATENCY = re.compile(r"^\s+(50|90|99|99\.9|99\.90)\d*%\s+([0-9.]+)(us|ms|s|m)$", re.MULTILINE)


@dataclass(frozen=True)
class Seen:
    """Of one run of wrk."""

    rate: float
    """Answers a second."""
    p50_s: float
    p99_s: float
    failed: int
    """Answers that were no 2xx or 3xx, and connections that broke."""


async def wrk(url: str, *, connections: int, seconds: int, script: Path | None = None) -> Seen:
    command = [require("wrk"), "-t1", f"-c{connections}", f"-d{seconds}s", "--latency", "--timeout", "10s"]
    if script is not None:
        command += ["-s", str(script)]
    process = await asyncio.create_subprocess_exec(*command, url, stdout=PIPE)
    text = (await process.communicate())[0].decode()
    assert process.returncode == 0, text
    latency = {found[1]: float(found[2]) * _UNITS[found[3]] for found in _LATENCY.finditer(text)}
    rate = re.search(r"^Requests/sec:\s+([0-9.]+)", text, re.MULTILINE)
    assert rate is not None, text
    bad = re.search(r"Non-2xx or 3xx responses: (\d+)", text)
    broken = re.search(r"Socket errors: connect (\d+), read (\d+), write (\d+), timeout (\d+)", text)
    failed = (int(bad[1]) if bad else 0) + (sum(map(int, broken.groups())) if broken else 0)
    return Seen(float(rate[1]), latency["50"], latency["99"], failed)


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
