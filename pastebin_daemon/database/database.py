"""One SQLite file: its writer lane, its reader lane, and what keeps it small."""

import asyncio
import contextlib
import os
import sqlite3
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

from pastebin_daemon.clock import Clock
from pastebin_daemon.database import migrate
from pastebin_daemon.database.batch import batches
from pastebin_daemon.database.group_commit import GroupCommit
from pastebin_daemon.database.lane import Lane, Member
from pastebin_daemon.database.transaction import Tx
from pastebin_daemon.errors import DatabaseUnavailable, StartError, StorageFull
from pastebin_daemon.logs import get_logger

__all__ = ["Database", "open_database"]

P = ParamSpec("P")
T = TypeVar("T")
E = TypeVar("E")

log = get_logger()

RESERVE_BYTES = 8 * 1024 * 1024
"""Kept free for the day when the disk is full: what the log then holds must be moved into the file, which grows by it (4
MiB until a checkpoint, and the last group), before the log can begin anew and take the writes that make room."""
WAL_LIMIT_BYTES = 32 * 1024 * 1024
"""What a checkpoint leaves of the WAL file (journal_size_limit)."""
IDLE_S = 5.0
"""No commit for this long, and the WAL is cut to nothing."""
BUSY_TIMEOUT = "pragma busy_timeout = 5000"
"""How long another program's write lock is waited for, in milliseconds."""
CACHE_KIB = {"metadata": 8_000, "bodies": 4_000}
"""SQLite's own page cache, by schema: a body is read once and then kept by the origin cache, so only its index counts."""
VACUUM_PAGES = 256
"""Pages given back to the file system at a time: 1 MiB, a few milliseconds of the writer."""
VACUUMS_WHEN_FULL = 16
"""So many at a tend while creates are refused, the writers going in between."""


def connect(path: Path) -> sqlite3.Connection:
    """The default SQLite: the interpreter's own. Transactions are ours (`isolation_level=None`)."""
    return sqlite3.connect(path, isolation_level=None, cached_statements=256, check_same_thread=False)


