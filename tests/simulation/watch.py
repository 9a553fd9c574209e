"""The judge: what must hold after every commit, at the instant at which an effect lands, and of every answer.

It looks at the whole database after each commit and compares it with what was there before, and it knows what has
really happened to the store and the edge, which the daemon does not. Its findings are named after the guarantees.
"""

import json
import sqlite3
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, NamedTuple

from pastebin_daemon.outbox import EDGE_PURGE, OBJECT_DELETE, REAP
from tests.simulation.world import Edge, SimClock, Store

__all__ = ["ROGUE", "Told", "Violation", "Watch"]

ROGUE = "rogue"
"""The paste that is named by a job on a live object, which only a bug could enqueue."""
PAUSE_S = 600.0
"""For how long nothing expires after the clock was set (sweepers.py)."""
CONSUMERS = {OBJECT_DELETE: 1, EDGE_PURGE: 2, REAP: 3}


@dataclass(frozen=True)
class Violation:
    guarantee: str
    text: str

    def __str__(self) -> str:
        return f"{self.guarantee}: {self.text}"


@dataclass
class Told:
    """What is known of one paste: what its client was told, and what has become of it."""

    id: str
    object: str
    expires_ms: int | None
    body_sha256: bytes
    made: bool = False
    """Its 201 was answered."""
    ended: bool = False
    """The commit of its ending was seen."""
    gone: bool = False
    """The 204 of its delete was answered."""
    revived: bool = False
    """An operator has gone back to a copy of the database from before its ending, or from before its create."""


class Job(NamedTuple):
    id: int
    kind: str
    payload: str
    state: str
    attempts: int
    generation: int
    owner: str | None
    lease_ms: int | None
    due_ms: int


class Dead(NamedTuple):
    id: int
    kind: str
    payload: str
    attempts: int
    generation: int
    reason: str


@dataclass
class Rows:
    """The database at one instant."""

    pastes: dict[str, tuple[str, int | None, bytes]] = field(default_factory=dict)
    uploads: dict[str, int] = field(default_factory=dict)
    jobs: dict[int, Job] = field(default_factory=dict)
    dead: dict[int, Dead] = field(default_factory=dict)
    inbox: dict[tuple[int, int], int] = field(default_factory=dict)
    totals: tuple[int, ...] = ()
    sizes: int = 0

    @classmethod
    def of(cls, connection: sqlite3.Connection) -> "Rows":
        def rows(sql: str) -> list[Any]:
            return connection.execute(sql).fetchall()

        pastes = rows("select id, object, expires_ms, sha256, size from pastes")
        return cls(
            {row[0]: row[1:4] for row in pastes},
            dict(rows("select object, started_ms from uploads")),
            {row[0]: Job(*row) for row in rows(f"select {', '.join(Job._fields)} from outbox")},
            {row[0]: Dead(*row) for row in rows(f"select {', '.join(Dead._fields)} from dead_letters")},
            {(row[0], row[1]): row[2] for row in rows("select outbox_id, consumer, done_s from inbox")},
            rows("select pastes, bytes, pending, leased, dead_letters, inbox from totals")[0],
            sum(row[4] for row in pastes),
        )


