"""Clients that bear any answer, and remember what it promised.

    record = Record()
    async with record.load(it.url, random.Random(seed)):      # several clients, until the block ends or the daemon does
        ...
    assert record.lies == []

What an answer promises: 201: the paste can be read, with its bytes, until its end is asked for (G1). 204: it is gone (G2).
404 for a paste of a 201 whose end was not asked for, other bytes, and 200 after a 204 are lies, at once and for ever. Any
other status promises nothing; a status that is no honest refusal here is a lie too.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from random import Random

import aiohttp

__all__ = ["Paste", "Record"]

REFUSALS = frozenset({503, 507})
PROMISES = {"POST": (201,), "DELETE": (204, 404), "GET": (200, 404)}
PATIENCE_S = 30.0


@dataclass(frozen=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes


@dataclass
class Paste:
    id: str
    token: str
    body: bytes
    asked: bool = False
    """Its end was asked for, whatever became of it."""
    ended: bool = False
    """Its end was confirmed."""


@dataclass
class Record:
    sizes: tuple[int, ...] = (10, 100, 3000, 40_000)
    pastes: list[Paste] = field(default_factory=list)
    lies: list[str] = field(default_factory=list)
    heard: Counter[str] = field(default_factory=Counter)
    """Answers by method and status; "none" for a request that got none."""
    slowest: dict[str, float] = field(default_factory=dict)
    """Seconds of the slowest answer, by method and status."""

    async def create(self, http: aiohttp.ClientSession, url: str, body: bytes) -> Paste | None:
        answer = await self._ask(http, "POST", f"{url}/", data=body)
        if answer is None or answer.status != 201:
            return None
        paste = Paste(answer.headers["Location"].rpartition("/")[2], answer.headers["X-Delete-Token"], body)
        self.pastes.append(paste)
        return paste

    async def delete(self, http: aiohttp.ClientSession, url: str, paste: Paste) -> int | None:
        before, paste.asked = paste.asked, True
        answer = await self._ask(http, "DELETE", f"{url}/api/v1/pastes/{paste.id}", token=paste.token)
        if answer is None:
            return None
        if answer.status == 204:
            paste.ended = True
        elif answer.status == 404 and not before:
            self.lies.append(f"DELETE of {paste.id} was answered 404 though a 201 had been given and no end asked for")
        return answer.status

    async def read(self, http: aiohttp.ClientSession, url: str, paste: Paste) -> int | None:
        """What is judged is what was known before the question."""
        was_ended = paste.ended
        answer = await self._ask(http, "GET", f"{url}/{paste.id}/raw")
        if answer is None:
            return None
        status, body = answer.status, answer.body
        if status == 200 and was_ended:
            self.lies.append(f"{paste.id} was read after its 204")
        if status == 200 and body != paste.body:
            self.lies.append(f"{paste.id} was read with other bytes: {body[:50]!r} for {paste.body[:50]!r}")
        if status == 404 and not paste.asked:
            self.lies.append(f"{paste.id} is gone though a 201 was given and no end asked for")
        return status

    async def check(self, http: aiohttp.ClientSession, url: str) -> set[str]:
        """Read every paste; the result: those that are there. Here a refusal is a lie, since all is well again: one that
        stays, since a store's short limit may pass once on a busy machine."""
        there = set()
        for paste in self.pastes:
            for _ in range(10):
                status = await self.read(http, url, paste)
                if status != 503:
                    break
            if status == 200:
                there.add(paste.id)
            elif status != 404:
                self.lies.append(f"{paste.id} was answered {status} when all was well again")
        return there

    @asynccontextmanager
    async def load(self, url: str, chance: Random, *, clients: int = 4) -> AsyncIterator[None]:
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=PATIENCE_S)) as http:
            running = [asyncio.create_task(self.client(http, url, Random(chance.random()))) for _ in range(clients)]
            try:
                yield
            finally:
                for task in running:
                    task.cancel()
                for end in await asyncio.gather(*running, return_exceptions=True):
                    if isinstance(end, Exception):
                        raise end

    async def client(self, http: aiohttp.ClientSession, url: str, chance: Random, *, turns: int = 1_000_000) -> None:
        """Creates, deletes and reads, until it is cancelled, had its turns, or nobody answers any more."""
        silent = self.heard["none"]
        for _ in range(turns):
            living = [paste for paste in self.pastes if not paste.asked]
            draw = chance.random()
            if draw < 0.5 or not self.pastes:
                await self.create(http, url, chance.randbytes(chance.choice(self.sizes)))
            elif draw < 0.7 and living:
                await self.delete(http, url, chance.choice(living))
            else:
                await self.read(http, url, chance.choice(self.pastes))
            if self.heard["none"] > silent + 8:
                return

    async def _ask(
        self, http: aiohttp.ClientSession, method: str, url: str, *, data: bytes | None = None, token: str = ""
    ) -> Answer | None:
        headers = {"X-Delete-Token": token} if token else {}
        began = asyncio.get_running_loop().time()
        try:
            async with http.request(method, url, data=data, headers=headers) as answer:
                body = await answer.read()
        except (aiohttp.ClientError, TimeoutError, OSError):
            self.heard["none"] += 1
            return None
        name = f"{method} {answer.status}"
        self.heard[name] += 1
        self.slowest[name] = max(self.slowest.get(name, 0.0), asyncio.get_running_loop().time() - began)
        if answer.status not in PROMISES[method] and answer.status not in REFUSALS:
            self.lies.append(f"{name} is no honest answer here: {body[:200]!r}")
        return Answer(answer.status, answer.headers, body)