class Database:
    """Made by `open_database`. `failed` is done, with the cause, once the handle can't be trusted: end the process."""

    def __init__(self, path: Path, clock: Clock, observe: Callable[[int, float], None]) -> None:
        self.path = path
        self.full = False
        """Whether writes that grow the database are refused, since the disk was full and still is."""
        self.neighbours: list[Database] = []
        """Databases on the same disk: where one of them is full, none grows."""
        self.failed: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()
        self._clock = clock
        self._subscribers: dict[type, list[Callable[[Any], None]]] = defaultdict(list)
        self._reserve = path.with_name(path.name + ".reserve")
        self._identity: tuple[int, int] | None = None
        self._group = GroupCommit(clock, self._check_path, self._make_room, observe)
        self._writer: Lane
        self._reader: Lane

    # --- what callers use

    async def write(self, function: Callable[Concatenate[Tx, P], T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a transaction and return its result once it is synced to disk.

        Cancelling the await neither stops the transaction nor the events that follow it. Raises what the function
        raised; `StorageFull`, `DatabaseUnavailable` (unknown outcome) or `Busy`.
        """
        assert not kwargs
        result: T = await self._submit(function, args, grows=False)
        return result

    async def grow(self, function: Callable[Concatenate[Tx, P], T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """`write`, for what a full disk must refuse (`StorageFull`): the reserve is not for it."""
        assert not kwargs
        for each in (self, *self.neighbours):
            if each.full:
                raise StorageFull(f"the file system of {each.path} was full and has not enough free space yet")
        result: T = await self._submit(function, args, grows=True)
        return result

    async def read(self, function: Callable[Concatenate[Tx, P], T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a function that only reads, in one snapshot no older than this call."""
        assert not kwargs
        result: T = await self._reader.submit(function, args)
        return result

    def subscribe(self, event: type[E], handler: Callable[[E], None]) -> None:
        """Call `handler` after each commit that emitted such an event, in the loop, before any waiter goes on."""
        self._subscribers[event].append(handler)

    async def tend(self) -> None:
        """One bounded piece of housekeeping: cut the WAL when idle, give free pages back, renew the reserve."""
        if self._group.fatal is not None:
            return
        idle = self._clock.monotonic() - self._group.wrote_at >= IDLE_S
        blocked = 0
        try:
            if (idle or self.full) and self.wal_bytes() > 0:
                blocked = await self._writer.run(_cut_log)
            for _ in range(VACUUMS_WHEN_FULL if self.full else 1):
                if not await self._writer.run(_give_pages_back):
                    break
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF not in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
                raise
            log.warning("tending.failed", file=self.path.name, error=str(error))
        if blocked:
            log.warning("checkpoint.blocked", file=self.path.name, wal_bytes=self.wal_bytes(), frames=blocked)
        if not self._has_reserve() and self._renew_reserve():
            self.full = False
            log.info("disk.has_space", file=self.path.name)

    def wal_bytes(self) -> int:
        try:
            return os.stat(f"{self.path}-wal").st_size
        except FileNotFoundError:
            return 0

    # --- inside

    def _submit(self, function: Callable[..., Any], args: tuple[Any, ...], *, grows: bool) -> asyncio.Future[Any]:
        if self._group.fatal is not None:
            raise DatabaseUnavailable("the database failed earlier and this process is about to end")
        return self._writer.submit(function, args, grows=grows)

    def _written(self, members: Sequence[Member]) -> None:
        for member in members:
            for event in member.events:
                for handler in self._subscribers[type(event)]:
                    handler(event)
        if self._group.fatal is not None and not self.failed.done():
            log.critical("database.failed", file=self.path.name, error=repr(self._group.fatal))
            self.failed.set_result(self._group.fatal)

    def _take_reads(self, connection: sqlite3.Connection, lane: Lane) -> Sequence[Member]:
        members = lane.next(64)
        if not members:
            return members
        tx = Tx(connection, self._clock.now_ms())
        for batch, some in batches(members):
            try:
                if not connection.in_transaction:  # at the first, and after an error that ended it (I/O, memory)
                    connection.execute("begin")
                if batch is None:
                    some[0].result = some[0].function(tx, *some[0].args)
                    continue
                for member, result in zip(some, batch(tx, [member.args for member in some]), strict=True):
                    if isinstance(result, Exception):
                        member.fail(result)
                    else:
                        member.result = result
            except sqlite3.Error as error:
                for member in some:
                    member.fail(DatabaseUnavailable(f"reading failed: {error}"))
            except Exception as error:  # noqa: BLE001  theirs
                for member in some:
                    member.fail(error)
        try:
            if connection.in_transaction:
                connection.execute("commit")
        except sqlite3.Error as error:
            for member in members:
                member.fail(DatabaseUnavailable(f"reading failed: {error}"))
        return members

    def _make_room(self, connection: sqlite3.Connection) -> None:
        """On the writer's thread, after SQLITE_FULL: let the reserve go, and empty the log into the file with it, before
        anything that is written now takes that space for the log."""
        self.full = True
        with contextlib.suppress(OSError):  # gone already; or the disk refuses even that, and then there is no room
            self._reserve.unlink()
        with contextlib.suppress(sqlite3.Error):
            _cut_log(connection)

    def _has_reserve(self) -> bool:
        try:
            return os.stat(self._reserve).st_size >= RESERVE_BYTES
        except FileNotFoundError:
            return False

    def _was_lost(self) -> bool:
        return self._has_reserve() and not self.path.exists()

    def _renew_reserve(self) -> bool:
        """Set the reserve aside, if there is as much again beside it. Says whether there was."""
        try:
            free = os.statvfs(self.path.parent)
            if free.f_bavail * free.f_frsize < 2 * RESERVE_BYTES:
                return False
            with open(self._reserve, "wb") as file:
                os.posix_fallocate(file.fileno(), 0, RESERVE_BYTES)
        except OSError:  # a quota shows only now, or somebody else was quicker
            self._reserve.unlink(missing_ok=True)
            return False
        return True

    def _check_path(self) -> None:
        """On the writer's thread, before each commit: rows in a file that the next start does not find are lost."""
        try:
            at = os.stat(self.path)
        except FileNotFoundError:
            at = None
        found = None if at is None else (at.st_dev, at.st_ino)
        self._identity = self._identity or found
        if found is None or found != self._identity:
            raise FileNotFoundError(f"{self.path} was moved or replaced while it was in use")


def _cut_log(connection: sqlite3.Connection) -> int:
    """Checkpoint, and cut the WAL to nothing. The result: frames that stay in it since somebody reads."""
    connection.execute("pragma busy_timeout = 0")  # a reader in the way must not hold up those who write
    try:
        busy, frames, _ = connection.execute("pragma wal_checkpoint(truncate)").fetchone()
    finally:
        connection.execute(BUSY_TIMEOUT)
    return int(frames) if busy else 0


def _give_pages_back(connection: sqlite3.Connection) -> bool:
    """Cut a piece off the file's end. The result: whether there was enough to do it for."""
    (free,) = connection.execute("pragma freelist_count").fetchone()
    if free <= 4 * VACUUM_PAGES:
        return False
    # It gives a page a step, and a step has no column, at which fetchall would end.
    connection.executescript(f"pragma incremental_vacuum({VACUUM_PAGES})")
    return True


def _prepare_writer(schema: str) -> Callable[[sqlite3.Connection], None]:
    def prepare(connection: sqlite3.Connection) -> None:
        # auto_vacuum takes only before the first page is written, which journal_mode=WAL does.
        for statement in (
            BUSY_TIMEOUT,
            "pragma auto_vacuum = incremental",
            "pragma journal_mode = wal",
            "pragma synchronous = full",
            "pragma secure_delete = on",
            f"pragma journal_size_limit = {WAL_LIMIT_BYTES}",
            "pragma wal_autocheckpoint = 1000",
            f"pragma cache_size = -{CACHE_KIB[schema]}",
            "pragma temp_store = memory",
            "pragma trusted_schema = off",
        ):
            connection.execute(statement).fetchall()
        (mode,) = connection.execute("pragma journal_mode").fetchone()
        if mode != "wal":
            raise StartError(f"SQLite can't use WAL here (journal_mode is {mode}): use a local file system")
        migrate.bring_up(connection, schema)
        _forget_statistics(connection)

    return prepare


def _forget_statistics(connection: sqlite3.Connection) -> None:
    """What somebody's ANALYZE found while there were few rows makes SQLite read whole tables when there are many. The
    statements are written for their indexes and need none of it."""
    for (table,) in connection.execute("select name from sqlite_master where name glob 'sqlite_stat[0-9]'").fetchall():
        connection.execute(f"drop table {table}")
        connection.execute("pragma writable_schema = reset")  # reads the schema again, now without


def _prepare_reader(connection: sqlite3.Connection) -> None:
    connection.execute(BUSY_TIMEOUT)
    connection.execute("pragma query_only = on")
    connection.execute("pragma cache_size = -2000")


def _ignore(_members: int, _seconds: float) -> None:
    pass


@asynccontextmanager
async def open_database(
    path: Path,
    schema: str,
    clock: Clock,
    *,
    observe: Callable[[int, float], None] = _ignore,
    connect: Callable[[Path], sqlite3.Connection] = connect,
) -> AsyncIterator[Database]:
    """Open or make the file and bring it up to the newest version of `schema` (a folder of migrations/).

    `observe` hears of each commit that changed something, on the writer's thread: members in the group, seconds.
    Raises `StartError`.
    """
    if sqlite3.sqlite_version_info < (3, 38):
        raise StartError(f"SQLite {sqlite3.sqlite_version} is too old: 3.38 or newer is needed (Debian 12 has 3.40)")
    database = Database(path, clock, observe)
    if database._was_lost():
        raise StartError(
            f"{path} is gone, and its reserve beside it says that it was there: put it back, or restore the directory from "
            f"a backup; to begin anew with nothing, remove {database._reserve.name} too"
        )
    database._writer = Lane(path, connect, _prepare_writer(schema), database._group.take, database._written)
    database._reader = Lane(path, connect, _prepare_reader, database._take_reads, lambda members: None)
    try:
        await database._writer.open()
        database._check_path()
    except sqlite3.Error as error:
        raise StartError(_remedy(path, error)) from error
    try:
        try:
            await database._reader.open()
        except sqlite3.Error as error:
            raise StartError(_remedy(path, error)) from error
        try:
            if not database._has_reserve() and not database._renew_reserve():
                log.warning("disk.low", file=path.name, wanted_bytes=2 * RESERVE_BYTES)
            yield database
        finally:
            await database._reader.close()  # before the writer, whose close then checkpoints alone
    finally:
        await database._writer.close()
        database.failed.cancel()


def _remedy(path: Path, error: sqlite3.Error) -> str:
    """One line that says what to do about a database that can't be opened."""
    code = getattr(error, "sqlite_errorname", "")
    if code.startswith(("SQLITE_CANTOPEN", "SQLITE_READONLY", "SQLITE_PERM")):
        return f"{path} can't be opened for writing ({error}): make {path.parent} writable for this user"
    if code.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB")):
        return f"{path} is damaged or no SQLite file ({error}): restore it from a backup"
    if code.startswith("SQLITE_FULL"):
        return f"the file system of {path} is full: free some space"
    if code.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
        return f"another program has {path} locked: end it (an open sqlite3 shell?)"
    return f"{path} can't be opened: {error} ({code or type(error).__name__})"
