"""The daemon's parts as daemon.py wires them, on watched files, in one thread; and the facts that they say.

A fact is noted at the moment at which somebody outside could know it: `Made` when the 201 may go, `Ended` when the 204
may go. So a power cut right after it must find it true. `Committed` carries what the file holds then, row by row, so
that what is found after a cut is known to be one of the daemon's own states and not something between two of them.

The lanes run in the event loop instead of in threads of their own: the same life gives the same log.
"""

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable, Generator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

from pastebin_daemon.bodies import Deletion
from pastebin_daemon.bodies.local import LocalStore
from pastebin_daemon.config import Config
from pastebin_daemon.creation import Creation
from pastebin_daemon.daemon import _dispatchers, _follow_commits, _sweepers
from pastebin_daemon.database import Database, open_database
from pastebin_daemon.database.database import connect
from pastebin_daemon.dispatcher import Dispatcher
from pastebin_daemon.edge import Target
from pastebin_daemon.errors import EffectError
from pastebin_daemon.metrics import Metrics
from pastebin_daemon.origin_cache import OriginCache
from pastebin_daemon.pastes import Ended as EndedEvent
from pastebin_daemon.reading import Entry, Reading, weigh
from pastebin_daemon.sweepers import Sweeper
from tests.fakes import FakeClock, FakeEdge, FakeStore, StoredObject
from tests.powercuts.vfs import NAME

__all__ = [
    "PURGE_DELAYS_MS", "RESERVE", "SECRET", "Committed", "Ended", "Fact", "Made", "Parts", "Purged", "Removed",
    "Returned", "Settled", "State", "Stored", "opened", "small", "state_of", "watched",
]  # fmt: skip

METRICS = Metrics()
SECRET = b"s" * 32
PURGE_DELAYS_MS = (0, 20_000)
CHECKPOINT_PAGES = 40
RESERVE = 2 * CHECKPOINT_PAGES * 4096
"""In the proportion of the real one to the real log."""

State = Mapping[str, frozenset[tuple[Any, ...]]]


@dataclass(frozen=True)
class Made:
    """A create was answered."""

    paste: str
    object: str
    body: bytes
    token: str


@dataclass(frozen=True)
class Ended:
    """An ending was answered, or followed."""

    paste: str
    reason: str


@dataclass(frozen=True)
class Settled:
    """A settlement returned: these jobs are in the outbox no more."""

    jobs: frozenset[int]
    transition: str


@dataclass(frozen=True)
class Stored:
    key: str
    body: bytes


@dataclass(frozen=True)
class Removed:
    key: str


@dataclass(frozen=True)
class Purged:
    paste: str


@dataclass(frozen=True)
class Committed:
    """The `number`-th commit of the file that changed something was done, and the file holds this now."""

    file: str
    number: int
    state: State


@dataclass(frozen=True)
class Returned:
    """Somebody has been told that a transaction is on the disk, and so is everything up to that commit."""

    file: str
    number: int
    what: str


Fact = object


class InlineThread:
    """What a lane uses of aiosqlite's connection, with the loop in the place of the thread."""

    def __init__(self, connector: Callable[[], sqlite3.Connection], iter_chunk_size: int) -> None:
        self._connector = connector
        self._conn: sqlite3.Connection

    def __await__(self) -> Generator[None, None, "InlineThread"]:
        self._conn = self._connector()
        return self
        yield  # type: ignore[unreachable]  # what makes it a generator

    def post(self, function: Callable[[], object]) -> None:
        asyncio.get_running_loop().call_soon(function)

    def join(self) -> None:
        pass

    async def close(self) -> None:
        self._conn.close()


@asynccontextmanager
async def small() -> AsyncIterator[None]:
    """Lanes without threads, and sizes at which a short life meets every kind of housekeeping."""
    files = "pastebin_daemon.database.database"
    with (
        patch("pastebin_daemon.database.lane._Connection", InlineThread),
        patch(f"{files}.RESERVE_BYTES", RESERVE),
        patch(f"{files}.VACUUM_PAGES", 2),
    ):
        yield


TABLES = ("pastes", "uploads", "idempotency", "outbox", "dead_letters", "inbox", "totals", "objects")


def state_of(rows: Callable[[str], Sequence[tuple[Any, ...]]]) -> State:
    """Every row of every table."""
    there = {name for (name,) in rows("select name from sqlite_master where type = 'table'")}
    return {table: frozenset(rows(f"select * from {table}")) for table in TABLES if table in there}


class Heard(sqlite3.Connection):
    """Notes the commits of the writer, and can be told to run other pragmas."""

    note: Callable[[Fact], None] = staticmethod(lambda fact: None)
    quiet: Callable[[bool], None] | None
    counts: dict[str, int]
    file: str
    swaps: Mapping[str, str]
    _is_writer = False
    _migrates = False
    _changes = 0

    def execute(self, sql: str, parameters: Any = (), /) -> sqlite3.Cursor:
        text = sql.strip()
        for beginning, other in self.swaps.items():
            if text.startswith(beginning):
                sql = other
        self._is_writer |= text.startswith("pragma synchronous")
        self._migrates |= text.startswith("pragma user_version =")
        cursor = super().execute(sql, parameters)
        if text == "commit" and self._is_writer and (self._migrates or self.total_changes != self._changes):
            self._migrates, self._changes = False, self.total_changes
            self.counts[self.file] = self.counts.get(self.file, 0) + 1
            state: State = {}
            if self.quiet is not None:
                self.quiet(True)
                state = state_of(lambda look: super(Heard, self).execute(look).fetchall())
                self.quiet(False)
            self.note(Committed(self.file, self.counts[self.file], state))
        return cursor


