"""What the tests of jobs share: put some in, look at them whole, count the effects, and make a second dispatcher."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from pastebin_daemon import outbox
from pastebin_daemon.breaker import Breaker
from pastebin_daemon.consumers import Consumer, ObjectDelete
from pastebin_daemon.database import Database
from pastebin_daemon.dispatcher import Dispatcher, Limits, Turns
from pastebin_daemon.ids import new_owner
from pastebin_daemon.outbox import EDGE_PURGE, OBJECT_DELETE, REAP
from tests.fakes import FakeEdge, FakeStore, StoredObject
from tests.support import Harness

__all__ = [
    "EDGE_PURGE", "OBJECT_DELETE", "REAP", "Dead", "Job", "all_done", "dead_letters", "effects", "enqueue", "enqueue_deletes",
    "jobs", "post", "probes", "purges", "rival", "shown", "written",
]  # fmt: skip


class Job(NamedTuple):
    id: int
    kind: str
    state: str
    attempts: int
    generation: int
    first_due_ms: int
    due_ms: int
    lease_ms: int | None
    owner: str | None
    last_error: str | None
    replayed_by: str | None
    replayed_ms: int | None


class Dead(NamedTuple):
    id: int
    kind: str
    reason: str
    attempts: int
    generation: int
    died_ms: int
    last_error: str | None
    replayed_by: str | None
    replayed_ms: int | None


async def jobs(it: Harness) -> list[Job]:
    """All jobs of the outbox, in the order of their ids."""
    return [Job(*row) for row in await it.rows(f"select {', '.join(Job._fields)} from outbox order by id")]


async def dead_letters(it: Harness) -> list[Dead]:
    return [Dead(*row) for row in await it.rows(f"select {', '.join(Dead._fields)} from dead_letters order by id")]


async def all_done(it: Harness) -> bool:
    """Nothing waits and nothing was given up."""
    return not await jobs(it) and not await dead_letters(it)


async def enqueue(it: Harness, kind: str, *payloads: object) -> None:
    """Insert jobs, due now."""
    await it.database.write(outbox.enqueue, kind, payloads)


async def enqueue_deletes(it: Harness, count: int) -> list[str]:
    """Objects that no paste has, and a job to remove each; the result: their keys, in the order of the jobs."""
    keys = [f"object{number:04}" for number in range(count)]
    it.store.objects.update(dict.fromkeys(keys, StoredObject(b"x", it.clock.now_ms())))
    await enqueue(it, OBJECT_DELETE, *({"object": key, "paste": f"paste{key}"} for key in keys))
    return keys


def effects(store: FakeStore) -> list[tuple[str, ...]]:
    """The keys of each delete that reached the store, the breaker's probes left out."""
    return [keys for operation, keys in store.calls if operation == "delete" and not keys[0].startswith("probe-")]


def probes(store: FakeStore) -> int:
    return sum(operation == "delete" and keys[0].startswith("probe-") for operation, keys in store.calls)


def purges(edge: FakeEdge, ids: Sequence[str]) -> list[tuple[str, ...]]:
    """The pastes of each purge that reached the edge, the breaker's probes left out."""
    known = set(ids)
    named = [tuple(target.id for target in targets) for targets in edge.calls]
    return [call for call in named if known.intersection(call)]


def rival(
    it: Harness, *, owner: str | None = None, consumer: Consumer | None = None, database: Database | None = None
) -> Dispatcher:
    """Another process's dispatcher on the same file, for object deletes when no consumer is given."""
    section = it.daemon.config.outbox
    consumer = consumer or ObjectDelete(it.database, it.store, lambda paste: None, it.daemon.metrics.row_is_live.inc)
    limits = Limits(
        section.batch,
        int(section.lease * 1000),
        section.effect_timeout,
        section.attempts_max,
        int(section.retry_span * 1000),
    )
    breaker = Breaker(consumer.kind, consumer.probe, it.clock, section.effect_timeout)
    return Dispatcher(
        database or it.database,
        consumer,
        breaker,
        Turns(),
        owner or new_owner(),
        it.clock,
        limits,
        it.daemon.metrics,
        wake_at=1,
    )


async def written(it: Harness) -> None:
    """Everything that was handed to the writer before now is committed."""
    await it.database.write(lambda tx: None)


async def shown(it: Harness, name: str, **labels: str) -> float:
    """A metric as an operator sees it: after asking for /metrics."""
    async with it.http.get(f"{it.admin}/metrics") as answer:
        assert answer.status == 200
    return it.metric(name, **labels)


async def post(it: Harness, path: str, document: object) -> Any:
    """The operator's API: the answer's document; the test fails when it is refused."""
    async with it.http.post(f"{it.admin}{path}", json=document) as answer:
        assert answer.status == 200, await answer.text()
        return await answer.json()
