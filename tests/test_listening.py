"""Where the daemon listens, and what it and its supervisor say to each other."""

import asyncio
import signal
import socket
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from aiohttp.web_protocol import RequestHandler

from pastebin_daemon.listeners import PIECE_BYTES, PiecewiseServer
from tests.connection import Connection, connected
from tests.process import child
from tests.real import free_port, poll, require


async def says_hi(client: Connection) -> None:
    made = await client.ask("POST", "/", b"hi")
    assert made is not None
    assert made.status == 201
    read = await client.ask("GET", f"/{made.headers['location'].rpartition('/')[2]}/raw")
    assert read is not None
    assert (read.status, read.body) == (200, b"hi")


async def test_a_unix_socket_is_open_to_who_reaches_it_and_is_removed_at_the_stop(tmp_path: Path) -> None:
    path = tmp_path / "http"
    async with child(tmp_path, {"server.listen": f"unix:{path}", "admin.listen": f"unix:{tmp_path}/admin"}) as it:
        assert (it.url, it.admin) == (f"unix:{path}", f"unix:{tmp_path}/admin")
        assert stat.S_IMODE(path.stat().st_mode) == 0o666, "the directory says who may reach it"
        async with connected(it.url) as client:
            await says_hi(client)
        async with connected(it.admin) as client:
            ready = await client.ask("GET", "/readyz")
            assert ready is not None
            assert ready.status == 200
        it.send(signal.SIGTERM)
        assert await it.ended() == 0, it.log()
    assert not path.exists()
    assert not (tmp_path / "admin").exists()


async def test_a_socket_that_a_killed_daemon_left_is_taken_over(tmp_path: Path) -> None:
    listen = {"server.listen": f"unix:{tmp_path}/http"}
    async with child(tmp_path, listen) as it:
        it.send(signal.SIGKILL)
        await it.ended()
    assert (tmp_path / "http").exists()
    async with child(tmp_path, listen) as it, connected(it.url) as client:
        await says_hi(client)


async def test_a_file_in_the_place_of_the_socket_is_not_removed(tmp_path: Path) -> None:
    (tmp_path / "http").write_text("somebody's")
    async with child(tmp_path, {"server.listen": f"unix:{tmp_path}/http"}, waits=False) as it:
        assert await it.ended() == 1
        assert f"{tmp_path}/http is there and is no socket" in it.log()
    assert (tmp_path / "http").read_text() == "somebody's"


async def test_the_socket_of_a_daemon_that_runs_is_not_taken(tmp_path: Path) -> None:
    listen = {"server.listen": f"unix:{tmp_path}/http"}
    async with child(tmp_path, listen) as first:
        async with child(tmp_path, listen | {"storage.directory": tmp_path / "other"}, waits=False) as second:
            assert await second.ended() == 1
            assert f"another process listens on {tmp_path}/http" in second.log()
        async with connected(first.url) as client:
            await says_hi(client)


