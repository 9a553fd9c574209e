"""Which calls fail, and how: an I/O error at each kind of call of each chapter, a disk that is full for some writes, and
a disk that is full as real ones are, until space comes back.

The life goes on or ends as the daemon decides. Then the judge looks at what the process left, and at what a power cut at
that moment leaves: whatever was answered is there, whatever was refused is not, and a sync that failed has saved nothing.
"""

import asyncio
import os
import random
import shutil
import sqlite3
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

from pastebin_daemon.config import Config
from tests.fakes import FakeClock
from tests.powercuts.daemon import small
from tests.powercuts.disk import Call, Player, Recorder
from tests.powercuts.judge import Promises, judge
from tests.powercuts.life import Life, Violation, live
from tests.powercuts.search import Cuts, scratch, trace
from tests.support import configured

__all__ = ["fault_life", "small_disks"]

ERRORS = {
    "read": (sqlite3.SQLITE_IOERR_READ,),
    "write": (sqlite3.SQLITE_IOERR_WRITE, sqlite3.SQLITE_FULL),
    "sync": (sqlite3.SQLITE_IOERR_FSYNC,),
    "truncate": (sqlite3.SQLITE_IOERR_TRUNCATE,),
    "size": (sqlite3.SQLITE_IOERR_FSTAT,),
    "open": (sqlite3.SQLITE_CANTOPEN,),
    "delete": (sqlite3.SQLITE_IOERR_DELETE,),
    "access": (sqlite3.SQLITE_IOERR_ACCESS,),
    "close": (sqlite3.SQLITE_IOERR_CLOSE,),
    "lock": (sqlite3.SQLITE_IOERR_LOCK,),
    "shm map": (sqlite3.SQLITE_IOERR_SHMMAP,),
    "shm lock": (sqlite3.SQLITE_IOERR_SHMLOCK,),
}
FOR_EVER = 10**9
EACH_KIND = 2
"""How many of the calls that are alike fail, each in a life of its own."""


@dataclass
class Fault:
    """From the `at`-th call of the life on, so many calls of that kind on that file are answered with the code."""

    at: int
    call: Call
    code: int
    times: int
    seen: int = 0
    met: int = 0

    def __call__(self, call: Call) -> int:
        self.seen += 1
        alike = call.kind == self.call.kind and call.file == self.call.file
        if self.seen - 1 < self.at or not alike or self.met >= self.times:
            return 0
        self.met += 1
        return self.code

    def is_over(self) -> bool:
        return self.met >= self.times

    def __str__(self) -> str:
        times = "ever" if self.times == FOR_EVER else f"{self.times} calls"
        what = f"{self.call.kind} of {self.call.file} in {self.call.chapter} (call {self.at})"
        return f"{what} fails with {self.code} for {times}"


def calls_of(config: Config, directory: Path, seed: int, *, bucket: bool) -> list[Call]:
    """The calls of a life in which nothing fails."""
    calls: list[Call] = []

    def count(call: Call) -> int:
        calls.append(call)
        return 0

    directory.mkdir()
    live(config, directory, Recorder(count), seed, bucket=bucket, dumps=False)
    return calls


def faults_of(calls: list[Call], chance: random.Random, each: int) -> list[Fault]:
    alike: dict[Call, list[int]] = defaultdict(list)
    for at, call in enumerate(calls):
        alike[call].append(at)
    return [
        Fault(at, call, code, chance.choice((1, 1, 3, FOR_EVER)))
        for call, places in alike.items()
        for code in ERRORS[call.kind]
        for at in chance.sample(places, min(each, len(places)))
    ]


def fault_life(seed: int, *, bucket: bool, limit: int | None = None, each: int = EACH_KIND) -> Cuts:
    """The life of this seed again and again, each time with another call that fails."""
    cuts, chance = Cuts(), random.Random(f"faults of {seed}")
    with scratch() as home:
        config = configured(home)
        faults = faults_of(calls_of(config, home / "dry", seed, bucket=bucket), chance, each)
        if limit is not None and len(faults) > limit:
            faults = chance.sample(faults, limit)
        for number, fault in enumerate(faults):
            recorder = Recorder(fault)
            recorder.is_well = fault.is_over
            _one(cuts, config, home / str(number), recorder, seed, str(fault), bucket=bucket)
            if cuts.violation is not None:
                break
    return cuts


