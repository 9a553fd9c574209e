"""The outbox: work that a commit has decided and that nobody waits for, at least once, and never by two claims' word.

A job is one effect of one consumer, named by its kind. It is in exactly one of these states (G5), and moves only so:

| transition       | from                                    | to                                            |
|------------------|-----------------------------------------|-----------------------------------------------|
| enqueue          | nothing                                 | pending                                       |
| claim            | pending, due                            | leased: attempts + 1, generation + 1          |
| reclaim          | leased, lease over, attempts left       | leased: attempts + 1, generation + 1          |
| ack              | leased, held                            | gone                                          |
| retry            | leased, held                            | pending, due later                            |
| give_back        | leased, held                            | pending, due now, attempts - 1                |
| postpone         | leased, held                            | pending, first due later, attempts - 1        |
| bury             | leased, held                            | dead letter                                   |
| bury_exhausted   | leased, lease over, no attempt left     | dead letter; gone when the inbox has its row  |
| replay           | dead letter                             | pending: attempts 0, generation kept          |
| discard          | dead letter                             | gone                                          |

**Held** (G6) is one predicate, written once below: leased, by this owner, of this generation, and the lease not over at
this transaction's instant. An owner is random for each start of the process, so a name never comes back; a generation
only grows, also over replays. A settlement that is not held changes nothing and is not among the ids returned.

Statements take whole sets by `json_each`, and those of every batch give them as one row by `json_group_array`: beside a
busy loop each statement, and each row that is fetched, is a handoff of the interpreter's lock between threads (28,000 jobs/s
one by one, 59,000 in sets; with 5,000 reads a second beside it, 800 jobs/s by RETURNING and 4,000 in
one row).
"""

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from pastebin_daemon.database import Tx

__all__ = [
    "EDGE_PURGE", "KINDS", "OBJECT_DELETE", "REAP", "Claim", "Enqueued", "ack", "bury", "bury_exhausted", "claim",
    "discard", "enqueue", "expired_kinds", "give_back", "postpone", "reclaim", "replay", "retry", "unknown_kinds",
]  # fmt: skip

OBJECT_DELETE = "object-delete"
EDGE_PURGE = "edge-purge"
REAP = "reap"
KINDS = (OBJECT_DELETE, EDGE_PURGE, REAP)

ERROR_CHARS = 500
"""What is kept of an error's text (G14)."""


@dataclass(frozen=True, slots=True)
class Enqueued:
    """Jobs of a kind were committed, due at `due_ms`."""

    kind: str
    count: int
    due_ms: int


@dataclass(frozen=True, slots=True)
class Claim:
    """The right to run a job and to settle it, until the lease is over or a later generation takes it."""

    job: int
    kind: str
    payload: str
    created_ms: int
    attempts: int
    generation: int
    reason: Literal["due", "expired"]


_HELD = """
    o.state = 'leased' and o.owner = :owner and o.lease_ms > :now and o.generation = j.value ->> 1
"""
_HELD_JOBS = f"""
    from json_each(:claims) j cross join outbox o on o.id = j.value ->> 0 where {_HELD}
"""


def enqueue(tx: Tx, kind: str, payloads: Sequence[object], due_ms: int | None = None) -> None:
    """Insert jobs, due now or at `due_ms`, in the transaction that decides them (G3)."""
    if not payloads:
        return
    due = tx.now_ms if due_ms is None else due_ms
    tx.changed(
        "insert into outbox (kind, payload, created_ms, first_due_ms, due_ms)"
        " select ?, value, ?, ?, ? from json_each(?)",
        (kind, tx.now_ms, due, due, json.dumps(payloads)),
    )
    tx.emit(Enqueued(kind, len(payloads), due))


def claim(tx: Tx, kind: str, owner: str, lease_ms: int, limit: int) -> list[Claim]:
    """Lease up to `limit` due jobs, the longest due first."""
    return _lease(
        tx, kind, owner, lease_ms, "due",
        "where state = 'pending' and kind = :kind and due_ms <= :now order by due_ms, id limit :limit",
        {"limit": limit},
    )  # fmt: skip


