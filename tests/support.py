"""The daemon for tests: assembled as in life, with the crank turned by hand.

    async with running(tmp_path, store=FakeStore(clock), clock=clock) as it:
        made = await it.paste(b"hi")
        await it.delete(made)                 # 204, or the test fails
        await it.drain()                      # ticks every dispatcher until nothing is due
        assert it.store.objects == {}

Requests go over a real socket. SQLite is always real. No loop runs: expiry, sweeps and dispatch happen when a test says
so. Without a `store` the embedded one is used; without an `edge` there is none, and no purge is enqueued.
"""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web

from pastebin_daemon.bodies import BodyStore
from pastebin_daemon.clock import Clock
from pastebin_daemon.config import Config, load
from pastebin_daemon.daemon import Daemon, assembled, open_purger, open_store
from pastebin_daemon.database import Tx
from pastebin_daemon.edge import EdgePurger
from pastebin_daemon.listeners import LINGER_S, READ_BUFFER_BYTES
from pastebin_daemon.web.app import App
from tests.fakes import FakeClock

__all__ = ["Harness", "Made", "configured", "running"]


@dataclass(frozen=True)
class Made:
    id: str
    token: str
    url: str


def configured(directory: Path, settings: Mapping[str, object] | None = None) -> Config:
    """The defaults, without a limit on creates, changed by dotted keys: {"outbox.batch": 10}."""
    given = {"storage.directory": str(directory / "state"), "limits.creates_per_minute": 0} | dict(settings or {})
    environ = {f"PASTEBIN_{key.upper().replace('.', '__')}": _text(value) for key, value in given.items()}
    return load(None, environ)


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


class Harness:
    def __init__(
        self, daemon: Daemon, clock: Clock, store: Any, edge: Any, http: aiohttp.ClientSession, url: str, admin: str
    ) -> None:
        self.daemon = daemon
        self.database = daemon.database
        self.clock: Any = clock
        self.store = store
        self.edge = edge
        self.http = http
        self.url = url
        """Where the public listener is; links say `[server] public_url` all the same."""
        self.admin = admin

    async def paste(self, body: bytes = b"hello\n", **options: str) -> Made:
        async with self.http.post(
            f"{self.url}/api/v1/pastes", data=body, params=options, headers={"Content-Type": "x/y"}
        ) as answer:
            assert answer.status == 201, await answer.text()
            made = await answer.json()
        return Made(made["id"], made["delete_token"], f"{self.url}/{made['id']}")

    async def get(self, path: str, **headers: str) -> tuple[int, bytes]:
        async with self.http.get(f"{self.url}/{path.lstrip('/')}", headers=headers) as answer:
            return answer.status, await answer.read()

    async def try_delete(self, made: Made) -> int:
        headers = {"X-Delete-Token": made.token}
        async with self.http.delete(f"{self.url}/api/v1/pastes/{made.id}", headers=headers) as answer:
            return answer.status

    async def delete(self, made: Made) -> None:
        assert await self.try_delete(made) == 204

    async def tick(self, kind: str) -> bool:
        return await self.daemon.dispatchers[kind].tick()

    async def drain(self) -> None:
        """Tick every dispatcher until no tick wants to come again and nothing that is due is left, 100 rounds at most."""
        for _ in range(100):
            again = [await dispatcher.tick() for dispatcher in self.daemon.dispatchers.values()]
            if not any(again):
                return
        raise AssertionError("the dispatchers never come to rest")

    async def sweep(self, name: str) -> bool:
        return await self.daemon.sweepers[name].tick()

    async def rows(self, sql: str, *params: object) -> list[tuple[Any, ...]]:
        """Look into the metadata."""

        def look(tx: Tx) -> list[tuple[Any, ...]]:
            return tx.rows(sql, params)

        return await self.database.read(look)

    async def execute(self, sql: str, *params: object) -> int:
        """Change the metadata behind the daemon's back."""

        def change(tx: Tx) -> int:
            return tx.changed(sql, params)

        return await self.database.write(change)

    def metric(self, name: str, **labels: str) -> float:
        return self.daemon.metrics.registry.get_sample_value(name, labels) or 0.0


@asynccontextmanager
async def running(
    directory: Path,
    *,
    clock: Clock | None = None,
    store: BodyStore | None = None,
    edge: EdgePurger | None = None,
    settings: Mapping[str, object] | None = None,
    port: int = 0,
) -> AsyncIterator[Harness]:
    """An assembled daemon with both listeners on loopback sockets of their own; `port`: the public one's, 0 for any."""
    clock = clock or FakeClock()

    @asynccontextmanager
    async def this_store(config: Config, state: Path, clock: Clock) -> AsyncIterator[BodyStore]:
        if store is not None:
            yield store
        else:
            async with open_store(config, state, clock) as opened:
                yield opened

    @asynccontextmanager
    async def this_edge(config: Config, clock: Clock) -> AsyncIterator[EdgePurger | None]:
        if edge is not None:
            yield edge
        else:
            async with open_purger(config, clock) as opened:
                yield opened

    config = configured(directory, settings)
    async with (
        assembled(config, {}, clock=clock, open_store=this_store, open_purger=this_edge) as daemon,
        _listening(daemon.public, port) as url,
        _listening(daemon.admin) as admin,
        aiohttp.ClientSession(auto_decompress=False) as http,
    ):
        yield Harness(daemon, clock, daemon.store, edge, http, url, admin)


@asynccontextmanager
async def _listening(app: App, port: int = 0) -> AsyncIterator[str]:
    server = app.server(lingering_time=LINGER_S, read_bufsize=READ_BUFFER_BYTES, auto_decompress=False)
    runner = web.ServerRunner(server, shutdown_timeout=1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", port).start()
        yield "http://{}:{}".format(*runner.addresses[0][:2])
    finally:
        await runner.cleanup()
