"""The consumers: what each kind of job does, and how its failure is read.

Every effect here is idempotent (G8): deleting a missing object succeeds, purging a purged URL succeeds. That is what
lets effect, inbox and ack come in this order, and a crash between them cost a repeat and no more. **An effect that is
not idempotent (an e-mail) has no place in this outbox**: it would need an idempotency key on the provider's side and an
in-progress state of its own.

| kind          | number | effect                          | guard, immediately before the effect                    |
|---------------|--------|---------------------------------|---------------------------------------------------------|
| object-delete | 1      | remove the object               | no row has it (G4); else a dead letter and an alarm     |
| edge-purge    | 2      | caches drop the paste's copies  |                                                         |
| reap          | 3      | remove the object               | no row has it, no upload is under way, old enough (G12) |

A reap that finds no object is done only when the job itself is as old as an object would have to be. Its age says nothing
of one that is not there, and the wall clock, by which the upload was given up, may have been set ahead: then the PUT can
still be on its way, and what it leaves nobody would ever remove.

The numbers are in the inbox for ever: they are never given to another kind.
"""

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from pastebin_daemon import pastes
from pastebin_daemon.bodies import BodyStore
from pastebin_daemon.clock import Clock
from pastebin_daemon.database import Database, Tx
from pastebin_daemon.edge import EdgePurger, Target
from pastebin_daemon.errors import EffectError
from pastebin_daemon.ids import new_id
from pastebin_daemon.logs import get_logger
from pastebin_daemon.outbox import EDGE_PURGE, OBJECT_DELETE, REAP, Claim

__all__ = ["Buried", "Consumer", "Done", "EdgePurge", "NotYet", "ObjectDelete", "Outcome", "Reap"]

log = get_logger()

REAPS_AT_ONCE = 16
"""Each asks for its object's age by a call of its own."""


@dataclass(frozen=True, slots=True)
class Done:
    """The effect has happened, or there was nothing (more) to do: `how` is for people and counters."""

    how: Literal["deleted", "missing", "owned", "purged"]


@dataclass(frozen=True, slots=True)
class NotYet:
    """Nothing was done, since it is too early; try at `due_ms`."""

    due_ms: int
    why: str


@dataclass(frozen=True, slots=True)
class Buried:
    """Not to be tried again: `reason` in a word, `error` in a line."""

    reason: str
    error: str


Outcome = Done | NotYet | Buried | EffectError


class Consumer(Protocol):
    kind: str
    number: int
    batch_max: int
    """How many jobs start at once; more are not to be claimed, or the last of them would wait while their lease runs."""

    async def run(self, claims: Sequence[Claim]) -> Mapping[int, Outcome]:
        """Do the effects of a batch; one outcome per job. Raises only what the database raises, or a bug."""

    async def probe(self) -> EffectError | None:
        """Do the effect on something that never existed: None when the surroundings are well."""


def _decode(claims: Sequence[Claim], field: str, outcomes: dict[int, Outcome]) -> dict[int, str]:
    """The named field of each payload. What can't be decoded is buried at once, so that the rest go on."""
    values = {}
    for claim in claims:
        try:
            value = json.loads(claim.payload)[field]
            if not isinstance(value, str) or not value:
                raise ValueError(f"{field} is no text")
            values[claim.job] = value
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            outcomes[claim.job] = Buried("undecodable", f"the payload can't be read: {error!r}")
    return values


class ObjectDelete:
    kind, number, batch_max = OBJECT_DELETE, 1, 1000

    def __init__(
        self, database: Database, store: BodyStore, bury: Callable[[str], None], row_is_live: Callable[[], None]
    ) -> None:
        """`bury` sets the origin cache's tombstone again; `row_is_live` counts the alarm of G4."""
        self._database = database
        self._store = store
        self._bury = bury
        self._row_is_live = row_is_live

    async def run(self, claims: Sequence[Claim]) -> Mapping[int, Outcome]:
        outcomes: dict[int, Outcome] = {}
        objects = _decode(claims, "object", outcomes)
        live = await self._database.read(pastes.live_objects, list(objects.values()))
        for job, key in list(objects.items()):
            if key in live:
                self._row_is_live()
                log.error("object.row_is_live", job=job, object=key)
                outcomes[job] = Buried("row_is_live", f"a live paste has the object {key}: this is a bug")
                del objects[job]
        for paste_id in _decode([claim for claim in claims if claim.job in objects], "paste", {}).values():
            self._bury(paste_id)
        return outcomes | await _remove(self._store, objects)

    async def probe(self) -> EffectError | None:
        return await _probe_store(self._store)


