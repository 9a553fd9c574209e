"""The table of outbox.py, row by row: from every state each transition does exactly what the table says, or nothing.

Whole rows of every table are compared, so a refused transition is seen to change nothing, and an allowed one nothing
else. A bystander of another kind, held by the same owner, must never change. SQLite is real, in memory.
"""

import sqlite3
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pastebin_daemon import outbox
from pastebin_daemon.database import Tx
from pastebin_daemon.database.migrate import bring_up
from pastebin_daemon.outbox import Claim

NOW, LEASE, LATER, WINDOW = 1_000_000, 60_000, 1_500_000, 7 * 86_400_000
ME, OTHER = "me", "another"
JOB, KIND, CONSUMER, GENERATION, ATTEMPTS_MAX = 7, "object-delete", 1, 3, 8

Row = dict[str, Any]
Tables = dict[str, list[Row]]

PENDING: Row = {
    "id": JOB, "kind": KIND, "payload": '{"object":"o"}', "created_ms": 900_000, "first_due_ms": 900_001,
    "due_ms": NOW, "state": "pending", "attempts": 2, "generation": GENERATION, "owner": None, "lease_ms": None,
    "last_error": "before", "replayed_by": None, "replayed_ms": None,
}  # fmt: skip
LEASED: Row = PENDING | {"state": "leased", "owner": ME, "lease_ms": NOW + 1}
EXPIRED: Row = LEASED | {"lease_ms": NOW}
DEAD: Row = {
    "id": JOB, "kind": KIND, "payload": '{"object":"o"}', "created_ms": 900_000, "attempts": 8,
    "generation": GENERATION, "last_error": "before", "reason": "permanent", "died_ms": NOW - WINDOW + 1,
    "replayed_by": None, "replayed_ms": None,
}  # fmt: skip
BYSTANDER: Row = LEASED | {"id": 8, "kind": "edge-purge", "attempts": ATTEMPTS_MAX}

STATES: dict[str, Tables] = {
    "pending, due": {"outbox": [PENDING]},
    "pending, later": {"outbox": [PENDING | {"due_ms": NOW + 1}]},
    "held": {"outbox": [LEASED]},
    "held, last attempt": {"outbox": [LEASED | {"attempts": ATTEMPTS_MAX}]},
    "held by another": {"outbox": [LEASED | {"owner": OTHER}]},
    "held in a later generation": {"outbox": [LEASED | {"generation": GENERATION + 1}]},
    "held in an earlier generation": {"outbox": [LEASED | {"generation": GENERATION - 1}]},
    "lease over": {"outbox": [EXPIRED]},
    "lease over, last attempt": {"outbox": [EXPIRED | {"attempts": ATTEMPTS_MAX}]},
    "lease over, last attempt, effect done": {
        "outbox": [EXPIRED | {"attempts": ATTEMPTS_MAX}],
        "inbox": [{"outbox_id": JOB, "consumer": CONSUMER, "done_s": 1}],
    },
    "lease over, last attempt, another consumer's effect done": {
        "outbox": [EXPIRED | {"attempts": ATTEMPTS_MAX}],
        "inbox": [{"outbox_id": JOB, "consumer": CONSUMER + 1, "done_s": 1}],
    },
    "dead, inside the window": {"dead_letters": [DEAD]},
    "dead, after the window": {"dead_letters": [DEAD | {"died_ms": NOW - WINDOW}]},
    "gone": {},
}

MINE = Claim(JOB, KIND, "{}", 0, 2, GENERATION, "due")
TRANSITIONS: dict[str, Callable[[Tx], object]] = {
    "claim": lambda tx: outbox.claim(tx, KIND, ME, LEASE, 10),
    "reclaim": lambda tx: outbox.reclaim(tx, KIND, ME, LEASE, ATTEMPTS_MAX),
    "ack": lambda tx: outbox.ack(tx, ME, [MINE]),
    "retry": lambda tx: outbox.retry(tx, ME, [(MINE, LATER, "why")]),
    "give_back": lambda tx: outbox.give_back(tx, ME, [(MINE, "why")]),
    "postpone": lambda tx: outbox.postpone(tx, ME, [(MINE, LATER, "why")]),
    "bury": lambda tx: outbox.bury(tx, ME, [(MINE, "reason", "why")]),
    "bury_exhausted": lambda tx: outbox.bury_exhausted(tx, KIND, CONSUMER, ATTEMPTS_MAX, 10),
    "replay": lambda tx: outbox.replay(tx, JOB, "ann", WINDOW),
    "discard": lambda tx: outbox.discard(tx, JOB),
}

