"""A store in trouble: moto's server behind a proxy that goes wrong, for one kind of request or for all.

No live paste is lost and no job is lost: creates are refused with 503, deletes answer 204, cached pastes are read on and
uncached ones are 503, nothing burns an attempt or becomes a dead letter. Once the store is well again everything drains,
and the bucket holds exactly the objects of live rows.
"""

import asyncio
import functools
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from aiobotocore.session import get_session

from tests.fakes import FakeClock
from tests.real.faults import Answer, Cut, FailKeys, Fault, FaultProxy, Hang, LoseAnswer, Reset, error_xml
from tests.real.moto import Bucket, new_bucket, running_moto
from tests.support import Harness, running

HOUR_S = 3600
LIMIT_MS = 1000  # of the stores that hang; a well one answers in some ms, and on a busy machine in some hundred

FAULTS: dict[str, Fault] = {
    "500": Answer(500, error_xml("InternalError")),
    "503-SlowDown": Answer(503, error_xml("SlowDown")),
    "403": Answer(403, error_xml("AccessDenied")),
    "hanging": Hang(),
    "reset": Reset(),
    "reset-after-the-effect": LoseAnswer(),
}
every_fault = pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)


@pytest.fixture(scope="module")
def moto_port() -> Iterator[int]:
    with running_moto() as port:
        yield port


