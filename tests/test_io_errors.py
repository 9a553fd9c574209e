"""Every kind of call that SQLite makes of its files fails once, some times, or for ever, in every chapter of a life; and
the disk is full from each write on that takes space. What the daemon answers meanwhile is never a lie: what was done is
there afterwards, what was refused with a known outcome is not, an unknown outcome ends the process. On a full disk reads
and deletes go on, and when there is space again, creates do.

The search is in tests/powercuts. By hand: `python -m tests.powercuts --only faults`.
"""

import sqlite3
from collections.abc import Sequence
from pathlib import Path

import pytest

from pastebin_daemon.database import Database, open_database
from pastebin_daemon.database.database import connect
from pastebin_daemon.database.group_commit import GroupCommit
from pastebin_daemon.database.lane import Member
from pastebin_daemon.errors import StartError
from tests.fakes import FakeClock
from tests.faulty_sqlite import sqlite_error
from tests.powercuts.faults import fault_life, small_disks
from tests.powercuts.search import Cuts


def told(cuts: Cuts) -> str:
    return f"{cuts.where}\nreplay: python -m tests.powercuts --only faults --seed {cuts.where.split()[1]}"


@pytest.mark.parametrize(("seed", "bucket"), [(1, False), (2, True)])
def test_a_call_that_fails_makes_no_answer_a_lie(seed: int, bucket: bool) -> None:
    cuts = fault_life(seed, bucket=bucket, each=1)
    assert cuts.violation is None, told(cuts)
    assert cuts.count > 100


@pytest.mark.parametrize(("seed", "bucket"), [(1, False), (2, True)])
def test_on_a_full_disk_reads_and_deletes_go_on(seed: int, bucket: bool) -> None:
    cuts = small_disks(seed, bucket=bucket, limit=100)
    assert cuts.violation is None, told(cuts)
    assert cuts.count > 50


def test_where_the_reserve_is_not_let_go_the_search_finds_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def keep(database: Database, connection: sqlite3.Connection) -> None:
        database.full = True

    monkeypatch.setattr(Database, "_make_room", keep)
    cuts = small_disks(1, bucket=True, limit=100)
    assert cuts.violation is not None
    assert cuts.violation.guarantee == "full"


def test_where_a_failed_commit_is_acknowledged_the_search_finds_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def acknowledge(group: GroupCommit, cause: Exception, members: Sequence[Member]) -> None:
        group.fatal = cause

    monkeypatch.setattr(GroupCommit, "_fail", acknowledge)
    assert fault_life(1, bucket=True, each=1).violation is not None


async def test_a_file_that_its_second_connection_cannot_open_is_told_as_one_that_the_first_cannot(
    tmp_path: Path,
) -> None:
    """Found by the search: the open of the metadata fails at the first start, and the error came out as it was."""
    opened: list[sqlite3.Connection] = []

    def once(path: Path) -> sqlite3.Connection:
        if opened:
            raise sqlite_error("SQLITE_CANTOPEN")
        opened.append(connect(path))
        return opened[0]

    with pytest.raises(StartError, match=r"make .* writable"):
        async with open_database(tmp_path / "some.sqlite", "bodies", FakeClock(), connect=once):
            pass