CLAIMED = {"state": "leased", "owner": ME, "lease_ms": NOW + LEASE, "attempts": 3, "generation": GENERATION + 1}
BACK = {"state": "pending", "owner": None, "lease_ms": None, "last_error": "why"}
REPLAYED = PENDING | {
    "first_due_ms": NOW, "due_ms": NOW, "attempts": 0, "last_error": None, "replayed_by": "ann", "replayed_ms": NOW,
}  # fmt: skip
BURIED = DEAD | {"died_ms": NOW, "attempts": 2}

ALLOWED: dict[tuple[str, str], Tables] = {
    ("pending, due", "claim"): {"outbox": [PENDING | CLAIMED]},
    ("lease over", "reclaim"): {"outbox": [EXPIRED | CLAIMED]},
    ("held", "ack"): {},
    ("held", "retry"): {"outbox": [LEASED | BACK | {"due_ms": LATER}]},
    ("held", "give_back"): {"outbox": [LEASED | BACK | {"due_ms": NOW, "attempts": 1}]},
    ("held", "postpone"): {"outbox": [LEASED | BACK | {"due_ms": LATER, "first_due_ms": LATER, "attempts": 1}]},
    ("held", "bury"): {"dead_letters": [BURIED | {"reason": "reason", "last_error": "why"}]},
    ("dead, inside the window", "replay"): {"outbox": [REPLAYED]},
    ("dead, after the window", "replay"): {"outbox": [REPLAYED | {"id": 9, "created_ms": NOW, "generation": 0}]},
    ("dead, inside the window", "discard"): {},
    ("dead, after the window", "discard"): {},
}
EXHAUSTED = {"dead_letters": [BURIED | {"attempts": ATTEMPTS_MAX, "reason": "attempts_exhausted"}]}
for over in (state for state in STATES if state.startswith("lease over, last attempt")):
    done = {"inbox": STATES[over]["inbox"]} if "inbox" in STATES[over] else {}
    ALLOWED[over, "bury_exhausted"] = done if over.endswith("attempt, effect done") else EXHAUSTED | done
for transition in ("ack", "retry", "give_back", "postpone", "bury"):
    after = ALLOWED["held", transition]
    ALLOWED["held, last attempt", transition] = {
        table: [row | {"attempts": row["attempts"] + ATTEMPTS_MAX - 2} for row in rows] for table, rows in after.items()
    }


@pytest.fixture
def connection() -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(":memory:", isolation_level=None)
    bring_up(connection, "metadata")
    yield connection
    connection.close()


def write(connection: sqlite3.Connection, tables: Tables) -> None:
    for table, rows in tables.items():
        for row in rows:
            marks = ", ".join(f":{column}" for column in row)
            connection.execute(f"insert into {table} ({', '.join(row)}) values ({marks})", row)


def read(connection: sqlite3.Connection) -> Tables:
    tables: Tables = {}
    for table in ("outbox", "dead_letters", "inbox"):
        cursor = connection.execute(f"select * from {table} order by 1")
        names = [column for column, *_ in cursor.description]
        rows = [dict(zip(names, row, strict=True)) for row in cursor]
        if rows:
            tables[table] = rows
    return tables


