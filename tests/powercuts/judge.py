"""Whether what is found after a cut, or after a process that ended, keeps what was promised before.

First the files are opened by the daemon itself, and each must hold exactly what one of its commits left: not an earlier
one than somebody was told of, not a later one than had begun. Then the promises, each by its name in the domain, from
the facts that were noted before the cut. Then the daemon works off what is there, with time passing, to a state in which
the store has the objects of the live rows and no other, every live paste is read byte for byte, and creates and deletes
go on.
"""

import hashlib
import json
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pastebin_daemon import pastes
from pastebin_daemon.config import Config
from pastebin_daemon.creation import Draft
from pastebin_daemon.database import Database, Tx
from pastebin_daemon.errors import PastebinError, StartError
from pastebin_daemon.ids import token_sha256
from tests.fakes import FakeClock
from tests.powercuts.daemon import (
    PURGE_DELAYS_MS,
    Committed,
    Ended,
    Made,
    Parts,
    Purged,
    Removed,
    Returned,
    Settled,
    State,
    Stored,
    opened,
    state_of,
)  # fmt: skip
from tests.powercuts.disk import Entry, Note
from tests.powercuts.life import Ending, Migrates, NotEnded, NotMade, Violation, later_scripts

__all__ = ["Promises", "judge"]

ROUNDS_MAX = 60


@dataclass
class Promises:
    """What had been said up to a place in the log. `advance` reads on."""

    log: Sequence[Entry]
    at: int = 0
    commits: dict[str, list[Committed]] = field(default_factory=dict)
    returned: dict[str, int] = field(default_factory=dict)
    made: dict[str, Made] = field(default_factory=dict)
    ending: set[str] = field(default_factory=set)
    ended: dict[str, str] = field(default_factory=dict)
    settled: dict[int, str] = field(default_factory=dict)
    purged: set[str] = field(default_factory=set)
    never: dict[bytes, str] = field(default_factory=dict)
    objects: dict[str, bytes] = field(default_factory=dict)
    """What the bucket holds."""
    replayed: set[int] = field(default_factory=set)
    payloads: dict[int, tuple[str, str]] = field(default_factory=dict)
    """Job → kind and payload, of every job that a commit has shown."""
    swept: set[int] = field(default_factory=set)
    """Jobs of which the inbox has known, and may know no more."""
    is_later: bool = False

    def advance(self, until: int) -> None:
        while self.at < until:
            entry = self.log[self.at]
            if isinstance(entry, Note):
                self._hear(entry.fact)
            self.at += 1

    def _hear(self, fact: object) -> None:
        match fact:
            case Committed():
                self.commits.setdefault(fact.file, []).append(fact)
                self.show(fact.state)
            case Returned():
                self.returned[fact.file] = fact.number
            case Made():
                self.made[fact.paste] = fact
            case Ending(paste):
                self.ending.add(paste)
            case NotEnded(paste):
                self.ending.discard(paste)
            case Ended(paste, reason):
                self.ended[paste] = reason
            case Settled(jobs, transition):
                self.settled |= dict.fromkeys(jobs, transition)
            case NotMade(body):
                self.never[hashlib.sha256(body).digest()] = "a create that was refused"
            case Purged(paste):
                self.purged.add(paste)
            case Stored(key, body):
                self.objects[key] = body
            case Removed(key):
                self.objects.pop(key, None)
            case Migrates():
                self.is_later = True

    def show(self, state: State) -> None:
        for row in state.get("outbox", ()):
            self.payloads[row[0]] = (row[1], row[2])
        self.swept |= {row[0] for row in state.get("inbox", ())}

    def under_way(self, file: str) -> Committed | None:
        """The commit of the file that comes next: the cut may have come inside of it."""
        for entry in self.log[self.at :]:
            if isinstance(entry, Note) and isinstance(entry.fact, Committed) and entry.fact.file == file:
                return entry.fact
        return None


