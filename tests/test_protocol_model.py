"""The protocol of claims keeps its promises in every order of events (tests/protocol_model.py), each of its rules is there
for a reason, and the SQL does what the model does.

The lockstep: each step that the search takes is taken by the program's own functions too, on a real SQLite that was put
into the state before it, and what they leave is compared with the state after it, row by row.
"""

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest

from pastebin_daemon import inbox, outbox
from pastebin_daemon.database import Tx
from pastebin_daemon.database.migrate import bring_up
from tests.protocol_model import (
    ATTEMPTS_MAX,
    LEASE,
    RETENTION,
    RULES,
    WINDOW,
    Claim,
    Job,
    Move,
    State,
    explore,
)  # fmt: skip

NOW_MS, TICK_MS = 1_000_000, 1000
KIND, CONSUMER = "object-delete", 1

NEEDED = {
    "lease_end": "G6",
    "lease_waits": "G6",
    "effect_first": "G7",
    "inbox_with_ack": "G5",
    "exhausted_asks": "G7",
    "sweep_asks": "G9",
    "retention_longer": "G9",
    "replay_keeps": "G9",
}

Rows = tuple[Job | None, tuple[tuple[int, int], ...]]
Step = tuple[str, Rows, Claim | None, str, Rows]


@pytest.fixture(scope="module")
def steps() -> set[Step]:
    """Every step of the search as the database sees it: what was done, by whom, and the rows before and after."""
    found: set[Step] = set()

    def see(state: State, move: Move) -> None:
        if move.name in ("a tick passes", "the clock is set ahead", "the clock is set back", "crash", "failure"):
            return
        if move.name.startswith("effect"):
            return
        claim = state.workers[move.worker] if move.worker >= 0 else None
        name = state.names[move.worker] if move.worker >= 0 else ""
        after = move.after.job, move.after.inbox
        found.add((move.name, (state.job, state.inbox), claim and claim._replace(current=True), name, after))

    result = explore(see=see)
    assert result.broken == "", result.story
    assert result.states > 200_000, "the search has gone everywhere"
    return found


def test_no_order_of_events_breaks_the_protocol(steps: set[Step]) -> None:
    assert {name for name, *_ in steps} == {
        "claim", "reclaim", "ack", "retry", "give_back", "bury", "bury_exhausted", "replay", "discard", "sweep",
    }  # fmt: skip


@pytest.mark.parametrize("rule", NEEDED)
def test_without_this_rule_a_promise_is_broken(rule: str) -> None:
    found = explore(RULES - {rule}, troubles=2)
    assert found.broken.startswith(NEEDED[rule]), found
    assert len(found.story) <= 9, "the shortest story of it"


def test_the_owner_and_the_generation_are_two_locks_on_one_door() -> None:
    """A generation is used once, so it says whose claim it is; and an owner that claims one job once says it too."""
    assert explore(RULES - {"owner", "generation"}).broken.startswith("G6")
    assert explore(RULES - {"generation"}, owners=("A", "A")).broken.startswith("G6")


def test_every_rule_has_a_test() -> None:
    assert set(NEEDED) | {"owner", "generation"} == RULES


@pytest.fixture(scope="module")
def connection() -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        bring_up(connection, "metadata")
        yield connection