@pytest.mark.parametrize("transition", TRANSITIONS)
@pytest.mark.parametrize("state", STATES)
def test_a_transition_does_what_the_table_says_or_nothing(
    connection: sqlite3.Connection, state: str, transition: str
) -> None:
    write(connection, STATES[state])
    write(connection, {"outbox": [BYSTANDER]})

    TRANSITIONS[transition](Tx(connection, NOW))

    expected = ALLOWED.get((state, transition), STATES[state])
    outbox_rows = sorted([*expected.get("outbox", []), BYSTANDER], key=lambda row: row["id"])
    assert read(connection) == expected | {"outbox": outbox_rows}


def test_every_state_has_a_way_out_and_every_transition_a_way_in() -> None:
    """So the table above can't have lost a row unseen."""
    assert {state for state, _ in ALLOWED} | {
        "gone",
        "pending, later",  # becomes due
        "held by another",  # that one settles it, or its lease ends
        "held in a later generation",
        "held in an earlier generation",
    } == set(STATES)
    assert {transition for _, transition in ALLOWED} == set(TRANSITIONS)


def test_the_answer_of_a_settlement_names_the_jobs_that_moved(connection: sqlite3.Connection) -> None:
    write(connection, {"outbox": [LEASED, LEASED | {"id": 11, "generation": 4}, LEASED | {"id": 12, "owner": OTHER}]})
    claims = [Claim(job, KIND, "{}", 0, 2, GENERATION, "due") for job in (JOB, 11, 12, 13)]

    assert outbox.ack(Tx(connection, NOW), ME, claims) == {JOB}

    assert [row["id"] for row in read(connection)["outbox"]] == [11, 12], "one stale claim holds up no other"


def test_a_settlement_in_the_last_millisecond_counts_and_one_later_does_not(connection: sqlite3.Connection) -> None:
    write(connection, {"outbox": [LEASED]})
    assert outbox.reclaim(Tx(connection, NOW), KIND, OTHER, LEASE, ATTEMPTS_MAX) == [], (
        "nobody else has it in that millisecond"
    )
    assert outbox.ack(Tx(connection, NOW + 1), ME, [MINE]) == set()
    (again,) = outbox.reclaim(Tx(connection, NOW + 1), KIND, OTHER, LEASE, ATTEMPTS_MAX)
    assert (again.job, again.generation, again.reason) == (JOB, GENERATION + 1, "expired")


def test_what_has_waited_longest_is_claimed_and_reclaimed_first(connection: sqlite3.Connection) -> None:
    write(connection, {"outbox": [PENDING | {"id": number, "due_ms": NOW - number} for number in range(1, 6)]})
    claims = [outbox.claim(Tx(connection, NOW + number), KIND, ME, LEASE, 1) for number in range(5)]
    assert [claim.job for (claim,) in claims] == [5, 4, 3, 2, 1]

    again = [outbox.reclaim(Tx(connection, NOW + LEASE + 5), KIND, OTHER, LEASE, ATTEMPTS_MAX) for _ in range(5)]

    assert [claim.job for (claim,) in again] == [5, 4, 3, 2, 1]


def test_an_error_is_kept_to_its_first_500_characters(connection: sqlite3.Connection) -> None:
    write(connection, {"outbox": [LEASED, LEASED | {"id": 8}]})
    tx = Tx(connection, NOW)
    outbox.retry(tx, ME, [(MINE, LATER, "é" * 10_000)])
    outbox.bury(tx, ME, [(Claim(8, KIND, "{}", 0, 2, GENERATION, "due"), "reason", "é" * 10_000)])
    tables = read(connection)
    assert tables["outbox"][0]["last_error"] == tables["dead_letters"][0]["last_error"] == "é" * 500


@pytest.mark.parametrize(
    "impossible",
    [
        {"state": "leased"},
        {"owner": ME},
        {"lease_ms": NOW},
        {"state": "done"},
        {"attempts": -1},
        {"replayed_by": "ann"},
        LEASED | {"owner": None},
        LEASED | {"attempts": 0},
    ],
)
def test_the_schema_refuses_rows_that_no_transition_makes(connection: sqlite3.Connection, impossible: Row) -> None:
    with pytest.raises(sqlite3.IntegrityError, match="CHECK"):
        write(connection, {"outbox": [PENDING | impossible]})
