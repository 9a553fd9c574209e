"""The sockets that are listened on: TCP, a unix socket, or what systemd hands over; and their orderly end."""

import asyncio
import contextlib
import os
from pathlib import Path
from types import TracebackType

from aiohttp import web

from pastebin_daemon.errors import Misconfigured, StartError
from pastebin_daemon.quantities import Listen
from pastebin_daemon.systemd import listen_sockets

__all__ = ["Listeners"]

BACKLOG = 1024
LINGER_S = 2.0
"""How long the rest of a refused body is thrown away, so that its sender sees the answer."""
READ_BUFFER_BYTES = 32 * 1024
"""aiohttp stops reading from a client when twice this is not consumed."""
KEEPALIVE_S = 75.0
"""Longer than the 60 s after which proxies drop an idle connection, so that the proxy is the one to close it."""


class Listeners:
    """`async with`: what was opened is closed at the end, also when something raised."""

    def __init__(self, shutdown_s: float) -> None:
        """`shutdown_s`: how long requests that are being answered may go on at the end."""
        self._shutdown_s = shutdown_s
        self._runners: list[web.AppRunner] = []
        self._unix: list[Path] = []
        self._inherited = listen_sockets()

    async def __aenter__(self) -> "Listeners":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def open(self, app: web.Application, listen: Listen, name: str) -> str:
        """Serve the app there; the result says where, for people. `name`: the socket's, when systemd hands it over.

        Raises `StartError`.
        """
        runner = web.AppRunner(
            app, access_log=None, shutdown_timeout=self._shutdown_s, keepalive_timeout=KEEPALIVE_S,
            lingering_time=LINGER_S, read_bufsize=READ_BUFFER_BYTES, auto_decompress=False,
        )  # fmt: skip
        await runner.setup()
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
        """Close the sockets, then idle connections, then each of the others after its answer."""
        runners, self._runners = self._runners, []
        for runner in runners:  # every socket first: nobody is let in while the others finish
            for site in runner.sites:
                await site.stop()
        await asyncio.gather(*(runner.cleanup() for runner in runners))  # together: they share one grace
        for path in self._unix:
            path.unlink(missing_ok=True)

    def _sites(self, runner: web.AppRunner, listen: Listen, name: str) -> list[web.BaseSite]:
        if listen.kind == "tcp":
            return [web.TCPSite(runner, listen.host, listen.port, backlog=BACKLOG, reuse_address=True)]
        if listen.kind == "unix":
            with contextlib.suppress(FileNotFoundError):
                os.unlink(listen.path)  # of an earlier start; the state directory's lock says that nobody is there
            return [web.UnixSite(runner, listen.path, backlog=BACKLOG)]
        sockets = self._inherited.get(name, [])
        if not sockets:
            raise Misconfigured(
                f'listen = "systemd", but systemd handed over no socket with FileDescriptorName={name}: '
                "enable the .socket unit, or write an address"
            )
        return [web.SockSite(runner, socket, backlog=BACKLOG) for socket in sockets]


def _described(address: object) -> str:
    if isinstance(address, tuple):
        host, port = address[0], address[1]
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
    return f"unix:{address}"