def reclaim(tx: Tx, kind: str, owner: str, lease_ms: int, attempts_max: int) -> list[Claim]:
    """Lease the one job whose lease has been over the longest: alone, so that a job that kills the process burns only
    its own attempts. One without an attempt left is for `bury_exhausted`."""
    return _lease(
        tx, kind, owner, lease_ms, "expired",
        "where state = 'leased' and kind = :kind and lease_ms <= :now"
        " and attempts < :attempts_max order by lease_ms, id limit 1",
        {"attempts_max": attempts_max},
    )  # fmt: skip


def _lease(
    tx: Tx,
    kind: str,
    owner: str,
    lease_ms: int,
    reason: Literal["due", "expired"],
    which: str,
    bound: Mapping[str, int],
) -> list[Claim]:
    ((found,),) = tx.rows(
        "select json_group_array(json_array(id, payload, created_ms, attempts + 1, generation + 1)) from"
        f" (select id, payload, created_ms, attempts, generation from outbox {which})",
        {"now": tx.now_ms, "kind": kind, **bound},
    )
    rows = json.loads(found)
    if rows:
        tx.changed(
            "update outbox set state = 'leased', owner = :owner, lease_ms = :until, attempts = attempts + 1,"
            " generation = generation + 1 where id in (select value from json_each(:jobs))",
            {"owner": owner, "until": tx.now_ms + lease_ms, "jobs": json.dumps([job for job, *_ in rows])},
        )
    return [
        Claim(job, kind, payload, created_ms, attempts, generation, reason)
        for job, payload, created_ms, attempts, generation in sorted(rows)
    ]


def expired_kinds(tx: Tx, kinds: Iterable[str]) -> list[str]:
    """Those of the kinds that have a job whose lease is over."""
    return [
        kind
        for kind in kinds
        if tx.row(
            "select 1 from outbox where state = 'leased' and kind = ? and lease_ms <= ? limit 1", (kind, tx.now_ms)
        )
    ]


def ack(tx: Tx, owner: str, claims: Collection[Claim]) -> set[int]:
    """Forget finished jobs. The result, as of every settlement: the jobs that were held, and so moved."""
    ((held,),) = tx.rows(
        f"select json_group_array(o.id) {_HELD_JOBS}", {"owner": owner, "now": tx.now_ms, "claims": _pairs(claims)}
    )
    tx.changed("delete from outbox where id in (select value from json_each(?))", (held,))
    return set(json.loads(held))


def retry(tx: Tx, owner: str, claims: Collection[tuple[Claim, int, str]]) -> set[int]:
    """Put failed jobs back: each due at its `due_ms`, with its error."""
    return _put_back(tx, owner, [(claim, due_ms, error) for claim, due_ms, error in claims], "")


def give_back(tx: Tx, owner: str, claims: Collection[tuple[Claim, str]]) -> set[int]:
    """Put jobs back that did not get their chance: due at once, and the attempt does not count."""
    return _put_back(tx, owner, [(claim, tx.now_ms, why) for claim, why in claims], ", attempts = attempts - 1")


def postpone(tx: Tx, owner: str, claims: Collection[tuple[Claim, int, str]]) -> set[int]:
    """Put jobs back whose time has not come: the attempt does not count, nor does the wait count as delay."""
    return _put_back(
        tx, owner, claims, ", attempts = attempts - 1, first_due_ms = max(first_due_ms, j.value ->> 2)"
    )  # fmt: skip


def _put_back(tx: Tx, owner: str, claims: Collection[tuple[Claim, int, str]], also: str) -> set[int]:
    rows = tx.rows(
        "update outbox as o set state = 'pending', owner = null, lease_ms = null, due_ms = j.value ->> 2,"
        f" last_error = j.value ->> 3{also} from json_each(:claims) j where o.id = j.value ->> 0 and {_HELD} returning id",
        {
            "owner": owner,
            "now": tx.now_ms,
            "claims": json.dumps(
                [(claim.job, claim.generation, due_ms, text[:ERROR_CHARS]) for claim, due_ms, text in claims]
            ),
        },
    )
    return {job for (job,) in rows}


