"""The store and the edge are behind connections that go wrong at random, while clients create, delete and read.

A proxy before the S3 (moto) and one before the edge draw for each request whether it passes, is answered 503, reset, cut
inside its answer, hangs, or is done and its answer lost. Every answer holds meanwhile, a delete waits for neither store
nor edge, and when all is well again everything is worked off: each ended paste was purged, and the bucket holds exactly
the objects of live rows.
"""

import os
import signal
from collections import Counter
from pathlib import Path
from random import Random

import aiohttp

from tests.machine.clients import Record
from tests.machine.full import heard_more
from tests.machine.judge import SETTINGS, examined
from tests.process import child
from tests.real import poll
from tests.real.faults import Answer, Cut, Fault, FaultProxy, Hang, LoseAnswer, Reset, Seen, error_xml
from tests.real.moto import new_bucket, running_moto
from tests.traffic import edge

__all__ = ["network_once"]

FAULTS: tuple[Fault, ...] = (
    Answer(503, error_xml("SlowDown")),
    Answer(500, error_xml("InternalError")),
    Reset(),
    LoseAnswer(),
    Cut(0),
    Cut(10),
    Cut(3, silent=True),
    Hang(),
)


class RandomProxy(FaultProxy):
    """Each request meets a fault with the chance `share`."""

    def __init__(self, upstream_port: int, chance: Random, share: float) -> None:
        super().__init__(upstream_port)
        self._chance = chance
        self.share = share

    def _fault_for(self, seen: Seen) -> Fault | None:
        return self._chance.choice(FAULTS) if self._chance.random() < self.share else None


async def network_once(directory: Path, seed: int) -> Record:
    with running_moto() as port:
        return await through_faults(directory, seed, port)


async def through_faults(directory: Path, seed: int, moto: int) -> Record:
    chance = Random(seed)
    record = Record()
    bucket = new_bucket(moto)
    async with (
        edge() as cache,
        RandomProxy(moto, chance, chance.choice((0.1, 0.3, 0.6))) as store,
        RandomProxy(cache.port, chance, chance.choice((0.1, 0.5))) as purger,
    ):
        settings = SETTINGS | {"bodies.s3.timeout": "400ms", "bodies.s3.connect_timeout": "200ms"}
        settings |= bucket.settings(store.url) | cache.settings()
        settings["edge.http.url"] = f"{purger.url}/{{id}}"
        settings["uploads.reap_after"] = "1700ms"
        async with child(directory, settings, options=["--brisk"]) as it, aiohttp.ClientSession() as http:
            async with record.load(it.url, chance):
                await heard_more(record, record.heard.copy(), "POST 201", 30)
                await heard_more(record, record.heard.copy(), "DELETE 204", 10)
                await heard_more(record, Counter(), "POST 503", 1)
            assert record.lies == [], record.lies[:5]
            assert record.slowest["DELETE 204"] < 5
            store.share = purger.share = 0

            async def well() -> bool:
                return await record.create(http, it.url, os.urandom(10)) is not None

            await poll(well, "creates are taken again")
            await record.check(http, it.url)
            assert record.lies == [], record.lies[:5]
            found: dict[str, list[object]] = {}

            async def is_done() -> bool:
                nonlocal found
                it.send(signal.SIGUSR1)
                found = await examined(it)
                return not found["jobs"] and not found["uploads"]

            await poll(is_done, "every job is done")
            assert found["dead"] == []
            assert sorted(map(str, found["owned"])) == await bucket.keys()
            assert all(cache.purged[paste.id] for paste in record.pastes if paste.ended)
            it.send(signal.SIGTERM)
            assert await it.ended() == 0, it.log()[-2000:]
    return record
