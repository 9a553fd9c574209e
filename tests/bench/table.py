"""A row of the table."""

from dataclasses import dataclass

__all__ = ["Row"]


@dataclass(frozen=True)
class Row:
    what: str
    reach: str
    reached: float
    figures: str
    is_reached: bool

    def __str__(self) -> str:
        verdict = "" if self.is_reached else " (not reached)"
        return f"| {self.what} | {self.reach} | {self.reached:.3g}{verdict} | {self.figures} |"