@contextmanager
def put_into(connection: sqlite3.Connection, rows: Rows) -> Iterator[Tx]:
    """A transaction in which the tables hold these rows, and after which they are as before."""
    job, done = rows
    connection.execute("begin")
    try:
        if job is not None:
            connection.execute("insert into sqlite_sequence (name, seq) values ('outbox', ?)", (job.id,))
            at = NOW_MS + job.at * TICK_MS
            if job.state == "dead":
                connection.execute(
                    "insert into dead_letters (id, kind, payload, created_ms, attempts, generation, reason, died_ms)"
                    " values (?, ?, '{}', 0, ?, ?, 'r', ?)",
                    (job.id, KIND, job.attempts, job.generation, at),
                )
            else:
                leased = job.state == "leased"
                connection.execute(
                    "insert into outbox (id, kind, payload, created_ms, first_due_ms, due_ms, state, attempts, generation,"
                    " owner, lease_ms) values (?, ?, '{}', 0, 0, ?, ?, ?, ?, ?, ?)",
                    (
                        job.id, KIND, 0 if leased else at, job.state, job.attempts, job.generation,
                        job.owner if leased else None, at if leased else None,
                    ),
                )  # fmt: skip
        connection.executemany(
            "insert into inbox values (?, ?, ?)", [(row, CONSUMER, (NOW_MS + at * TICK_MS) // 1000) for row, at in done]
        )
        yield Tx(connection, NOW_MS)
    finally:
        connection.execute("rollback")


def found_in(tx: Tx) -> Rows:
    def from_now(ms: int) -> int:
        ticks, rest = divmod(ms - NOW_MS, TICK_MS)
        assert rest == 0
        return ticks

    jobs = [
        Job(id, state, attempts, generation, from_now(lease_ms if state == "leased" else due_ms), owner or "")
        for id, state, attempts, generation, due_ms, lease_ms, owner in tx.rows(
            "select id, state, attempts, generation, due_ms, lease_ms, owner from outbox"
        )
    ]
    jobs += [
        Job(id, "dead", attempts, generation, from_now(died_ms))
        for id, attempts, generation, died_ms in tx.rows("select id, attempts, generation, died_ms from dead_letters")
    ]
    assert len(jobs) <= 1
    done = tx.rows("select outbox_id, done_s * 1000 from inbox order by outbox_id")
    return (jobs[0] if jobs else None), tuple((row, from_now(done_ms)) for row, done_ms in done)


def act(tx: Tx, name: str, before: Rows, claim: Claim | None, owner: str) -> None:
    """What the program does for a step of the model."""
    job = before[0]
    held = claim and outbox.Claim(claim.id, KIND, "{}", 0, claim.attempts, claim.generation, "due")
    match name:
        case "claim":
            (taken,) = outbox.claim(tx, KIND, owner, LEASE * TICK_MS, 10)
            assert inbox.seen(tx, CONSUMER, [taken.job]) == {taken.job} & {row for row, _ in before[1]}
        case "reclaim":
            assert outbox.claim(tx, KIND, owner, LEASE * TICK_MS, 10) == []
            (_,) = outbox.reclaim(tx, KIND, owner, LEASE * TICK_MS, ATTEMPTS_MAX)
        case "bury_exhausted":
            assert outbox.reclaim(tx, KIND, owner, LEASE * TICK_MS, ATTEMPTS_MAX) == []
            outbox.bury_exhausted(tx, KIND, CONSUMER, ATTEMPTS_MAX, 10)
        case "ack":
            assert held is not None
            assert claim is not None
            if claim.phase == "done":
                inbox.record(tx, CONSUMER, [held.job])
            outbox.ack(tx, owner, [held])
        case "retry":
            assert held is not None
            outbox.retry(tx, owner, [(held, NOW_MS + TICK_MS, "e")])
        case "give_back":
            assert held is not None
            outbox.give_back(tx, owner, [(held, "e")])
        case "bury":
            assert held is not None
            outbox.bury(tx, owner, [(held, "r", "e")])
        case "replay":
            assert job is not None
            outbox.replay(tx, job.id, "ann", WINDOW * TICK_MS)
        case "discard":
            assert job is not None
            assert outbox.discard(tx, job.id)
        case "sweep":
            inbox.sweep(tx, 0, RETENTION * TICK_MS, 10)


def test_the_sql_takes_every_step_as_the_model_does(steps: set[Step], connection: sqlite3.Connection) -> None:
    assert len(steps) > 3000
    for name, before, claim, owner, after in steps:
        if name == "sweep" and len(before[1]) > 1:
            continue  # the program's sweep takes all that may go, the model's one of them
        with put_into(connection, before) as tx:
            act(tx, name, before, claim, claim.owner if claim else owner)
            assert found_in(tx) == after, f"{name} by {owner}: {before} {claim}"


def test_nobody_takes_what_is_held_or_not_due(steps: set[Step], connection: sqlite3.Connection) -> None:
    tried = 0
    for before in {before for _, before, *_ in steps}:
        job = before[0]
        if job is not None and (job.state == "dead" or job.at > 0):
            with put_into(connection, before) as tx:
                assert outbox.claim(tx, KIND, "C", LEASE * TICK_MS, 10) == []
                assert outbox.reclaim(tx, KIND, "C", LEASE * TICK_MS, ATTEMPTS_MAX) == []
                assert outbox.bury_exhausted(tx, KIND, CONSUMER, ATTEMPTS_MAX, 10) == (set(), set())
                assert found_in(tx) == before
            tried += 1
    assert tried > 100


@pytest.mark.parametrize("lock", ["owner", "generation"])
def test_each_of_the_two_locks_holds_by_itself(steps: set[Step], connection: sqlite3.Connection, lock: str) -> None:
    """A settlement that has the one right and the other wrong, which no order of events leads to, moves nothing."""
    tried = 0
    for name, before, claim, _, after in steps:
        if (
            claim is None
            or name not in ("ack", "retry", "give_back", "bury")
            or after == before
            or before[1] != after[1]
        ):
            continue
        for wrong in (
            [claim._replace(owner=f"not {claim.owner}")]
            if lock == "owner"
            else [claim._replace(generation=claim.generation + more) for more in (-1, 1)]
        ):
            with put_into(connection, before) as tx:
                act(tx, name, before, wrong, wrong.owner)
                assert found_in(tx) == before, f"{name}: {before} {wrong}"
            tried += 1
    assert tried > 100
