"""How the daemon is, for those who ask: the supervisor, the proxy, Prometheus, the operator.

Three different questions, and a wrong answer to any of them does harm:

- **Alive** (`stuck`): do the loops turn? If not, a restart helps.
- **Ready** (`not_ready`): may requests be sent here? Not while draining, nor when the database can't be written.
- **Troubles**: what is wrong around the daemon. Never a reason to send requests elsewhere, since there is nowhere else, and
  cached reads and deletes go on.
"""

import asyncio
from collections.abc import Mapping, Sequence

from pastebin_daemon.database import Database
from pastebin_daemon.dispatcher import Dispatcher
from pastebin_daemon.errors import Busy, DatabaseUnavailable
from pastebin_daemon.loops import Loop, overdue
from pastebin_daemon.metrics import Metrics

__all__ = ["Health"]

READY_S = 2.0
"""How long readiness waits for the writer."""


class Health:
    def __init__(
        self,
        databases: Sequence[Database],
        dispatchers: Mapping[str, Dispatcher],
        loops: Sequence[Loop],
        metrics: Metrics,
    ) -> None:
        """The first of the databases is the metadata's."""
        self.draining = False
        self._databases = databases
        self._dispatchers = dispatchers
        self._loops = loops
        self._metrics = metrics

    def stuck(self) -> list[str]:
        """The loops that do not turn."""
        return overdue(self._loops)

    async def not_ready(self) -> str:
        """Why nothing may be sent here, or ""."""
        if self.draining:
            return "the daemon is being stopped"
        try:
            async with asyncio.timeout(READY_S):
                await self._databases[0].write(lambda tx: None)
        except TimeoutError:
            return f"the database did not answer within {READY_S:g} s"
        except (DatabaseUnavailable, Busy) as error:
            return str(error)
        return ""

    def troubles(self) -> dict[str, str]:
        found = {
            f"breaker of {kind}": dispatcher.breaker.why
            for kind, dispatcher in self._dispatchers.items()
            if not dispatcher.breaker.may_claim()
        }
        return found | {
            f"disk of {each.path.name}": "full: creates are refused" for each in self._databases if each.full
        }

    def breakers(self) -> dict[str, str]:
        """Each kind, with why its consumer claims nothing, or "" when it does."""
        return {
            kind: "" if dispatcher.breaker.may_claim() else dispatcher.breaker.why or "waiting"
            for kind, dispatcher in self._dispatchers.items()
        }

    def files(self) -> dict[str, tuple[int, bool]]:
        """Each database's file, with the bytes of its write-ahead log and whether its disk is full."""
        return {each.path.name: (each.wal_bytes(), each.full) for each in self._databases}

    def set_gauges(self) -> None:
        """Bring the gauges up to date that are kept in memory."""
        for kind, dispatcher in self._dispatchers.items():
            self._metrics.breaker_open.labels(kind).set(not dispatcher.breaker.may_claim())
        for each in self._databases:
            self._metrics.wal_bytes.labels(each.path.name).set(each.wal_bytes())
            self._metrics.full.labels(each.path.name).set(each.full)

    async def failure(self) -> None:
        """Returns never; raises `DatabaseUnavailable` once a database's handle can't be trusted any more."""
        done, _ = await asyncio.wait([each.failed for each in self._databases], return_when=asyncio.FIRST_COMPLETED)
        for failed in done:
            raise DatabaseUnavailable(f"a commit's outcome is unknown: {failed.result()!r}")
