"""Stand-ins for what is outside of the process: time, the body store and the edge.

Fakes, not mocks: each behaves like the real thing (FakeStore and FakeEdge pass its contract tests), and a test scripts
what goes wrong:

    store = FakeStore(clock)
    store.faults.fail("put")                         # the next put raises Temporary; nothing is stored
    store.faults.fail("put", lost=True)              # the next put stores the body, then raises: the answer was lost
    store.faults.fail("delete", Permanent("no"), times=3)
    store.faults.fail("get", times=None)             # an outage, until store.faults.clear()
    store.stuck["objects/x"] = Temporary("no")       # this one key can't be deleted
    hold = store.faults.hold("put")                  # the next put stops before its effect ...
    await hold.reached.wait()                        # ... here, until
    hold.go.set()

FakeEdge has the same `faults` with the one operation `purge`, and `stuck` by tag.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pastebin_daemon.bodies import Deletion
from pastebin_daemon.clock import Clock
from pastebin_daemon.edge import Target
from pastebin_daemon.errors import EffectError, Temporary

__all__ = ["FakeClock", "FakeEdge", "FakeStore", "Faults", "Hold"]

START_MS = 1_700_000_000_000  # 2023-11-14T22:13:20Z


class FakeClock:
    """A Clock that moves only when a test says so."""

    def __init__(self, now_ms: int = START_MS) -> None:
        self._now_ms = float(now_ms)
        self._running_s = 1000.0

    def now_ms(self) -> int:
        return int(self._now_ms)

    def monotonic(self) -> float:
        return self._running_s

    def boottime(self) -> float:
        return self._running_s

    def advance(self, seconds: float) -> None:
        """Time passes: all three clocks move."""
        self._now_ms += seconds * 1000
        self._running_s += seconds

    def step_wall(self, seconds: float) -> None:
        """Somebody sets the clock: only the wall clock moves."""
        self._now_ms += seconds * 1000

    async def sleep(self, seconds: float) -> None:
        """In the place of asyncio.sleep: the time passes at once."""
        self.advance(seconds)
        await asyncio.sleep(0)


@dataclass
class Hold:
    """A call that stops before its effect. `reached` is set by the call, `go` by the test."""

    reached: asyncio.Event = field(default_factory=asyncio.Event)
    go: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass
class _Failure:
    error: EffectError
    lost: bool
    times: int | None


class Faults:
    """What is to go wrong, by operation. Failures of one operation happen in the order in which they were scripted."""

    def __init__(self) -> None:
        self._failures: dict[str, list[_Failure]] = {}
        self._holds: dict[str, list[Hold]] = {}

    def fail(
        self, operation: str, error: EffectError | None = None, *, times: int | None = 1, lost: bool = False
    ) -> None:
        """The next `times` calls fail (None: all, until `clear`). `lost`: the effect happens all the same."""
        failure = _Failure(error or Temporary(f"{operation}: scripted failure"), lost, times)
        self._failures.setdefault(operation, []).append(failure)

    def hold(self, operation: str) -> Hold:
        """The next call stops before its effect."""
        hold = Hold()
        self._holds.setdefault(operation, []).append(hold)
        return hold

    def clear(self) -> None:
        self._failures.clear()

    async def meet(self, operation: str) -> _Failure | None:
        """What a fake asks at the start of each call."""
        if holds := self._holds.get(operation):
            hold = holds.pop(0)
            hold.reached.set()
            await hold.go.wait()
        failures = self._failures.get(operation)
        if not failures:
            return None
        failure = failures[0]
        if failure.times is not None:
            failure.times -= 1
            if failure.times == 0:
                failures.pop(0)
        return failure


@dataclass(frozen=True)
class StoredObject:
    body: bytes
    put_ms: int


class FakeStore:
    """A BodyStore in memory. It tells missing from deleted, as the embedded store does and S3 doesn't."""

    def __init__(self, clock: Clock) -> None:
        self.objects: dict[str, StoredObject] = {}
        self.calls: list[tuple[str, tuple[str, ...]]] = []
        """Operation and keys of every call, in the order of their arrival."""
        self.faults = Faults()
        self.stuck: dict[str, EffectError] = {}
        self._clock = clock

    async def put(self, key: str, body: bytes) -> None:
        failure = await self._arrive("put", key)
        if failure is None or failure.lost:
            self.objects[key] = StoredObject(body, self._clock.now_ms())
        if failure is not None:
            raise failure.error

    async def get(self, key: str) -> bytes | None:
        failure = await self._arrive("get", key)
        if failure is not None:
            raise failure.error
        found = self.objects.get(key)
        return None if found is None else found.body

    async def delete(self, keys: Sequence[str]) -> Mapping[str, Deletion]:
        failure = await self._arrive("delete", *keys)
        if failure is not None and not failure.lost:
            return dict.fromkeys(keys, failure.error)
        results = {key: self._delete_one(key) for key in dict.fromkeys(keys)}
        return results if failure is None else dict.fromkeys(keys, failure.error)

    async def age_s(self, key: str) -> float | None:
        failure = await self._arrive("age_s", key)
        if failure is not None:
            raise failure.error
        found = self.objects.get(key)
        return None if found is None else (self._clock.now_ms() - found.put_ms) / 1000

    def _delete_one(self, key: str) -> Deletion:
        if key in self.stuck:
            return self.stuck[key]
        return "missing" if self.objects.pop(key, None) is None else "deleted"

    async def _arrive(self, operation: str, *keys: str) -> _Failure | None:
        self.calls.append((operation, keys))
        return await self.faults.meet(operation)


class FakeEdge:
    """An EdgePurger that remembers."""

    def __init__(self, batch_max: int = 100) -> None:
        self.batch_max = batch_max
        self.calls: list[tuple[Target, ...]] = []
        """The targets of every purge, in the order of their arrival, whatever became of it."""
        self.purged: list[str] = []
        """The tags that were dropped, once for each time."""
        self.faults = Faults()
        self.stuck: dict[str, EffectError] = {}

    async def purge(self, targets: Sequence[Target]) -> Sequence[EffectError | None]:
        self.calls.append(tuple(targets))
        failure = await self.faults.meet("purge")
        if failure is not None and not failure.lost:
            return [failure.error for _ in targets]
        self.purged += [target.tag for target in targets if target.tag not in self.stuck]
        return [self.stuck.get(target.tag) if failure is None else failure.error for target in targets]