def watched(
    note: Callable[[Fact], None], quiet: Callable[[bool], None] | None, counts: dict[str, int], swaps: Mapping[str, str]
) -> Callable[[Path], sqlite3.Connection]:
    """A connect function for watched files. `swaps`: statements that begin so → what to run in their place. Without `quiet`
    it is not noted what a commit left."""

    def connect(path: Path) -> sqlite3.Connection:
        connection = sqlite3.connect(
            f"file:{path}?vfs={NAME}", uri=True, isolation_level=None, cached_statements=256, check_same_thread=False,
            factory=Heard,
        )  # fmt: skip
        connection.note, connection.quiet, connection.counts = note, quiet, counts
        connection.file = path.stem
        connection.swaps = {"pragma wal_autocheckpoint": f"pragma wal_autocheckpoint = {CHECKPOINT_PAGES}", **swaps}
        return connection

    return connect


class NotedStore(FakeStore):
    """A bucket: what it has acknowledged outlives our power cut."""

    note: Callable[[Fact], None] = staticmethod(lambda fact: None)

    async def put(self, key: str, body: bytes) -> None:
        await super().put(key, body)
        self.note(Stored(key, body))

    async def delete(self, keys: Sequence[str]) -> Mapping[str, Deletion]:
        results = await super().delete(keys)
        for key, result in results.items():
            if isinstance(result, str):
                self.note(Removed(key))
        return results


class NotedEdge(FakeEdge):
    note: Callable[[Fact], None] = staticmethod(lambda fact: None)

    async def purge(self, targets: Sequence[Target]) -> Sequence[EffectError | None]:
        results = await super().purge(targets)
        for target, result in zip(targets, results, strict=True):
            if result is None:
                self.note(Purged(target.id))
        return results


@dataclass
class Parts:
    database: Database
    store: LocalStore | NotedStore
    edge: NotedEdge
    clock: FakeClock
    creation: Creation
    reading: Reading
    dispatchers: Mapping[str, Dispatcher]
    sweepers: Mapping[str, Sweeper]

    @property
    def databases(self) -> Mapping[str, Database]:
        found = {"pastebin": self.database}
        return found | {"bodies": self.store.database} if isinstance(self.store, LocalStore) else found


@asynccontextmanager
async def opened(
    config: Config, directory: Path, clock: FakeClock, objects: Mapping[str, bytes] | None,
    *, connect: Callable[[Path], sqlite3.Connection] = connect, note: Callable[[Fact], None] = lambda fact: None,
    counts: Mapping[str, int] | None = None,
) -> AsyncIterator[Parts]:  # fmt: skip
    """`objects`: what the bucket holds; None for the embedded store. Raises `StartError`."""
    async with AsyncExitStack() as stack:
        database = await stack.enter_async_context(
            open_database(directory / "pastebin.sqlite", "metadata", clock, connect=connect)
        )
        edge = NotedEdge()
        edge.note = note
        store: LocalStore | NotedStore
        if objects is None:
            bodies = await stack.enter_async_context(
                open_database(directory / "bodies.sqlite", "bodies", clock, connect=connect)
            )
            store = LocalStore(bodies)
            database.neighbours.append(bodies)
        else:
            store = NotedStore(clock)
            store.note = note
            store.objects = {key: StoredObject(body, clock.now_ms()) for key, body in objects.items()}
        cache: OriginCache[Entry] = OriginCache(clock, 0, weigh, 30.0)
        stack.push_async_callback(cache.close)
        _follow_commits(database, cache, METRICS)
        database.subscribe(EndedEvent, lambda event: note(Ended(event.id, event.reason)))
        dispatchers = _dispatchers(config, database, store, edge, cache, clock, METRICS)
        for dispatcher in dispatchers.values():
            _tell_settlements(dispatcher, note)
        creation = Creation(
            database, store, clock, SECRET, bytes_max=0, put_limit_s=10.0,
            idempotency_retention_s=config.idempotency.retention,
        )  # fmt: skip
        parts = Parts(
            database, store, edge, clock, creation, Reading(database, store, cache, clock, METRICS), dispatchers,
            _sweepers(config, database, clock, METRICS),
        )  # fmt: skip
        if counts is not None:
            for file, each in parts.databases.items():
                _tell_returns(each, file, counts, note)
        yield parts


def _tell_settlements(dispatcher: Dispatcher, note: Callable[[Fact], None]) -> None:
    account = dispatcher._account

    def told(plan: Any, moved: Mapping[str, set[int]], outcomes: Any) -> None:
        for transition in ("ack", "bury"):
            if moved[transition]:
                note(Settled(frozenset(moved[transition]), transition))
        account(plan, moved, outcomes)

    dispatcher._account = told  # type: ignore[method-assign]  # so that what was settled is heard of


def _tell_returns(database: Database, file: str, counts: Mapping[str, int], note: Callable[[Fact], None]) -> None:
    def told(submit: Callable[..., Any]) -> Callable[..., Any]:
        async def run(function: Callable[..., Any], *args: Any) -> Any:
            result = await submit(function, *args)
            note(Returned(file, counts.get(file, 0), function.__name__))
            return result

        return run

    vars(database).update(write=told(database.write), grow=told(database.grow))
