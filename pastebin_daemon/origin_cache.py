"""The origin cache: what is served without asking the database or the store, and what must not be served any more.

It guarantees, together with a reader that follows its three calls, that after an ending's commit was resolved nobody
gets the text, not even a request that began before it (G2):

- A **tombstone** is looked at before a cached value, before joining a shared fetch, and by `is_buried` once more before
  the first header is written. A fetch that began before the tombstone ends without a value for whoever waits for it and
  leaves nothing behind.
- Concurrent misses of one id share one fetch. A waiter that goes away takes nobody with it.
- A tombstone lives longer than the longest fetch, and then goes: a fetch that starts later reads a database without the
  row. Ids are never reused (G13), so a tombstone never hides anything that lives. A process can stand still in between
  (SIGSTOP, a machine that sleeps) and go on with the tombstone over and the fetch not: so a fetch, and whoever waited,
  looks at the clock afterwards, and what took too long is not served.

Bounded (G14): values by the sum of their weights, least recently used out first; tombstones by their life times the
rate of endings (at 3,500 endings/s and 40 s about 140,000 ids, 20 MB).
"""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from pastebin_daemon.clock import Clock

__all__ = ["OriginCache"]

V = TypeVar("V")


class OriginCache(Generic[V]):
    def __init__(self, clock: Clock, bytes_max: int, weigh: Callable[[V], int], fetch_max_s: float) -> None:
        """`weigh` tells what a value takes, in bytes. `fetch_max_s` bounds a fetch."""
        self._clock = clock
        self._bytes_max = bytes_max
        self._weigh = weigh
        self._fetch_max_s = fetch_max_s
        self.life_s = 2 * fetch_max_s
        """How long a tombstone stays. Who has waited for longer can't tell by it, and must not serve what he has."""
        self._bytes = 0
        self._values: OrderedDict[str, tuple[V, int]] = OrderedDict()
        self._fetches: dict[str, asyncio.Task[V | None]] = {}
        self._tombstones: dict[str, float] = {}  # in the order of their end

    def get(self, key: str) -> V | None:
        kept = self._values.get(key)
        if kept is None or key in self._tombstones:
            return None
        self._values.move_to_end(key)
        return kept[0]

    def is_buried(self, key: str) -> bool:
        return key in self._tombstones

    async def fetch(self, key: str, load: Callable[[str], Awaitable[V | None]]) -> V | None:
        """The value by `load`, shared with everyone who asks meanwhile. None: there is none, or not any more.

        Raises what `load` raised, and `TimeoutError` when it took longer than a fetch may.
        """
        if key in self._tombstones:
            return None
        task = self._fetches.get(key)
        if task is None:
            task = asyncio.create_task(self._fill(key, load))
            self._fetches[key] = task
            task.add_done_callback(lambda task: self._done(key, task))
        value = await asyncio.shield(task)
        return None if key in self._tombstones else value

    def bury(self, key: str) -> None:
        """Set the tombstone, again if need be, and drop the value."""
        self._drop(key)
        self._tombstones.pop(key, None)
        self._tombstones[key] = self._clock.monotonic() + self.life_s
        self.sweep()

    def forget(self, key: str) -> None:
        """`bury`, by a stranger's word: only where there is something to bury, so that nobody fills the memory."""
        if key in self._values or key in self._fetches:
            self.bury(key)

    def weigh_again(self, key: str, value: V) -> bool:
        """The value has changed its weight. False when it is not kept (any more), or would take too much room now: then
        its old weight still counts, and the caller undoes the change."""
        kept = self._values.get(key)
        if kept is None or kept[0] is not value or self._weigh(value) > self._bytes_max // 4:
            return False
        self._drop(key)
        self._keep(key, value)
        return True

    def sweep(self) -> None:
        """Let tombstones go whose life is over."""
        now = self._clock.monotonic()
        while self._tombstones:
            key = next(iter(self._tombstones))
            if self._tombstones[key] > now:
                return
            del self._tombstones[key]

    async def close(self) -> None:
        """End the fetches that nobody waits for any more."""
        tasks = list(self._fetches.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _fill(self, key: str, load: Callable[[str], Awaitable[V | None]]) -> V | None:
        began = self._clock.monotonic()
        async with asyncio.timeout(self._fetch_max_s):
            value = await load(key)
        # After a standstill the value can come before the timer does.
        if self._clock.monotonic() - began > self._fetch_max_s:
            raise TimeoutError
        if value is not None and key not in self._tombstones:
            self._keep(key, value)
        return value

    def _drop(self, key: str) -> None:
        kept = self._values.pop(key, None)
        if kept is not None:
            self._bytes -= kept[1]

    def _done(self, key: str, task: asyncio.Task[V | None]) -> None:
        self._fetches.pop(key, None)
        if not task.cancelled():
            task.exception()  # the waiters have it; when they all left, nobody misses it

    def _keep(self, key: str, value: V) -> None:
        weight = self._weigh(value)
        if weight > self._bytes_max // 4:
            return  # one large paste must not empty the cache
        self._values[key] = (value, weight)
        self._bytes += weight
        while self._bytes > self._bytes_max:
            _, (_, freed) = self._values.popitem(last=False)
            self._bytes -= freed
