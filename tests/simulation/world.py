"""What is outside of the process: the clocks, the network, the store and the edge. All of it outlives a crash.

A call over the network has a fate, drawn from the weather:

| fate      | the effect                | what the caller gets                                    |
|-----------|---------------------------|---------------------------------------------------------|
| well      | lands                     | the answer, each way taking its time                    |
| refused   | none                      | Temporary                                               |
| throttled | none                      | Temporary, throttled, with or without a Retry-After     |
| lost      | lands                     | Temporary: the answer was lost                          |
| silent    | none                      | Temporary, at the driver's time limit                   |
| late      | lands, minutes afterwards | Temporary, at the driver's time limit                   |

An effect that is on its way lands whether or not its caller still lives. Late is bounded by half of the reap floor: a
store that holds a PUT back for an hour and then does it is beyond what G12 promises.
"""

import asyncio
import contextvars
import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from pastebin_daemon.bodies import Deletion
from pastebin_daemon.edge import Target
from pastebin_daemon.errors import EffectError, Permanent, Temporary
from tests.simulation.loop import LIFE, SimLoop

__all__ = ["Edge", "Outage", "SimClock", "Store", "Weather", "Witness", "nobodys_context"]

T = TypeVar("T")

FATES = ("refused", "throttled", "lost", "silent", "late")
WALL0_S = 1_700_000_000.0
STORE_LIMIT_S = 10.0
EDGE_LIMIT_S = 5.0


class Witness(Protocol):
    """Who judges effects at the instant at which they land."""

    def say(self, text: str) -> None: ...
    def putting(self, key: str, body: bytes) -> None: ...
    def removing(self, key: str, age_s: float) -> None: ...
    def purging(self, tag: str) -> None: ...


class SimClock:
    """The daemon's clocks. `stepped_s` is by how much somebody has set the wall clock, in `steps` steps."""

    def __init__(self, loop: SimLoop) -> None:
        self._loop = loop
        self.stepped_s = 0.0
        self.steps = 0

    def now_ms(self) -> int:
        return int((WALL0_S + self._loop.now + self.stepped_s) * 1000)

    def monotonic(self) -> float:
        return self._loop.now

    def boottime(self) -> float:
        return self._loop.now

    def step_wall(self, seconds: float) -> None:
        self.stepped_s += seconds
        self.steps += 1


@dataclass(frozen=True)
class Outage:
    service: str
    begins: float
    ends: float
    fate: str


@dataclass
class Weather:
    """`rates` by service: how likely each of FATES is. After `clear()` everything is well."""

    rng: random.Random
    rates: dict[str, tuple[float, ...]] = field(default_factory=dict)
    outages: list[Outage] = field(default_factory=list)
    slow: float = 0.0
    """How likely a way takes seconds and not milliseconds."""
    late_max_s: float = 600.0
    epoch: int = 0
    """What was sent in an earlier one never lands. An operator who goes back to an old copy of the database waits until
    nothing is on its way any more: a delete that lands afterwards would remove what has come back to life."""
    calm_from: float = math.inf
    """When all that was under way in bad weather has had its time limit."""

    def clear(self, now: float) -> None:
        self.rates, self.outages, self.slow = {}, [], 0.0
        self.calm_from = now + 2 * STORE_LIMIT_S

    def fate(self, service: str, now: float) -> str:
        for outage in self.outages:
            if outage.service == service and outage.begins <= now < outage.ends:
                return outage.fate
        drawn = self.rng.random()
        for fate, rate in zip(FATES, self.rates.get(service, ()), strict=False):
            drawn -= rate
            if drawn < 0:
                return fate
        return "well"

    def way_s(self) -> float:
        if self.slow and self.rng.random() < self.slow:
            return self.rng.random() * 4.0
        return self.rng.random() * self.rng.choice((0.0, 0.01, 0.2))


