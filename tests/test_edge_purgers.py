"""What every purger of the edge keeps, what each puts on the wire, and what a real Varnish does with it."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass

import aiohttp
import pytest
from aiohttp import web
from pydantic import SecretStr

from pastebin_daemon.clock import SystemClock
from pastebin_daemon.edge import EdgePurger, Target
from pastebin_daemon.edge import http as http_driver
from pastebin_daemon.edge import varnish as varnish_driver
from pastebin_daemon.edge.http import HttpPurger
from pastebin_daemon.edge.varnish import VarnishPurger
from pastebin_daemon.errors import Permanent, Temporary
from pastebin_daemon.ids import new_id
from tests.fakes import FakeClock, FakeEdge
from tests.real import free_port, wait_until
from tests.real.faults import Answer, FaultProxy, Hang, Reset
from tests.real.varnish import missing, running_varnish

LIMIT_S = 0.4


def target(paste_id: str, base: str = "http://paste.example") -> Target:
    urls = tuple(base + path for path in (f"/{paste_id}", f"/{paste_id}/raw", f"/{paste_id}/download"))
    return Target(paste_id, f"paste-{paste_id}", urls)


def http(
    url: str,
    method: str = "POST",
    headers: Mapping[str, str] | None = None,
    token: str = "",
    timeout_s: float = 5,
    rate_per_second: int = 0,
    clock: FakeClock | None = None,
) -> AbstractAsyncContextManager[HttpPurger]:
    settings = http_driver.Settings.model_construct(
        method=method,
        url=url,
        headers=headers or {},
        token=SecretStr(token),
        timeout=timeout_s,
        rate_per_second=rate_per_second,
    )
    if clock is None:
        return http_driver.open_purger(settings, SystemClock())
    return http_driver.open_purger(settings, clock, clock.sleep)


def open_varnish(endpoint: str, timeout_s: float) -> AbstractAsyncContextManager[VarnishPurger]:
    settings = varnish_driver.Settings.model_construct(endpoint=endpoint, timeout=timeout_s)
    return varnish_driver.open_purger(settings, SystemClock())


@pytest.fixture
async def edge() -> AsyncIterator[FaultProxy]:
    """An edge that answers as it's told, and keeps what it was asked."""
    async with FaultProxy(free_port()) as opened:
        yield opened


# --- the contract


@asynccontextmanager
async def fake_purger(edge: FaultProxy) -> AsyncIterator[EdgePurger]:
    yield FakeEdge()


@asynccontextmanager
async def http_purger(edge: FaultProxy) -> AsyncIterator[EdgePurger]:
    async with http(f"{edge.url}/purge/{{tag}}", timeout_s=LIMIT_S) as purger:
        yield purger


@asynccontextmanager
async def varnish_purger(edge: FaultProxy) -> AsyncIterator[EdgePurger]:
    async with open_varnish(edge.url, LIMIT_S) as purger:
        yield purger


DRIVERS = {"http": http_purger, "varnish": varnish_purger}


@pytest.fixture(params={"fake": fake_purger, **DRIVERS}.items(), ids=lambda item: item[0])
async def purger(request: pytest.FixtureRequest, edge: FaultProxy) -> AsyncIterator[EdgePurger]:
    async with request.param[1](edge) as opened:
        yield opened


@pytest.fixture(params=DRIVERS.items(), ids=lambda item: item[0])
async def driver(request: pytest.FixtureRequest, edge: FaultProxy) -> AsyncIterator[EdgePurger]:
    async with request.param[1](edge) as opened:
        yield opened


async def test_every_target_has_its_result(purger: EdgePurger, edge: FaultProxy) -> None:
    edge.next(Answer(200), times=99)
    assert list(await purger.purge([target(new_id()) for _ in range(5)])) == [None] * 5
    assert list(await purger.purge([])) == []


async def test_a_full_batch_is_taken(purger: EdgePurger, edge: FaultProxy) -> None:
    edge.next(Answer(200), times=purger.batch_max)
    assert list(await purger.purge([target(new_id()) for _ in range(purger.batch_max)])) == [None] * purger.batch_max


@pytest.mark.parametrize("status", [200, 201, 202, 204, 404, 410, 412])
async def test_what_is_gone_or_never_was_there_is_success(driver: EdgePurger, edge: FaultProxy, status: int) -> None:
    edge.next(Answer(status))
    assert list(await driver.purge([target("a1")])) == [None]


@pytest.mark.parametrize("status", [302, 401, 403, 405, 408, 500, 502, 503])
async def test_trouble_of_the_surroundings_is_temporary(driver: EdgePurger, edge: FaultProxy, status: int) -> None:
    edge.next(Answer(status, headers={"Location": edge.url}))
    [error] = await driver.purge([target("a1")])
    assert isinstance(error, Temporary)
    assert not error.throttled
    assert str(status) in str(error)
    assert len(edge.seen) == 1


