"""A model of what two workers may do to one job, searched whole: every order of claim, effect, settlement, crash, end of a
lease, step of the clock, replay, discard and sweep, within small bounds.

    python -m tests.protocol_model                       # the protocol as it is
    python -m tests.protocol_model --without generation lease_end

Time is in ticks, and every instant is kept as its distance from now, so that the search has an end and time has none. A
lease is `LEASE`, the replay window `WINDOW`, the retention of inbox rows `RETENTION`. Each claim knows whether it is the
current one, which no rule may look at: the invariants do. Crashes, steps of the clock and replays are few: `TROUBLES` in all.

| invariant | what it says                                                                                        |
|-----------|-----------------------------------------------------------------------------------------------------|
| G5        | a job is gone only when its effect has happened or somebody discarded it; its attempts are bounded    |
| G6        | only the current claim, and only while its lease lasts, changes a job                                 |
| G7        | an inbox row is of an effect that happened; a job whose row is there is not given up for its attempts |
| G9        | a row is kept while its job or dead letter is there; no generation comes back for an id               |

Breadth first, so what is found is a shortest story. Each rule can be dropped, which shows what it is good for.
"""

import argparse
import sys
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

__all__ = [
    "ATTEMPTS_MAX", "LEASE", "RETENTION", "RULES", "WINDOW", "Claim", "Found", "Job", "Move", "State", "explore",
]  # fmt: skip

LEASE, WINDOW, RETENTION = 2, 2, 3
AHEAD, BACK = 3, 2
TROUBLES = 1
GENERATION_MAX = 4
LONG = RETENTION + BACK + 1
"""What is longer ago than this is no different from what is this long ago."""
ATTEMPTS_MAX = 2

RULES = frozenset({
    "owner",  # of the fence
    "generation",  # of the fence
    "lease_end",  # of the fence
    "lease_waits",  # nobody takes a lease over before its end
    "effect_first",  # the inbox row is written after the effect
    "inbox_with_ack",  # ... and not later than the ack
    "exhausted_asks",  # in the inbox, before it gives a job up
    "sweep_asks",  # whether the job is still there
    "retention_longer",  # than the replay window
    "replay_keeps",  # the generation
})  # fmt: skip


class Job(NamedTuple):
    id: int
    state: str
    """pending, leased, dead"""
    attempts: int
    generation: int
    at: int
    """From now: when it is due, its lease is over, or it died."""
    owner: str = ""


class Claim(NamedTuple):
    """What a worker holds in its memory."""

    id: int
    attempts: int
    generation: int
    owner: str
    phase: str
    """claimed, seen (the inbox has its row), done, failed, acked (without an inbox row yet: only without a rule)"""
    current: bool
    """Whether nobody has claimed the job since. No rule looks at it."""


class State(NamedTuple):
    job: Job | None
    effects: frozenset[int]
    inbox: tuple[tuple[int, int], ...]
    """Id and time of each row, from now."""
    workers: tuple[Claim | None, ...]
    names: tuple[str, ...]
    """The owner that each worker claims as. A crash gives it a new one."""
    used: int
    """The highest generation of the id that was ever claimed."""
    troubles: int


class Move(NamedTuple):
    name: str
    worker: int
    after: State


@dataclass(frozen=True)
class Found:
    """How a search ended: the invariant that is broken, with the shortest story of it, or none."""

    states: int
    moves: int
    broken: str = ""
    story: tuple[str, ...] = ()


def start(owners: tuple[str, ...], troubles: int) -> State:
    return State(Job(1, "pending", 0, 0, 0), frozenset(), (), (None,) * len(owners), owners, 0, troubles)


def _held(state: State, claim: Claim, rules: frozenset[str]) -> bool:
    job = state.job
    return (
        job is not None
        and job.state == "leased"
        and job.id == claim.id
        and ("owner" not in rules or job.owner == claim.owner)
        and ("generation" not in rules or job.generation == claim.generation)
        and ("lease_end" not in rules or job.at > 0)
    )


def _with_row(state: State, job: int) -> State:
    rows = dict(state.inbox)
    rows.setdefault(job, 0)
    return state._replace(inbox=tuple(sorted(rows.items())))


def _worker(state: State, number: int, claim: Claim | None) -> State:
    return state._replace(workers=(*state.workers[:number], claim, *state.workers[number + 1 :]))