class SmallDisk:
    """Full from the `at`-th write on that takes space, until the chapter in which space comes back; what is freed, the
    reserve above all, can be taken again."""

    def __init__(self, recorder: Recorder, directory: Path, at: int) -> None:
        self._recorder = recorder
        self._directory = directory
        self._left = at
        self._capacity: int | None = None

    def used(self) -> int:
        reserves = sum(file.stat().st_size for file in self._directory.glob("*.reserve"))
        return reserves + sum(self._recorder.sizes.values())

    def room(self, more: int) -> bool:
        self._left -= 1
        if self._left == 0:
            self._capacity = self.used()
        return self.is_well() or self._capacity is None or self.used() + more <= self._capacity

    def is_well(self) -> bool:
        return self._recorder.chapter in ("recovery", "tending", "stop", "second start", "migration")

    def statvfs(self, _path: object) -> object:
        full = self._capacity is not None and not self.is_well()
        free = max(0, (self._capacity or 0) - self.used()) if full else 2**40
        return SimpleNamespace(f_bavail=free, f_frsize=1)


def small_disks(seed: int, *, bucket: bool, limit: int | None = None) -> Cuts:
    """The life of this seed with the disk full from each write on that takes space."""
    cuts = Cuts()
    with scratch() as home:
        config = configured(home)
        counted: list[int] = []

        def counts(more: int) -> bool:
            counted.append(more)
            return True

        recorder = Recorder()
        recorder.room = counts
        (home / "dry").mkdir()
        live(config, home / "dry", recorder, seed, bucket=bucket, dumps=False)
        places = range(1, len(counted) + 1)
        step = 1 if limit is None else max(1, -(-len(places) // limit))
        for at in places[seed % step :: step]:
            recorder = Recorder()
            directory = home / str(at)
            disk = SmallDisk(recorder, directory, at)
            recorder.room, recorder.is_well = disk.room, disk.is_well
            what = f"the disk is full from write {at} on"
            with patch.object(os, "statvfs", disk.statvfs):
                _one(cuts, config, directory, recorder, seed, what, bucket=bucket, has_reserve=at > 60)
            if cuts.violation is not None:
                break
    return cuts


def _one(
    cuts: Cuts, config: Config, directory: Path, recorder: Recorder, seed: int, what: str, *, bucket: bool,
    has_reserve: bool = False,
) -> None:  # fmt: skip
    """Live it, and judge what it leaves."""
    cuts.count += 1
    directory.mkdir()
    life, stage = None, "while it ran"
    try:
        life = live(config, directory, recorder, seed, bucket=bucket, dumps=False, has_reserve=has_reserve)
        stage = "after the process had ended"
        _judge(config, directory, life, recorder)
        for outcome in (0, 3):
            stage = f"after a power cut at the end ({outcome})"
            _judge(config, directory.with_name("image"), life, recorder, outcome, f"{seed}/{what}")
    except Violation as violation:
        cuts.violation = violation
        kind = "bucket" if bucket else "local"
        refused = life.refused if life else ""
        cuts.where = (
            f"seed {seed} ({kind}), case {cuts.count}: {what}; {stage}\n{violation}\n  refused: {refused}\n  before it:\n"
            f"{trace(recorder.log, len(recorder.log))}"
        )
    shutil.rmtree(directory)


def _judge(
    config: Config, directory: Path, life: Life, recorder: Recorder, outcome: int | None = None, seed: str = ""
) -> None:
    if outcome is not None:
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir()
        player = Player(recorder.log, f"{seed}/{outcome}")
        player.play(len(recorder.log))
        player.image(directory, outcome, random.Random(f"{seed}/{outcome}"))
    promises = Promises(recorder.log)
    promises.advance(len(recorder.log))

    async def run() -> None:
        async with small():
            clock = FakeClock(life.clock.now_ms())
            await judge(config, directory, clock, promises, bucket=life.objects is not None, exact=False)

    asyncio.run(run())
