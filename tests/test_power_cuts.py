"""The power goes, for both databases at once, at every sync of a life in which everything happens that writes; what had
not been synced is lost, kept, torn or garbled; and what the daemon then finds keeps every promise that it had given.

The search is in tests/powercuts. By hand, without an end: `python -m tests.powercuts`.
"""

import pytest

from tests.powercuts.search import Cuts, cut_life
from tests.powercuts.secrets import cut_secret

CUTS = 1300


def told(cuts: Cuts) -> str:
    return f"{cuts.where}\nreplay: python -m tests.powercuts --seed {cuts.where.split()[1]}"


@pytest.mark.parametrize(("seed", "bucket"), [(1, False), (2, True)])
def test_nothing_acknowledged_is_lost_and_nothing_half_done_is_seen(seed: int, bucket: bool) -> None:
    cuts = cut_life(seed, bucket=bucket, limit=CUTS)
    assert cuts.violation is None, told(cuts)
    assert cuts.count == CUTS


@pytest.mark.parametrize("mode", ["normal", "off"])
def test_without_full_syncs_the_search_finds_a_lost_answer(mode: str) -> None:
    cuts = cut_life(1, bucket=True, swaps={"pragma synchronous": f"pragma synchronous = {mode}"})
    assert cuts.violation is not None
    assert cuts.violation.guarantee == "G1"
    assert cuts.count < CUTS


def test_on_a_disk_that_lies_about_syncs_the_search_finds_it() -> None:
    cuts = cut_life(1, bucket=False, lies=True)
    assert cuts.violation is not None
    assert cuts.count < CUTS


def test_the_secret_is_there_after_any_cut_once_it_was_used() -> None:
    cuts = cut_secret(30)
    assert cuts.violation is None, cuts.where
    assert cuts.count > 100
