"""Stopped by a signal, the daemon ends inside its grace, cuts no answer short, and leaves no job the poorer.

A stop is no failure: whoever is being answered gets the whole answer, and what the dispatchers hold is finished or
given back, so that the next start finds every job with all the attempts that it had.
"""

import asyncio
import json
import os
import signal
import socket
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime
from itertools import count
from pathlib import Path

import aiohttp
import pytest

from tests.connection import Answer, Connection, connected
from tests.process import Child, child, rows
from tests.real import poll
from tests.real.faults import FaultProxy, Hang
from tests.real.moto import new_bucket, running_moto
from tests.traffic import Ledger, edge

GRACE_S = 5
LARGE = os.urandom(6 * 1024 * 1024)
SETTINGS: dict[str, object] = {
    "server.grace": GRACE_S,
    "pastes.body_bytes_max": "8MiB",
    "outbox.poll_interval": "50ms",
    "cache.bytes_max": "64MiB",
}


class GoneError(Exception):
    """The connection has ended, between answers."""


@pytest.fixture(scope="module")
def moto() -> Iterator[int]:
    with running_moto() as port:
        yield port


async def stopped(it: Child, number: signal.Signals = signal.SIGTERM) -> float:
    """Send the signal, and see it end well within the grace; the result is how long that took, in seconds, by its own
    log: a busy machine may need a second more to take a process down."""
    it.send(number)
    assert await it.ended(GRACE_S + 15) == 0, it.log()
    at = {
        entry["event"]: datetime.fromisoformat(entry["timestamp"]) for entry in map(json.loads, it.log().splitlines())
    }
    took_s = (at["daemon.stopped"] - at["daemon.stopping"]).total_seconds()
    assert took_s <= GRACE_S, it.log()
    return took_s


async def pasted(client: Connection, body: bytes) -> str:
    """The id of a new paste."""
    answer = await client.ask("POST", "/", body)
    assert answer is not None
    assert answer.status == 201, answer
    return answer.headers["location"].rpartition("/")[2]


def jobs(directory: Path) -> list[tuple[object, ...]]:
    """Kind, state and attempts of what a stop has left."""
    return rows(directory / "state" / "pastebin.sqlite", "select kind, state, attempts from outbox order by id")


