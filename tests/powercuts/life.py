"""A life of the daemon in which everything happens that writes: the first start, creates alone and together, deletes,
take-down, effects that succeed, fail and are buried, replay, expiry, abandoned uploads, the sweeps of the inbox and of
the keys, checkpoints, the log cut, pages given back, the stop, the next start, and a migration with rows.

`live` records one. It goes on after an error that the daemon documents, notes what that error promised, and ends where
the process would end: with a failed database, or with a loop that raised. Any other error is a violation.
"""

import asyncio
import hashlib
import random
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

from pastebin_daemon import operating, pastes
from pastebin_daemon.config import Config
from pastebin_daemon.creation import Draft
from pastebin_daemon.creation import Made as MadeAnswer
from pastebin_daemon.database import migrate
from pastebin_daemon.errors import (
    Busy,
    DatabaseUnavailable,
    NotFound,
    Permanent,
    StartError,
    StorageFull,
    Temporary,
    Trouble,
)  # fmt: skip
from pastebin_daemon.ids import new_id, token_sha256
from pastebin_daemon.outbox import EDGE_PURGE, OBJECT_DELETE, REAP
from pastebin_daemon.pastes import NewPaste
from tests.fakes import FakeClock
from tests.powercuts.daemon import PURGE_DELAYS_MS, Made, Parts, opened, small, watched
from tests.powercuts.disk import Recorder
from tests.powercuts.vfs import watch

__all__ = ["DAYS", "Ending", "Life", "Migrates", "NotEnded", "NotMade", "Violation", "later_scripts", "live"]

DAYS = 86_400
LATER = "CREATE TABLE later (paste TEXT NOT NULL) STRICT;\nINSERT INTO later SELECT id FROM pastes;\n"


class Violation(AssertionError):
    """A promise was not kept: the guarantee, and what was found."""

    def __init__(self, guarantee: str, text: str) -> None:
        super().__init__(f"{guarantee}: {text}")
        self.guarantee = guarantee


class ProcessEnds(Exception):
    """As the daemon would end here: a loop raised, or the database failed."""


@dataclass(frozen=True)
class Ending:
    """Somebody asks for the end of a paste; from here on it may be gone."""

    paste: str


@dataclass(frozen=True)
class NotMade:
    """A create was refused with a known outcome: no row has this body, ever."""

    body: bytes


@dataclass(frozen=True)
class NotEnded:
    """A delete was refused with a known outcome: the paste is still there."""

    paste: str


@dataclass(frozen=True)
class Migrates:
    """From here on the program is a newer one, with one migration more."""


@contextmanager
def later_scripts() -> Any:
    """A program with one migration more, which copies rows."""
    known = migrate.scripts
    with patch.object(migrate, "scripts", lambda schema: [*known(schema), *([LATER] if schema == "metadata" else [])]):
        yield


