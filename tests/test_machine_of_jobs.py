"""Jobs, dead letters and the inbox, in stories that nobody wrote: after every transition the result, the events and all
rows are what a reference of plain dictionaries says.

The reference is the table at the top of outbox.py once more, written without SQL. Claims are kept and used again, in sets,
by their owner and by others, early and late.
"""

import json
from dataclasses import dataclass, replace
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from pastebin_daemon import inbox, operating, outbox
from pastebin_daemon.outbox import ERROR_CHARS, KINDS, Claim, Enqueued
from tests.machines import SETTINGS, START_MS, Machine

CONSUMERS = dict(zip(KINDS, (1, 2, 3), strict=True))
OWNERS = ("ann", "bob")
LEASE_MS, WINDOW_MS, RETENTION_MS, ATTEMPTS_MAX = 60_000, 100_000, 150_000, 3
kinds = st.sampled_from((*KINDS, "from-a-newer-program"))
texts = st.sampled_from(
    ("", "e", "é\n'\"", "x" * (ERROR_CHARS + 1))
)  # SQLite's JSON ends a text at a NUL, so none here


@dataclass(frozen=True)
class Job:
    id: int
    kind: str
    payload: str
    created_ms: int
    first_due_ms: int
    due_ms: int
    state: str = "pending"
    attempts: int = 0
    generation: int = 0
    owner: str | None = None
    lease_ms: int | None = None
    last_error: str | None = None
    replayed_by: str | None = None
    replayed_ms: int | None = None


@dataclass(frozen=True)
class Dead:
    id: int
    kind: str
    payload: str
    created_ms: int
    attempts: int
    generation: int
    last_error: str | None
    reason: str
    died_ms: int
    replayed_by: str | None
    replayed_ms: int | None


def _parsed(row: Job | Dead) -> dict[str, Any]:
    """Its payload as what it says: JSON can be written in more than one way."""
    return vars(row) | {"payload": json.loads(row.payload)}


