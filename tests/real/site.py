"""A whole site: visitors → a real Varnish → a proxy that can go wrong → the daemon, whose purges go to Varnish.

async with site(front, tmp_path, clock=clock) as at:
    made = await at.it.paste(b"hi")
    seen = await at.visit(f"{made.id}/raw")       # through Varnish
    assert (seen.status, seen.hit) == (200, False)
    at.origin.seen                                # what Varnish asked the daemon
"""

import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from yarl import URL

from pastebin_daemon.bodies import BodyStore
from pastebin_daemon.clock import Clock
from tests.real import free_port
from tests.real.faults import FaultProxy
from tests.real.varnish import running_varnish
from tests.support import Harness, Made, running

__all__ = ["Front", "Site", "Visit", "running_front", "site"]


@dataclass(frozen=True)
class Front:
    """A Varnish, and where it looks for its origin."""

    url: str
    origin_port: int


@contextmanager
def running_front() -> Iterator[Front]:
    port = free_port()
    with running_varnish(port) as url:
        yield Front(url, port)


@dataclass(frozen=True)
class Visit:
    """What a visitor got, and when it was asked for (by `time.time`)."""

    asked_s: float
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def hit(self) -> bool:
        """Whether it came out of the cache: then Varnish names two requests, this one and the one that fetched it."""
        return len(self.headers["X-Varnish"].split()) == 2


@dataclass(frozen=True)
class Site:
    front: Front
    it: Harness
    origin: FaultProxy
    """Between Varnish and the daemon."""

    async def visit(self, path: str, method: str = "GET", **headers: str) -> Visit:
        asked_s = time.time()
        async with self.it.http.request(method, f"{self.front.url}/{path}", headers=headers) as answer:
            return Visit(asked_s, answer.status, answer.headers, await answer.read())

    async def delete(self, made: Made) -> None:
        """As a visitor does, through Varnish."""
        assert (await self.visit(f"api/v1/pastes/{made.id}", "DELETE", **{"X-Delete-Token": made.token})).status == 204


@asynccontextmanager
async def site(
    front: Front,
    directory: Path,
    *,
    clock: Clock,
    store: BodyStore | None = None,
    settings: Mapping[str, object] | None = None,
) -> AsyncIterator[Site]:
    edge = {"server.public_url": front.url, "edge.driver": "varnish", "edge.varnish.endpoint": front.url}
    async with running(directory, clock=clock, store=store, settings=edge | dict(settings or {})) as it:
        daemon_port = URL(it.url).port
        assert daemon_port is not None
        async with FaultProxy(daemon_port, port=front.origin_port) as origin:
            yield Site(front, it, origin)