class _Chance:
    """In the place of `secrets` in ids.py: ids and owners by the seed, so that rows lie in the same pages."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(f"ids of {seed}")

    def token_bytes(self, count: int) -> bytes:
        return self._chance.randbytes(count)

    def token_hex(self, count: int) -> str:
        return self._chance.randbytes(count).hex()


class Life:
    def __init__(self, config: Config, directory: Path, recorder: Recorder, seed: int, *, bucket: bool) -> None:
        self.config = config
        self.directory = directory
        self.recorder = recorder
        self.chance = random.Random(seed)
        self.clock = FakeClock()
        self.objects: dict[str, bytes] | None = {} if bucket else None
        self.counts: dict[str, int] = {}
        self.swaps: Mapping[str, str] = {}
        self.made: dict[str, Made] = {}
        self.mortal: set[str] = set()
        self.has_reserve = False
        """The disk is full as real ones are: what the reserve frees can be used, so that no delete may be refused."""
        self.dumps = True
        self.refused: list[str] = []
        """The known failures, by the names of their errors."""
        self.it: Parts

    # --- one thing each

    @asynccontextmanager
    async def up(self) -> AsyncIterator[None]:
        recorder = self.recorder

        def quiet(on: bool) -> None:
            recorder.quiet = on

        connect = watched(recorder.note, quiet if self.dumps else None, self.counts, self.swaps)
        async with opened(
            self.config, self.directory, self.clock, self.objects, connect=connect, note=recorder.note,
            counts=self.counts,
        ) as self.it:  # fmt: skip
            try:
                yield
            finally:
                if self.objects is not None:
                    self.objects = {key: found.body for key, found in self.it.store.objects.items()}  # type: ignore[union-attr]  # it is the fake one here

    def _check_failed(self) -> None:
        for database in self.it.databases.values():
            if database.failed.done():
                raise ProcessEnds(f"the database failed: {database.failed.result()!r}")

    async def attempt(self, asked: Awaitable[Any]) -> Any:
        """The result, or the documented error."""
        try:
            return await asked
        except NotFound as error:
            return error
        except Trouble as error:
            self.refused.append(type(error).__name__)
            self._check_failed()
            if isinstance(error, DatabaseUnavailable) and "reading failed" not in str(error):
                raise Violation("errors", f"an outcome is unknown, and the process goes on: {error}") from error
            return error

    async def create(self, size: int, lifetime_s: int | None = None, key: str | None = None) -> Made | None:
        body = b"%d " % self.chance.getrandbits(64) + self.chance.randbytes(size)
        answer = await self.attempt(self.it.creation.create(Draft(body, lifetime_s, "a title", None), key))
        if isinstance(answer, MadeAnswer):
            assert answer.paste.sha256 == hashlib.sha256(body).digest()
            made = Made(answer.paste.id, answer.paste.object, body, answer.delete_token)
            self.recorder.note(made)
            self.made[made.paste] = made
            if lifetime_s is not None:
                self.mortal.add(made.paste)
            return made
        if not isinstance(answer, DatabaseUnavailable):
            self.recorder.note(NotMade(body))
        if isinstance(answer, StorageFull):
            await self.read_on()
        return None

    async def read_on(self) -> None:
        """Reads go on when the disk is full."""
        for made in list(self.made.values())[-2:]:
            found = await self.attempt(self.it.reading.read(made.paste))
            if isinstance(found, NotFound) and made.paste not in self.mortal:
                raise Violation("G1", f"{made.paste} was acknowledged and is not found")
            if not isinstance(found, Trouble | NotFound) and found.body != made.body:
                raise Violation("G15", f"the body of {made.paste} is another")

    async def end(self, made: Made | None, *, by_owner: bool = True) -> None:
        if made is None:
            return
        self.made.pop(made.paste, None)
        self.recorder.note(Ending(made.paste))
        write = self.it.database.write
        answer = await self.attempt(
            write(pastes.delete, made.paste, token_sha256(made.token), PURGE_DELAYS_MS)
            if by_owner
            else write(pastes.take_down, made.paste, PURGE_DELAYS_MS)
        )
        if isinstance(answer, NotFound) and made.paste not in self.mortal:
            raise Violation("G1", f"{made.paste} was acknowledged and is not found")
        if isinstance(answer, StorageFull) and self.has_reserve:
            raise Violation("full", f"a delete found no space, in spite of the reserve: {answer}")
        if isinstance(answer, StorageFull | Busy):
            self.made[made.paste] = made
            self.recorder.note(NotEnded(made.paste))

    async def tick(self, *kinds: str) -> None:
        for kind in kinds:
            try:
                await self.it.dispatchers[kind].tick()
            except DatabaseUnavailable as error:
                raise ProcessEnds(f"the loop {kind}: {error}") from error

    async def sweep(self, name: str) -> None:
        try:
            while await self.it.sweepers[name].tick():
                pass
        except DatabaseUnavailable as error:
            raise ProcessEnds(f"the loop sweep {name}: {error}") from error

    async def tend(self) -> None:
        for database in self.it.databases.values():
            try:
                await database.tend()
            except sqlite3.OperationalError as error:
                raise ProcessEnds(f"the loop tend: {error}") from error

    # --- the chapters

    async def creates(self) -> None:
        await self.create(10, key="a key of mine")
        await self.create(self.chance.randint(4000, 9000), lifetime_s=600)
        await self.create(self.chance.randint(20_000, 40_000), lifetime_s=600)
        await asyncio.gather(*(self.create(self.chance.randint(1, 3000)) for _ in range(4)))

    async def deletes(self) -> None:
        first, second, third, fourth, *_ = [*self.made.values(), None, None, None, None]
        await self.end(first)
        await self.end(second, by_owner=False)
        await asyncio.gather(self.end(third), self.end(fourth), self.create(700))

    async def dispatch(self) -> None:
        await self.tick(OBJECT_DELETE)
        self.it.edge.faults.fail("purge", Permanent("no"))
        await self.tick(EDGE_PURGE)
        await self.create(60_000)
        await self.end(await self.create(3))
        self.it.edge.faults.fail("purge", Temporary("not now"))
        await self.tick(EDGE_PURGE, OBJECT_DELETE)
        self.clock.advance(3600)
        await self.tick(EDGE_PURGE)

    async def replay(self) -> None:
        dead = await self.attempt(self.it.database.read(operating.dead_ids))
        if not isinstance(dead, Trouble):
            await self.attempt(self.it.database.write(operating.replay, dead, "somebody", 7 * DAYS * 1000))
        await self.tick(EDGE_PURGE)

    async def expiry(self) -> None:
        await self.create(5000, lifetime_s=60)
        self.clock.advance(601)
        await self.sweep("expiry")
        await self.tick(OBJECT_DELETE)

    async def abandon(self) -> None:
        for stored in (True, False):
            new = NewPaste(new_id(), new_id(), None, 100, bytes(32), True, None, None, bytes(32))
            if isinstance(await self.attempt(self.it.database.grow(pastes.begin_upload, new, 0)), Trouble):
                continue
            if stored:
                try:
                    await self.it.store.put(new.object, b"x" * 100)
                except (Temporary, StorageFull):
                    self._check_failed()
        self.clock.advance(3601)
        await self.sweep("uploads")
        await self.tick(REAP)

    async def sweeps(self) -> None:
        self.clock.advance(8 * DAYS + 3600)
        await self.sweep("inbox")
        await self.sweep("idempotency")
        await self.create(2, key="a key of mine")

    async def tending(self) -> None:
        large = [await self.create(30_000) for _ in range(3)]
        for made in large:
            await self.end(made)
        await self.tick(OBJECT_DELETE)
        self.clock.advance(10)
        await self.tend()
        await self.create(1)
        await self.end(next(iter(self.made.values()), None))
        await self.tend()

    async def recovery(self) -> None:
        """Where there is space again, creates go on without a restart."""
        if self.recorder.is_well():
            for _ in range(3):
                self.clock.advance(10)
                await self.tend()
            if "StorageFull" in self.refused and await self.create(10) is None:
                raise Violation("full", f"there is space again, and creates do not go on: {self.refused[-1]}")

    async def after_all(self) -> None:
        await self.create(2000)
        await self.tick(OBJECT_DELETE, EDGE_PURGE, REAP)

    async def run(self) -> None:
        """All chapters. Raises `ProcessEnds` where the process would, `StartError` where it can't start."""
        self.recorder.chapter = "first start"
        async with self.up():
            for chapter in (
                self.creates, self.deletes, self.dispatch, self.replay, self.expiry, self.abandon, self.sweeps,
                self.recovery,
                self.tending,
            ):  # fmt: skip
                self.recorder.chapter = chapter.__name__
                await chapter()
                self._check_failed()
            self.recorder.chapter = "stop"
        self.recorder.chapter = "second start"
        async with self.up():
            await self.after_all()
            self.recorder.chapter = "stop"
        self.recorder.note(Migrates())
        self.recorder.chapter = "migration"
        with later_scripts():
            async with self.up():
                await self.after_all()
                self.recorder.chapter = "stop"


def live(
    config: Config, directory: Path, recorder: Recorder, seed: int, *, bucket: bool,
    swaps: Mapping[str, str] | None = None, dumps: bool = True, has_reserve: bool = False,
) -> Life:  # fmt: skip
    """Record a life. The result's `refused` says what failed; `dumps`: note what each commit left."""
    life = Life(config, directory, recorder, seed, bucket=bucket)
    life.swaps = swaps or {}
    life.dumps, life.has_reserve = dumps, has_reserve

    async def run() -> None:
        async with small():
            try:
                await life.run()
            except (ProcessEnds, StartError) as end:
                life.refused.append(f"{type(end).__name__}: {end}")
            except Violation:
                raise
            except Exception as error:
                raise Violation("errors", f"{error!r} is of no documented kind (in {recorder.chapter})") from error

    ids = patch.multiple("pastebin_daemon.ids", secrets=_Chance(seed), random=random.Random(seed))
    with watch(recorder), ids:
        asyncio.run(run())
    return life