class Jobs(Machine):
    def __init__(self) -> None:
        super().__init__()
        self.jobs: dict[int, Job] = {}
        self.dead: dict[int, Dead] = {}
        self.done: dict[tuple[int, int], int] = {}
        self.last_id = 0
        self.claims: list[tuple[Claim, str]] = []

    @initialize(count=st.integers(1, 4))
    def begin(self, count: int) -> None:
        self.enqueue(KINDS[0], [{"object": str(n)} for n in range(count)], 0)

    @rule(
        kind=kinds,
        payloads=st.lists(st.dictionaries(st.sampled_from(("object", "paste")), st.text(max_size=5)), max_size=3),
        delay_ms=st.sampled_from((None, 0, 1, 20_000)),
    )
    def enqueue(self, kind: str, payloads: list[object], delay_ms: int | None) -> None:
        due_ms = None if delay_ms is None else self.now_ms + delay_ms
        _, events = self.write(outbox.enqueue, kind, payloads, due_ms)
        due_ms = self.now_ms if due_ms is None else due_ms
        assert events == ([Enqueued(kind, len(payloads), due_ms)] if payloads else [])
        for payload in payloads:
            self.last_id += 1
            self.jobs[self.last_id] = Job(self.last_id, kind, json.dumps(payload), self.now_ms, due_ms, due_ms)

    # --- claims

    def _take(self, taken: list[Job], owner: str, reason: Any, claims: list[Claim]) -> None:
        assert [claim.job for claim in claims] == sorted(job.id for job in taken)
        for claim in claims:
            job = self.jobs[claim.job]
            leased = replace(
                job, state="leased", owner=owner, lease_ms=self.now_ms + LEASE_MS, attempts=job.attempts + 1,
                generation=job.generation + 1,
            )  # fmt: skip
            self.jobs[job.id] = leased
            expected = (job.id, job.kind, job.created_ms, leased.attempts, leased.generation, reason)
            assert (claim.job, claim.kind, claim.created_ms, claim.attempts, claim.generation, claim.reason) == expected
            assert json.loads(claim.payload) == json.loads(job.payload)
            self.claims.append((claim, owner))

    @rule(kind=kinds, owner=st.sampled_from(OWNERS), limit=st.integers(0, 3))
    def claim(self, kind: str, owner: str, limit: int) -> None:
        due = [
            job
            for job in self.jobs.values()
            if job.state == "pending" and job.kind == kind and job.due_ms <= self.now_ms
        ]
        due.sort(key=lambda job: (job.due_ms, job.id))
        claims, _ = self.write(outbox.claim, kind, owner, LEASE_MS, limit)
        self._take(due[:limit], owner, "due", claims)

    def _over(self, kind: str) -> list[Job]:
        over = [job for job in self.jobs.values() if job.state == "leased" and job.kind == kind]
        over = [job for job in over if (job.lease_ms or 0) <= self.now_ms]
        return sorted(over, key=lambda job: (job.lease_ms, job.id))

    @rule(kind=kinds, owner=st.sampled_from(OWNERS))
    def reclaim(self, kind: str, owner: str) -> None:
        over = [job for job in self._over(kind) if job.attempts < ATTEMPTS_MAX]
        claims, _ = self.write(outbox.reclaim, kind, owner, LEASE_MS, ATTEMPTS_MAX)
        self._take(over[:1], owner, "expired", claims)

    @rule(kind=kinds, limit=st.integers(0, 3))
    def bury_exhausted(self, kind: str, limit: int) -> None:
        consumer = CONSUMERS.get(kind, 9)
        over = [job for job in self._over(kind) if job.attempts >= ATTEMPTS_MAX][:limit]
        acked, buried = self.write(outbox.bury_exhausted, kind, consumer, ATTEMPTS_MAX, limit)[0]
        assert acked == {job.id for job in over if (job.id, consumer) in self.done}
        assert buried == {job.id for job in over} - acked
        for job in over:
            if job.id in buried:
                self._bury(job, "attempts_exhausted", job.last_error or "the lease ended without a settlement")
            del self.jobs[job.id]

    def _bury(self, job: Job, reason: str, error: str | None) -> None:
        self.dead[job.id] = Dead(
            job.id, job.kind, job.payload, job.created_ms, job.attempts, job.generation, error, reason, self.now_ms,
            job.replayed_by, job.replayed_ms,
        )  # fmt: skip

    # --- settlements: of any claims that there ever were, in anybody's name

    @precondition(lambda self: self.claims)
    @rule(data=st.data(), how=st.sampled_from(("ack", "retry", "give_back", "postpone", "bury")), error=texts)
    def settle(self, data: st.DataObject, how: str, error: str) -> None:
        picked = data.draw(st.lists(st.sampled_from(self.claims), max_size=4, unique_by=lambda pair: pair[0].job))
        owner = data.draw(st.sampled_from(OWNERS))
        wait_ms = data.draw(st.sampled_from((0, 1, 30_000)))
        due_ms, text = self.now_ms + wait_ms, error[:ERROR_CHARS]
        claims = [claim for claim, _ in picked]
        held = {claim.job for claim in claims if self._is_held(claim, owner)}
        match how:
            case "ack":
                moved, _ = self.write(outbox.ack, owner, claims)
            case "retry" | "postpone":
                moved, _ = self.write(getattr(outbox, how), owner, [(claim, due_ms, error) for claim in claims])
            case "give_back":
                moved, _ = self.write(outbox.give_back, owner, [(claim, error) for claim in claims])
            case _:
                moved, _ = self.write(outbox.bury, owner, [(claim, "reason", error) for claim in claims])
        assert moved == held
        for id in held:
            job = self.jobs[id]
            back = replace(job, state="pending", owner=None, lease_ms=None, last_error=text)
            match how:
                case "retry":
                    self.jobs[id] = replace(back, due_ms=due_ms)
                case "give_back":
                    self.jobs[id] = replace(back, due_ms=self.now_ms, attempts=job.attempts - 1)
                case "postpone":
                    first = max(job.first_due_ms, due_ms)
                    self.jobs[id] = replace(back, due_ms=due_ms, first_due_ms=first, attempts=job.attempts - 1)
                case _:
                    if how == "bury":
                        self._bury(job, "reason", text)
                    del self.jobs[id]

    def _is_held(self, claim: Claim, owner: str) -> bool:
        job = self.jobs.get(claim.job)
        return (
            job is not None and job.owner == owner and job.generation == claim.generation
            and (job.lease_ms or 0) > self.now_ms
        )  # fmt: skip

    # --- the inbox

    @rule(consumer=st.integers(1, 3), ids=st.lists(st.integers(1, 6), max_size=4))
    def record(self, consumer: int, ids: list[int]) -> None:
        assert self.write(inbox.seen, consumer, ids)[0] == {id for id in ids if (id, consumer) in self.done}
        self.write(inbox.record, consumer, ids)
        for id in ids:
            self.done.setdefault((id, consumer), self.now_ms // 1000)

    @rule(after=st.integers(0, 4), limit=st.integers(1, 4))
    def sweep(self, after: int, limit: int) -> None:
        horizon_s = (self.now_ms - RETENTION_MS) // 1000
        batch = sorted(key for key in self.done if key[0] > after)[:limit]
        result, _ = self.write(inbox.sweep, after, RETENTION_MS, limit)
        if not batch or min(self.done[key] for key in batch) >= horizon_s:
            assert result == (0, 0)
            return
        last = batch[-1][0]
        gone = [
            key for key, done_s in self.done.items()
            if after < key[0] <= last and done_s < horizon_s and key[0] not in self.jobs and key[0] not in self.dead
        ]  # fmt: skip
        assert result == (len(gone), last)
        assert len(gone) <= limit + 2, "a batch, and the other consumers' rows of its last job"
        for key in gone:
            del self.done[key]

    # --- the operator

    @precondition(lambda self: self.dead)
    @rule(data=st.data(), by=st.text(max_size=5))
    def replay(self, data: st.DataObject, by: str) -> None:
        dead = self.dead.pop(data.draw(st.sampled_from(sorted(self.dead))))
        new, events = self.write(outbox.replay, dead.id, by, WINDOW_MS)
        inside = self.now_ms - dead.died_ms < WINDOW_MS
        if not inside:
            self.last_id += 1
        assert new == (dead.id if inside else self.last_id)
        assert events == [Enqueued(dead.kind, 1, self.now_ms)]
        created_ms, generation = (dead.created_ms, dead.generation) if inside else (self.now_ms, 0)
        self.jobs[new] = Job(
            new, dead.kind, dead.payload, created_ms, self.now_ms, self.now_ms, generation=generation, replayed_by=by,
            replayed_ms=self.now_ms,
        )  # fmt: skip

    @rule(id=st.integers(1, 9))
    def discard(self, id: int) -> None:
        assert self.write(outbox.discard, id)[0] == (self.dead.pop(id, None) is not None)

    @rule(id=st.integers(50, 60))
    def replay_of_nothing(self, id: int) -> None:
        assert self.write(outbox.replay, id, "ann", WINDOW_MS) == (None, [])

    @rule(ms=st.sampled_from((0, 1, 20_000, LEASE_MS, WINDOW_MS, RETENTION_MS + 1, -1, -30_000)))
    def time(self, ms: int) -> None:
        self.now_ms = max(START_MS, self.now_ms + ms)

    # --- what must be

    @invariant()
    def the_rows_are_those_of_the_reference(self) -> None:
        columns = ", ".join(Job.__dataclass_fields__)
        jobs = [_parsed(Job(*row)) for row in self.rows(f"select {columns} from outbox order by id")]
        assert jobs == [_parsed(job) for _, job in sorted(self.jobs.items())]
        columns = ", ".join(Dead.__dataclass_fields__)
        dead = [_parsed(Dead(*row)) for row in self.rows(f"select {columns} from dead_letters order by id")]
        assert dead == [_parsed(letter) for _, letter in sorted(self.dead.items())]
        assert self.rows("select outbox_id, consumer, done_s from inbox") == [
            (*key, done_s) for key, done_s in sorted(self.done.items())
        ]

    @invariant()
    def the_totals_say_how_many_there_are(self) -> None:
        totals, _ = self.write(operating.totals)
        leased = sum(job.state == "leased" for job in self.jobs.values())
        oldest_ms = min((job.first_due_ms for job in self.jobs.values()), default=self.now_ms)
        unknown = sorted({job.kind for job in self.jobs.values()} - set(KINDS))
        assert totals == operating.Totals(
            0, 0, len(self.jobs) - leased, leased, len(self.dead), len(self.done), max(0, self.now_ms - oldest_ms),
            tuple(unknown),
        )  # fmt: skip
        assert self.write(outbox.expired_kinds, KINDS)[0] == [kind for kind in KINDS if self._over(kind)]


TestJobs = Jobs.TestCase
TestJobs.settings = SETTINGS
