"""Kill the daemon again and again under load, at random instants and at named points, and hold it to what it had said.

    python -m tests.random_kills --seed 7 --count 200              # the embedded store, an edge that counts purges
    python -m tests.random_kills --seed 7 --count 200 --store s3   # S3 (moto), and a real Varnish in front

Clients create (every one under an idempotency key), delete and read while it dies; visitors come through the cache. They
keep their own record of each 201 and 204, which is held against what the daemon, the store and the cache serve: while it
goes on, every few kills, and whole at the end, when everything must be worked off and time has passed.

A real process can't be replayed exactly. What a seed gives again is the points, their counts, and how long after its start
a kill at a random instant comes.
"""

import argparse
import asyncio
import contextlib
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from tests.process import Child, child
from tests.promises import SETTINGS, ask_again, check_promises, heal
from tests.real.moto import Bucket, new_bucket, running_moto
from tests.real.site import Front, running_front
from tests.traffic import Edge, Ledger, Told, edge, press

__all__ = ["Killing"]

POINTS = [
    f"{step} {when}"
    for step in (
        "begin_upload", "insert", "commit", "delete", "take_down", "claim object-delete", "claim edge-purge",
        "settle object-delete", "settle edge-purge", "remove",
    )
    for when in ("before", "inside", "after")
]  # fmt: skip
POINTS += [f"{call} {when}" for call in ("store.put", "store.delete", "edge.purge") for when in ("before", "after")]
POINTS += ["answer 201", "answer 204"]
AGREED_EVERY = 8
"""Kills between two looks at the whole record."""
MAX_AGE_S = 2.0
WAY_S = 1.0
"""What an answer may take from the daemon to a visitor on a busy machine."""
POINT_S = 3.0


@dataclass
class Killing:
    """One directory that outlives many daemons."""

    directory: Path
    seed: int
    bucket: Bucket | None = None
    front: Front | None = None
    ledger: Ledger = field(default_factory=Ledger)
    kills: Counter[str] = field(default_factory=Counter)
    hits: int = 0

    async def run(self, kills: int) -> None:
        rng = random.Random(self.seed)
        async with edge() as cache:
            settings = SETTINGS | self._settings(cache)
            for number in range(kills):
                await self._die(settings, rng)
                if number % AGREED_EVERY == AGREED_EVERY - 1:
                    async with (
                        child(self.directory, settings, options=["--brisk"]) as it,
                        aiohttp.ClientSession() as http,
                    ):
                        await check_promises(it, http, self.ledger, expired=False)
                        await ask_again(it, http, self.ledger)
                        it.send(signal.SIGKILL)
                        assert await it.ended() == -signal.SIGKILL
                    self.kills["at rest"] += 1
            await heal(
                self.directory, settings, self.ledger, cache if self.front is None else None, bucket=self.bucket
            )  # fmt: skip

    def _settings(self, cache: Edge) -> dict[str, object]:
        given: dict[str, object] = {"edge.max_age": f"{MAX_AGE_S:.0f}s"}
        if self.bucket is not None:
            given |= self.bucket.settings() | {"uploads.reap_after": "1700ms"}
        if self.front is None:
            return given | cache.settings()
        return given | {
            "server.listen": f"127.0.0.1:{self.front.origin_port}",
            "server.public_url": self.front.url,
            "edge.driver": "varnish",
            "edge.varnish.endpoint": self.front.url,
            "edge.varnish.timeout": "400ms",
        }

    async def _die(self, settings: dict[str, object], rng: random.Random) -> None:
        point = rng.choice(POINTS) if rng.random() < 0.5 else ""
        count, delay_s = rng.choice((1, 2, 5)), rng.uniform(0.02, 0.6)
        options = ["--brisk", "--die-at", point, "--die-on", str(count)] if point else ["--brisk"]
        async with child(self.directory, settings, options=options) as it:
            load = asyncio.gather(
                press(it, self.ledger, turns=1000, clients=4), *(self._reader(it, rng) for _ in range(3))
            )  # fmt: skip
            ended = asyncio.create_task(it.ended())
            first: list[asyncio.Future[Any]] = [ended, load]
            await asyncio.wait(first, timeout=POINT_S if point else delay_s, return_when=asyncio.FIRST_COMPLETED)
            with contextlib.suppress(ProcessLookupError):  # it has died at its point a moment ago
                it.send(signal.SIGKILL)
            assert await ended == -signal.SIGKILL, f"seed {self.seed}: {it.log()[-3000:]}"
            await load
        died_there = bool(point) and f"died at: {point}" in it.log()
        self.kills[point if died_there else "a random instant"] += 1

    async def _reader(self, it: Child, rng: random.Random) -> None:
        """Read what there is, from the origin and through the cache, until the daemon is gone."""
        with contextlib.suppress(aiohttp.ClientError):
            async with aiohttp.ClientSession() as http:
                while it.process.returncode is None:
                    pastes = list(self.ledger.pastes.values())
                    if not pastes:
                        await asyncio.sleep(0)
                        continue
                    await self._read(http, it.url, rng.choice(pastes[-30:]), slack_s=0.0)
                    if self.front is not None:
                        await self._read(http, self.front.url, rng.choice(pastes[-30:]), slack_s=MAX_AGE_S + WAY_S)

    async def _read(self, http: aiohttp.ClientSession, url: str, told: Told, *, slack_s: float) -> None:
        asked_s = time.monotonic()
        ended_s = self.ledger.ended_at.get(told.id)
        kept = told.id not in self.ledger.asked
        async with http.get(f"{url}/{told.id}/raw") as answer:
            body = await answer.read()
        self.hits += len(answer.headers.get("X-Varnish", "").split()) == 2
        story = f"seed {self.seed}: {told}, {answer.status} {body!r} by {url}"
        if answer.status == 200:
            assert body == told.body, story
            assert ended_s is None or asked_s <= ended_s + slack_s, f"G2, G11: served after its end; {story}"
        elif answer.status == 404:
            assert not kept or told.id in self.ledger.asked, f"G1: gone, and nobody ended it; {story}"
        else:
            assert answer.status in ((502, 503, 504) if slack_s else (503,)), story


async def search(seed: int, count: int, store: str) -> Counter[str]:
    with contextlib.ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kills-")))
        bucket = front = None
        if store == "s3":
            bucket = new_bucket(stack.enter_context(running_moto()))
            front = stack.enter_context(running_front())
        killing = Killing(directory, seed, bucket, front)
        await killing.run(count)
        print(
            f"seed {seed}: {len(killing.ledger.pastes)} pastes, {len(killing.ledger.ended)} ended, {killing.hits} hits"
        )
        return killing.kills


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.random_kills", description=__doc__.partition("\n")[0])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--store", choices=("local", "s3"), default="local")
    options = parser.parse_args()
    began = time.monotonic()
    kills = asyncio.run(search(options.seed, options.count, options.store))
    rate = kills.total() / (time.monotonic() - began) * 3600
    print(f"{kills.total()} kills, no promise broken, {rate:.0f} an hour; {dict(kills.most_common())}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