async def judge(
    config: Config, directory: Path, clock: FakeClock, promises: Promises, *, bucket: bool, exact: bool = True
) -> None:
    """Raises `Violation`. `exact`: every commit was noted, so that the state must be one of them."""
    async with AsyncExitStack() as stack:
        if promises.is_later:
            stack.enter_context(later_scripts())
        try:
            it = await stack.enter_async_context(
                opened(config, directory, clock, dict(promises.objects) if bucket else None)
            )
        except StartError as error:
            raise Violation("start", f"the daemon does not start again: {error}") from error
        states = {}
        for file, database in it.databases.items():
            if (found := await _look(database, "pragma integrity_check")) != [("ok",)]:
                raise Violation("integrity", f"{file}: {found[:3]}")
            states[file] = await _state(database)
            _one_commits(promises, file, states[file], exact=exact)
        if exact and promises.is_later and await _look(it.database, "select count(*) from later") == [(0,)]:
            raise Violation("migrations", "the rows that it copies are not there")
        _kept(promises, states["pastebin"], _bodies(it, states))
        await _work_off(it, promises)
        await _goes_on(it)
        for database in it.databases.values():
            if (found := await _look(database, "pragma integrity_check")) != [("ok",)]:
                raise Violation("integrity", f"after working off: {found[:3]}")


async def _look(database: Database, sql: str) -> list[tuple[Any, ...]]:
    def look(tx: Tx) -> list[tuple[Any, ...]]:
        return tx.rows(sql)

    return await database.read(look)


async def _state(database: Database) -> State:
    def look(tx: Tx) -> State:
        return state_of(tx.rows)

    return await database.read(look)


def _bodies(it: Parts, states: dict[str, State]) -> dict[str, bytes]:
    if "bodies" in states:
        return {row[0]: row[2] for row in states["bodies"]["objects"]}
    return {key: found.body for key, found in it.store.objects.items()}  # type: ignore[union-attr]  # it is the fake one here


def _one_commits(promises: Promises, file: str, found: State, *, exact: bool) -> None:
    commits, told = promises.commits.get(file, []), promises.returned.get(file, 0)
    allowed = [commit for commit in commits if commit.number >= max(told, 1)]
    following = promises.under_way(file)
    if following is not None:
        allowed.append(following)
    if any(commit.state == found for commit in allowed) or not exact:
        return
    for commit in commits:
        if commit.state == found:
            raise Violation("G1", f"{file} is as after its commit {commit.number}; {told} was acknowledged")
    wrong = []
    for table, rows in (allowed[-1].state if allowed else {}).items():
        wrong += [f"{table} +{len(found.get(table, frozenset()) - rows)} -{len(rows - found.get(table, frozenset()))}"]
    raise Violation("G3", f"{file} is as after no commit; against its last: {', '.join(wrong)}")


