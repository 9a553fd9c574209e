"""A power cut under load: ext4 on a loop device, shut down without a flush of its log.

From the ioctl on nothing reaches the device: what was only in the page cache is lost, what was synced is there. Just
before it the daemon is stopped where it stands, since a machine without power answers nobody (and ext4 has a moment in
which a sync that meets the shutdown says 0 and is lost). What it had sent is still read. Then the daemon is killed, the
image is mounted anew (which replays the journal), and the daemon is held to every answer.
The mount is in a namespace of the daemon's own and goes with it, so nothing can stay behind.
"""

import asyncio
import fcntl
import os
import signal
import struct
import subprocess
from pathlib import Path
from random import Random

from tests.machine.clients import Record
from tests.machine.judge import SETTINGS, hold_to_account, inside
from tests.process import child
from tests.real import lack, poll, require, wait_until
from tests.traffic import edge

__all__ = ["attached", "cut_once", "mounted", "new_image"]

SHUTDOWN = 0x8004587D
"""EXT4_IOC_SHUTDOWN, and its flag for a log that is not flushed."""
NO_LOG_FLUSH = struct.pack("I", 2)


def new_image(directory: Path) -> Path:
    """An ext4 in a file, which this machine can mount; or the test says what the machine lacks."""
    image = directory / "image"
    with image.open("wb") as file:
        file.truncate(128 * 1024 * 1024)
    subprocess.run([require("mkfs.ext4"), "-q", str(image)], check=True)
    (directory / "state").mkdir(exist_ok=True)
    tried = subprocess.run([*mounted(directory), "true"], capture_output=True, text=True, check=False)
    if tried.returncode != 0:
        lack(f"ext4 can't be mounted on a loop device ({tried.stderr.strip()})")
    return image


def mounted(directory: Path) -> list[str]:
    """A command that runs another with the image on the state directory."""
    require("mount")
    script = 'mount -o loop "$0/image" "$0/state" && chmod 700 "$0/state" && exec "$@"'
    return [require("unshare"), "--mount", "sh", "-c", script, str(directory)]


async def cut_once(directory: Path, seed: int, *, synchronous: str = "") -> Record:
    """Raises AssertionError when an answer did not survive."""
    chance = Random(seed)
    image = new_image(directory)
    record = Record()
    options = ["--brisk", *(["--synchronous", synchronous] if synchronous else [])]
    async with edge() as cache:
        settings = SETTINGS | cache.settings()
        async with child(directory, settings, options=options, wrapper=mounted(directory)) as it:
            wanted = chance.randrange(5, 120)
            async with record.load(it.url, chance):
                await poll(lambda: _has(record, wanted), "the clients have made their pastes")
                await asyncio.sleep(chance.random() * 0.1)
                state = os.open(inside(it), os.O_RDONLY)
                try:
                    it.send(signal.SIGSTOP)
                    wait_until(lambda: stands_still(it.process.pid), "the daemon stands still")
                    fcntl.ioctl(state, SHUTDOWN, NO_LOG_FLUSH)
                finally:
                    os.close(state)
                it.send(signal.SIGKILL)
                await it.ended()
        await asyncio.to_thread(wait_until, lambda: not attached(image), "the file system is unmounted")
        await hold_to_account(directory, settings, record, wrapper=mounted(directory))
    return record


def attached(image: Path) -> str:
    return subprocess.run([require("losetup"), "-j", str(image)], capture_output=True, text=True, check=True).stdout


def stands_still(pid: int) -> bool:
    """Whether no thread can say anything more; one that is in a system call may be waiting for the disk."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return all((task / "stat").read_text().rpartition(")")[2].split()[0] in "TD" for task in tasks)


async def _has(record: Record, count: int) -> bool:
    return len(record.pastes) >= count
