"""Group commit: one BEGIN, one sync, many transactions, each of which fails alone.

What an error means, by SQLite's primary result code (sqlite.org/rescode.html):

| code                             | in a member's statement          | at COMMIT                        |
|----------------------------------|----------------------------------|----------------------------------|
| FULL                             | group back, members one by one   | group back, members one by one   |
| BUSY, LOCKED                     | (only at BEGIN: nothing happened; the waiters get `Busy`)          ||
| IOERR, CORRUPT, READONLY, NOMEM… | fatal                            | fatal: the outcome is unknown    |
| CONSTRAINT, ERROR, MISMATCH…     | that member's own                | fatal                            |

FULL at COMMIT did not commit: SQLite writes the frames before the commit record. Nothing else is promised of a COMMIT
that raised, so nothing else is ever tried again on the handle.
"""

import sqlite3
from collections.abc import Callable, Sequence

from pastebin_daemon.clock import Clock
from pastebin_daemon.database.batch import Batch, batches
from pastebin_daemon.database.lane import Lane, Member
from pastebin_daemon.database.transaction import Tx
from pastebin_daemon.errors import Busy, DatabaseUnavailable, StorageFull

__all__ = ["GroupCommit"]

COUNT_MAX = 256
TIME_MAX_S = 0.02
"""A group takes no further member after this long, so that the first one's wait stays bounded (design: about 20 ms)."""

_OWN = frozenset(
    {
        sqlite3.SQLITE_ERROR,
        sqlite3.SQLITE_CONSTRAINT,
        sqlite3.SQLITE_MISMATCH,
        sqlite3.SQLITE_RANGE,
        sqlite3.SQLITE_TOOBIG,
    }
)


class _FullError(Exception):
    """The disk is full and the group was rolled back."""


class _HalfDoneError(Exception):
    """A member failed after it had written, or a batch could not tell whose an error is."""


def _code(error: sqlite3.Error) -> int:
    """The primary result code. Errors of Python's own making (wrong parameters) have none: they are the caller's."""
    return getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF


class GroupCommit:
    """Takes what waits on the writer's lane and commits it. Runs on the lane's thread."""

    def __init__(
        self, clock: Clock, check: Callable[[], None], make_room: Callable[[sqlite3.Connection], None],
        observe: Callable[[int, float], None],
    ) -> None:  # fmt: skip
        """`check` raises when the file can't be trusted; `make_room` frees the reserve when the disk is full, and never
        raises; `observe` hears of each commit that changed something: members and seconds."""
        self.wrote_at = clock.monotonic()
        self._clock = clock
        self._check = check
        self._make_room = make_room
        self._observe = observe
        self.fatal: BaseException | None = None

    def take(self, connection: sqlite3.Connection, lane: Lane) -> Sequence[Member]:
        members = lane.next(COUNT_MAX)
        if not members:
            return members
        if self.fatal is not None:
            self._refuse(members)
            return members
        try:
            late = self._attempt(connection, members)
        except _FullError as full:
            self._make_room(connection)
            for member in members:
                if member.grows:
                    member.fail(_no_space(member, full))  # the reserve is for those that make room
                else:
                    self._alone(connection, member)
        except Exception as fatal:  # noqa: BLE001  nothing is known of the handle any more
            self._fail(fatal, members)
        else:
            if not late:
                return members
            lane.put_back(late)
            left_out = set(late)
            return [member for member in members if member not in left_out]
        return members

    def _alone(self, connection: sqlite3.Connection, member: Member) -> None:
        if self.fatal is not None:
            self._refuse([member])
            return
        try:
            self._attempt(connection, [member])
        except _FullError as full:
            member.fail(_no_space(member, full))
        except Exception as fatal:  # noqa: BLE001  as above
            self._fail(fatal, [member])

    def _attempt(
        self, connection: sqlite3.Connection, members: Sequence[Member], *, careful: bool = False
    ) -> Sequence[Member]:
        """Commit the members together. The result: those that were not started, since time ran out.

        A savepoint for each costs two statements. So there are none at first, since nearly all members succeed, or fail
        before they have written: then there is nothing to undo. Should one fail later, the group is rolled back and run
        again, `careful`ly: one by one, each in a savepoint of its own.
        """
        started = self._clock.monotonic()
        self._check()
        changes = connection.total_changes
        try:
            connection.execute("begin immediate")
        except sqlite3.Error as error:
            if _code(error) not in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
                self._back(connection, error)
            for member in members:
                member.fail(Busy(f"another program holds the database's write lock: {error}"))
            return []
        now_ms = self._clock.now_ms()
        ran = 0
        late: list[Member] = []
        try:
            for batch, some in [(None, [member]) for member in members] if careful else batches(members):
                if ran and self._clock.monotonic() - started > TIME_MAX_S:
                    late += some
                elif careful:
                    self._run_carefully(connection, some[0], Tx(connection, now_ms))
                    ran += 1
                else:
                    self._run(connection, batch, some, Tx(connection, now_ms))
                    ran += len(some)
            connection.execute("commit")
        except _HalfDoneError:
            connection.execute("rollback")
            return self._attempt(connection, members, careful=True)
        except sqlite3.Error as error:
            self._back(connection, error)
        if connection.total_changes != changes:  # the loops look for work every second, and mostly find none
            self.wrote_at = self._clock.monotonic()
            self._observe(ran, self.wrote_at - started)
        return late

    def _run(self, connection: sqlite3.Connection, batch: Batch | None, members: Sequence[Member], tx: Tx) -> None:
        """Raises `_HalfDoneError` when something has to be undone, or it can't be told whose an error is."""
        changes = connection.total_changes
        try:
            if batch is not None:
                results = batch(tx, [member.args for member in members])
            else:
                results = [members[0].function(tx, *members[0].args)]
        except Exception as error:
            self._look_at(connection, error)
            if len(members) > 1 or connection.total_changes != changes:
                raise _HalfDoneError from error
            members[0].fail(error)
            return
        for member, result in zip(members, results, strict=True):
            member.result, member.error, member.events = result, None, ()
            if batch is not None and isinstance(result, Exception):
                member.fail(result)
        members[0].events = tx.events  # in their order, which is that of what happened

    def _run_carefully(self, connection: sqlite3.Connection, member: Member, tx: Tx) -> None:
        member.result, member.error, member.events = None, None, ()
        connection.execute("savepoint member")
        try:
            member.result = member.function(tx, *member.args)
            member.events = tx.events
        except Exception as error:  # noqa: BLE001  as above
            self._look_at(connection, error)
            member.fail(error)
            connection.execute("rollback to member")
        connection.execute("release member")

    def _look_at(self, connection: sqlite3.Connection, error: Exception) -> None:
        """Raises what is not one member's own. Some errors make SQLite end the transaction by itself (a lack of memory,
        which Python calls MemoryError)."""
        if not connection.in_transaction or (isinstance(error, sqlite3.Error) and _code(error) not in _OWN):
            self._back(connection, error)

    def _back(self, connection: sqlite3.Connection, error: Exception) -> None:
        """After SQLITE_FULL, roll the group back. Anything else is fatal, and raised as it is."""
        if isinstance(error, sqlite3.Error) and _code(error) == sqlite3.SQLITE_FULL:
            if connection.in_transaction:
                connection.execute("rollback")
            raise _FullError from error
        raise error

    def _fail(self, cause: Exception, members: Sequence[Member]) -> None:
        self.fatal = cause
        for member in members:
            member.fail(DatabaseUnavailable(f"the outcome of a commit is unknown: {cause!r}"))

    def _refuse(self, members: Sequence[Member]) -> None:
        for member in members:
            member.fail(DatabaseUnavailable("the database failed earlier and this process is about to end"))


def _no_space(member: Member, full: _FullError) -> StorageFull:
    return StorageFull(f"no space for {member.function.__qualname__}: {full.__cause__}")
