"""Single system calls of the running daemon fail, by strace: what it answered must hold, and how it ends must fit.

A fault is drawn from a seed: EIO, ENOSPC or SIGKILL at the k-th sync, write or read of one file, once or from then on,
also at the start. Afterwards either the outcome was known and the daemon goes on (a full disk, a read that failed), or
it was not, and the process has ended with status 1 and a line that says why. Then it starts again without the fault.
"""

import asyncio
import re
import signal
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random

import aiohttp

from tests.machine.clients import Record
from tests.machine.judge import SETTINGS, hold_to_account
from tests.process import Child, child
from tests.real import require

__all__ = ["Fault", "fault_of", "inject", "injected_once", "strace", "tracee"]

WALS = ("pastebin.sqlite-wal", "bodies.sqlite-wal")
MAINS = ("pastebin.sqlite", "bodies.sqlite")
START_SAYS = re.compile(r"^pastebin-daemon: .+", re.MULTILINE)


@dataclass(frozen=True)
class Fault:
    call: str
    what: str
    """As strace takes it: `error=EIO`, `signal=SIGKILL`, `delay_enter=2000000`."""
    file: str
    when: str
    """The count of that call on that file, `3`, or from it on, `3+`."""


def fault_of(seed: int) -> Fault:
    chance = Random(seed)
    call, whats, files, last = chance.choice(
        (
            ("fdatasync", ("error=EIO", "signal=SIGKILL", "error=ENOSPC"), WALS, 60),
            ("fdatasync", ("error=EIO",), MAINS, 3),
            ("pwrite64", ("error=ENOSPC", "error=EIO", "signal=SIGKILL"), WALS, 200),
            ("pwrite64", ("error=ENOSPC", "error=EIO"), MAINS, 12),
            ("pread64", ("error=EIO",), (*WALS, *MAINS), 60),
            ("ftruncate", ("error=EIO",), WALS, 2),
        )
    )
    when = f"{chance.randrange(1, last + 1)}{chance.choice(('', '+'))}"
    return Fault(call, chance.choice(whats), chance.choice(files), when)


def strace(directory: Path, *faults: Fault) -> list[str]:
    """A command that runs another with these faults in it. `-P` holds for all of them together."""
    command = [require("setpriv"), "--pdeathsig", "KILL", "--", require("strace"), "-f", "-qq", "-o", "/dev/null"]
    command += ["-e", "trace=" + ",".join(fault.call for fault in faults), "-e", "signal=none"]
    for fault in faults:
        command += ["-e", f"inject={fault.call}:{fault.what}:when={fault.when}"]
        command += ["-P", str(directory / "state" / fault.file)]
    return command


def tracee(it: Child) -> int | None:
    """The daemon's own process, while it lives."""
    with suppress(OSError):
        pids = Path(f"/proc/{it.process.pid}/task/{it.process.pid}/children").read_text().split()
        return int(pids[0]) if pids else None
    return None


async def injected_once(directory: Path, seed: int) -> Record:
    record = Record()
    fault = fault_of(seed)
    try:
        await inject(directory, record, seed, fault)
    except Exception as error:
        error.add_note(f"{fault}")
        raise
    return record


async def inject(directory: Path, record: Record, seed: int, *faults: Fault, clients: int = 3, turns: int = 40) -> None:
    """Raises AssertionError when an answer did not hold, or the process did not end as it should."""
    async with child(directory, SETTINGS, options=["--brisk"], wrapper=strace(directory, *faults), waits=False) as it:
        started = True
        try:
            await it.announced()
        except AssertionError:
            started = False
        if started:
            await press(it, record, seed, clients, turns)
            own = tracee(it)
            if own is not None:
                with suppress(ProcessLookupError):
                    it.send(signal.SIGTERM, pid=own)
        status = await it.ended()
    log = it.log()
    told = "database.failed" in log or "DatabaseUnavailable: " in log
    assert "Traceback" not in log or told, log[-3000:]
    if status == -signal.SIGKILL:
        assert any("SIGKILL" in fault.what for fault in faults), log[-3000:]
    elif not started:
        assert status == 1, (status, log[-3000:])
        assert START_SAYS.search(log), log[-3000:]
    elif status != 0:
        assert status == 1, (status, log[-3000:])
        assert told, log[-3000:]
    await hold_to_account(directory, SETTINGS, record)


async def press(it: Child, record: Record, seed: int, clients: int, turns: int) -> None:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=30)) as http:
        chances = [Random(f"{seed} {number}") for number in range(clients)]
        await asyncio.gather(*(record.client(http, it.url, chance, turns=turns) for chance in chances))