async def test_a_port_that_is_taken_is_named_and_nothing_is_left_running(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        async with child(tmp_path, {"server.listen": f"127.0.0.1:{port}"}, waits=False) as it:
            assert await it.ended() == 1
            assert f"127.0.0.1:{port} can't be listened on" in it.log()


async def test_a_socket_of_systemd_waits_for_the_daemon_and_outlives_it(tmp_path: Path) -> None:
    program, port = require("systemd-socket-activate"), free_port()
    url = f"http://127.0.0.1:{port}"
    names = ["PATH", "PASTEBIN_SERVER__LISTEN", "PASTEBIN_ADMIN__LISTEN", "PASTEBIN_STORAGE__DIRECTORY"]
    activate = [program, f"--listen=127.0.0.1:{port}", "--fdname=http", *(f"--setenv={name}" for name in names)]
    async with child(tmp_path, {"server.listen": "systemd"}, wrapper=activate, waits=False) as it:

        async def listens() -> bool:
            with suppress(ConnectionError):
                async with connected(url) as first:
                    await says_hi(first)
                return True
            return False

        await poll(listens, "the first connection starts the daemon")
        await it.announced()
        assert it.url == url
        it.send(signal.SIGTERM)
        assert await it.ended() == 0, it.log()


async def test_without_a_socket_of_that_name_the_remedy_is_named(tmp_path: Path) -> None:
    async with child(tmp_path, {"server.listen": "systemd"}, waits=False) as it:
        assert await it.ended() == 78
        assert "FileDescriptorName=http" in it.log()


class Supervisor:
    """What a unit of Type=notify hears."""

    def __init__(self, path: Path, heard: socket.socket) -> None:
        self.environ = {"NOTIFY_SOCKET": str(path), "WATCHDOG_USEC": "200000"}
        self._heard = heard

    async def hear(self, limit_s: float = 30.0) -> str:
        async with asyncio.timeout(limit_s):
            return (await asyncio.get_running_loop().sock_recv(self._heard, 4096)).decode()

    async def falls_silent(self) -> bool:
        """Whether, after what was sent before, nothing comes for longer than is tolerated."""
        for _ in range(30):
            try:
                await self.hear(0.6)
            except TimeoutError:
                return True
        return False


@asynccontextmanager
async def supervisor(directory: Path) -> AsyncIterator[Supervisor]:
    path = directory / "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as heard:
        heard.setblocking(False)
        heard.bind(str(path))
        yield Supervisor(path, heard)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_the_supervisor_hears_ready_then_signs_of_life_then_stopping(
    tmp_path: Path, number: signal.Signals
) -> None:
    async with supervisor(tmp_path) as systemd, child(tmp_path, environ=systemd.environ) as it:
        heard: list[str] = []
        while sum(message == "WATCHDOG=1" for message in heard) < 3:
            heard.append(await systemd.hear())
        ready = [f"READY=1\nSTATUS=public on {it.url}, admin on {it.admin}"]
        assert [message for message in heard if message != "WATCHDOG=1"] == ready
        async with connected(it.url) as client:
            await says_hi(client)
        it.send(number)
        while heard[-1] != "STOPPING=1":
            heard.append(await systemd.hear())
            assert heard[-1] in ("WATCHDOG=1", "STOPPING=1")
        assert await it.ended() == 0


async def test_ready_is_said_when_the_listeners_are_open(tmp_path: Path) -> None:
    port = free_port()
    async with (
        supervisor(tmp_path) as systemd,
        child(tmp_path, {"server.listen": f"127.0.0.1:{port}"}, environ=systemd.environ, waits=False),
    ):
        while not (await systemd.hear()).startswith("READY=1"):
            pass
        async with connected(f"http://127.0.0.1:{port}") as client:
            await says_hi(client)


async def test_a_loop_that_hangs_gives_no_sign_of_life_and_stops_all_the_same(tmp_path: Path) -> None:
    async with (
        supervisor(tmp_path) as systemd,
        child(tmp_path, {"server.grace": "2s"}, options=["--stuck"], environ=systemd.environ) as it,
        aiohttp.ClientSession() as http,
    ):

        async def is_stuck() -> bool:
            async with http.get(f"{it.admin}/healthz") as answer:
                return answer.status == 503 and "the stuck one" in await answer.text()

        await poll(is_stuck, "health says which loop hangs")
        assert await systemd.falls_silent()
        it.send(signal.SIGTERM)
        assert await systemd.hear() == "STOPPING=1"
        assert await it.ended() == 0, it.log()
        assert '"loop.cut"' in it.log()


async def test_no_connection_is_read_in_pieces_that_a_flood_of_them_could_fill_the_memory_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    receive = RequestHandler.data_received

    def data_received(self: RequestHandler, data: bytes) -> None:
        sizes.append(len(data))
        receive(self, data)

    async def answer(request: web.BaseRequest) -> web.Response:
        return web.Response(body=await request.read())

    monkeypatch.setattr(RequestHandler, "data_received", data_received)
    body = bytes(range(256)) * 2048
    server = await asyncio.get_running_loop().create_unix_server(PiecewiseServer(answer), str(tmp_path / "http"))
    async with server, connected(f"unix:{tmp_path}/http") as client:
        back = await client.ask("POST", "/", body)
    assert back is not None
    assert back.body == body
    assert max(sizes) == PIECE_BYTES
    assert sum(sizes) > len(body)