@pytest.fixture(scope="module", autouse=True)
def one_session() -> Iterator[None]:
    """botocore reads its model of S3 once, and not for each store: 0.1 s for each test."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pastebin_daemon.bodies.s3.get_session", functools.cache(get_session))
        yield


@dataclass(frozen=True)
class Scene:
    """A daemon, its bucket, and the proxy between them."""

    it: Harness
    clock: FakeClock
    store: FaultProxy
    bucket: Bucket

    async def refused(self, path: str, method: str = "GET") -> None:
        """Asks, and is told that the store is not there: by an answer that no cache keeps."""
        body = None if method == "GET" else b"refused"
        async with self.it.http.request(method, f"{self.it.url}/{path}", data=body) as answer:
            assert answer.status == 503
            assert answer.headers["Cache-Control"] == "no-store"
            assert int(answer.headers["Retry-After"]) > 0
            assert "Location" not in answer.headers

    async def is_exact(self) -> bool:
        live = [key for (key,) in await self.it.rows("select object from pastes order by object")]
        return await self.bucket.keys() == live

    async def reap(self) -> None:
        """An hour passes, here and at the store, and one more, in which a reap waits that has found nothing."""
        for _ in range(2):
            self.clock.advance(HOUR_S + 5)
            self.store.ahead_s += HOUR_S + 5
            await self.it.sweep("uploads")
            await self.it.drain()

    async def jobs(self) -> list[tuple[str, str, int]]:
        return await self.it.rows("select kind, state, attempts from outbox order by id")

    async def settle(self) -> None:
        """The store is well, and what waits is done. A busy machine may let a request pass its limit: it is tried again."""
        for _ in range(5):
            await self.it.drain()
            if not await self.jobs():
                return
            self.clock.advance(HOUR_S)

    async def assert_nothing_is_left(self) -> None:
        assert await self.jobs() == []
        assert await self.it.rows("select * from uploads") == []
        assert await self.it.rows("select * from dead_letters") == []
        assert await self.is_exact()


@asynccontextmanager
async def staged(directory: Path, bucket: Bucket, clock: FakeClock, fault: Fault | None = None) -> AsyncIterator[Scene]:
    limits: dict[str, object] = {}
    if isinstance(fault, Hang):  # the only one that costs the whole limit
        limits = {"bodies.s3.timeout": f"{LIMIT_MS}ms", "bodies.s3.connect_timeout": f"{LIMIT_MS}ms"}
    async with (
        FaultProxy(bucket.port) as store,
        running(directory, clock=clock, settings=bucket.settings(store.url) | limits) as it,
    ):
        yield Scene(it, clock, store, bucket)


@pytest.fixture
def bucket(moto_port: int) -> Bucket:
    return new_bucket(moto_port)


@pytest.fixture
async def scene(request: pytest.FixtureRequest, bucket: Bucket, tmp_path: Path) -> AsyncIterator[Scene]:
    """Fitted to the fault of the test, when it has one."""
    callspec = getattr(request.node, "callspec", None)
    fault = callspec.params.get("fault") if callspec else None
    async with staged(tmp_path, bucket, FakeClock(), fault) as opened:
        yield opened


@every_fault
async def test_a_create_that_the_store_fails_is_503_and_what_it_left_is_reaped(scene: Scene, fault: Fault) -> None:
    it = scene.it
    kept = await it.paste(b"kept")
    scene.store.next(fault, times=None, method="PUT")
    await asyncio.gather(scene.refused("x.txt", "PUT"), scene.refused("api/v1/pastes", "POST"))
    assert await it.rows("select id from pastes") == [(kept.id,)]
    assert len(await scene.bucket.keys()) == (3 if isinstance(fault, LoseAnswer) else 1)

    scene.store.clear()
    later = await it.paste(b"later")
    await scene.reap()

    await scene.assert_nothing_is_left()
    assert await it.get(f"{kept.id}/raw") == (200, b"kept")
    assert await it.get(f"{later.id}/raw") == (200, b"later")


@pytest.mark.parametrize("fault", (FAULTS | {"cut": Cut(1)}).values(), ids=[*FAULTS, "cut"])
async def test_cached_pastes_are_read_on_and_the_others_are_503_while_the_store_fails_reads(
    scene: Scene, fault: Fault
) -> None:
    it = scene.it
    cached, uncached = await it.paste(b"cached"), await it.paste(b"uncached")
    async with it.http.get(f"{cached.url}/raw") as answer:
        etag = answer.headers["ETag"]
    scene.store.next(fault, times=None, method="GET")

    assert await it.get(f"{cached.id}/raw") == (200, b"cached")
    assert await it.get(f"{cached.id}/download") == (200, b"cached")
    assert (await it.get(f"{cached.id}/raw", **{"If-None-Match": etag}))[0] == 304
    assert (await it.get(cached.id))[0] == 200
    await asyncio.gather(*(scene.refused(uncached.id + route) for route in ("", "/raw", "/download")))
    assert (await it.get(f"api/v1/pastes/{uncached.id}"))[0] == 200, "this needs no body"
    assert (await it.get("0123456789abcdefghij0/raw"))[0] == 404
    assert it.metric("pastebin_body_missing_total") == 0

    scene.store.clear()
    assert await it.get(f"{uncached.id}/raw") == (200, b"uncached")


@every_fault
@pytest.mark.parametrize("method", ["POST", "DELETE"], ids=["bulk", "single"])
async def test_deletes_are_204_while_the_store_fails_them_and_drain_once_it_is_well(
    scene: Scene, fault: Fault, method: str
) -> None:
    it = scene.it
    if method == "DELETE":  # a store that knows no bulk delete
        scene.store.next(Answer(501, error_xml("NotImplemented")), method="POST")
        await it.delete(await it.paste(b"first"))
        await scene.settle()
    kept = await it.paste(b"kept")
    doomed = [await it.paste(b"doomed") for _ in range(3)]
    expiring = await it.paste(b"expiring", expires_in="10m")
    scene.store.next(fault, times=None, method=method)

    for each in doomed:
        await it.delete(each)
    scene.clock.advance(600)
    await it.sweep("expiry")
    for _ in range(3):
        await it.drain()
        scene.clock.advance(HOUR_S)
    for each in [*doomed, expiring]:
        assert (await it.get(f"{each.id}/raw"))[0] == 404
    assert await scene.jobs() == [("object-delete", "pending", 0)] * 4
    assert await it.get(f"{kept.id}/raw") == (200, b"kept")
    assert it.metric("pastebin_outbox_settled_total", consumer="object-delete", result="give_back") >= 4

    scene.store.clear()
    await scene.settle()
    await scene.assert_nothing_is_left()
    assert await it.get(f"{kept.id}/raw") == (200, b"kept")


@every_fault
async def test_an_outage_of_everything_loses_nothing_over_a_restart(
    bucket: Bucket, tmp_path: Path, fault: Fault
) -> None:
    clock = FakeClock()
    async with staged(tmp_path, bucket, clock, fault) as scene:
        it = scene.it
        kept = await it.paste(b"kept")
        doomed = [await it.paste(b"doomed") for _ in range(3)]
        scene.store.next(fault, times=None)
        await scene.refused("x.txt", "PUT")
        await it.delete(doomed[0])
        await it.drain()
    async with staged(tmp_path, bucket, clock, fault) as scene:
        it = scene.it
        scene.store.next(fault, times=None)
        await scene.refused(f"{kept.id}/raw")
        await it.delete(doomed[1])
        await scene.reap()
        assert await scene.jobs() == [("object-delete", "pending", 0)] * 2 + [("reap", "pending", 0)]

        scene.store.clear()
        clock.advance(HOUR_S)
        await scene.settle()
        await scene.assert_nothing_is_left()
        assert await it.get(f"{kept.id}/raw") == (200, b"kept")
        assert await it.get(f"{doomed[2].id}/raw") == (200, b"doomed")


async def test_reaps_wait_out_an_outage_of_reads_alone(scene: Scene) -> None:
    """They ask for an object's age before its delete, so a probe that only deletes would blame the jobs."""
    scene.store.next(LoseAnswer(), times=2, method="PUT")
    await scene.refused("", "PUT")
    scene.store.next(FAULTS["403"], times=None, method="GET")
    for _ in range(12):
        await scene.reap()
    assert await scene.jobs() == [("reap", "pending", 0)]

    scene.store.clear()
    await scene.reap()
    await scene.assert_nothing_is_left()