def _later(state: State, ticks: int) -> State:
    job = state.job
    if job is not None:
        job = job._replace(at=max(-LONG, job.at - ticks))
    inbox = tuple((row, max(-LONG, done - ticks)) for row, done in state.inbox)
    return state._replace(job=job, inbox=inbox)


def moves(state: State, rules: frozenset[str]) -> Iterator[Move]:
    """Everything that can happen next."""
    yield Move("a tick passes", -1, _later(state, 1))
    if state.troubles:
        worse = state._replace(troubles=state.troubles - 1)
        yield Move("the clock is set ahead", -1, _later(worse, AHEAD))
        yield Move("the clock is set back", -1, _later(worse, -BACK))
    yield from _of_nobody(state, rules)
    for number, claim in enumerate(state.workers):
        if claim is None:
            yield from _claims(state, number, rules)
            continue
        yield from _of_a_worker(state, number, claim, rules)
        if state.troubles:
            names = tuple(f"{name}'" if number == n else name for n, name in enumerate(state.names))
            yield Move("crash", number, _worker(worse, number, None)._replace(names=names))


def _of_nobody(state: State, rules: frozenset[str]) -> Iterator[Move]:
    job, rows = state.job, dict(state.inbox)
    if job is not None and job.state == "leased" and job.at <= 0 and job.attempts >= ATTEMPTS_MAX:
        if job.id in rows and "exhausted_asks" in rules:
            yield Move("bury_exhausted", -1, state._replace(job=None))
        else:
            yield Move("bury_exhausted", -1, state._replace(job=job._replace(state="dead", at=0, owner="")))
    if job is not None and job.state == "dead":
        yield Move("discard", -1, state._replace(job=None))
        if state.troubles:
            yield Move("replay", -1, _replayed(state._replace(troubles=state.troubles - 1), job, rules))
    retention = RETENTION if "retention_longer" in rules else WINDOW - 1
    for row, done in rows.items():
        wanted = "sweep_asks" in rules and job is not None and job.id == row
        if done < -retention and not wanted:
            yield Move("sweep", -1, state._replace(inbox=tuple(pair for pair in state.inbox if pair[0] != row)))


def _replayed(state: State, job: Job, rules: frozenset[str]) -> State:
    if -job.at < WINDOW:
        return state._replace(job=Job(job.id, "pending", 0, job.generation if "replay_keeps" in rules else 0, 0))
    return state._replace(job=Job(job.id + 1, "pending", 0, 0, 0), used=0)


def _claims(state: State, number: int, rules: frozenset[str]) -> Iterator[Move]:
    job = state.job
    if job is None or job.state == "dead" or job.generation >= GENERATION_MAX:
        return
    if job.state == "pending" and job.at <= 0:
        name = "claim"
    elif job.state == "leased" and job.at <= (0 if "lease_waits" in rules else 1) and job.attempts < ATTEMPTS_MAX:
        name = "reclaim"
    else:
        return
    owner = state.names[number]
    taken = Job(job.id, "leased", job.attempts + 1, job.generation + 1, LEASE, owner)
    phase = "seen" if job.id in dict(state.inbox) else "claimed"
    others = tuple(None if other is None else other._replace(current=False) for other in state.workers)
    claim = Claim(job.id, taken.attempts, taken.generation, owner, phase, current=True)
    after = state._replace(job=taken, used=max(state.used, taken.generation), workers=others)
    after = _worker(after, number, claim)
    yield Move(name, number, after if "effect_first" in rules else _with_row(after, job.id))


def _of_a_worker(state: State, number: int, claim: Claim, rules: frozenset[str]) -> Iterator[Move]:
    idle = _worker(state, number, None)
    held = _held(state, claim, rules)
    if claim.phase == "claimed":
        happened = state._replace(effects=state.effects | {claim.id})
        yield Move("effect", number, _worker(happened, number, claim._replace(phase="done")))
        yield Move("effect, its answer lost", number, _worker(happened, number, claim._replace(phase="failed")))
        yield Move("failure", number, _worker(state, number, claim._replace(phase="failed")))
    elif claim.phase in ("done", "seen"):
        acked = idle._replace(job=None) if held else idle
        if claim.phase == "seen":
            yield Move("ack", number, acked)
        elif "inbox_with_ack" in rules:
            yield Move("ack", number, _with_row(acked, claim.id))
        else:
            yield Move("ack", number, _worker(acked, number, claim._replace(phase="acked")))
    elif claim.phase == "acked":
        yield Move("inbox row", number, _with_row(idle, claim.id))
    else:
        moved = state.job if held else None
        if claim.attempts < ATTEMPTS_MAX:
            yield Move("retry", number, _back(idle, moved, 1, 0))
        yield Move("give_back", number, _back(idle, moved, 0, 1))
        buried = idle if moved is None else idle._replace(job=moved._replace(state="dead", at=0, owner=""))
        yield Move("bury", number, buried)


