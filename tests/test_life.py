"""The whole life of a paste, on the embedded store, the crank turned by hand."""

from pathlib import Path

from tests.fakes import FakeClock, FakeEdge, FakeStore
from tests.support import running


async def test_a_deleted_paste_is_gone_at_once_and_its_object_soon(tmp_path: Path) -> None:
    clock = FakeClock()
    store, edge = FakeStore(clock), FakeEdge()
    async with running(tmp_path, clock=clock, store=store, edge=edge) as it:
        made = await it.paste(b"hi")
        assert await it.get(f"{made.id}/raw") == (200, b"hi")

        await it.delete(made)

        assert (await it.get(f"{made.id}/raw"))[0] == 404
        assert len(store.objects) == 1, "nobody waits for the store"
        await it.drain()
        assert store.objects == {}
        assert edge.purged == [f"paste-{made.id}"]
        clock.advance(60)
        await it.drain()
        assert edge.purged == [f"paste-{made.id}"] * 2, (
            "once more, for the fetch that the first purge came too early for"
        )
        assert await it.rows("select * from outbox") == []
        assert len(await it.rows("select * from inbox")) == 3


async def test_an_expired_paste_is_gone_at_the_instant_and_swept_without_a_purge(tmp_path: Path) -> None:
    clock = FakeClock()
    store, edge = FakeStore(clock), FakeEdge()
    async with running(tmp_path, clock=clock, store=store, edge=edge) as it:
        made = await it.paste(b"hi", expires_in="10m")
        clock.advance(599.999)
        assert (await it.get(f"{made.id}/raw"))[0] == 200
        clock.advance(0.001)
        assert (await it.get(f"{made.id}/raw"))[0] == 404
        assert await it.try_delete(made) == 404

        await it.sweep("expiry")
        await it.drain()

        assert store.objects == {}
        assert edge.calls == []


async def test_an_upload_that_no_paste_took_over_is_reaped_late(tmp_path: Path) -> None:
    clock = FakeClock()
    store = FakeStore(clock)
    async with running(tmp_path, clock=clock, store=store) as it:
        store.faults.fail("put", lost=True)
        async with it.http.put(f"{it.url}/x", data=b"hi") as answer:
            assert answer.status == 503
        assert len(store.objects) == 1

        clock.advance(3599)
        await it.sweep("uploads")
        await it.drain()
        assert len(store.objects) == 1

        clock.advance(2)
        await it.sweep("uploads")
        await it.drain()
        assert store.objects == {}
        assert await it.rows("select * from uploads") == []


async def test_while_the_bodies_find_no_space_a_create_is_refused_and_leaves_nothing_behind(tmp_path: Path) -> None:
    async with running(tmp_path) as it:
        made = await it.paste()
        it.store.database.full = True
        async with it.http.put(f"{it.url}/x", data=b"hi") as answer:
            assert answer.status == 507
        assert await it.rows("select * from uploads") == []
        assert (await it.get(f"{made.id}/raw"))[0] == 200
        await it.delete(made)


async def test_purges_that_wait_when_the_edge_is_taken_away_do_not_wait_for_ever(tmp_path: Path) -> None:
    clock = FakeClock()
    store = FakeStore(clock)
    async with running(tmp_path, clock=clock, store=store, edge=FakeEdge()) as it:
        await it.delete(await it.paste())
    clock.advance(60)
    async with running(tmp_path, clock=clock, store=store) as it:
        await it.drain()
        assert await it.rows("select * from outbox") == []


async def test_the_life_on_the_embedded_store(tmp_path: Path) -> None:
    async with running(tmp_path) as it:
        made, other = await it.paste(b"a" * 100_000), await it.paste(b"b")
        await it.delete(made)
        await it.drain()
        assert list(await it.rows("select pastes, bytes, pending, leased, dead_letters, inbox from totals")) == [
            (1, 1, 0, 0, 0, 1)
        ]
        assert await it.get(f"{other.id}/raw") == (200, b"b")
