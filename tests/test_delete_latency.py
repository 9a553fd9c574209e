"""A delete's 204 never waits for the edge: purges that hang and purges that are answered at once make no difference.

Both are measured on one daemon in one run, interleaved in small rounds, so that whatever else the machine does meets
both alike. A round deletes some pastes while a purge is hanging, the next one as many while purges are answered. The
medians may differ by a quarter or by 1 ms; while they differ by more, more rounds are measured, up to a limit, since
noise averages out and a dependence does not.
"""

import asyncio
import time
from pathlib import Path
from statistics import median

from tests.connection import Connection, connected
from tests.process import child
from tests.real import poll
from tests.traffic import Edge, edge

ROUNDS = 10
DELETES = 10
TRIES = 5
APART_S = 0.02
"""Between deletes: else each would wait for the commits that settle the purge before it, if there is one."""


async def pasted(client: Connection) -> tuple[str, str]:
    made = await client.ask("POST", "/", b"hi")
    assert made is not None
    assert made.status == 201
    return made.headers["location"].rpartition("/")[2], made.headers["x-delete-token"]


async def deletes(client: Connection, pastes: list[tuple[str, str]]) -> list[float]:
    """How long each 204 took, in seconds."""
    took = []
    for paste, token in pastes:
        await asyncio.sleep(APART_S)
        began = time.perf_counter()
        gone = await client.ask("DELETE", f"/api/v1/pastes/{paste}", headers={"X-Delete-Token": token})
        took.append(time.perf_counter() - began)
        assert gone is not None
        assert gone.status == 204
    return took


async def one_round(client: Connection, cache: Edge, *, hanging: bool) -> list[float]:
    first, *others = [await pasted(client) for _ in range(DELETES + 1)]
    if hanging:
        cache.hang()
    cache.arrived.clear()
    await deletes(client, [first])
    async with asyncio.timeout(30):
        await cache.arrived.wait()
    took = await deletes(client, others)
    if hanging:
        assert cache.hanging, "a purge was hanging all the while"
    cache.answer()

    async def all_purged() -> bool:
        return all(cache.purged[paste] for paste, _ in (first, *others))

    await poll(all_purged, "the purges are done")
    return took


async def test_the_204_takes_no_longer_while_purges_hang(tmp_path: Path) -> None:
    async with edge() as cache, child(tmp_path, cache.settings()) as it, connected(it.url) as client:
        await one_round(client, cache, hanging=False)
        hanging: list[float] = []
        answered: list[float] = []
        for _ in range(TRIES):
            for _ in range(ROUNDS):
                hanging += await one_round(client, cache, hanging=True)
                answered += await one_round(client, cache, hanging=False)
            while_hanging, while_answered = median(hanging), median(answered)
            if abs(while_hanging - while_answered) <= max(0.001, 0.25 * while_answered):
                return
        raise AssertionError(f"medians: hanging {while_hanging * 1000:.2f} ms, answered {while_answered * 1000:.2f} ms")