async def test_under_load_no_answer_is_cut_every_word_is_kept_and_no_job_is_the_poorer(tmp_path: Path) -> None:
    async with edge() as cache, child(tmp_path, SETTINGS | cache.settings()) as it:
        async with connected(it.url) as client:
            large = await pasted(client, LARGE)
        stopping = asyncio.Event()
        readers: list[Connection] = []
        answered: list[int] = []
        made: set[str] = set()
        deleted: set[str] = set()

        async def busy(number: int) -> None:
            """Creates, reads and deletes on one connection for as long as it is let."""
            async with connected(it.url) as client:

                async def ask(
                    method: str, path: str, body: bytes = b"", headers: dict[str, str] | None = None
                ) -> Answer:
                    answer = await client.ask(method, path, body, headers)
                    if answer is None:
                        assert stopping.is_set(), "a request without an answer before the stop"
                        raise GoneError
                    answered.append(answer.status)
                    return answer

                with suppress(GoneError):
                    for turn in count():
                        answer = await ask("POST", "/", f"{number} {turn}".encode())
                        paste, token = answer.headers["location"].rpartition("/")[2], answer.headers["x-delete-token"]
                        made.add(paste)
                        await ask("GET", f"/{paste}/raw")
                        if turn % 2:
                            await ask("DELETE", f"/api/v1/pastes/{paste}", headers={"X-Delete-Token": token})
                            deleted.add(paste)

        async def slow() -> None:
            async with connected(it.url, receive_bytes=64 * 1024) as client:
                readers.append(client)
                answer = await client.ask("GET", f"/{large}/raw", pause_s=0.02)
                assert answer is not None
                assert answer.body == LARGE

        async with asyncio.TaskGroup() as group:
            for number in range(12):
                group.create_task(busy(number))
            for _ in range(6):
                group.create_task(slow())

            async def in_the_middle() -> bool:
                return len(readers) == 6 and all(reader.received for reader in readers) and len(answered) > 100

            await poll(in_the_middle, "everybody is being served")
            assert all(reader.received < len(LARGE) // 2 for reader in readers)
            stopping.set()
            await stopped(it)

        assert set(answered) == {200, 201, 204}
        kept = {paste for (paste,) in rows(tmp_path / "state" / "pastebin.sqlite", "select id from pastes")}
        assert made - deleted <= kept
        assert not deleted & kept
        assert {(state, attempts) for _, state, attempts in jobs(tmp_path)} == {("pending", 0)}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_an_idle_daemon_ends_at_once_with_connections_open(tmp_path: Path, number: signal.Signals) -> None:
    async with (
        child(tmp_path, {"server.grace": "60s"}) as it,
        connected(it.url) as used,
        connected(it.url),
        connected(it.admin),
    ):
        assert await used.ask("GET", "/help") is not None
        assert await stopped(it, number) < 3
        assert await used.answer() is None


async def test_an_answer_that_is_written_but_not_yet_taken_is_waited_for(tmp_path: Path) -> None:
    """What the kernel does not take is in this process: to end then would lose the end of the answer."""
    async with child(tmp_path, SETTINGS | {"server.listen": f"unix:{tmp_path}/http"}) as it:
        async with connected(it.url) as client:
            paste = await pasted(client, LARGE[: taken_by_the_kernel() + 24 * 1024])
        reader = await asyncio.to_thread(asked_for, tmp_path / "http", paste)
        with reader:
            it.send(signal.SIGTERM)
            with suppress(TimeoutError):
                await it.ended(0.5)
            assert it.process.returncode is None, "it has ended with an answer that is not taken"
            answer = await asyncio.to_thread(whole, reader)
        assert answer.endswith(LARGE[: taken_by_the_kernel() + 24 * 1024][-1000:])
        assert await it.ended(GRACE_S) == 0


def taken_by_the_kernel() -> int:
    """How many bytes of one large write a unix socket takes that nobody reads."""
    one, other = socket.socketpair(socket.AF_UNIX)
    with one, other:
        one.setblocking(False)
        return one.send(LARGE)


def asked_for(path: Path, paste: str) -> socket.socket:
    """A connection on which an answer has begun, and which does not read it."""
    reader = socket.socket(socket.AF_UNIX)
    reader.settimeout(30)
    reader.connect(str(path))
    reader.sendall(f"GET /{paste}/raw HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    assert reader.recv(1, socket.MSG_PEEK) == b"H"
    return reader


def whole(reader: socket.socket) -> bytes:
    pieces = []
    while piece := reader.recv(65536):
        pieces.append(piece)
    return b"".join(pieces)


async def test_an_upload_under_way_is_finished_and_told_that_it_was_the_last(tmp_path: Path) -> None:
    async with child(tmp_path, SETTINGS) as it, connected(it.url) as client:
        client.writer.write(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n" + b"a" * 400_000)
        await client.writer.drain()

        it.send(signal.SIGTERM)
        await poll(lambda: refused(it.url), "nobody is let in any more")
        client.writer.write(b"a" * 600_000)

        answer = await client.answer()
        assert answer is not None
        assert (answer.status, answer.headers["connection"]) == (201, "close")
        assert await it.ended(GRACE_S) == 0
        paste = answer.headers["location"].rpartition("/")[2]
        assert rows(tmp_path / "state" / "pastebin.sqlite", "select id, size from pastes") == [(paste, 1_000_000)]


async def refused(url: str) -> bool:
    try:
        async with connected(url):
            return False
    except ConnectionError:
        return True


async def test_while_it_drains_readiness_says_no_and_nobody_new_is_let_in(tmp_path: Path) -> None:
    async with child(tmp_path, SETTINGS) as it, connected(it.url, receive_bytes=64 * 1024) as client:
        async with connected(it.url) as other:
            paste = await pasted(other, LARGE)
        await client.send("GET", f"/{paste}/raw")
        go = asyncio.Event()
        of_old = asyncio.create_task(client.answer(go=go))
        await client.begun.wait()
        async with aiohttp.ClientSession() as http:
            async with http.get(f"{it.admin}/readyz") as answer:
                assert answer.status == 200

            it.send(signal.SIGTERM)
            await poll(lambda: refused(it.url), "nobody is let in any more")

            async with http.get(f"{it.admin}/readyz") as answer:
                assert answer.status == 503
                assert (await answer.json())["reason"] == "the daemon is being stopped"
            async with http.get(f"{it.admin}/metrics") as answer:
                assert answer.status == 200
        go.set()
        answer_of_old = await of_old
        assert answer_of_old is not None
        assert answer_of_old.body == LARGE
        assert await it.ended(GRACE_S) == 0


async def test_a_reader_that_does_not_read_is_given_up_within_the_grace(tmp_path: Path) -> None:
    async with (
        child(tmp_path, SETTINGS | {"server.grace": "4s"}) as it,
        connected(it.url, receive_bytes=4096) as client,
    ):
        async with connected(it.url) as other:
            paste = await pasted(other, LARGE)
        await client.send("GET", f"/{paste}/raw")
        unread = asyncio.create_task(client.answer(go=asyncio.Event()))
        await client.begun.wait()
        assert 2 < await stopped(it) <= 4
        assert '"connections.cut"' in it.log()
        unread.cancel()


async def test_purges_that_hang_are_given_back_with_their_attempts(tmp_path: Path) -> None:
    async with edge() as cache, child(tmp_path, SETTINGS | cache.settings()) as it, aiohttp.ClientSession() as http:
        cache.hang()
        ledger = Ledger()
        for number in range(3):
            told = await ledger.create(http, it.url, f"number-{number}", b"%d" % number, mortal=False)
            assert told is not None
            await ledger.delete(http, it.url, told)
        async with asyncio.timeout(30):
            await cache.arrived.wait()
        await stopped(it)
    left = jobs(tmp_path)
    assert {(state, attempts) for _, state, attempts in left} == {("pending", 0)}
    assert sum(kind == "edge-purge" for kind, *_ in left) == 6, "three at once, and three for later"


async def test_a_probe_that_hangs_holds_no_stop_up(tmp_path: Path) -> None:
    """The purge failed as by its surroundings, and the probe that is to tell gets no answer."""
    settings = {"edge.http.timeout": "15s"}
    async with (
        edge() as cache,
        child(tmp_path, SETTINGS | cache.settings() | settings) as it,
        aiohttp.ClientSession() as http,
    ):
        cache.hang()
        cache.refusals.append(503)
        ledger = Ledger()
        told = await ledger.create(http, it.url, "the-only-one", b"hi", mortal=False)
        assert told is not None
        await ledger.delete(http, it.url, told)

        async def probe_hangs() -> bool:
            return bool(cache.hanging) and told.id not in cache.hanging

        await poll(probe_hangs, "the probe is on its way")
        await stopped(it)
    assert jobs(tmp_path) == [("edge-purge", "pending", 0)] * 2


async def test_a_store_that_hangs_holds_no_stop_up(tmp_path: Path, moto: int) -> None:
    bucket = new_bucket(moto)
    async with FaultProxy(moto) as proxy:
        settings = SETTINGS | bucket.settings(proxy.url)
        async with child(tmp_path, settings) as it, aiohttp.ClientSession() as http, connected(it.url) as client:
            ledger = Ledger()
            told = await ledger.create(http, it.url, "the-first-one", b"hi", mortal=False)
            assert told is not None
            proxy.next(Hang(), times=100, method="POST")
            proxy.next(Hang(), times=100, method="PUT")
            proxy.arrived.clear()
            await ledger.delete(http, it.url, told)
            async with asyncio.timeout(30):
                await proxy.arrived.wait()
            proxy.arrived.clear()
            await client.send("POST", "/", b"this body is never stored")
            async with asyncio.timeout(30):
                await proxy.arrived.wait()

            await stopped(it)

            assert await client.answer() is None, "there is nothing true to say of that create"
    assert jobs(tmp_path) == [("object-delete", "pending", 0)]
    uploads = rows(tmp_path / "state" / "pastebin.sqlite", "select count(*) from uploads")
    assert uploads == [(1,)], "its record will become a reap"
