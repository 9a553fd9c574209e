"""What the operator sees and does: jobs, dead letters, replay, discard, totals. Transactions for the admin listener.

Lists are bounded and walk by id; nothing here counts rows, since the totals are kept by the transactions that change
them.
"""

from dataclasses import dataclass
from typing import Any, Literal

from pastebin_daemon import outbox
from pastebin_daemon.database import Tx

__all__ = ["COUNT_MAX", "LIST_MAX", "Queue", "Totals", "dead_ids", "jobs", "one_job", "queues", "replay", "totals"]

LIST_MAX = 500
COUNT_MAX = 10_000
"""A person who looks needs no exact number of more than this."""

_JOB = (
    "id", "kind", "payload", "created_ms", "first_due_ms", "due_ms", "state", "attempts", "generation", "lease_ms",
    "last_error", "replayed_by", "replayed_ms",
)  # fmt: skip
_DEAD = (
    "id", "kind", "payload", "created_ms", "died_ms", "attempts", "generation", "reason", "last_error", "replayed_by",
    "replayed_ms",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Totals:
    """The totals table, and how long the oldest job has been due, in milliseconds."""

    pastes: int
    bytes: int
    pending: int
    leased: int
    dead_letters: int
    inbox: int
    oldest_age_ms: int
    unknown_kinds: tuple[str, ...]


def totals(tx: Tx) -> Totals:
    ((live, stored, pending, leased, dead, done),) = tx.rows(
        "select pastes, bytes, pending, leased, dead_letters, inbox from totals"
    )
    ((oldest,),) = tx.rows("select min(first_due_ms) from outbox")
    age_ms = 0 if oldest is None else max(0, tx.now_ms - oldest)
    return Totals(live, stored, pending, leased, dead, done, age_ms, tuple(outbox.unknown_kinds(tx, outbox.KINDS)))


@dataclass(frozen=True, slots=True)
class Queue:
    """The jobs of one kind: each count is at most `COUNT_MAX` and then means "or more"."""

    kind: str
    pending: int
    leased: int
    overdue_ms: int
    """How long the pending job with the earliest due time has been due; 0: none is due."""


def queues(tx: Tx) -> list[Queue]:
    """One for each known kind, for a person: bounded walks through the partial indexes, where a metric would have kept
    its own count in the transactions that change it."""
    found = []
    for kind in outbox.KINDS:
        ((pending,),) = tx.rows(
            "select count(*) from (select 1 from outbox where state = 'pending' and kind = ? limit ?)",
            (kind, COUNT_MAX),
        )
        ((leased,),) = tx.rows(
            "select count(*) from (select 1 from outbox where state = 'leased' and kind = ? limit ?)", (kind, COUNT_MAX)
        )
        ((due_ms,),) = tx.rows("select min(due_ms) from outbox where state = 'pending' and kind = ?", (kind,))
        found.append(Queue(kind, pending, leased, 0 if due_ms is None else max(0, tx.now_ms - due_ms)))
    return found


def jobs(tx: Tx, state: Literal["waiting", "dead"], after: int) -> list[dict[str, Any]]:
    """Up to `LIST_MAX` jobs with ids over `after`, in their order."""
    columns, table = (_JOB, "outbox") if state == "waiting" else (_DEAD, "dead_letters")
    rows = tx.rows(f"select {', '.join(columns)} from {table} where id > ? order by id limit ?", (after, LIST_MAX))
    return [_described(columns, row) for row in rows]


def one_job(tx: Tx, job: int) -> dict[str, Any] | None:
    """A job or a dead letter, with whether the inbox knows its effect; None when it is done or never was."""
    for columns, table in ((_JOB, "outbox"), (_DEAD, "dead_letters")):
        row = tx.row(f"select {', '.join(columns)} from {table} where id = ?", (job,))
        if row is not None:
            done = tx.row("select done_s * 1000 from inbox where outbox_id = ? limit 1", (job,))
            return _described(columns, row) | {"effect_done_ms": None if done is None else done[0]}
    return None


def dead_ids(tx: Tx) -> list[int]:
    """The oldest dead letters, up to `LIST_MAX`."""
    return [job for (job,) in tx.rows("select id from dead_letters order by id limit ?", (LIST_MAX,))]


def replay(tx: Tx, ids: list[int], by: str, window_ms: int) -> dict[int, int]:
    """Replay dead letters, all in one commit: id → the id it runs under. Those that are none are left out."""
    started = {}
    for job in ids:
        new = outbox.replay(tx, job, by, window_ms)
        if new is not None:
            started[job] = new
    return started


def _described(columns: tuple[str, ...], row: tuple[Any, ...]) -> dict[str, Any]:
    job = dict(zip(columns, row, strict=True))
    return job if "state" in job else job | {"state": "dead"}
