"""Killed a hundred times under load, at random instants and at random points, the daemon keeps every promise that a client
had heard: tests/random_kills.py has the search, and how to go on with it by hand."""

import asyncio
from pathlib import Path

import pytest

from tests.random_kills import Killing
from tests.real.moto import new_bucket, running_moto
from tests.real.site import running_front

KILLS_AT_ONCE = 27


@pytest.mark.parametrize("seed", [1])
async def test_a_hundred_kills_break_no_promise(tmp_path: Path, seed: int) -> None:
    """Four daemons side by side, since each waits for its start: two with the embedded store, two with S3 behind Varnish."""
    killings = []
    with running_moto() as port, running_front() as one, running_front() as other:
        fronts = [None, None, one, other]
        for number, front in enumerate(fronts):
            directory = tmp_path / str(number)
            directory.mkdir()
            bucket = None if front is None else new_bucket(port)
            killings.append(Killing(directory, seed * 10 + number, bucket, front))
        async with asyncio.TaskGroup() as group:
            for killing in killings:
                group.create_task(killing.run(KILLS_AT_ONCE))
    assert sum(killing.kills.total() for killing in killings) >= 100
    points = {point for killing in killings for point in killing.kills}
    assert len(points) > 15, "and not always at the same place"
    assert all(killing.hits for killing in killings[2:]), "visitors were served by the cache"