class _Network:
    def __init__(self, loop: SimLoop, weather: Weather, witness: Witness) -> None:
        self.loop = loop
        self.weather = weather
        self.witness = witness
        self._nobody = nobodys_context()

    async def call(self, service: str, what: str, effect: Callable[[], T], limit_s: float) -> T:
        """The effect's result, or `Temporary` after the fates above."""
        weather, loop, witness = self.weather, self.loop, self.witness
        fate = weather.fate(service, loop.now)
        answered: asyncio.Future[Any] = loop.create_future()
        back_s = weather.way_s()

        def answer(result: Any, error: Exception | None) -> None:
            if answered.done():
                return
            if error is None:
                answered.set_result(result)
            else:
                answered.set_exception(error)

        sent_in = weather.epoch

        def land() -> None:
            if sent_in != weather.epoch:
                return
            result = effect() if fate in ("well", "lost", "late") else None
            if fate in ("silent", "late"):
                return
            error: Exception | None = None
            if fate == "refused":
                error = Temporary(f"{what}: refused")
            elif fate == "throttled":
                wait_s = weather.rng.choice((None, 1.0, 30.0, 900.0))
                error = Temporary(f"{what}: slow down", throttled=True, retry_after_s=wait_s)
            elif fate == "lost":
                error = Temporary(f"{what}: the connection broke")
            loop.call_at(loop.now + back_s, answer, result, error, context=self._nobody)

        if fate != "well":
            witness.say(f"{what}: {fate}")
        go_s = weather.rng.random() * weather.late_max_s if fate == "late" else weather.way_s()
        loop.call_at(loop.now + go_s, land, context=self._nobody)
        try:
            async with asyncio.timeout(limit_s):
                result: T = await answered
                return result
        except TimeoutError as error:
            raise Temporary(f"{what}: no answer within {limit_s:g} s") from error


def nobodys_context() -> contextvars.Context:
    """A context whose callbacks no kill can end."""
    context = contextvars.Context()
    context.run(LIFE.set, None)
    return context


class Store:
    """A BodyStore behind the network, with a clock of its own."""

    def __init__(self, loop: SimLoop, weather: Weather, witness: Witness) -> None:
        self.objects: dict[str, tuple[bytes, float]] = {}
        """Body, and when it was put."""
        self.poison: dict[str, EffectError] = {}
        """Keys that can't be deleted, until somebody lifts it."""
        self._net = _Network(loop, weather, witness)
        self._witness = witness
        self._loop = loop
        self._weather = weather

    async def put(self, key: str, body: bytes) -> None:
        def effect() -> None:
            self._witness.putting(key, body)
            self.objects[key] = body, self._loop.now

        await self._net.call("store", f"put {key}", effect, STORE_LIMIT_S)

    async def get(self, key: str) -> bytes | None:
        def effect() -> bytes | None:
            found = self.objects.get(key)
            return None if found is None else found[0]

        return await self._net.call("store", f"get {key}", effect, STORE_LIMIT_S)

    async def age_s(self, key: str) -> float | None:
        def effect() -> float | None:
            found = self.objects.get(key)
            return None if found is None else float(int(self._loop.now - found[1]))

        return await self._net.call("store", f"age of {key}", effect, STORE_LIMIT_S)

    async def delete(self, keys: Sequence[str]) -> Mapping[str, Deletion]:
        partial = not keys[0].startswith("probe-") and self._weather.rates and self._weather.rng.random() < 0.1

        def effect() -> dict[str, Deletion]:
            return {key: self._remove(key, partial=bool(partial)) for key in dict.fromkeys(keys)}

        shown = ", ".join(keys[:3]) + (" …" if len(keys) > 3 else "")
        try:
            return await self._net.call("store", f"delete {shown}", effect, STORE_LIMIT_S)
        except Temporary as error:
            return dict.fromkeys(keys, error)

    def _remove(self, key: str, *, partial: bool) -> Deletion:
        if key in self.poison:
            return self.poison[key]
        if partial and self._weather.rng.random() < 0.5:
            return Temporary(f"delete {key}: InternalError for this key")
        found = self.objects.get(key)
        if found is None:
            return "missing" if self._weather.rng.random() < 0.5 else "deleted"  # S3 does not tell
        self._witness.removing(key, self._loop.now - found[1])
        del self.objects[key]
        return "deleted"


@dataclass(frozen=True)
class Copy:
    body: bytes
    fresh_until: float


class Edge:
    """A cache that keeps what it is told to keep, and its purger. A purge drops what is there now; a fetch that is on
    its way then is stored after it, as every real cache was seen to do."""

    batch_max = 3

    def __init__(self, loop: SimLoop, weather: Weather, witness: Witness) -> None:
        self.copies: dict[str, Copy] = {}
        """By the paste's id."""
        self.stuck: set[str] = set()
        """Ids whose purge fails for good, until somebody lifts it."""
        self._net = _Network(loop, weather, witness)
        self._witness = witness

    async def purge(self, targets: Sequence[Target]) -> Sequence[EffectError | None]:
        def effect() -> list[EffectError | None]:
            return [self._drop(target) for target in targets]

        shown = ", ".join(target.id for target in targets)
        try:
            return await self._net.call("edge", f"purge {shown}", effect, EDGE_LIMIT_S)
        except Temporary as error:
            return [error] * len(targets)

    def _drop(self, target: Target) -> EffectError | None:
        if target.id in self.stuck:
            return Permanent(f"purge {target.id}: 400")
        self._witness.purging(target.id)
        self.copies.pop(target.id, None)
        return None