async def test_an_edge_that_asks_for_less_throttles(driver: EdgePurger, edge: FaultProxy) -> None:
    edge.next(Answer(429, headers={"Retry-After": "30"}))
    [error] = await driver.purge([target("a1")])
    assert isinstance(error, Temporary)
    assert (error.throttled, error.retry_after_s) == (True, 30)


@pytest.mark.parametrize("status", [400, 413, 422])
async def test_what_will_not_change_is_permanent(driver: EdgePurger, edge: FaultProxy, status: int) -> None:
    edge.next(Answer(status))
    assert [type(error) for error in await driver.purge([target("a1")])] == [Permanent]


@pytest.mark.parametrize(
    ("body", "purged"),
    [
        (b'{"success": false, "errors": [{"code": 1}]}', False),
        (b' {"success":false}', False),
        (b'{"success": true}', True),
        (b'{"status": "ok"}', True),
        (b'{"success": "false"', True),
        (b"<html>", True),
        (b'{"filler": "' + b"x" * 100_000 + b'"}', True),
    ],
    ids=["false", "spaces", "true", "unsaid", "no-json", "html", "long"],
)
async def test_a_200_that_denies_success_is_a_failure(
    driver: EdgePurger, edge: FaultProxy, body: bytes, purged: bool
) -> None:
    edge.next(Answer(200, body))
    [error] = await driver.purge([target("a1")])
    assert error is None if purged else isinstance(error, Temporary)


async def test_a_silent_edge_costs_the_limit_and_no_more(driver: EdgePurger, edge: FaultProxy) -> None:
    edge.next(Hang(), times=99)
    loop = asyncio.get_running_loop()
    began = loop.time()
    errors = await driver.purge([target(new_id()) for _ in range(40)])
    assert loop.time() - began < LIMIT_S + 0.5
    assert [type(error) for error in errors] == [Temporary] * 40


async def test_a_reset_connection_is_temporary(driver: EdgePurger, edge: FaultProxy) -> None:
    edge.next(Reset(), times=9)
    assert [type(error) for error in await driver.purge([target("a1")])] == [Temporary]


@pytest.mark.parametrize("kind", ["http", "varnish"])
async def test_nobody_listening_is_temporary(kind: str) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    opened: AbstractAsyncContextManager[EdgePurger] = http(f"{url}/{{id}}") if kind == "http" else open_varnish(url, 5)
    async with opened as purger:
        errors = await purger.purge([target("a1"), target("a2")])
    assert [type(error) for error in errors] == [Temporary] * 2
    assert "Connect call failed" in str(errors[0])


async def test_a_malformed_target_is_permanent_and_harms_no_other(driver: EdgePurger, edge: FaultProxy) -> None:
    edge.next(Answer(200), times=9)
    bad = Target("x", "paste-.*", ("http://paste.example/x",))
    results = await driver.purge([target("a1"), bad, target("a2")])
    assert [type(result) for result in results] == [type(None), Permanent, type(None)]
    assert not any(".*" in seen.target + str(seen.headers) for seen in edge.seen)


# --- any edge over HTTP


async def test_one_request_for_each_url_when_the_template_names_urls(edge: FaultProxy) -> None:
    edge.next(Answer(200), times=9)
    async with http("{url}", method="PURGE") as purger:
        assert list(await purger.purge([target("a1", edge.url), target("a2", edge.url)])) == [None, None]
    assert {seen.method for seen in edge.seen} == {"PURGE"}
    asked = Counter(seen.target for seen in edge.seen)
    assert asked == Counter(["/a1", "/a1/raw", "/a1/download", "/a2", "/a2/raw", "/a2/download"])


async def test_one_request_for_each_target_when_it_names_the_tag(edge: FaultProxy) -> None:
    edge.next(Answer(200), times=9)
    async with http(f"{edge.url}/service/purge/{{tag}}?soft={{id}}") as purger:
        await purger.purge([target("a1"), target("a2")])
    assert {seen.target for seen in edge.seen} == {"/service/purge/paste-a1?soft=a1", "/service/purge/paste-a2?soft=a2"}


async def test_a_path_goes_to_another_host_and_headers_are_templates_too(edge: FaultProxy) -> None:
    edge.next(Answer(200), times=9)
    headers = {"Authorization": "Bearer {token}", "Host": "paste.example", "X-Key": "{tag} {id}"}
    async with http(f"{edge.url}{{path}}", "PURGE", headers, token="s3cret {id}") as purger:
        await purger.purge([Target("a1", "paste-a1", ("https://paste.example/sub/a1?x=1",))])
    [seen] = edge.seen
    assert (seen.method, seen.target) == ("PURGE", "/sub/a1?x=1")
    assert seen.headers["authorization"] == "Bearer s3cret {id}"
    assert seen.headers["host"] == "paste.example"
    assert seen.headers["x-key"] == "paste-a1 a1"


