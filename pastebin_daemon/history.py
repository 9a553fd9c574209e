"""The last hour in numbers, for the operator's page: how old the oldest job was, and how many were waiting.

Kept in memory alone, since Prometheus is where a history belongs; this one is for whoever has only a browser. Bounded: a
sample each `EVERY_S`, and an hour of them.
"""

from collections import deque
from dataclasses import dataclass

from pastebin_daemon import operating
from pastebin_daemon.database import Database

__all__ = ["EVERY_S", "HOUR_S", "History", "Sample"]

HOUR_S = 3600
EVERY_S = 20


@dataclass(frozen=True, slots=True)
class Sample:
    at_ms: int
    age_ms: int
    jobs: int


class History:
    def __init__(self, database: Database) -> None:
        self._database = database
        self.samples: deque[Sample] = deque(maxlen=HOUR_S // EVERY_S)

    async def sample(self) -> bool:
        """One tick of its loop; never again at once."""
        at_ms, totals = await self._database.read(lambda tx: (tx.now_ms, operating.totals(tx)))
        self.samples.append(Sample(at_ms, totals.oldest_age_ms, totals.pending + totals.leased))
        return False