@pytest.mark.parametrize("code", ["InternalError", "AccessDenied", "SlowDown"])
async def test_the_keys_that_a_bulk_delete_fails_are_tried_again_and_the_others_are_done(
    scene: Scene, code: str
) -> None:
    it = scene.it
    kept = await it.paste(b"kept")
    doomed = [await it.paste(b"doomed") for _ in range(4)]
    objects = dict(await it.rows("select id, object from pastes"))
    for each in doomed:
        await it.delete(each)
    scene.store.next(FailKeys({objects[each.id]: code for each in doomed[:2]}), method="POST")
    await it.tick("object-delete")

    attempts = 0 if code == "SlowDown" else 1  # the keys' own failures, since the probe went well
    assert await scene.jobs() == [("object-delete", "pending", attempts)] * 2
    assert await scene.bucket.keys() == sorted(objects[each.id] for each in [kept, *doomed[:2]])

    scene.clock.advance(HOUR_S)
    await it.drain()
    await scene.assert_nothing_is_left()
    assert await it.get(f"{kept.id}/raw") == (200, b"kept")


async def test_a_hanging_store_costs_the_limit_and_no_more(bucket: Bucket, tmp_path: Path) -> None:
    """aiohttp's own limit for a whole request is five minutes; ours is the one of the configuration."""
    async with staged(tmp_path, bucket, FakeClock(), Hang()) as scene:
        it = scene.it
        uncached, doomed = await it.paste(b"uncached"), await it.paste(b"doomed")
        scene.store.next(Hang(), times=None)
        await it.delete(doomed)
        for call, times in (
            (scene.refused("x.txt", "PUT"), 1),
            (scene.refused(f"{uncached.id}/raw"), 1),
            (it.drain(), 2),  # the effect, and then the probe
        ):
            began = time.monotonic()
            await call
            assert times * LIMIT_MS / 1000 <= time.monotonic() - began < 8
