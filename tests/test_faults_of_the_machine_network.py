"""Store and edge behind connections that fail at random (tests/machine/network.py says how): no lie, no wait, no loss.

By hand: `python -m tests.machine network --minutes 60`; one again: `python -m tests.machine network --seed 7`.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.machine.network import through_faults
from tests.real.moto import running_moto

SEEDS = 3


@pytest.fixture(scope="module")
def moto() -> Iterator[int]:
    with running_moto() as port:
        yield port


@pytest.mark.parametrize("seed", range(SEEDS))
async def test_connections_that_fail_at_random_make_no_answer_a_lie(tmp_path: Path, moto: int, seed: int) -> None:
    record = await through_faults(tmp_path, seed, moto)
    assert record.heard["none"] == 0
