"""The inbox: which effects have happened, so that a second delivery is cheap. It never lies (G7).

A row (outbox id, consumer) is inserted only after that consumer's effect succeeded, and also when the lease was lost
meanwhile, because it is true all the same: the next claim finds it, skips the effect and acks.

Rows live for the retention (8 days against a replay window of 7: one day of margin) and longer while a job or a dead
letter with that id exists (G9). 116 endings/s are 80.2 million rows in 8 days; clustered by outbox id without a rowid, and
with their time in whole seconds, they take 18 bytes each. A second is counted as if the effect had happened at its end, so
that no row goes early.
"""

import json
from collections.abc import Collection

from pastebin_daemon.database import Tx

__all__ = ["record", "seen", "sweep"]


def record(tx: Tx, consumer: int, jobs: Collection[int]) -> None:
    """Say that the effects of these jobs have happened. Saying it twice is once (G8)."""
    if jobs:
        tx.changed(
            "insert into inbox (outbox_id, consumer, done_s) select value, ?, ? from json_each(?) where true"
            " on conflict do nothing",
            (consumer, tx.now_ms // 1000, json.dumps(list(jobs))),
        )


def seen(tx: Tx, consumer: int, jobs: Collection[int]) -> set[int]:
    """Those of the jobs whose effect has happened."""
    rows = tx.rows(
        "select i.outbox_id from json_each(?) j cross join inbox i on i.outbox_id = j.value and i.consumer = ?",
        (json.dumps(list(jobs)), consumer),
    )
    return {job for (job,) in rows}


def sweep(tx: Tx, after: int, retention_ms: int, limit: int) -> tuple[int, int]:
    """One batch of a pass over the primary key, from the id `after`. The result: (rows removed, where to go on).

    Going on at 0 means that the pass is over: the end was reached, or a batch in which every row is too young.
    """
    horizon_s = (tx.now_ms - retention_ms) // 1000
    ((last, oldest_s),) = tx.rows(
        "select max(outbox_id), min(done_s) from"
        " (select outbox_id, done_s from inbox where outbox_id > ? order by outbox_id limit ?)",
        (after, limit),
    )
    if last is None or oldest_s >= horizon_s:
        return 0, 0
    removed = tx.changed(
        "delete from inbox where outbox_id > ? and outbox_id <= ? and done_s < ?"
        " and not exists (select 1 from outbox where id = outbox_id)"
        " and not exists (select 1 from dead_letters where id = outbox_id)",
        (after, last, horizon_s),
    )
    return removed, last