def _kept(promises: Promises, found: State, bodies: dict[str, bytes]) -> None:
    rows = {row[0]: row for row in found["pastes"]}
    jobs = {row[0]: (row[1], row[2]) for row in found["outbox"]}
    replayed = {row[0] for row in found["outbox"] if row[12] is not None}
    dead = {row[0]: (row[1], row[2]) for row in found["dead_letters"]}
    done = {(row[0], row[1]) for row in found["inbox"]}
    intents = {(kind, json.loads(payload).get("paste")) for kind, payload in (*jobs.values(), *dead.values())}
    for made in promises.made.values():
        if made.paste in rows:
            if bodies.get(made.object) != made.body:
                raise Violation("G1", f"the row of {made.paste} was acknowledged, and its body is not there")
            if ("object-delete", made.paste) in intents:
                raise Violation("G3", f"{made.paste} has a row, and a job that removes its object")
        elif made.paste not in promises.ended and ("object-delete", made.paste) not in intents:
            what = "its delete had begun and left no job" if made.paste in promises.ending else "nobody ended it"
            raise Violation("G3" if made.paste in promises.ending else "G1", f"{made.paste} has no row: {what}")
    for paste, reason in promises.ended.items():
        if paste in rows:
            raise Violation("G2", f"{paste} was ended ({reason}) and has a row again")
        made_ = promises.made.get(paste)
        if made_ is not None and made_.object in bodies and ("object-delete", paste) not in intents:
            raise Violation("G3", f"{paste} was ended ({reason}), its object is there and no job removes it")
        if reason != "expiry" and paste not in promises.purged and ("edge-purge", paste) not in intents:
            raise Violation("G3", f"{paste} was ended ({reason}), and no job purges it")
    for job, how in promises.settled.items():
        if (how == "ack" and (job in jobs or job in dead)) or (how == "bury" and job in jobs.keys() - replayed):
            raise Violation("G6", f"job {job} was settled ({how}) and is there again")
    for job, consumer in done:
        _, payload = promises.payloads.get(job, ("", "{}"))
        key = json.loads(payload).get("object")
        if consumer == 1 and key in bodies:
            raise Violation("G7", f"the inbox knows the effect of job {job}, and object {key} is there")
    for job in promises.payloads.keys() - jobs.keys() - dead.keys() - {job for job, _ in done} - promises.swept:
        raise Violation("G7", f"job {job} was acked, and the inbox does not know its effect")
    for row in found["pastes"]:
        if row[5] in promises.never:
            raise Violation("errors", f"{row[0]} is the paste of {promises.never[row[5]]}")
    owned = {row[1] for row in rows.values()} & {row[0] for row in found["uploads"]}
    if owned:
        raise Violation("G12", f"{owned} have a row and an upload's record")
    ((_, *totals),) = found["totals"]
    leased = sum(row[6] == "leased" for row in found["outbox"])
    counted = [
        len(rows), sum(row[4] for row in rows.values()), len(jobs) - leased, leased, len(dead), len(found["inbox"])
    ]  # fmt: skip
    if totals != counted:
        raise Violation("totals", f"they say {totals}, and there are {counted}")


async def _work_off(it: Parts, promises: Promises) -> None:
    for _ in range(ROUNDS_MAX):
        it.clock.advance(1900)
        for name in ("expiry", "uploads"):
            await it.sweepers[name].tick()
        for dispatcher in it.dispatchers.values():
            while await dispatcher.tick():
                pass
        if not (await _look(it.database, "select 1 from outbox union select 1 from uploads")):
            break
    else:
        raise Violation("G5", f"jobs that never end: {await _look(it.database, 'select * from outbox limit 3')}")
    state = await _state(it.database)
    bodies = _bodies(it, {file: await _state(each) for file, each in it.databases.items()})
    owned = {row[1] for row in state["pastes"]}
    buried = {json.loads(row[2]).get("object") for row in state["dead_letters"]}
    if bodies.keys() - buried != owned - buried:
        more, less = bodies.keys() - owned - buried, owned - bodies.keys()
        raise Violation(
            "G4" if less else "G3", f"objects without a row: {more or 'none'}; rows without: {less or 'none'}"
        )
    for row in state["pastes"]:
        try:
            entry = await it.reading.read(row[0])
        except PastebinError as error:
            raise Violation("G15", f"the live paste {row[0]} can't be read: {error!r}") from error
        made = promises.made.get(row[0])
        if made is not None and made.body != entry.body:
            raise Violation("G15", f"the body of {row[0]} is another")


async def _goes_on(it: Parts) -> None:
    try:
        made = await it.creation.create(Draft(b"one more", None, None, None), None)
        await it.database.write(pastes.delete, made.paste.id, token_sha256(made.delete_token), PURGE_DELAYS_MS)
        for name in ("inbox", "idempotency"):
            await it.sweepers[name].tick()
        for database in it.databases.values():
            await database.tend()
    except PastebinError as error:
        raise Violation("start", f"the daemon does not go on: {error!r}") from error