class Reap:
    kind, number, batch_max = REAP, 3, REAPS_AT_ONCE

    def __init__(self, database: Database, store: BodyStore, clock: Clock, age_min_s: float) -> None:
        self._database = database
        self._store = store
        self._clock = clock
        self._age_min_s = age_min_s

    async def run(self, claims: Sequence[Claim]) -> Mapping[int, Outcome]:
        outcomes: dict[int, Outcome] = {}
        objects = _decode(claims, "object", outcomes)
        created_ms = {claim.job: claim.created_ms for claim in claims}

        async def look(job: int, key: str) -> None:
            try:
                age_s = await self._store.age_s(key)
            except EffectError as error:
                outcomes[job] = error
                return
            if age_s is None:
                outcomes[job] = self._missing(created_ms[job])
            elif age_s < self._age_min_s:
                wait_ms = int((self._age_min_s - age_s) * 1000) + 1000  # Last-Modified has whole seconds
                outcomes[job] = NotYet(self._clock.now_ms() + wait_ms, "the object is too young to be reaped")

        await asyncio.gather(*(look(job, key) for job, key in objects.items()))
        old = {job: key for job, key in objects.items() if job not in outcomes}
        owned, uploading = await self._database.read(_claims_on, list(old.values()))
        for job, key in list(old.items()):
            if key in owned:
                outcomes[job] = Done("owned")
                log.info("reap.owned", job=job, object=key)
                del old[job]
            elif key in uploading:
                due_ms = self._clock.now_ms() + int(self._age_min_s * 1000)
                outcomes[job] = NotYet(due_ms, "an upload of the object is under way")
                del old[job]
        return outcomes | await _remove(self._store, old)

    def _missing(self, created_ms: int) -> Outcome:
        now_ms, floor_ms = self._clock.now_ms(), int(self._age_min_s * 1000)
        if now_ms >= created_ms + floor_ms:
            return Done("missing")
        return NotYet(min(created_ms, now_ms) + floor_ms, "the object is not there, or not there yet")

    async def probe(self) -> EffectError | None:
        """Both things that a reap asks of the store: one of them alone may be refused."""
        try:
            await self._store.age_s(f"probe-{new_id()}")
        except EffectError as error:
            return error
        return await _probe_store(self._store)


def _claims_on(tx: Tx, objects: Sequence[str]) -> tuple[set[str], set[str]]:
    return pastes.live_objects(tx, objects), pastes.uploading(tx, objects)


async def _remove(store: BodyStore, objects: Mapping[int, str]) -> dict[int, Outcome]:
    if not objects:
        return {}
    results = await store.delete(list(set(objects.values())))
    outcomes: dict[int, Outcome] = {}
    for job, key in objects.items():
        result = results[key]
        outcomes[job] = Done(result) if isinstance(result, str) else result
    return outcomes


async def _probe_store(store: BodyStore) -> EffectError | None:
    key = f"probe-{new_id()}"
    result = (await store.delete([key]))[key]
    return result if isinstance(result, EffectError) else None


class EdgePurge:
    kind, number = EDGE_PURGE, 2

    def __init__(self, purger: EdgePurger, public_url: str, clock: Clock, observe_lag: Callable[[float], None]) -> None:
        """`observe_lag` hears of each purge how long after its commit it was done, in seconds."""
        self.batch_max = purger.batch_max
        self._purger = purger
        self._public_url = public_url
        self._clock = clock
        self._observe_lag = observe_lag

    async def run(self, claims: Sequence[Claim]) -> Mapping[int, Outcome]:
        outcomes: dict[int, Outcome] = {}
        ids = _decode(claims, "paste", outcomes)
        results = await self._purger.purge([self._target(paste_id) for paste_id in ids.values()]) if ids else ()
        for job, error in zip(ids, results, strict=True):
            outcomes[job] = Done("purged") if error is None else error
        now_ms = self._clock.now_ms()
        for claim in claims:
            if isinstance(outcomes[claim.job], Done) and '"again"' not in claim.payload:
                self._observe_lag(max(0, now_ms - claim.created_ms) / 1000)
        return outcomes

    async def probe(self) -> EffectError | None:
        (error,) = await self._purger.purge([self._target(new_id())])
        return error

    def _target(self, paste_id: str) -> Target:
        base = f"{self._public_url}/{paste_id}"
        api = f"{self._public_url}/api/v1/pastes/{paste_id}"
        return Target(paste_id, f"paste-{paste_id}", (base, f"{base}/raw", f"{base}/download", api))
