"""A real file system loses its power under the daemon, and no answer is undone (tests/machine/cut.py says how).

By hand: `python -m tests.machine cut --minutes 60`; one again: `python -m tests.machine cut --seed 7 --count 1`.
"""

from pathlib import Path

import pytest

from tests.machine.cut import cut_once

CUTS = 6
ENOUGH = 4
"""Cuts within which a daemon that does not sync is found out; nearly each one finds it."""


@pytest.mark.parametrize("seed", range(CUTS))
async def test_a_power_cut_undoes_nothing_that_was_answered(tmp_path: Path, seed: int) -> None:
    record = await cut_once(tmp_path, seed)
    assert record.heard["POST 201"] > 0


async def test_without_full_syncs_the_cut_is_seen_to_undo_answers(tmp_path: Path) -> None:
    for seed in range(ENOUGH):
        (tmp_path / str(seed)).mkdir()
        try:
            await cut_once(tmp_path / str(seed), seed, synchronous="normal")
        except AssertionError as error:
            seen = str(error)
            assert any(loss in seen for loss in ("is gone though", "was read after its 204", "body_missing")), seen
            return
    pytest.fail(f"{ENOUGH} cuts did not show what NORMAL loses")
