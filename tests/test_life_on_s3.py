"""The whole life of a paste with its body in S3: moto's server, over HTTP and through TLS.

After the drain the bucket holds exactly the objects of live rows, by a listing that the daemon has no part in. TLS is
tried as well because botocore sends other requests over it.
"""

import re
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import aiohttp
import pytest
import trustme

from pastebin_daemon.clock import SystemClock
from tests.fakes import FakeClock
from tests.real import poll
from tests.real.faults import Answer, FaultProxy, LoseAnswer, error_xml
from tests.real.moto import Bucket, new_bucket, running_moto
from tests.support import Harness, Made, running

HOUR_S = 3600


@pytest.fixture(scope="module")
def moto_port() -> Iterator[int]:
    with running_moto() as port:
        yield port


@pytest.fixture
def bucket(moto_port: int) -> Bucket:
    return new_bucket(moto_port)


@pytest.fixture(params=["http", "https"])
async def store(
    request: pytest.FixtureRequest, moto_port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[FaultProxy]:
    """The way to moto: plain, or by a TLS front whose authority the daemon trusts."""
    context = None
    if request.param == "https":
        authority = trustme.CA()
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        authority.issue_cert("127.0.0.1").configure_cert(context)
        authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
        monkeypatch.setenv("AWS_CA_BUNDLE", str(tmp_path / "ca.pem"))
    async with FaultProxy(moto_port, ssl=context) as proxy:
        yield proxy


async def objects_of_live_rows(it: Harness) -> list[str]:
    return [key for (key,) in await it.rows("select object from pastes order by object")]


# --- the ways in


def of_headers(it: Harness, answer: aiohttp.ClientResponse) -> Made:
    paste = answer.headers["Location"].rpartition("/")[2]
    return Made(paste, answer.headers["X-Delete-Token"], f"{it.url}/{paste}")


async def by_api(it: Harness, body: bytes, expires_in: str) -> Made:
    return await it.paste(body, expires_in=expires_in)


async def by_json(it: Harness, body: bytes, expires_in: str) -> Made:
    document = {"content": body.decode(), "expires_in": expires_in}
    async with it.http.post(f"{it.url}/api/v1/pastes", json=document) as answer:
        assert answer.status == 201
        said = await answer.json()
    return Made(said["id"], said["delete_token"], f"{it.url}/{said['id']}")


async def by_post(it: Harness, body: bytes, expires_in: str) -> Made:
    async with it.http.post(f"{it.url}/", data=body, params={"expires_in": expires_in}) as answer:
        assert answer.status == 201
        return of_headers(it, answer)


async def by_put_of_a_name(it: Harness, body: bytes, expires_in: str) -> Made:
    async with it.http.put(f"{it.url}/notes.txt", data=body, params={"expires_in": expires_in}) as answer:
        assert answer.status == 201
        return of_headers(it, answer)


async def by_a_stream(it: Harness, body: bytes, expires_in: str) -> Made:
    async def pieces() -> AsyncIterator[bytes]:
        for start in range(0, len(body), 1000):
            yield body[start : start + 1000]

    async with it.http.put(f"{it.url}/", data=pieces(), params={"expires_in": expires_in}) as answer:
        assert answer.status == 201
        return of_headers(it, answer)


async def by_a_part(it: Harness, body: bytes, expires_in: str) -> Made:
    form = aiohttp.FormData({"expires_in": expires_in})
    form.add_field("file", body, filename="notes.txt")
    async with it.http.post(f"{it.url}/", data=form) as answer:
        assert answer.status == 201
        return of_headers(it, answer)


async def by_the_form(it: Harness, body: bytes, expires_in: str) -> Made:
    with aiohttp.MultipartWriter("form-data") as form:
        form.append(body.decode()).set_content_disposition("form-data", name="content")
        form.append(expires_in).set_content_disposition("form-data", name="expires_in")
    async with it.http.post(f"{it.url}/new", data=form) as answer:
        assert answer.status == 201
        page = await answer.text()
    paste, token = re.search(r'data-created="(\w+)"', page), re.search(r'name="token" value="([^"]+)"', page)
    assert paste
    assert token
    return Made(paste[1], token[1], f"{it.url}/{paste[1]}")


WAYS_IN: list[Callable[[Harness, bytes, str], Awaitable[Made]]] = [
    by_api, by_json, by_post, by_put_of_a_name, by_a_stream, by_a_part, by_the_form,
]  # fmt: skip


# --- the life


async def test_every_way_in_has_the_whole_life_and_the_bucket_ends_as_the_live_rows(
    store: FaultProxy, bucket: Bucket, tmp_path: Path
) -> None:
    clock = FakeClock()
    uncached = {"cache.bytes_max": 0}  # so that each read asks the store
    async with running(tmp_path, clock=clock, settings=bucket.settings(store.url) | uncached) as it:
        bodies: dict[Made, bytes] = {}
        kept: list[Made] = []
        deleted: list[Made] = []
        expired: list[Made] = []
        for way in WAYS_IN:
            for made, end in ((kept, "kept"), (deleted, "deleted"), (expired, "expired")):
                body = f"{way.__name__}, to be {end}: ü€😀\n".encode() * 100
                paste = await way(it, body, "10m" if end == "expired" else "1d")
                made.append(paste)
                bodies[paste] = body
        for paste, body in bodies.items():
            assert await it.get(f"{paste.id}/raw") == (200, body)
        assert len(await bucket.keys()) == 3 * len(WAYS_IN)

        for paste in deleted:
            await it.delete(paste)
        clock.advance(600)
        await it.sweep("expiry")
        for paste in deleted + expired:
            assert (await it.get(f"{paste.id}/raw"))[0] == 404
        await it.drain()

        assert await bucket.keys() == await objects_of_live_rows(it)
        assert len(await bucket.keys()) == len(kept)
        for paste in kept:
            assert await it.get(f"{paste.id}/raw") == (200, bodies[paste])
        assert await it.rows("select * from outbox") == []
        assert await it.rows("select * from dead_letters") == []


async def test_many_endings_are_a_few_bulk_deletes(store: FaultProxy, bucket: Bucket, tmp_path: Path) -> None:
    clock = FakeClock()
    async with running(tmp_path, clock=clock, settings=bucket.settings(store.url) | {"outbox.batch": 10}) as it:
        for _ in range(25):
            await it.paste(b"short", expires_in="1m")
        kept = await it.paste(b"long")
        clock.advance(60)
        await it.sweep("expiry")
        await it.drain()

        assert await bucket.keys() == await objects_of_live_rows(it)
        assert await it.get(f"{kept.id}/raw") == (200, b"long")
        assert [seen.method for seen in store.seen if seen.method in ("POST", "DELETE")] == ["POST"] * 3


async def test_a_store_without_bulk_deletes_is_left_as_clean(store: FaultProxy, bucket: Bucket, tmp_path: Path) -> None:
    async with running(tmp_path, settings=bucket.settings(store.url)) as it:
        made = [await it.paste(str(number).encode()) for number in range(6)]
        store.next(Answer(501, error_xml("NotImplemented")), times=None, method="POST")
        for each in made[:2]:
            await it.delete(each)
        await it.drain()
        for each in made[2:5]:
            await it.delete(each)
        await it.drain()

        assert await bucket.keys() == await objects_of_live_rows(it)
        assert await it.get(f"{made[5].id}/raw") == (200, b"5")
        assert await it.rows("select * from dead_letters") == []


async def test_a_failed_create_is_reaped_once_it_is_old_by_the_clock_of_the_store(
    store: FaultProxy, bucket: Bucket, tmp_path: Path
) -> None:
    clock = FakeClock()
    async with running(tmp_path, clock=clock, settings=bucket.settings(store.url)) as it:
        await it.paste(b"kept")
        store.next(LoseAnswer(), times=2, method="PUT")  # twice, since aiohttp sends again
        async with it.http.put(f"{it.url}/", data=b"half-way") as answer:
            assert answer.status == 503
        assert len(await bucket.keys()) == 2

        clock.advance(HOUR_S + 1)
        await it.sweep("uploads")
        await it.drain()
        assert len(await bucket.keys()) == 2, "our clock is not asked"
        assert await it.rows("select kind, attempts from outbox") == [("reap", 0)]

        store.ahead_s = HOUR_S + 5
        clock.advance(HOUR_S + 5)
        await it.drain()
        assert await bucket.keys() == await objects_of_live_rows(it)
        assert await it.rows("select * from outbox") == []
        assert await it.rows("select * from dead_letters") == []


async def test_by_real_clocks_a_paste_expires_and_an_abandoned_body_goes_over_a_restart(
    moto_port: int, bucket: Bucket, tmp_path: Path
) -> None:
    async with FaultProxy(moto_port) as store:
        settings = bucket.settings(store.url)
        async with running(tmp_path, settings=settings, clock=SystemClock()) as it:
            kept = await it.paste(b"kept")
            short = await it.paste(b"short", expires_in="2s")
            store.next(LoseAnswer(), times=2, method="PUT")
            async with it.http.put(f"{it.url}/", data=b"half-way") as answer:
                assert answer.status == 503
            assert len(await bucket.keys()) == 3

        soon = {"bodies.s3.timeout": "240ms", "bodies.s3.connect_timeout": "100ms", "uploads.reap_after": "1s"}
        async with running(tmp_path, settings=settings | soon, clock=SystemClock()) as it:

            async def clean() -> bool:
                for name in ("expiry", "uploads"):
                    await it.sweep(name)
                await it.drain()
                return await bucket.keys() == await objects_of_live_rows(it) and len(await bucket.keys()) == 1

            await poll(clean, "the bucket holds the live paste alone")
            assert (await it.get(f"{short.id}/raw"))[0] == 404
            assert await it.get(f"{kept.id}/raw") == (200, b"kept")
            assert await it.rows("select * from outbox") == []
            assert await it.rows("select * from dead_letters") == []
