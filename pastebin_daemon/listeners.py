"""The sockets that are listened on: TCP, a unix socket, or what systemd hands over; and their orderly end."""

import asyncio
import os
import socket
import stat
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

from aiohttp import web

from pastebin_daemon.errors import Misconfigured, StartError
from pastebin_daemon.logs import get_logger
from pastebin_daemon.quantities import Listen
from pastebin_daemon.systemd import listen_sockets

__all__ = ["Listeners", "Served"]

log = get_logger()

BACKLOG = 1024
LINGER_S = 2.0
"""How long the rest of a refused body is thrown away, so that its sender sees the answer."""
READ_BUFFER_BYTES = 16 * 1024
"""aiohttp stops reading from a client when twice this is not consumed."""
PIECE_BYTES = 32 * 1024
"""What is read of a connection at once."""
CLOSE_POLL_S = 0.01
CUT_S = 0.05
"""How long a request that has outlived the grace may take to end after it was cancelled."""
KEEPALIVE_S = 75.0
"""Longer than the 60 s after which proxies drop an idle connection, so that the proxy is the one to close it."""


class Served(Protocol):
    closing: bool
    """Set at the end: every answer says that it is the last one on its connection."""

    def server(self, **options: Any) -> web.Server:
        """What answers; `options` are those of aiohttp's `RequestHandler`."""


class PiecewiseServer(web.Server):
    """aiohttp's server, but no connection is read in larger pieces than `PIECE_BYTES`: the event loop's own are of 256 KiB,
    so 200 uploads may bring 50 MB before anybody has looked at one of them, and no budget knows of it."""

    def __call__(self) -> Any:
        return _Pieces(super().__call__())


class _Pieces(asyncio.BufferedProtocol):
    """What the event loop calls in the place of aiohttp's protocol."""

    _buffer = memoryview(bytearray(PIECE_BYTES))
    """One for all connections: the loop asks for it, fills it and says so, and does nothing else in between."""

    def __init__(self, protocol: web.RequestHandler) -> None:
        self._protocol = protocol
        self._received = protocol.data_received

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        self._received(bytes(self._buffer[:nbytes]))

    def eof_received(self) -> None:
        self._protocol.eof_received()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._protocol.connection_made(transport)

    def connection_lost(self, error: Exception | None) -> None:
        self._protocol.connection_lost(error)

    def pause_writing(self) -> None:
        self._protocol.pause_writing()

    def resume_writing(self) -> None:
        self._protocol.resume_writing()


class Listeners:
    """`async with`: what was opened is closed at the end, also when something raised."""

    def __init__(self, shutdown_s: float) -> None:
        """`shutdown_s`: how long requests that are being answered may go on at the end."""
        self._shutdown_s = shutdown_s
        self._runners: list[web.ServerRunner] = []
        self._apps: list[Served] = []
        self._unix: list[Path] = []
        self._inherited = listen_sockets()

    async def __aenter__(self) -> "Listeners":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def open(self, app: Served, listen: Listen, name: str) -> str:
        """Serve the app there; the result says where, for people. `name`: the socket's, when systemd hands it over.

        Raises `StartError`.
        """
        server = app.server(
            keepalive_timeout=KEEPALIVE_S,
            lingering_time=LINGER_S,
            read_bufsize=READ_BUFFER_BYTES,
            auto_decompress=False,
        )
        runner = web.ServerRunner(server, shutdown_timeout=CUT_S)
        await runner.setup()
        self._apps.append(app)
        self._runners.append(runner)
        try:
            for site in self._sites(runner, listen, name):
                await site.start()
        except OSError as error:
            raise StartError(f"{listen} can't be listened on ({error.strerror}): is something else there?") from error
        if listen.kind == "unix":
            self._unix.append(Path(listen.path))
            os.chmod(listen.path, 0o666)  # noqa: S103  who may connect is the directory's business
        return ", ".join(_described(address) for address in runner.addresses)

    async def close(self) -> None:
        """Let nobody in any more, give every answer that is due, and close: in the order of opening, all in one grace.

        The admin listener was opened last, so that it says "not ready" for as long as the public one is at it.
        """
        runners, self._runners = self._runners, []
        for app in self._apps:
            app.closing = True
        try:
            async with asyncio.timeout(self._shutdown_s):
                for runner in runners:
                    await _shut(runner)
                    await self._finish(runner)
        except TimeoutError:
            cut = sum(len(runner.server.connections) for runner in runners if runner.server is not None)
            log.warning("connections.cut", count=cut, after_s=self._shutdown_s)
        await asyncio.gather(*(runner.cleanup() for runner in runners))
        for path in self._unix:
            path.unlink(missing_ok=True)

    async def _finish(self, runner: web.ServerRunner) -> None:
        """Close each connection once nothing is being asked on it, and wait until what was written to it has left.

        aiohttp's own way out waits for the handler alone: what a slow reader has not taken by then is lost with the
        process, and an upload that is under way gets stuck.
        """
        assert runner.server is not None
        while runner.server.connections:
            for connection in runner.server.connections:
                waiter = connection._waiter  # a private name; there while it waits for the next request
                if waiter is not None and not waiter.done():
                    connection.force_close()
            await asyncio.sleep(CLOSE_POLL_S)

    def _sites(self, runner: web.ServerRunner, listen: Listen, name: str) -> list[web.BaseSite]:
        if listen.kind == "tcp":
            return [web.TCPSite(runner, listen.host, listen.port, backlog=BACKLOG, reuse_address=True)]
        if listen.kind == "unix":
            _make_way(Path(listen.path))
            return [web.UnixSite(runner, listen.path, backlog=BACKLOG)]
        sockets = self._inherited.get(name, [])
        if not sockets:
            raise Misconfigured(
                f'listen = "systemd", but systemd handed over no socket with FileDescriptorName={name}: '
                "enable the .socket unit, or write an address"
            )
        return [web.SockSite(runner, socket, backlog=BACKLOG) for socket in sockets]


async def _shut(runner: web.ServerRunner) -> None:
    for site in runner.sites:
        await site.stop()


def _make_way(path: Path) -> None:
    """Remove the socket that an earlier process left. Raises `StartError` for anything that is not that."""
    try:
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise StartError(f"{path} is there and is no socket: remove it, or listen elsewhere")
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as visitor:
            visitor.settimeout(1)
            visitor.connect(str(path))
    except FileNotFoundError:
        return
    except ConnectionRefusedError:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise StartError(f"{path} can't be listened on ({error.strerror})") from error
    else:
        raise StartError(f"another process listens on {path}: stop it, or listen elsewhere")


def _described(address: object) -> str:
    if isinstance(address, tuple):
        host, port = address[0], address[1]
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
    return f"unix:{address}"
