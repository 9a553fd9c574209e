"""After the faults: the daemon is started on what they left, and held to every answer that was given.

Every 201 is readable with its bytes, every 204 is 404, both databases are whole, no job is lost or dead, all are worked
off, and once time has passed the reap floor, the store holds exactly the objects of live rows.
"""

import asyncio
import json
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import aiohttp

from tests.machine.clients import Record
from tests.process import ROOT, Child, child, python
from tests.real import poll, require

__all__ = ["SETTINGS", "examined", "hold_to_account", "inside", "work_off"]

SETTINGS: dict[str, object] = {
    "outbox.poll_interval": "50ms",
    "outbox.lease": "2s",
    "outbox.effect_timeout": "900ms",
    "outbox.attempts_max": 20,
    "outbox.retry_span": "2s",
    "edge.http.timeout": "400ms",
    "cache.bytes_max": 0,
}
NOT_THERE = "the object is not there"


def inside(it: Child) -> Path:
    """The state directory as the daemon sees it, whatever is mounted there."""
    return Path(f"/proc/{it.process.pid}/root{it.directory}/state")


async def examined(it: Child) -> dict[str, list[Any]]:
    """What stands in its state directory, whatever is mounted there."""
    pid = it.process.pid
    enter: list[str] = []
    if os.readlink(f"/proc/{pid}/ns/mnt") != os.readlink("/proc/self/ns/mnt"):
        user = [] if os.geteuid() == 0 else ["--user", "--preserve-credentials"]
        enter = [require("nsenter"), "--target", str(pid), *user, "--mount", f"--wd={ROOT}"]
    process = await asyncio.create_subprocess_exec(
        *enter, *python("-m", "tests.machine.examine", str(it.directory / "state")),
        cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
    )  # fmt: skip
    out, _ = await process.communicate()
    found: dict[str, list[Any]] = json.loads(out)
    return found


async def hold_to_account(
    directory: Path, settings: Mapping[str, object], record: Record, *, wrapper: Sequence[str] = ()
) -> None:
    """Raises AssertionError for the first promise that is not kept."""
    assert record.lies == [], f"while it ran: {record.lies[:5]}"
    async with child(directory, settings, options=["--brisk"], wrapper=wrapper) as it, aiohttp.ClientSession() as http:
        await record.check(http, it.url)
        assert record.lies == [], record.lies[:5]
        assert await record.create(http, it.url, b"and on it goes") is not None, record.heard
        await work_off(it, http, record)
        it.send(signal.SIGTERM)
        assert await it.ended() == 0, it.log()


async def work_off(it: Child, http: aiohttp.ClientSession, record: Record) -> None:
    """Let time pass until nothing is left to do, and compare what is there with what was promised."""
    found: dict[str, list[Any]] = {}
    it.send(signal.SIGUSR1)

    async def is_done() -> bool:
        nonlocal found
        found = await examined(it)
        if not found["jobs"] and not found["uploads"]:
            return sorted(found["owned"]) == sorted(found["stored"])
        if all(error is not None and error.startswith(NOT_THERE) for error in found["jobs"]):
            it.send(signal.SIGUSR1)  # a reap that found nothing looks once more; an upload that time cut off grows old
        return False

    await poll(is_done, "every job is done")
    assert found["dead"] == []
    assert found["integrity"] == ["ok", "ok"]
    there = await record.check(http, it.url)
    assert record.lies == [], record.lies[:5]
    assert set(found["live"]) & {paste.id for paste in record.pastes} == there
    assert sorted(found["owned"]) == sorted(found["stored"])
