"""What goes on around a daemon that is a child process: clients that remember what they were told, and an edge."""

import asyncio
import time
from collections import Counter, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import aiohttp
from aiohttp import web

from tests.process import Child

__all__ = ["Edge", "Ledger", "Told", "edge", "press"]

MORTAL_S = 3600
"""The lifetime of those pastes that are to expire when the test lets time pass."""


class Edge:
    """A cache that is purged by requests: it counts them by the paste's id, and can hang or refuse."""

    def __init__(self) -> None:
        self.purged: Counter[str] = Counter()
        self.hanging: set[str] = set()
        """The pastes whose purge is waiting for an answer."""
        self.arrived = asyncio.Event()
        """Set by every request."""
        self.refusals: deque[int] = deque()
        """Statuses of the next answers, which are given at once."""
        self.port = 0
        self._go = asyncio.Event()
        self._go.set()

    def hang(self) -> None:
        self._go.clear()

    def answer(self) -> None:
        """Also whoever is hanging."""
        self._go.set()

    def settings(self) -> dict[str, object]:
        return {
            "edge.driver": "http",
            "edge.http.method": "POST",
            "edge.http.url": f"http://127.0.0.1:{self.port}/{{id}}",
            "edge.http.rate_per_second": 0,
        }

    async def purge(self, request: web.Request) -> web.Response:
        paste = request.match_info["id"]
        self.arrived.set()
        if self.refusals:
            return web.Response(status=self.refusals.popleft())
        self.hanging.add(paste)
        try:
            await self._go.wait()
        finally:
            self.hanging.discard(paste)
        self.purged[paste] += 1
        return web.Response()


@asynccontextmanager
async def edge() -> AsyncIterator[Edge]:
    made = Edge()
    app = web.Application()
    app.router.add_post("/{id}", made.purge)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        made.port = runner.addresses[0][1]
        yield made
    finally:
        made.answer()
        await runner.cleanup()


@dataclass(frozen=True)
class Told:
    """A paste as a client knows it: it has seen the 201."""

    id: str
    token: str
    body: bytes
    mortal: bool


@dataclass
class Ledger:
    """What the clients were told, and what they asked for and were not told."""

    pastes: dict[str, Told] = field(default_factory=dict)
    asked: set[str] = field(default_factory=set)
    """Their end was asked for."""
    ended: set[str] = field(default_factory=set)
    """Their end was confirmed."""
    ended_at: dict[str, float] = field(default_factory=dict)
    """When the confirmation arrived, by time.monotonic."""
    lost: dict[str, tuple[bytes, bool]] = field(default_factory=dict)
    """Creates without an answer, by their idempotency key: the body, and whether it was to be mortal."""

    async def create(
        self, http: aiohttp.ClientSession, url: str, key: str, body: bytes, *, mortal: bool
    ) -> Told | None:
        """None when the store was not available."""
        self.lost[key] = (body, mortal)
        query = {"expires_in": str(MORTAL_S)} if mortal else {}
        async with http.post(f"{url}/", data=body, params=query, headers={"Idempotency-Key": key}) as answer:
            assert answer.status in (201, 503), await answer.text()
            del self.lost[key]
            if answer.status == 503:
                return None
            told = Told(answer.headers["Location"].rpartition("/")[2], answer.headers["X-Delete-Token"], body, mortal)
            self.pastes[told.id] = told
            return told

    async def delete(self, http: aiohttp.ClientSession, url: str, told: Told) -> None:
        self.asked.add(told.id)
        async with http.delete(f"{url}/api/v1/pastes/{told.id}", headers={"X-Delete-Token": told.token}) as answer:
            assert answer.status == 204, await answer.text()
            self._confirm(told)

    async def take_down(self, http: aiohttp.ClientSession, admin: str, told: Told) -> None:
        self.asked.add(told.id)
        order = {"id": told.id, "reason": "a test", "by": "a test"}
        async with http.post(f"{admin}/api/v1/takedown", json=order) as answer:
            assert answer.status == 200, await answer.text()
            self._confirm(told)

    def _confirm(self, told: Told) -> None:
        self.ended.add(told.id)
        self.ended_at[told.id] = time.monotonic()


async def press(it: Child, ledger: Ledger, *, turns: int, clients: int = 3) -> None:
    """Clients that create, and end what they created in every way, until the daemon is gone or they had their turns."""
    async with aiohttp.ClientSession() as http:

        async def client(number: int) -> None:
            for turn in range(turns):
                key = f"client-{number}-{turn}-{it.process.pid}"
                told = await ledger.create(http, it.url, key, f"body of {key}\n".encode(), mortal=turn % 4 == 3)
                if told is not None and turn % 4 == 1:
                    await ledger.delete(http, it.url, told)
                if told is not None and turn % 4 == 2:
                    await ledger.take_down(http, it.admin, told)

        ends = await asyncio.gather(*(client(number) for number in range(clients)), return_exceptions=True)
    for end in ends:
        if end is not None and not isinstance(end, aiohttp.ClientError):
            raise end
