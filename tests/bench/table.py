"""A row of the table, and turns taken side by side."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from statistics import median

from tests.bench.load import Seen

__all__ = ["Row", "interleaved", "ratio_row"]


@dataclass(frozen=True)
class Row:
    what: str
    reach: str
    reached: str
    figures: str
    is_reached: bool

    def __str__(self) -> str:
        verdict = "" if self.is_reached else " (not reached)"
        return f"| {self.what} | {self.reach} | {self.reached}{verdict} | {self.figures} |"


async def interleaved(rounds: int, turns: Mapping[str, Callable[[], Awaitable[Seen]]]) -> dict[str, list[Seen]]:
    """Every turn once a round, so that what else the machine does meets all of them. No answer may fail."""
    seen: dict[str, list[Seen]] = {name: [] for name in turns}
    for _ in range(rounds):
        for name, turn in turns.items():
            run = await turn()
            assert run.failed == 0, (name, run)
            seen[name].append(run)
    return seen


def ratio_row(what: str, least: float, ours: list[Seen], theirs: list[Seen]) -> Row:
    """The median of the rounds' ratios of rates."""
    reached = median(one.rate / other.rate for one, other in zip(ours, theirs, strict=True))
    figures = f"{median(run.rate for run in ours):,.0f}/s of {median(run.rate for run in theirs):,.0f}/s"
    return Row(what, f">= {least:g}", f"{reached:.3g}", figures, reached >= least)