def _back(idle: State, job: Job | None, due: int, returned: int) -> State:
    if job is None:
        return idle
    return idle._replace(job=job._replace(state="pending", at=due, owner="", attempts=job.attempts - returned))


def broken_by(before: State, move: Move) -> str:
    """The invariant that this step breaks, in a line; or ""."""
    job, new, name = before.job, move.after.job, move.name
    if new is not None and not 0 <= new.attempts <= ATTEMPTS_MAX:
        return f"G5: the job has {new.attempts} attempts"
    if job is not None and new is None and name != "discard":
        if job.id not in move.after.effects:
            return "G5: the job is gone and its effect has not happened"
        if name == "ack" and job.id not in dict(move.after.inbox):
            return "G5: the job is gone and the inbox knows nothing of it"
    if name in ("ack", "retry", "give_back", "bury") and job != new:
        claim = before.workers[move.worker]
        if claim is None or job is None or not claim.current or job.at <= 0:
            return f"G6: {name} by a claim that is not the current one"
    if name == "reclaim" and job is not None and job.at > 0:
        return "G6: a lease is taken over before its end"
    if any(row not in move.after.effects for row, _ in move.after.inbox):
        return "G7: an inbox row of an effect that has not happened"
    if name == "bury_exhausted" and job is not None and new is not None and job.id in dict(before.inbox):
        return "G7: a job whose effect is known to have happened is given up"
    if name == "sweep":
        (row,) = {row for row, _ in before.inbox} - {row for row, _ in move.after.inbox}
        if job is not None and job.id == row:
            return "G9: an inbox row is swept while its job is there"
        if dict(before.inbox)[row] >= -WINDOW:
            return "G9: an inbox row is swept within the replay window"
    if name in ("claim", "reclaim") and new is not None and new.generation <= before.used:
        return f"G9: generation {new.generation} is used twice"
    return ""


def explore(
    rules: frozenset[str] = RULES, owners: tuple[str, ...] = ("A", "B"), *, troubles: int = TROUBLES,
    see: Callable[[State, Move], None] = lambda state, move: None,
) -> Found:  # fmt: skip
    """Search everything. `see` is shown each step."""
    first = start(owners, troubles)
    before: dict[State, tuple[State, str] | None] = {first: None}
    queue, count = deque([first]), 0
    while queue:
        state = queue.popleft()
        for move in moves(state, rules):
            count += 1
            broken = broken_by(state, move)
            if broken:
                return Found(len(before), count, broken, _story(before, state, _told(state, move)))
            see(state, move)
            if move.after not in before:
                before[move.after] = state, _told(state, move)
                queue.append(move.after)
    return Found(len(before), count)


def _told(state: State, move: Move) -> str:
    return f"{state.names[move.worker]}: {move.name}" if move.worker >= 0 else move.name


def _story(before: dict[State, tuple[State, str] | None], state: State, last: str) -> tuple[str, ...]:
    told = [last]
    step = before[state]
    while step is not None:
        state, text = step
        told.append(text)
        step = before[state]
    return tuple(reversed(told))


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.protocol_model", description=__doc__.partition("\n")[0])
    parser.add_argument("--without", nargs="*", default=[], choices=sorted(RULES))
    parser.add_argument("--owners", nargs=2, default=["A", "B"])
    parser.add_argument("--troubles", type=int, default=TROUBLES)
    options = parser.parse_args()
    found = explore(RULES - set(options.without), tuple(options.owners), troubles=options.troubles)
    print("\n".join((*found.story, found.broken or "nothing is broken")))
    print(f"{found.states} states, {found.moves} moves")
    return 1 if found.broken else 0


if __name__ == "__main__":
    sys.exit(main())