def bury(tx: Tx, owner: str, claims: Collection[tuple[Claim, str, str]]) -> set[int]:
    """Move jobs to the dead letters: each with its reason (a word or two, for metrics and people) and its last error."""
    texts = json.dumps([(claim.job, claim.generation, reason, text[:ERROR_CHARS]) for claim, reason, text in claims])
    rows = tx.rows(
        "insert into dead_letters (id, kind, payload, created_ms, attempts, generation, last_error, reason, died_ms,"
        " replayed_by, replayed_ms) select o.id, o.kind, o.payload, o.created_ms, o.attempts, o.generation,"
        f" j.value ->> 3, j.value ->> 2, :now, o.replayed_by, o.replayed_ms {_HELD_JOBS} returning id",
        {"owner": owner, "now": tx.now_ms, "claims": texts},
    )
    return _forget(tx, rows)


def bury_exhausted(tx: Tx, kind: str, consumer: int, attempts_max: int, limit: int) -> tuple[set[int], set[int]]:
    """End jobs whose last lease is over: (acked, since the inbox has their row; buried).

    Their process died, or lost the lease and could not settle.
    """
    rows = tx.rows(
        "select id, exists (select 1 from inbox where outbox_id = outbox.id and consumer = ?) from outbox"
        " where state = 'leased' and kind = ? and lease_ms <= ? and attempts >= ? order by lease_ms, id limit ?",
        (consumer, kind, tx.now_ms, attempts_max, limit),
    )
    if not rows:
        return set(), set()
    over = json.dumps(rows)
    buried = tx.rows(
        "insert into dead_letters (id, kind, payload, created_ms, attempts, generation, last_error, reason, died_ms,"
        " replayed_by, replayed_ms) select o.id, o.kind, o.payload, o.created_ms, o.attempts, o.generation,"
        " coalesce(o.last_error, 'the lease ended without a settlement'), 'attempts_exhausted', ?, o.replayed_by,"
        " o.replayed_ms from json_each(?) j cross join outbox o on o.id = j.value ->> 0 where not j.value ->> 1"
        " returning id",
        (tx.now_ms, over),
    )
    acked = tx.rows(
        "delete from outbox where id in (select value ->> 0 from json_each(?) where value ->> 1) returning id", (over,)
    )
    return {job for (job,) in acked}, _forget(tx, buried)


def _forget(tx: Tx, rows: Sequence[tuple[int, ...]]) -> set[int]:
    jobs = {job for (job,) in rows}
    if jobs:
        tx.changed("delete from outbox where id in (select value from json_each(?))", (json.dumps(list(jobs)),))
    return jobs


def replay(tx: Tx, job: int, by: str, window_ms: int) -> int | None:
    """Bring a dead letter back: under its own id inside the window, so that the inbox still knows it, and under a new id
    after it, since that is a new decision (G9). The result: the id it runs under, or None when there is none to replay."""
    dead = tx.row("select kind, payload, created_ms, generation, died_ms from dead_letters where id = ?", (job,))
    if dead is None:
        return None
    kind, payload, created_ms, generation, died_ms = dead
    inside = tx.now_ms - died_ms < window_ms
    ((new,),) = tx.rows(
        "insert into outbox (id, kind, payload, created_ms, first_due_ms, due_ms, generation, replayed_by, replayed_ms)"
        " values (?, ?, ?, ?, ?, ?, ?, ?, ?) returning id",
        (
            job if inside else None, kind, payload, created_ms if inside else tx.now_ms, tx.now_ms, tx.now_ms,
            generation if inside else 0, by, tx.now_ms,
        ),
    )  # fmt: skip
    tx.changed("delete from dead_letters where id = ?", (job,))
    tx.emit(Enqueued(kind, 1, tx.now_ms))
    return int(new)


def discard(tx: Tx, job: int) -> bool:
    """Forget a dead letter for good: an operator's decision."""
    return tx.changed_one("delete from dead_letters where id = ?", (job,))


def unknown_kinds(tx: Tx, known: Collection[str]) -> list[str]:
    """Kinds that wait, or that a newer program had leased, and that this one does not know (after a downgrade). It hops
    from kind to kind in the indexes."""
    unknown: list[str] = []
    kind = ""
    while True:
        ((kind,),) = tx.rows(
            "select min(kind) from (select min(kind) as kind from outbox where state = 'pending' and kind > :kind"
            " union all select min(kind) from outbox where state = 'leased' and kind > :kind)",
            {"kind": kind},
        )
        if kind is None or len(unknown) >= 10:
            return unknown
        if kind not in known:
            unknown.append(kind)


def _pairs(claims: Iterable[Claim]) -> str:
    return json.dumps([(claim.job, claim.generation) for claim in claims])
