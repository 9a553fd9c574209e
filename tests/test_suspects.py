"""A job that kills the process: it is buried in the end, and it takes nobody along (G5).

A life of the process is an assembled daemon that is turned until an effect kills it, or for longer than a lease; then
the next one is assembled on the same directory, with the same store and the same edge around it.
"""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path

import pytest

from pastebin_daemon.bodies import Deletion
from pastebin_daemon.errors import Temporary
from tests.fakes import FakeClock, FakeEdge, FakeStore
from tests.jobs import (
    EDGE_PURGE,
    OBJECT_DELETE,
    all_done,
    dead_letters,
    effects,
    enqueue_deletes,
    jobs,
    purges,
    rival,
    shown,
    written,
)
from tests.support import Harness, Made, running

LEASE_S = 60


class Killed(BaseException):
    """The process is no more."""


class DeadlyStore(FakeStore):
    deadly = ""

    async def delete(self, keys: Sequence[str]) -> Mapping[str, Deletion]:
        if self.deadly in keys:
            self.calls.append(("delete", tuple(keys)))
            raise Killed
        return await super().delete(keys)


@dataclass
class World:
    """What outlives the process."""

    directory: Path
    clock: FakeClock
    store: DeadlyStore
    edge: FakeEdge
    burnt: int = 0
    """The most attempts that any job was seen with, the killer's left out."""

    def daemon(self, **settings: object) -> AbstractAsyncContextManager[Harness]:
        given = {f"outbox.{key}": value for key, value in settings.items()}
        return running(self.directory, clock=self.clock, store=self.store, edge=self.edge, settings=given)

    async def live(self, then: Sequence[Made] = ()) -> bool:
        """One life, in which the pastes `then` are deleted first. Whether it went well."""
        async with self.daemon() as it:
            for made in then:
                await it.delete(made)
            try:
                for _ in range(0, LEASE_S + 10, 5):
                    await it.drain()
                    self.clock.advance(5)
            except Killed:
                for payload, attempts in await it.rows("select payload, attempts from outbox"):
                    if self.store.deadly not in payload:
                        self.burnt = max(self.burnt, attempts)
                return False
        return True

    async def lives(self, deaths_max: int = 20) -> int:
        """Live until it goes well: the number of deaths."""
        for deaths in range(deaths_max):
            if await self.live():
                return deaths
        raise AssertionError("it goes on killing")


@pytest.fixture
def world(tmp_path: Path) -> World:
    clock = FakeClock()
    return World(tmp_path, clock, DeadlyStore(clock), FakeEdge())


async def die_during_an_effect(it: Harness) -> None:
    """The process ends while the objects of a batch are being removed."""
    hold = it.store.faults.hold("delete")
    tick = asyncio.create_task(it.tick(OBJECT_DELETE))
    await hold.reached.wait()
    tick.cancel()


async def object_of(it: Harness, made: Made) -> str:
    ((key,),) = await it.rows("select object from pastes where id = ?", made.id)
    return str(key)


async def test_a_job_that_kills_the_process_is_buried_after_eight_lives(world: World) -> None:
    async with world.daemon() as it:
        (world.store.deadly,) = await enqueue_deletes(it, 1)

    assert await world.lives() == 8

    async with world.daemon() as it:
        (dead,) = await dead_letters(it)
        assert (dead.reason, dead.attempts, dead.generation) == ("attempts_exhausted", 8, 8)
        assert await jobs(it) == []
        assert await shown(it, "pastebin_outbox_dead_letters") == 1
    assert effects(world.store) == [(world.store.deadly,)] * 8
    assert world.store.deadly in world.store.objects, "nobody says that it was removed"


async def test_the_neighbours_of_a_killer_succeed_and_burn_one_more_attempt_at_most(world: World) -> None:
    async with world.daemon() as it:
        pastes = [await it.paste() for _ in range(7)]
        objects = [await object_of(it, made) for made in pastes]
        world.store.deadly = objects[3]
        for made in pastes:
            await it.delete(made)
        under_way = world.edge.faults.hold("purge")  # a batch of another kind, in the same process
        purging = asyncio.create_task(it.tick(EDGE_PURGE))
        await under_way.reached.wait()
        with pytest.raises(Killed):
            await it.tick(OBJECT_DELETE)
        purging.cancel()

    assert await world.lives() == 7

    assert world.burnt == 1, "seen before their second try, which succeeded"
    async with world.daemon() as it:
        (dead,) = await dead_letters(it)
        assert dead.attempts == 8
        assert await jobs(it) == []
    assert list(world.store.objects) == [world.store.deadly]
    tries = {key: sum(key in call for call in effects(world.store)) for key in objects}
    assert tries == {key: 8 if key == world.store.deadly else 2 for key in objects}
    ids = [made.id for made in pastes]
    purged = [paste for call in purges(world.edge, ids) for paste in call]
    assert {paste: purged.count(paste) for paste in purged} == dict.fromkeys(ids, 3), "the delayed purge is the third"


