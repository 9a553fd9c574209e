"""The contract of body stores, held by the fake and by the real ones; then what only S3 can get wrong.

A new store joins by one line in `STORES`. S3 is spoken over the wire to moto, plainly and through TLS: over TLS
botocore sends other requests (aws-chunked bodies), so a test without it proves little.
"""

import asyncio
import functools
import ssl
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
import trustme
from aiobotocore.session import get_session

from pastebin_daemon.bodies import BodyStore
from pastebin_daemon.bodies.local import open_local
from pastebin_daemon.bodies.s3 import S3Store, open_s3
from pastebin_daemon.clock import SystemClock
from pastebin_daemon.errors import EffectError, Misconfigured, Permanent, Temporary
from pastebin_daemon.ids import new_id
from tests.fakes import FakeClock, FakeStore
from tests.real import free_port
from tests.real.faults import Answer, Cut, FailKeys, FaultProxy, Hang, LoseAnswer, Reset, error_xml
from tests.real.moto import make_bucket, running_moto

BUCKET = "pastes"
LIMIT_S = 0.4  # of the stores that meet a silent server


@pytest.fixture(scope="module")
def moto_port() -> Iterator[int]:
    with running_moto() as port:
        make_bucket(port, BUCKET)
        yield port


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(scope="module", autouse=True)
def one_session() -> Iterator[None]:
    """botocore reads its model of S3 once, and not for each store: 0.1 s for each test."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pastebin_daemon.bodies.s3.get_session", functools.cache(get_session))
        yield


def s3(
    url: str, *, prefix: str = "", bucket: str = BUCKET, timeout_s: float = 10
) -> AbstractAsyncContextManager[S3Store]:
    return open_s3(url, bucket, prefix, "us-east-1", "path", "key", "secret", min(timeout_s, 3), timeout_s)


# --- the contract


@dataclass
class Surroundings:
    directory: Path
    moto_port: Callable[[], int]
    authority: trustme.CA


@asynccontextmanager
async def fake_store(at: Surroundings) -> AsyncIterator[BodyStore]:
    yield FakeStore(FakeClock())


@asynccontextmanager
async def local_store(at: Surroundings) -> AsyncIterator[BodyStore]:
    async with open_local(at.directory / "bodies.sqlite3", SystemClock()) as store:
        yield store


@asynccontextmanager
async def s3_store(at: Surroundings) -> AsyncIterator[BodyStore]:
    async with s3(f"http://127.0.0.1:{at.moto_port()}", prefix=f"{new_id()}/") as store:
        yield store


@asynccontextmanager
async def s3_store_over_tls(at: Surroundings) -> AsyncIterator[BodyStore]:
    async with tls_front(at.moto_port(), at.authority) as proxy, s3(proxy.url, prefix=f"{new_id()}/") as store:
        yield store


STORES = {"fake": fake_store, "local": local_store, "s3": s3_store, "s3-tls": s3_store_over_tls}


@asynccontextmanager
async def tls_front(upstream_port: int, authority: trustme.CA) -> AsyncIterator[FaultProxy]:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    async with FaultProxy(upstream_port, ssl=context) as proxy:
        yield proxy


@pytest.fixture
def trusted(authority: trustme.CA, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    monkeypatch.setenv("AWS_CA_BUNDLE", str(tmp_path / "ca.pem"))


@pytest.fixture(params=STORES)
async def store(
    request: pytest.FixtureRequest, tmp_path: Path, authority: trustme.CA, trusted: None
) -> AsyncIterator[BodyStore]:
    def port() -> int:
        found: int = request.getfixturevalue("moto_port")
        return found

    async with STORES[request.param](Surroundings(tmp_path, port, authority)) as opened:
        yield opened


@pytest.mark.parametrize(
    "body",
    [
        b"\n",
        b"\0",
        b"text\r\nwith\rall\nends",
        "ü€😀".encode(),
        bytes(range(256)) * 5,
        bytes(range(251)) * 4178 + b"x" * 1,
    ],
    ids=["line-end", "nul", "line-ends", "unicode", "all-bytes", "1MiB"],
)
async def test_what_went_in_comes_out_byte_for_byte(store: BodyStore, body: bytes) -> None:
    key = new_id()
    await store.put(key, body)
    assert await store.get(key) == body


async def test_a_missing_object_is_an_answer(store: BodyStore) -> None:
    assert await store.get(new_id()) is None
    assert await store.age_s(new_id()) is None


async def test_deleting_what_is_missing_is_success(store: BodyStore) -> None:
    key = new_id()
    assert (await store.delete([key]))[key] in ("deleted", "missing")


async def test_a_delete_has_a_result_for_every_key_and_leaves_the_others(store: BodyStore) -> None:
    there, missing, kept = [new_id() for _ in range(10)], [new_id() for _ in range(3)], new_id()
    for key in [*there, kept]:
        await store.put(key, b"body of " + key.encode())
    asked = [*missing, *there]
    results = await store.delete(asked)
    assert set(results) == set(asked)
    assert {results[key] for key in there} == {"deleted"}
    assert {results[key] for key in missing} <= {"deleted", "missing"}
    assert [await store.get(key) for key in there] == [None] * len(there)
    assert await store.get(kept) == b"body of " + kept.encode()


async def test_deleting_twice_is_deleting_once(store: BodyStore) -> None:
    key = new_id()
    await store.put(key, b"x")
    await store.delete([key])
    assert (await store.delete([key]))[key] in ("deleted", "missing")


async def test_a_delete_of_nothing_does_nothing(store: BodyStore) -> None:
    assert dict(await store.delete([])) == {}


async def test_the_age_of_a_new_object_is_small(store: BodyStore) -> None:
    key = new_id()
    await store.put(key, b"body")
    age_s = await store.age_s(key)
    assert age_s is not None
    assert 0 <= age_s < 60


# --- S3: what is on the wire


@pytest.fixture
async def proxy(moto_port: int) -> AsyncIterator[FaultProxy]:
    async with FaultProxy(moto_port) as opened:
        yield opened


@pytest.fixture
async def behind_proxy(proxy: FaultProxy) -> AsyncIterator[S3Store]:
    async with s3(proxy.url, prefix=f"{new_id()}/") as opened:
        yield opened


@pytest.mark.parametrize("tls", [False, True], ids=["http", "https"])
async def test_requests_are_plain_enough_for_strict_stores(
    moto_port: int, authority: trustme.CA, trusted: None, tls: bool
) -> None:
    front = tls_front(moto_port, authority) if tls else FaultProxy(moto_port)
    async with front as proxy, s3(proxy.url) as store:
        key = new_id()
        await store.put(key, b"12345")
        await store.get(key)
        await store.age_s(key)
        await store.delete([key])
    put, get, age, delete = proxy.seen
    assert [seen.method for seen in proxy.seen] == ["PUT", "GET", "GET", "POST"]
    assert (put.headers["content-length"], put.body) == ("5", b"12345")
    assert "range" not in get.headers
    assert age.headers["range"] == "bytes=0-0"
    assert "content-md5" in delete.headers
    for seen in proxy.seen:
        assert not {"expect", "transfer-encoding", "content-encoding", "x-amz-trailer"} & set(seen.headers)


async def test_an_empty_body_has_a_length_too(proxy: FaultProxy, behind_proxy: S3Store) -> None:
    await behind_proxy.put("empty", b"")
    assert proxy.seen[0].headers["content-length"] == "0"
    assert await behind_proxy.get("empty") == b""


async def test_the_age_of_an_empty_object_needs_no_first_byte(proxy: FaultProxy, behind_proxy: S3Store) -> None:
    await behind_proxy.put("empty", b"")
    proxy.next(Answer(416, error_xml("InvalidRange")), method="GET")
    age_s = await behind_proxy.age_s("empty")
    assert age_s is not None
    assert 0 <= age_s < 60


async def test_the_age_is_judged_by_the_clock_of_the_store(proxy: FaultProxy, behind_proxy: S3Store) -> None:
    written, date = "Tue, 14 Nov 2000 22:00:00 GMT", "Tue, 14 Nov 2000 23:00:01 GMT"
    proxy.next(Answer(206, b"x", {"Last-Modified": written, "Date": date, "Content-Range": "bytes 0-0/9"}))
    assert await behind_proxy.age_s("any") == 3601


async def test_a_store_without_ranges_tells_the_age_too(proxy: FaultProxy, behind_proxy: S3Store) -> None:
    stamps = {"Last-Modified": "Tue, 14 Nov 2000 22:00:00 GMT", "Date": "Tue, 14 Nov 2000 22:00:05 GMT"}
    proxy.next(Answer(200, b"the whole body", stamps))
    assert await behind_proxy.age_s("any") == 5


@pytest.mark.parametrize("date", [{}, {"Date": "yesterday"}], ids=["none", "unreadable"])
async def test_an_answer_without_a_date_tells_no_age(
    proxy: FaultProxy, behind_proxy: S3Store, date: dict[str, str]
) -> None:
    proxy.next(Answer(206, b"x", {"Last-Modified": "Tue, 14 Nov 2000 22:00:00 GMT", **date}))
    with pytest.raises(Temporary):
        await behind_proxy.age_s("any")


async def test_stores_with_different_prefixes_do_not_meet(moto_port: int) -> None:
    url = f"http://127.0.0.1:{moto_port}"
    async with s3(url, prefix="a/") as one, s3(url, prefix="b/") as other, s3(url) as whole:
        await one.put("key", b"one")
        assert await other.get("key") is None
        await other.put("key", b"other")
        await one.delete(["key"])
        assert await one.get("key") is None
        assert await other.get("key") == b"other"
        assert await whole.get("b/key") == b"other"


@pytest.mark.parametrize("key", ["a b+c%/ü/<&>'\"", "a//b/../c"])
async def test_keys_that_we_never_make_do_no_harm(behind_proxy: S3Store, key: str) -> None:
    await behind_proxy.put(key, b"x")
    assert await behind_proxy.get(key) == b"x"
    assert await behind_proxy.delete([key, "other"]) == {key: "deleted", "other": "deleted"}
    assert await behind_proxy.get(key) is None


@pytest.mark.parametrize("bad", ["\udc80", "a\0b", "ü" * 600], ids=["surrogate", "nul", "long"])
async def test_a_key_that_cannot_be_one_is_permanent_and_harms_no_other(behind_proxy: S3Store, bad: str) -> None:
    await behind_proxy.put("good", b"x")
    with pytest.raises(Permanent):
        await behind_proxy.put(bad, b"x")
    results = await behind_proxy.delete(["good", bad])
    assert results["good"] == "deleted"
    assert isinstance(results[bad], Permanent)
    assert await behind_proxy.get("good") is None


# --- S3: what its answers mean

ALL = ["put", "get", "age_s", "delete"]


async def outcome(store: S3Store, operation: str) -> object:
    """What the operation gave, or its error, in whichever way it tells it."""
    try:
        match operation:
            case "put":
                await store.put("key", b"body")
                return None
            case "get":
                return await store.get("key")
            case "age_s":
                return await store.age_s("key")
            case _:
                return (await store.delete(["key"]))["key"]
    except EffectError as error:
        return error


@pytest.mark.parametrize("operation", ALL)
@pytest.mark.parametrize(
    ("status", "code"),
    [
        (500, "InternalError"),
        (502, ""),
        (503, "ServiceUnavailable"),
        (403, "AccessDenied"),
        (404, "NoSuchBucket"),
        (400, "ExpiredToken"),
        (400, "RequestTimeout"),
        (409, "OperationAborted"),
    ],
)
async def test_trouble_of_the_surroundings_is_temporary(
    proxy: FaultProxy, behind_proxy: S3Store, operation: str, status: int, code: str
) -> None:
    proxy.next(Answer(status, error_xml(code) if code else b"<html>bad gateway</html>"), times=99)
    error = await outcome(behind_proxy, operation)
    assert type(error) is Temporary
    assert not error.throttled
    assert str(status) in str(error)
    assert code in str(error)


@pytest.mark.parametrize("operation", ALL)
@pytest.mark.parametrize(("status", "code"), [(503, "SlowDown"), (429, "TooManyRequests"), (429, "")])
async def test_a_store_that_asks_for_less_throttles(
    proxy: FaultProxy, behind_proxy: S3Store, operation: str, status: int, code: str
) -> None:
    proxy.next(Answer(status, error_xml(code) if code else b"", {"Retry-After": "7"}))
    error = await outcome(behind_proxy, operation)
    assert isinstance(error, Temporary)
    assert error.throttled
    assert error.retry_after_s == 7
    assert len(proxy.seen) == 1


@pytest.mark.parametrize("operation", ALL)
@pytest.mark.parametrize(("status", "code"), [(400, "KeyTooLongError"), (400, "InvalidArgument"), (400, "")])
async def test_what_will_not_change_is_permanent(
    proxy: FaultProxy, behind_proxy: S3Store, operation: str, status: int, code: str
) -> None:
    proxy.next(Answer(status, error_xml(code) if code else b""), times=2)
    assert isinstance(await outcome(behind_proxy, operation), Permanent)


@pytest.mark.parametrize("operation", ["get", "age_s"])
async def test_a_404_that_does_not_name_the_key_is_not_a_missing_object(
    proxy: FaultProxy, behind_proxy: S3Store, operation: str
) -> None:
    proxy.next(Answer(404, b"<html>not found</html>"))
    assert isinstance(await outcome(behind_proxy, operation), Temporary)


async def test_a_bucket_that_is_not_there_is_trouble_and_no_missing_object(moto_port: int) -> None:
    async with s3(f"http://127.0.0.1:{moto_port}", bucket="no-such-bucket") as store:
        for operation in ALL:
            assert isinstance(await outcome(store, operation), Temporary)


async def test_an_error_in_a_200_is_an_error(proxy: FaultProxy, behind_proxy: S3Store) -> None:
    proxy.next(Answer(200, error_xml("InternalError")))
    assert isinstance(await outcome(behind_proxy, "delete"), Temporary)


@pytest.mark.parametrize("operation", ALL)
@pytest.mark.parametrize("status", [301, 302, 303, 307])
async def test_a_redirect_is_not_success(proxy: FaultProxy, behind_proxy: S3Store, operation: str, status: int) -> None:
    proxy.next(Answer(status, headers={"Location": f"{proxy.url}/login"}))
    proxy.next(Answer(200, b"", {"ETag": '"page"', "Last-Modified": "Tue, 14 Nov 2000 22:00:00 GMT"}), times=9)
    error = await outcome(behind_proxy, operation)
    assert isinstance(error, Temporary)
    assert "Redirected" in str(error)


async def test_a_put_that_something_else_than_s3_accepts_is_not_success(
    proxy: FaultProxy, behind_proxy: S3Store
) -> None:
    proxy.next(Answer(200, b"welcome"))
    assert isinstance(await outcome(behind_proxy, "put"), Temporary)


async def test_an_answer_that_is_no_xml_is_temporary(proxy: FaultProxy, behind_proxy: S3Store) -> None:
    proxy.next(Answer(200, b"welcome to the hotel's network"))
    assert isinstance(await outcome(behind_proxy, "delete"), Temporary)


@pytest.mark.parametrize("operation", ALL)
async def test_nobody_listening_is_temporary_and_told_soon(operation: str) -> None:
    async with s3(f"http://127.0.0.1:{free_port()}") as store:
        error = await outcome(store, operation)
    assert isinstance(error, Temporary)
    assert "Connect call failed" in str(error)


async def test_a_certificate_that_is_not_trusted_is_temporary(moto_port: int, trusted: None) -> None:
    async with tls_front(moto_port, trustme.CA()) as proxy, s3(proxy.url) as store:
        error = await outcome(store, "put")
    assert isinstance(error, Temporary)
    assert "certificate" in str(error)


@pytest.mark.parametrize("operation", ALL)
async def test_a_silent_store_costs_the_limit_and_no_more(proxy: FaultProxy, operation: str) -> None:
    proxy.next(Hang(), times=99)
    loop = asyncio.get_running_loop()
    async with s3(proxy.url, timeout_s=LIMIT_S) as store:
        began = loop.time()
        error = await outcome(store, operation)
        assert loop.time() - began < LIMIT_S + 0.5
    assert isinstance(error, Temporary)


@pytest.mark.parametrize("operation", ALL)
async def test_a_reset_connection_is_temporary(proxy: FaultProxy, behind_proxy: S3Store, operation: str) -> None:
    proxy.next(Reset(), times=99)
    assert isinstance(await outcome(behind_proxy, operation), Temporary)


async def test_an_answer_lost_after_the_put_is_temporary_and_the_object_may_be_there(
    proxy: FaultProxy, behind_proxy: S3Store
) -> None:
    body = b"0123456789" * 30_000
    proxy.next(LoseAnswer(), times=99, method="PUT")
    with pytest.raises(Temporary):
        await behind_proxy.put("key", body)
    assert await behind_proxy.get("key") == body


async def test_an_answer_lost_once_is_made_up_by_sending_again_the_whole_body(
    proxy: FaultProxy, behind_proxy: S3Store
) -> None:
    body = b"0123456789" * 30_000
    proxy.next(LoseAnswer(), method="PUT")
    with suppress(Temporary):  # aiohttp's choice; what counts is that no half of a body is stored
        await behind_proxy.put("key", body)
    assert {seen.body for seen in proxy.seen} == {body}
    assert await behind_proxy.get("key") == body


async def test_an_answer_lost_after_the_delete_is_temporary_and_the_next_delete_succeeds(
    proxy: FaultProxy, behind_proxy: S3Store
) -> None:
    await behind_proxy.put("key", b"x")
    proxy.next(LoseAnswer(), method="POST")
    assert isinstance((await behind_proxy.delete(["key"]))["key"], Temporary)
    assert await behind_proxy.delete(["key"]) == {"key": "deleted"}


async def test_a_body_that_is_cut_is_temporary(proxy: FaultProxy, behind_proxy: S3Store) -> None:
    await behind_proxy.put("key", b"x" * 100_000)
    proxy.next(Cut(after=50_000), times=2)
    with pytest.raises(Temporary):
        await behind_proxy.get("key")


async def test_a_body_that_stalls_is_temporary_within_the_limit(proxy: FaultProxy) -> None:
    async with s3(proxy.url, timeout_s=LIMIT_S) as store:
        await store.put("stalled", b"x" * 100_000)
        proxy.next(Cut(after=50_000, silent=True))
        with pytest.raises(Temporary):
            await store.get("stalled")


async def test_a_cancelled_call_is_cancelled_and_no_error_of_the_store(
    proxy: FaultProxy, behind_proxy: S3Store
) -> None:
    proxy.next(Hang())
    call = asyncio.create_task(behind_proxy.put("key", b"x"))
    await proxy.arrived.wait()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call


# --- S3: bulk deletes


async def stored(store: S3Store, count: int) -> list[str]:
    keys = [new_id() for _ in range(count)]
    for key in keys:
        await store.put(key, b"x")
    return keys


async def test_the_failures_of_some_keys_are_theirs_alone(moto_port: int) -> None:
    async with FaultProxy(moto_port) as proxy, s3(proxy.url) as store:
        keys = await stored(store, 9)
        codes = ["InternalError", "SlowDown", "AccessDenied", "NoSuchKey", "KeyTooLongError", "NeverHeardOf"]
        proxy.next(FailKeys(dict(zip(keys[3:], codes, strict=True))), method="POST")
        results = await store.delete(keys)
        assert [results[key] for key in keys[:3]] == ["deleted"] * 3
        internal, slow, denied, missing, own_fault, unknown = [results[key] for key in keys[3:]]
        assert missing == "missing"
        assert isinstance(own_fault, Permanent)
        for error in (internal, slow, denied, unknown):
            assert isinstance(error, Temporary)
            assert error.throttled == (error is slow)
        assert [await store.get(key) for key in keys] == [None] * 3 + [b"x"] * 6


@pytest.mark.parametrize(
    ("status", "code", "remembered"),
    [
        (501, "NotImplemented", True),
        (405, "MethodNotAllowed", True),
        (411, "MissingContentLength", True),
        (404, "", True),
        (400, "InvalidRequest", False),
        (400, "MalformedXML", False),
        (400, "", False),
    ],
)
async def test_a_bulk_delete_that_is_refused_becomes_single_ones(
    proxy: FaultProxy, behind_proxy: S3Store, status: int, code: str, remembered: bool
) -> None:
    keys = await stored(behind_proxy, 5)
    proxy.next(Answer(status, error_xml(code) if code else b""), method="POST")
    assert await behind_proxy.delete(keys) == dict.fromkeys(keys, "deleted")
    assert [await behind_proxy.get(key) for key in keys] == [None] * 5
    proxy.seen.clear()
    await behind_proxy.delete(keys)
    assert {seen.method for seen in proxy.seen} == ({"DELETE"} if remembered else {"POST"})


async def test_one_bad_key_of_a_refused_batch_fails_alone(proxy: FaultProxy, behind_proxy: S3Store) -> None:
    good, bad = await stored(behind_proxy, 1), "bad"
    proxy.next(Answer(400, error_xml("MalformedXML")), method="POST")
    proxy.next(Answer(400, error_xml("InvalidArgument")), method="DELETE")
    results = await behind_proxy.delete([bad, *good])
    assert isinstance(results[bad], Permanent)
    assert results[good[0]] == "deleted"


async def test_a_single_delete_may_tell_that_the_object_is_missing(proxy: FaultProxy, behind_proxy: S3Store) -> None:
    proxy.next(Answer(501, error_xml("NotImplemented")), method="POST")
    proxy.next(Answer(404, error_xml("NoSuchKey")), method="DELETE")
    assert await behind_proxy.delete(["key"]) == {"key": "missing"}


async def test_an_outage_fails_every_key_and_asks_only_once(proxy: FaultProxy, behind_proxy: S3Store) -> None:
    proxy.next(Answer(503, error_xml("ServiceUnavailable")), times=99)
    results = await behind_proxy.delete(["a", "b", "c"])
    assert [type(result) for result in results.values()] == [Temporary] * 3
    assert len(proxy.seen) == 1


async def test_an_error_for_a_key_that_was_not_asked_for_counts_no_key_as_deleted(
    proxy: FaultProxy, behind_proxy: S3Store
) -> None:
    keys = await stored(behind_proxy, 3)
    proxy.next(FailKeys({"not-one-of-them": "InternalError"}), method="POST")
    assert await behind_proxy.delete(keys) == dict.fromkeys(keys, "deleted")
    assert [seen.method for seen in proxy.seen].count("DELETE") == 3


async def test_what_single_deletes_did_before_the_time_was_up_counts(moto_port: int) -> None:
    async with FaultProxy(moto_port) as proxy, s3(proxy.url, timeout_s=LIMIT_S) as store:
        keys = await stored(store, 2)
        proxy.next(Answer(501, error_xml("NotImplemented")), method="POST")
        proxy.next(Hang(), method="DELETE")
        results = await store.delete(keys)
    assert sorted(str(type(result).__name__) for result in results.values()) == ["Temporary", "str"]


async def test_a_thousand_keys_go_in_one_request(proxy: FaultProxy, behind_proxy: S3Store) -> None:
    keys = [new_id() for _ in range(1000)]
    assert await behind_proxy.delete(keys) == dict.fromkeys(keys, "deleted")
    assert len(proxy.seen) == 1


async def test_an_endpoint_that_is_no_url_is_a_wrong_configuration() -> None:
    with pytest.raises(Misconfigured):
        async with s3("not a url"):
            pass