async def test_a_url_in_a_query_is_percent_encoded_and_nowhere_else(edge: FaultProxy) -> None:
    edge.next(Answer(200), times=9)
    where = Target("a1", "paste-a1", ("https://paste.example/a1",))
    async with http(f"{edge.url}/purge?url={{url}}") as purger:
        await purger.purge([where])
    async with http(f"{edge.url}/purge/{{url}}") as purger:
        await purger.purge([where])
    assert [seen.target for seen in edge.seen] == [
        "/purge?url=https%3A%2F%2Fpaste.example%2Fa1",
        "/purge/https://paste.example/a1",
    ]


async def test_nothing_is_sent_that_would_select_a_variant(edge: FaultProxy) -> None:
    edge.next(Answer(200, headers={"Set-Cookie": "a=b"}), times=9)
    async with http(f"{edge.url}/{{id}}", "PURGE") as purger:
        await purger.purge([target("a1")])
        await purger.purge([target("a1")])
    async with http(f"{edge.url}/{{id}}", "PURGE", {"Accept-Encoding": "gzip"}) as purger:
        await purger.purge([target("a1")])
    plain, again, chosen = edge.seen
    assert not {"accept-encoding", "cookie"} & (set(plain.headers) | set(again.headers))
    assert chosen.headers["accept-encoding"] == "gzip"


async def test_a_target_is_purged_when_all_its_urls_are(edge: FaultProxy) -> None:
    async with http("{url}", method="PURGE") as purger:
        edge.next(Answer(200), times=2)
        edge.next(Answer(500))
        assert isinstance((await purger.purge([target("a1", edge.url)]))[0], Temporary)
        edge.next(Answer(400))
        edge.next(Answer(500))
        edge.next(Answer(200))
        assert isinstance((await purger.purge([target("a1", edge.url)]))[0], Temporary)
        edge.next(Answer(500), times=2)
        edge.next(Answer(429))
        [error] = await purger.purge([target("a1", edge.url)])
        assert isinstance(error, Temporary)
        assert error.throttled


async def test_the_rate_is_kept_over_all_purges(edge: FaultProxy) -> None:
    edge.next(Answer(200), times=99)
    clock = FakeClock()
    async with http(f"{edge.url}/{{id}}", rate_per_second=10, clock=clock) as purger:
        assert purger.batch_max == 10
        began = clock.monotonic()
        await purger.purge([target(new_id())])
        assert clock.monotonic() == began
        for _ in range(3):
            await purger.purge([target(new_id()) for _ in range(10)])
        assert clock.monotonic() - began >= 3.0 - 1e-6
        clock.advance(60)
        began = clock.monotonic()
        await purger.purge([target(new_id())])
        assert clock.monotonic() == began  # what was not used in a quiet minute does no harm and gives no burst
        await purger.purge([target(new_id())])
        assert clock.monotonic() - began >= 0.1 - 1e-6


async def test_a_secret_is_in_no_message(edge: FaultProxy) -> None:
    for fault in (Answer(403), Answer(400), Reset(), Answer(200, b'{"success": false}')):
        edge.next(fault)
    async with http(f"{edge.url}/{{id}}", headers={"Authorization": "{token}"}, token="s3cret") as purger:
        for _ in range(4):
            assert "s3cret" not in str(await purger.purge([target("a1")]))
    async with http(f"{edge.url}/{{id}}", headers={"Authorization": "{token}"}, token="s3cret\n") as purger:
        [error] = await purger.purge([target("a1")])
        assert isinstance(error, Permanent)
        assert "s3cret" not in str(error)


# --- Varnish


async def test_a_batch_is_one_ban_without_duplicates(edge: FaultProxy) -> None:
    edge.next(Answer(200))
    async with open_varnish(edge.url + "/", 5) as purger:
        await purger.purge([target("a1"), target("a2"), target("a1")])
    [seen] = edge.seen
    assert (seen.method, seen.target) == ("BAN", "/")
    assert seen.headers["cache-tag"] == "paste-a1|paste-a2"


@dataclass
class Front:
    """A real Varnish, and where it looks for its origin."""

    url: str
    origin_port: int


@pytest.fixture(scope="module")
def varnish() -> Iterator[Front]:
    missing()
    port = free_port()
    with running_varnish(port) as url:
        yield Front(url, port)


