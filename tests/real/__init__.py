"""Real programs for the tests, on the loopback only. Each helper ends what it started and nothing else."""

import asyncio
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Awaitable, Callable
from typing import NoReturn

import pytest

__all__ = ["end", "free_port", "lack", "poll", "require", "wait_until"]


def require(program: str) -> str:
    """The path of a program. Without it the test is skipped on a laptop, and fails where all the real parts must be
    there (PASTEBIN_TESTS_REQUIRE_REAL_PARTS=1), so that a broken installation can't look like success."""
    path = shutil.which(program, path=os.environ.get("PATH", "") + os.pathsep + "/usr/sbin")
    if path is None:
        lack(f"{program} is not installed")
    return path


def lack(what: str) -> NoReturn:
    """This machine can't do what a real part needs: as above."""
    if os.environ.get("PASTEBIN_TESTS_REQUIRE_REAL_PARTS") == "1":
        pytest.fail(f"{what}, and PASTEBIN_TESTS_REQUIRE_REAL_PARTS=1 asks for it")
    pytest.skip(what)


def free_port() -> int:
    """A port of the loopback that was free a moment ago."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


def wait_until(ready: Callable[[], bool], what: str, limit_s: float = 30.0) -> None:
    """Polls for what has no event to wait for: a program that comes up. With `poll`, the only sleep of the tests."""
    deadline = time.monotonic() + limit_s
    while not ready():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: not so within {limit_s:g} s")
        time.sleep(0.02)


async def poll(ready: Callable[[], Awaitable[bool]], what: str, limit_s: float = 60.0) -> None:
    """`wait_until` for what has to be asked in the event loop: a real server whose own clock decides."""
    deadline = time.monotonic() + limit_s
    while not await ready():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: not so within {limit_s:g} s")
        await asyncio.sleep(0.05)


def end(process: "subprocess.Popen[bytes]") -> None:
    """Ends a child, by force when it does not listen, and waits for it so that no zombie stays."""
    process.terminate()
    try:
        process.wait(5)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