async def test_while_a_job_keeps_killing_new_deletes_get_through(world: World) -> None:
    async with world.daemon() as it:
        (world.store.deadly,) = await enqueue_deletes(it, 1)
        pastes = [await it.paste() for _ in range(7)]
    assert not await world.live()

    for made in pastes:
        assert not await world.live(then=[made])
        assert world.edge.purged.count(f"paste-{made.id}") == 2

    assert world.burnt == 0
    assert list(world.store.objects) == [world.store.deadly]


async def test_claims_of_a_dead_process_are_tried_one_by_one_and_new_work_in_bulk_again(world: World) -> None:
    async with world.daemon() as it:
        keys = await enqueue_deletes(it, 3)
        await die_during_an_effect(it)
    world.clock.advance(LEASE_S)

    async with world.daemon() as it:
        await it.drain()
        more = await enqueue_deletes(it, 3)
        await it.drain()
        assert await all_done(it)

    assert [sorted(call) for call in effects(world.store)] == [keys, *([key] for key in keys), more]


async def test_while_a_suspect_runs_no_other_kind_claims(world: World) -> None:
    async with world.daemon() as it:
        await enqueue_deletes(it, 1)
        await die_during_an_effect(it)
    world.clock.advance(LEASE_S)

    async with world.daemon() as it:
        made = await it.paste()
        await it.delete(made)
        suspect = world.store.faults.hold("delete")
        trying = asyncio.create_task(it.tick(OBJECT_DELETE))
        await suspect.reached.wait()
        other = asyncio.create_task(it.tick(EDGE_PURGE))
        for _ in range(3):
            await written(it)
        assert [job.attempts for job in await jobs(it) if job.kind == EDGE_PURGE] == [0, 0]

        suspect.go.set()
        await asyncio.gather(trying, other)
        await it.drain()
        assert world.edge.purged == [f"paste-{made.id}"]


async def test_no_other_kind_starts_anything_that_a_suspect_could_take_along(world: World) -> None:
    async with world.daemon() as it:
        await enqueue_deletes(it, 1)
        await die_during_an_effect(it)
    world.clock.advance(LEASE_S)

    async with world.daemon() as it:
        made = await it.paste()
        await it.delete(made)
        await it.tick(EDGE_PURGE)
        assert world.edge.calls == [], "the suspect has not been tried yet"
        await it.tick(OBJECT_DELETE)
        await it.tick(EDGE_PURGE)
        assert world.edge.purged == [f"paste-{made.id}"]


async def test_suspects_behind_an_open_breaker_hold_nobody_up(world: World) -> None:
    async with world.daemon() as it:
        await enqueue_deletes(it, 1)
        await die_during_an_effect(it)
    world.clock.advance(LEASE_S)

    async with world.daemon() as it:
        world.store.faults.fail("delete", times=None)
        await enqueue_deletes(it, 1)
        assert await it.daemon.dispatchers[OBJECT_DELETE].breaker.doubt(Temporary("down"))
        made = await it.paste()
        await it.delete(made)
        await it.drain()
        assert world.edge.purged == [f"paste-{made.id}"]


async def test_the_last_attempt_of_a_dead_claim_is_acked_when_its_effect_is_known_and_else_buried(world: World) -> None:
    async with world.daemon(attempts_max=1, batch=1) as it:
        keys = await enqueue_deletes(it, 2)
        holds = [world.store.faults.hold("delete"), world.store.faults.hold("delete")]
        knew = asyncio.create_task(it.tick(OBJECT_DELETE))
        await holds[0].reached.wait()
        died = asyncio.create_task(rival(it).tick())
        await holds[1].reached.wait()
        world.clock.advance(LEASE_S)
        holds[0].go.set()
        await knew  # the lease was over, but the inbox has its row
        died.cancel()

        await it.drain()

        (dead,) = await dead_letters(it)
        assert (dead.id, dead.reason) == (2, "attempts_exhausted")
        assert await jobs(it) == []
        assert effects(world.store) == [(key,) for key in keys], "neither was tried again"
        assert it.metric("pastebin_outbox_settled_total", consumer=OBJECT_DELETE, result="ack") == 1
        assert it.metric("pastebin_outbox_settled_total", consumer=OBJECT_DELETE, result="bury") == 1