class Watch:
    def __init__(
        self, clock: SimClock, loop_now: Callable[[], float], *, attempts_max: int, reap_after_s: float,
        retention_ms: int, purges: int, say: Callable[[str], None],
        halt: Callable[[], None],
    ) -> None:  # fmt: skip
        self.violations: list[Violation] = []
        self.told: dict[str, Told] = {}
        self.settling: set[tuple[str, int, int]] = set()
        """Owner, job and generation of each settlement in the commit that is under way."""
        self.discarded: set[str] = set()
        """Objects and ids of jobs that the operator gave up."""
        self.leaked: set[str] = set()
        """Objects that only a database knew of that an operator has put away."""
        self.rogue: set[str] = set()
        """Objects of live pastes on which a job was enqueued all the same, as by a bug."""
        self.stepped: tuple[float, float] | None = None
        """When the wall clock was set by more than a minute under a running process, if it was set once; how far."""
        self.outages_only = False
        """Whether nothing goes wrong but outages: then no job may die of them."""
        self.commits = 0
        self.effects = 0
        self.store: Store
        self.edge: Edge
        self.rows = Rows()
        self.say = say
        self._halt = halt
        self._clock = clock
        self._now = loop_now
        self._attempts_max = attempts_max
        self._reap_after_s = reap_after_s
        self._retention_ms = retention_ms
        self._purges = purges
        self._by_object: dict[str, str] = {}
        self._purged: dict[str, float] = {}
        self._enqueued: dict[int, float] = {}
        self._known: dict[int, Job] = {}
        self._was_done: dict[tuple[int, int], bool] = {}
        """Of each claim, whether the inbox had the job's row."""

    def fail(self, guarantee: str, text: str) -> None:
        self.say(f"VIOLATION {guarantee}: {text}")
        self.violations.append(Violation(guarantee, text))
        self._halt()

    # --- effects, at the instant at which they land

    def putting(self, key: str, body: bytes) -> None:
        self.effects += 1
        self.say(f"the store holds {key}")
        if key in self.store.objects:
            self.fail("G13", f"the object {key} was put twice")

    def removing(self, key: str, age_s: float) -> None:
        self.effects += 1
        self.say(f"the store removes {key}")
        for paste, (object_key, _, _) in self.rows.pastes.items():
            if object_key == key:
                self.fail("G4", f"the object {key} of the live paste {paste} was removed")
        if key in self.rows.uploads:
            self.fail("G12", f"the object {key} was removed while its upload is under way")
        if key not in self._by_object and age_s < self._reap_after_s:
            self.fail("G12", f"the object {key} was reaped {age_s:.0f} s after its upload")

    def purging(self, tag: str) -> None:
        self.effects += 1
        self.say(f"the edge drops {tag}")
        self._purged[tag] = self._now()

    def running(self, claims: Iterable[tuple[int, int]]) -> None:
        """The effects of these claims (job and generation) are about to begin."""
        for job, generation in claims:
            if self._was_done.get(
                (job, generation)
            ):  # a row that came after the claim is nobody's fault: twice is once
                self.fail("G9", f"job {job} is done again, and the inbox had its row when it was claimed")

    # --- commits

    def opened(self, connection: sqlite3.Connection) -> None:
        """A process begins on what the one before it had committed."""
        found = Rows.of(connection)
        if found != self.rows and self.commits:
            self.fail("G1", f"after a restart the database holds {found}, and {self.rows} was committed")
        self.rows = found

    def committed(self, connection: sqlite3.Connection) -> None:
        before, after = self.rows, Rows.of(connection)
        self.rows = after
        self.commits += 1
        now_ms = self._clock.now_ms()
        new_jobs = self._judge_new_jobs(before, after, now_ms)
        self._judge_pastes(before, after, new_jobs, now_ms)
        self._judge_uploads(before, after, new_jobs)
        for job, row in after.jobs.items():
            if row.state == "leased":
                self._was_done.setdefault((job, row.generation), (job, CONSUMERS[row.kind]) in before.inbox)
        for job, old in before.jobs.items():
            new = after.jobs.get(job)
            if new is not old and new != old:
                self._judge_move(old, new, before, after)
        self._judge_dead(before, after)
        self._judge_inbox(before, after, now_ms)
        self._judge_totals(after)

    def _judge_new_jobs(self, before: Rows, after: Rows, now_ms: int) -> list[Job]:
        new_jobs = []
        replayed = [dead for job, dead in before.dead.items() if job not in after.dead]
        for job, row in after.jobs.items():
            if job in before.jobs:
                continue
            self._known[job] = row
            came_back = next((dead for dead in replayed if (dead.kind, dead.payload) == (row.kind, row.payload)), None)
            if came_back is not None:
                replayed.remove(came_back)
                self.say(f"job {came_back.id} is replayed as {job}")
                if job == came_back.id and row.generation < came_back.generation:
                    self.fail("G9", f"job {job} lost its generation by the replay")
            else:
                new_jobs.append(row)
                self.say(f"job {job}: {row.kind} {row.payload}, due in {(row.due_ms - now_ms) / 1000:.0f} s")
            self._enqueued.setdefault(job, self._now())
            if job != (came_back.id if came_back else None):
                self._enqueued[job] = self._now()
        for dead in replayed:
            if dead.id not in after.jobs:
                subject = json.loads(dead.payload)
                if not ({subject.get("object"), subject.get("paste")} & self.discarded):
                    self.fail("G5", f"dead letter {dead.id} is gone and nobody replayed or discarded it")
        return new_jobs

    def _judge_pastes(self, before: Rows, after: Rows, new_jobs: Sequence[Job], now_ms: int) -> None:
        for paste, (key, expires_ms, digest) in after.pastes.items():
            if paste in before.pastes:
                continue
            self.say(f"{paste} is committed with {key}")
            self.told.setdefault(paste, Told(paste, key, expires_ms, digest))
            self._by_object[key] = paste
            if key not in before.uploads or key in after.uploads:
                self.fail("G12", f"{paste} was committed without its upload's record")
            stored = self.store.objects.get(key)
            if stored is None or sha256(stored[0]).digest() != digest:
                self.fail("G1", f"{paste} was committed and the store does not hold its body")
        payloads = [json.loads(job.payload) for job in new_jobs if job.kind == OBJECT_DELETE]
        deletes = [payload["object"] for payload in payloads if payload["paste"] != ROGUE]
        purges = [json.loads(job.payload)["paste"] for job in new_jobs if job.kind == EDGE_PURGE]
        for paste, (key, expires_ms, _) in before.pastes.items():
            if paste in after.pastes:
                continue
            self.say(f"{paste} is ended")
            self.told[paste].ended = True
            if deletes.count(key) != 1:
                self.fail("G3", f"{paste} was ended with {deletes.count(key)} object-delete jobs")
            else:
                deletes.remove(key)
            count, expired = purges.count(paste), expires_ms is not None and expires_ms <= now_ms
            if count == 0 and self._is_early(expires_ms or 0, now_ms):
                self.fail("expiry", f"{paste} was ended by a clock that had just been set")
            if count != self._purges and not (expired and count == 0):
                self.fail("G3", f"{paste} was ended with {count} purges")
            purges = [other for other in purges if other != paste]
        for subject in deletes + purges:
            self.fail("G3", f"a job on {subject} was enqueued and nothing was ended")

    def _judge_uploads(self, before: Rows, after: Rows, new_jobs: Sequence[Job]) -> None:
        reaps = [json.loads(job.payload)["object"] for job in new_jobs if job.kind == REAP]
        owned = {key for key, _, _ in after.pastes.values()}
        for key in before.uploads:
            if key not in after.uploads and key not in owned and key not in reaps:
                self.fail("G3", f"the upload of {key} is forgotten and nothing reaps it")
        for key in reaps:
            if (key in owned or key in after.uploads) and key not in self.rogue:
                self.fail("G12", f"a reap of {key} was enqueued, which is owned or under way")

    def _judge_move(self, old: Job, new: Job | None, before: Rows, after: Rows) -> None:
        now_ms = self._clock.now_ms()
        held = self._is_held(old)
        settled = held and (old.owner, old.id, old.generation) in self.settling
        exhausted = old.state == "leased" and not held and old.attempts >= self._attempts_max
        if new is None:
            if not settled and not exhausted:
                self.fail("G6", f"job {old.id} was settled by a claim that did not hold it: {old}")
            if old.id in after.dead:
                return
            self.say(f"job {old.id} is acked")
            row = (old.id, CONSUMERS[old.kind])
            if row not in after.inbox and row not in before.inbox:  # an old one may have been swept in this very commit
                self.fail("G5", f"job {old.id} ({old.kind}) is gone without a dead letter and without an inbox row")
            if not self._has_happened(old):
                self.fail("G5", f"job {old.id} was acked, and its effect has not happened: {old.kind} {old.payload}")
            return
        self.say(
            f"job {new.id}: {new.state}, generation {new.generation}, attempts {new.attempts}, "
            f"due in {(new.due_ms - now_ms) / 1000:.0f} s, owner {(new.owner or '-')[:4]}"
        )
        if new.generation < old.generation:
            self.fail("G9", f"the generation of job {old.id} went back: {old} -> {new}")
        if new.attempts > self._attempts_max or new.attempts < 0:
            self.fail("G5", f"job {old.id} has {new.attempts} attempts")
        if new.state == "leased":
            if new.generation == old.generation:
                self.fail("G6", f"job {old.id} was claimed under a generation that was used before")
            if old.state == "leased" and held and not settled:
                self.fail("G6", f"job {old.id} was claimed while another claim held it: {old} -> {new}")
        elif old.state == "leased" and not settled:
            self.fail("G6", f"job {old.id} was put back by a claim that did not hold it: {old} -> {new}")

    def _is_held(self, job: Job) -> bool:
        return job.state == "leased" and (job.lease_ms or 0) > self._clock.now_ms()

    def _judge_dead(self, before: Rows, after: Rows) -> None:
        for job, dead in after.dead.items():
            if job in before.dead:
                continue
            self.say(f"job {job} is buried: {dead.reason}")
            old = before.jobs.get(job)
            if old is None or job in after.jobs:
                self.fail("G5", f"dead letter {job} was no job, or still is one")
            elif dead.generation != old.generation or dead.payload != old.payload or dead.kind != old.kind:
                self.fail("G9", f"dead letter {job} is not the job that died: {old} -> {dead}")
            if dead.reason == "row_is_live" and json.loads(dead.payload)["object"] not in self.rogue:
                self.fail("G4", f"job {job} was to remove the object of a live paste: {dead.payload}")
            if self.outages_only:
                self.fail("G5", f"an outage has buried job {job}: {dead}")
            if (job, CONSUMERS[dead.kind]) in before.inbox and old is not None and not self._is_held(old):
                self.fail("G7", f"job {job} was given up for want of attempts, and the inbox has its row")
            if dead.reason == "attempts_exhausted" and dead.attempts < self._attempts_max:
                self.fail("G5", f"job {job} was given up after {dead.attempts} attempts")

    def _is_early(self, expires_ms: int, now_ms: int) -> bool:
        """Whether it was time only by a clock that was set a moment ago."""
        if self.stepped is None or self._now() - self.stepped[0] >= PAUSE_S:
            return False
        return expires_ms > now_ms - int(self.stepped[1] * 1000)

    def _judge_inbox(self, before: Rows, after: Rows, now_ms: int) -> None:
        for (job, consumer), done_s in after.inbox.items():
            if (job, consumer) not in before.inbox:
                row = self._known.get(job)  # it may be gone: its claim was lost, and another's was settled
                if row is None or CONSUMERS[row.kind] != consumer or done_s * 1000 > now_ms:
                    self.fail("G7", f"an inbox row of job {job} and consumer {consumer}, which is none")
                elif not self._has_happened(row):
                    self.fail("G7", f"the inbox says that job {job} is done, and it is not: {row.kind} {row.payload}")
        for (job, consumer), done_s in before.inbox.items():
            if (job, consumer) not in after.inbox:
                if done_s * 1000 + 999 >= now_ms - self._retention_ms:
                    self.fail("G9", f"the inbox row of job {job} was swept {now_ms / 1000 - done_s:.0f} s after it")
                if job in after.jobs or job in after.dead:
                    self.fail("G9", f"the inbox row of job {job} was swept while the job is there")

    def _has_happened(self, job: Job) -> bool:
        subject = json.loads(job.payload)
        if job.kind == EDGE_PURGE:
            return self._purged.get(subject["paste"], -1.0) >= self._enqueued.get(job.id, 0.0)
        key = subject["object"]
        return key not in self.store.objects or (job.kind == REAP and self._owner(key) is not None)

    def _owner(self, key: str) -> str | None:
        return next((paste for paste, row in self.rows.pastes.items() if row[0] == key), None)

    def _judge_totals(self, rows: Rows) -> None:
        leased = sum(job.state == "leased" for job in rows.jobs.values())
        counted = (
            len(rows.pastes), rows.sizes, len(rows.jobs) - leased, leased, len(rows.dead), len(rows.inbox),
        )  # fmt: skip
        if counted != rows.totals:
            self.fail("totals", f"the totals say {rows.totals}, and there are {counted}")

    def restored(self, connection: sqlite3.Connection) -> None:
        """The operator has put an older copy in the place of the database."""
        self.rows = Rows.of(connection)
        for paste, told in self.told.items():
            told.revived = True
            told.ended = paste not in self.rows.pastes
            told.gone = False
        known = {key for key, _, _ in self.rows.pastes.values()} | set(self.rows.uploads)
        payloads = [job.payload for job in self.rows.jobs.values()] + [dead.payload for dead in self.rows.dead.values()]
        known |= {json.loads(payload).get("object") for payload in payloads}
        self.leaked |= set(self.store.objects) - known
        self._enqueued.clear()
        self._known = dict(self.rows.jobs)
        self._was_done.clear()