class Origin:
    """Serves pastes as the daemon does. Each answer has a new number, so that an old one can be told."""

    def __init__(self) -> None:
        self.answers = 0
        self.s_maxage = 60

    async def answer(self, request: web.Request) -> web.Response:
        self.answers += 1
        caching = (
            f"public, max-age=0, s-maxage={self.s_maxage}, must-revalidate, stale-while-revalidate=0, stale-if-error=0"
        )
        tag = f"paste-{request.match_info['id']}"
        headers = {"Cache-Control": caching, "Cache-Tag": tag, "Surrogate-Key": tag}
        return web.Response(text=f"answer {self.answers}", headers=headers)


@pytest.fixture
async def origin(varnish: Front) -> AsyncIterator[Origin]:
    opened, app = Origin(), web.Application()
    for path in ("/{id}", "/{id}/raw", "/api/v1/pastes/{id}"):
        app.router.add_get(path, opened.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", varnish.origin_port).start()
    yield opened
    await runner.cleanup()


@pytest.fixture
async def purge_varnish(varnish: Front) -> AsyncIterator[VarnishPurger]:
    async with open_varnish(varnish.url, 5) as opened:
        yield opened


@pytest.fixture
async def visitor(varnish: Front) -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(varnish.url) as session:
        yield session


async def copies(visitor: aiohttp.ClientSession, paste_id: str) -> list[str]:
    """What a visitor gets of a paste at all its URLs, by several ways that a cache may keep apart."""
    paths = [f"/{paste_id}", f"/{paste_id}/raw", f"/api/v1/pastes/{paste_id}", f"/{paste_id}?from=a-chat"]
    ways = [{"Accept-Encoding": "gzip"}, {"Accept-Encoding": "identity"}, {"Host": "other.example"}]
    texts = []
    for path in paths:
        for headers in ways:
            async with visitor.get(path, headers=headers) as response:
                assert response.status == 200
                texts.append(await response.text())
    return texts


async def test_varnish_drops_every_copy_of_a_banned_paste_and_no_other(
    origin: Origin, purge_varnish: VarnishPurger, visitor: aiohttp.ClientSession
) -> None:
    gone, kept = new_id(), new_id()
    longer = gone + "x"
    before = {paste_id: await copies(visitor, paste_id) for paste_id in (gone, kept, longer)}
    answers = origin.answers
    assert {paste_id: await copies(visitor, paste_id) for paste_id in before} == before
    assert origin.answers == answers  # all from the cache
    assert list(await purge_varnish.purge([target(gone), target(new_id())])) == [None, None]
    assert await copies(visitor, kept) == before[kept]
    assert await copies(visitor, longer) == before[longer]
    assert origin.answers == answers
    assert not set(await copies(visitor, gone)) & set(before[gone])


async def test_varnish_takes_a_full_batch(
    origin: Origin, purge_varnish: VarnishPurger, visitor: aiohttp.ClientSession
) -> None:
    ids = [new_id() for _ in range(purge_varnish.batch_max)]
    before = {paste_id: await copies(visitor, paste_id) for paste_id in (ids[0], ids[57], ids[-1])}
    longest = [Target(paste_id, f"paste-{paste_id}".ljust(64, "0"), ()) for paste_id in ids]
    assert set(await purge_varnish.purge(longest)) == {None}
    assert set(await purge_varnish.purge([target(paste_id) for paste_id in ids])) == {None}
    for paste_id, old in before.items():
        assert not set(await copies(visitor, paste_id)) & set(old)


async def test_varnish_serves_nothing_beyond_the_lifetime(origin: Origin, visitor: aiohttp.ClientSession) -> None:
    """Its default grace is 10 s; the origin's stale-while-revalidate=0 has to be enough."""
    origin.s_maxage, paste_id = 1, new_id()

    async def text() -> str:
        async with visitor.get(f"/{paste_id}") as response:
            return await response.text()

    loop = asyncio.get_running_loop()
    first = await text()
    fetched = loop.time()
    assert await text() == first
    await asyncio.to_thread(wait_until, lambda: loop.time() > fetched + 1.2, "the lifetime is over")
    assert await text() != first


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Cache-Tag": "paste-a1"}, 200),
        ({"Cache-Tag": "paste-a1", "X-Forwarded-For": "203.0.113.7"}, 403),
        ({}, 400),
        ({"Cache-Tag": ""}, 400),
        ({"Cache-Tag": ".*"}, 400),
        ({"Cache-Tag": "paste-a1|"}, 400),
        ({"Cache-Tag": "a) || obj.http.Cache-Tag ~ (."}, 400),
    ],
    ids=["good", "forwarded", "none", "empty", "pattern", "open-end", "injection"],
)
async def test_varnish_bans_only_tags_and_only_for_purgers(
    varnish: Front, visitor: aiohttp.ClientSession, headers: dict[str, str], status: int
) -> None:
    async with visitor.request("BAN", "/", headers=headers) as response:
        assert response.status == status
