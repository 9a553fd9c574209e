"""How often one client may create, and who a client is: an IPv4 address, an IPv6 /64, by the word of trusted proxies and
of nobody else."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web

from tests.fakes import FakeClock
from tests.support import Harness, running
from tests.wire import Line, multipart, request

ONE: dict[str, object] = {"limits.creates_per_minute": 1}
NOBODY: dict[str, object] = {"server.trusted_proxies": "[]"}


async def create(it: Harness, *forwarded: str) -> int:
    """A create by way of the proxy at 127.0.0.1, which says `forwarded`."""
    headers = [("X-Forwarded-For", field) for field in forwarded]
    async with it.http.put(f"{it.url}/", data=b"x", headers=headers) as answer:
        return answer.status


async def share(it: Harness, first: Sequence[str], second: Sequence[str]) -> bool:
    """Whether two clients count as one."""
    it.clock.advance(3600)
    assert await create(it, *first) == 201
    status = await create(it, *second)
    assert status in (201, 429)
    return status == 429


async def test_a_client_creates_as_often_as_it_may_and_is_told_when_again(tmp_path: Path) -> None:
    clock = FakeClock()
    async with running(tmp_path, clock=clock, settings={"limits.creates_per_minute": 3}) as it:
        assert [await create(it) for _ in range(4)] == [201, 201, 201, 429]
        async with it.http.put(f"{it.url}/", data=b"x") as answer:
            wait_s = int(answer.headers["Retry-After"])
            assert "3 pastes a minute" in await answer.text()
        assert 20 <= wait_s <= 21, "a third of a minute"
        clock.advance(wait_s)
        assert [await create(it) for _ in range(2)] == [201, 429]
        clock.advance(3600)
        assert [await create(it) for _ in range(4)] == [201, 201, 201, 429], "what was not used is not saved up"
        assert (await it.get("/"))[0] == 200, "only creates are counted"
        assert await it.rows("select count(*) from pastes") == [(7,)]


async def test_the_limit_is_one_for_all_ways_in_and_refused_creates_count(tmp_path: Path) -> None:
    clock = FakeClock()
    form = {"Content-Type": "multipart/form-data; boundary=b"}
    body = multipart("b", ('Content-Disposition: form-data; name="content"', b"x"))
    async with running(tmp_path, clock=clock, settings=ONE) as it:
        for method, path, headers, data in (
            ("PUT", "/", {}, b""),
            ("PUT", "/x", {}, b"x"),
            ("POST", "/", {}, b"x"),
            ("POST", "/api/v1/pastes", {}, b"x"),
            ("POST", "/new", form, body),
        ):
            clock.advance(60)
            async with it.http.request(method, it.url + path, data=data, headers=headers) as answer:
                assert answer.status in (201, 400)
            assert await create(it) == 429, path


async def test_no_limit_is_no_limit(tmp_path: Path) -> None:
    async with running(tmp_path, settings={"limits.creates_per_minute": 0}) as it:
        assert {await create(it) for _ in range(50)} == {201}


@pytest.mark.parametrize(
    ("first", "second", "one"),
    [
        ("192.0.2.1", "192.0.2.1", True),
        ("192.0.2.1", "192.0.2.2", False),
        ("192.0.2.1", "::ffff:192.0.2.1", True),
        ("192.0.2.1", "::ffff:c000:201", True),
        ("::ffff:240.0.0.1", "240.0.0.1", True),
        ("::ffff:192.0.2.1", "::ffff:192.0.2.2", False),
        ("2001:db8:1:2::1", "2001:db8:1:2:ffff:ffff:ffff:ffff", True),
        ("2001:DB8:1:2::1", "2001:db8:1:2::1", True),
        ("2001:db8:1:2::1", "2001:db8:1:3::1", False),
        ("::1:2:3:4", "::2:2:3:4", True),
        ("fe80::1", "fe80::2", True),
    ],
)
async def test_a_client_is_an_ipv4_address_or_an_ipv6_64(tmp_path: Path, first: str, second: str, one: bool) -> None:
    async with running(tmp_path, settings=ONE) as it:
        assert await share(it, [first], [second]) == one


@pytest.mark.parametrize(
    ("first", "second", "one"),
    [
        # What stands further left was written by the client.
        (["9.9.9.9, 192.0.2.1"], ["8.8.8.8, 192.0.2.1"], True),
        (["9.9.9.9,192.0.2.1"], ["9.9.9.9,192.0.2.2"], False),
        (["x, <b>, 192.0.2.1"], ["192.0.2.1"], True),
        (["127.0.0.1, 192.0.2.1"], ["192.0.2.1"], True),
        # Proxies behind proxies: the right-most address that none of them has.
        (["192.0.2.1, 127.0.0.9"], ["192.0.2.1"], True),
        (["192.0.2.1, ::ffff:127.0.0.9"], ["192.0.2.1"], True),
        (["192.0.2.1, ::1, 127.0.0.9"], ["192.0.2.2, ::1, 127.0.0.9"], False),
        (["9.9.9.9, 192.0.2.1, 127.0.0.9"], ["8.8.8.8, 192.0.2.1, 127.0.0.9"], True),
        # Several fields are one list.
        (["192.0.2.1", "127.0.0.9"], ["192.0.2.1"], True),
        (["9.9.9.9", "192.0.2.1"], ["8.8.8.8", "192.0.2.1"], True),
        # Where no address stands, nothing further left is believed.
        (["9.9.9.9, unknown"], ["8.8.8.8, unknown"], True),
        (["9.9.9.9,"], ["8.8.8.8,"], True),
        (["9.9.9.9, 192.0.2.1:1234"], ["8.8.8.8, 192.0.2.1:1234"], True),
        (["9.9.9.9, 127.0.0.9, unknown"], [], True),
        ([""], [], True),
        (["127.0.0.9"], ["127.0.0.9"], True),
    ],
)
async def test_a_trusted_proxy_names_the_client(tmp_path: Path, first: list[str], second: list[str], one: bool) -> None:
    async with running(tmp_path, settings=ONE) as it:
        assert await share(it, first, second) == one


async def test_whoever_is_no_trusted_proxy_speaks_for_nobody(tmp_path: Path) -> None:
    async with running(tmp_path, settings=ONE | NOBODY) as it:
        assert await share(it, ["192.0.2.1"], ["192.0.2.2"])
        assert await share(it, [], ["192.0.2.2"])


async def test_no_other_field_names_a_client(tmp_path: Path) -> None:
    async with running(tmp_path, settings=ONE) as it:
        for number, name in enumerate(("X-Real-IP", "Forwarded", "True-Client-IP", "CF-Connecting-IP", "Client-IP")):
            it.clock.advance(60)
            assert await create(it) == 201
            value = f"for=192.0.2.{number}" if name == "Forwarded" else f"192.0.2.{number}"
            async with it.http.put(f"{it.url}/", data=b"x", headers={name: value}) as answer:
                assert answer.status == 429, name


@pytest.mark.parametrize(("trusted", "statuses"), [('["unix"]', [201, 201, 429]), ('["127.0.0.0/8"]', [201, 429, 429])])
@pytest.mark.parametrize("named", [False, True])
async def test_the_peer_of_a_unix_socket_names_the_client_when_that_is_trusted(
    tmp_path: Path, trusted: str, statuses: list[int], named: bool
) -> None:
    """A peer whose end has a path of its own (`named`) is no other peer."""
    path = str(tmp_path / "http.sock")
    settings = ONE | {"server.trusted_proxies": trusted}
    seen = []
    async with running(tmp_path, settings=settings) as it, also(it, lambda runner: web.UnixSite(runner, path)):
        for number, forwarded in enumerate(("192.0.2.1", "192.0.2.2", "192.0.2.2")):
            local = str(tmp_path / f"{number}.sock") if named else None
            reader, writer = await open_unix(path, local)
            line = Line(reader, writer)
            head = f"PUT / HTTP/1.1\r\nHost: x\r\nX-Forwarded-For: {forwarded}\r\nContent-Length: 1\r\n\r\nx"
            await line.send(head.encode())
            seen.append((await line.answer()).status)
            writer.transport.abort()
    assert seen == statuses


@asynccontextmanager
async def also(it: Harness, site: Callable[[web.ServerRunner], web.BaseSite]) -> AsyncIterator[web.ServerRunner]:
    """The same public listener on one more socket."""
    runner = web.ServerRunner(it.daemon.public.server(), shutdown_timeout=1)
    await runner.setup()
    try:
        await site(runner).start()
        yield runner
    finally:
        await runner.cleanup()


async def open_unix(path: str, local: str | None) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    end = socket.socket(socket.AF_UNIX)
    if local is not None:
        end.bind(local)
    end.connect(path)
    end.setblocking(False)
    return await asyncio.open_unix_connection(sock=end)


async def test_ipv6_peers_are_clients_too(tmp_path: Path) -> None:
    async with (
        running(tmp_path, settings=ONE | NOBODY) as it,
        also(it, lambda runner: web.TCPSite(runner, "::1", 0)) as runner,
    ):
        where = f"http://[::1]:{runner.addresses[0][1]}"
        raw = b"PUT / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\nx"
        assert (await request(where, raw)).status == 201
        assert (await request(where, raw)).status == 429
        assert await create(it) == 201, "another client"


async def test_strangers_fill_no_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pastebin_daemon.web.clients.CLIENTS_MAX", 3)
    async with running(tmp_path, settings=ONE) as it:
        clients = [f"192.0.2.{number}" for number in range(5)]
        assert [await create(it, client) for client in clients] == [201] * 5
        assert [await create(it, client) for client in reversed(clients)] == [429, 429, 429, 201, 201]


async def test_a_refusal_by_the_limit_reads_no_body(tmp_path: Path) -> None:
    async with running(tmp_path, settings=ONE) as it:
        assert await create(it) == 201
        answer = await request(it.url, b"PUT / HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n")
        assert answer.status == 429
        assert answer.headers["Connection"] == "close"
