"""The origin cache by itself: one fetch for all who miss, bounded by bytes, and a tombstone that nothing gets past."""

import asyncio
import gc
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from pastebin_daemon.origin_cache import OriginCache
from tests.fakes import FakeClock, Hold

FETCH_MAX_S = 15.0
BYTES_MAX = 1000


class Loader:
    """Loads `value of {key}`; a hold stops the next load, an error fails it."""

    def __init__(self) -> None:
        self.loads: list[str] = []
        self.holds: list[Hold] = []
        self.error: Exception | None = None

    def hold(self) -> Hold:
        hold = Hold()
        self.holds.append(hold)
        return hold

    async def __call__(self, key: str) -> str | None:
        self.loads.append(key)
        if self.holds:
            hold = self.holds.pop(0)
            hold.reached.set()
            await hold.go.wait()
        if self.error is not None:
            raise self.error
        return None if key == "nothing" else f"value of {key}"


class Subject:
    def __init__(self, fetch_max_s: float = FETCH_MAX_S) -> None:
        self.clock = FakeClock()
        self.load = Loader()
        self.cache: OriginCache[str] = OriginCache(self.clock, BYTES_MAX, self.weigh, fetch_max_s)
        self.weight = 100

    def weigh(self, value: str) -> int:
        return self.weight

    def fetch(self, key: str) -> "asyncio.Task[str | None]":
        return asyncio.create_task(self.cache.fetch(key, self.load))

    async def fill(self, *keys: str) -> None:
        for key in keys:
            assert await self.cache.fetch(key, self.load) == f"value of {key}"

    def kept(self, *keys: str) -> set[str]:
        """Those that are in the cache; looking makes them the last to go, so it is for the end of a test."""
        return {key for key in keys if self.cache.get(key) is not None}


@pytest.fixture
def it() -> Subject:
    return Subject()


# --- one fetch for all


async def test_concurrent_misses_of_one_id_share_one_fetch(it: Subject) -> None:
    hold = it.load.hold()
    waiters = [it.fetch("a") for _ in range(50)]
    other = it.fetch("b")
    await hold.reached.wait()
    hold.go.set()
    assert set(await asyncio.gather(*waiters)) == {"value of a"}
    assert await other == "value of b"
    assert sorted(it.load.loads) == ["a", "b"]
    assert it.cache.get("a") == "value of a"


@pytest.mark.parametrize("who", ["the first", "another", "everyone"])
async def test_a_waiter_that_goes_away_takes_nobody_with_it(it: Subject, who: str) -> None:
    hold = it.load.hold()
    waiters = [it.fetch("a") for _ in range(3)]
    await hold.reached.wait()
    leaving = {"the first": waiters[:1], "another": waiters[1:2], "everyone": waiters}[who]
    for waiter in leaving:
        waiter.cancel()
    results = asyncio.gather(*waiters, return_exceptions=True)
    late = it.fetch("a")
    await asyncio.sleep(0)
    hold.go.set()
    for waiter, result in zip(waiters, await results, strict=True):
        if waiter in leaving:
            assert isinstance(result, asyncio.CancelledError)
        else:
            assert result == "value of a"
    assert await late == "value of a"
    assert it.load.loads == ["a"]


async def test_a_fetch_that_fails_fails_for_all_who_share_it_and_for_nobody_after(it: Subject) -> None:
    hold = it.load.hold()
    it.load.error = LookupError("no")
    waiters = [it.fetch("a") for _ in range(3)]
    await hold.reached.wait()
    hold.go.set()
    assert [type(result) for result in await asyncio.gather(*waiters, return_exceptions=True)] == [LookupError] * 3
    it.load.error = None
    assert await it.cache.fetch("a", it.load) == "value of a"


async def test_a_failure_that_nobody_waits_for_any_more_is_nobodys_noise(it: Subject) -> None:
    noise: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: noise.append(context))
    hold = it.load.hold()
    it.load.error = LookupError("no")
    waiter = it.fetch("a")
    await hold.reached.wait()
    waiter.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiter
    hold.go.set()
    it.load.error = None
    assert await it.cache.fetch("b", it.load) == "value of b"
    gc.collect()
    assert noise == []


async def test_absence_is_not_remembered(it: Subject) -> None:
    assert await it.cache.fetch("nothing", it.load) is None
    assert await it.cache.fetch("nothing", it.load) is None
    assert it.load.loads == ["nothing", "nothing"]


async def test_a_fetch_ends_at_its_limit(it: Subject) -> None:
    it = Subject(fetch_max_s=0.05)
    it.load.hold()
    with pytest.raises(TimeoutError):
        await it.cache.fetch("a", it.load)
    assert await it.cache.fetch("a", it.load) == "value of a"


async def test_the_end_leaves_no_fetch_behind(it: Subject) -> None:
    hold = it.load.hold()
    waiter = it.fetch("a")
    await hold.reached.wait()
    await it.cache.close()
    with pytest.raises(asyncio.CancelledError):
        await waiter
    assert asyncio.all_tasks() == {asyncio.current_task()}


# --- bounded by bytes


async def test_the_least_recently_used_goes_first(it: Subject) -> None:
    keys = [str(n) for n in range(10)]
    await it.fill(*keys)
    assert it.cache.get("0") == "value of 0"
    await it.fill("10", "11")
    assert it.kept(*keys, "10", "11") == {"0", *keys[3:], "10", "11"}


async def test_the_sum_of_the_weights_is_the_bound(it: Subject) -> None:
    it.weight = 250
    await it.fill("a", "b", "c", "d")
    it.weight = 1
    await it.fill("e")
    assert it.kept("a", "b", "c", "d", "e") == {"b", "c", "d", "e"}
    it.weight = 250
    it.cache.bury("b")
    await it.fill("f")
    assert it.kept("b", "c", "d", "e", "f") == {"c", "d", "e", "f"}, "what is buried weighs nothing"


async def test_one_large_value_does_not_empty_the_cache(it: Subject) -> None:
    await it.fill("a", "b")
    it.weight = BYTES_MAX // 4 + 1
    await it.fill("large")
    assert it.kept("a", "b", "large") == {"a", "b"}


# --- tombstones


async def test_a_tombstone_hides_the_cached_value_and_asks_nobody(it: Subject) -> None:
    await it.fill("a", "b")
    it.cache.bury("a")
    assert it.cache.is_buried("a")
    assert it.cache.get("a") is None
    assert await it.cache.fetch("a", it.load) is None
    assert it.load.loads == ["a", "b"]
    assert it.cache.get("b") == "value of b"


async def test_a_fetch_that_began_before_the_tombstone_ends_with_nothing_for_anyone(it: Subject) -> None:
    hold = it.load.hold()
    waiters = [it.fetch("a") for _ in range(3)]
    await hold.reached.wait()
    it.cache.bury("a")
    late = it.fetch("a")
    await asyncio.sleep(0)
    hold.go.set()
    assert await asyncio.gather(*waiters, late) == [None] * 4
    it.clock.advance(2 * FETCH_MAX_S)
    it.cache.sweep()
    assert it.cache.get("a") is None, "nor did it leave anything behind"


async def test_a_tombstone_set_between_the_fill_and_its_waiters_is_seen_by_them(it: Subject) -> None:
    """The value is in the cache, the waiters are not yet on; in this very step of the loop the ending is resolved."""
    hold = it.load.hold()

    async def load(key: str) -> str | None:
        value = await it.load(key)
        asyncio.get_running_loop().call_soon(it.cache.bury, key)
        return value

    waiters = [asyncio.create_task(it.cache.fetch("a", load)) for _ in range(3)]
    await hold.reached.wait()
    hold.go.set()
    assert await asyncio.gather(*waiters) == [None] * 3
    assert it.cache.get("a") is None


async def test_a_tombstone_outlives_the_longest_fetch_and_then_goes(it: Subject) -> None:
    it.cache.bury("a")
    it.clock.advance(FETCH_MAX_S + 1)
    it.cache.sweep()
    assert it.cache.is_buried("a"), "a fetch that began before it may still be under way"
    it.clock.advance(FETCH_MAX_S)
    it.cache.sweep()
    assert not it.cache.is_buried("a")


async def test_setting_a_tombstone_again_starts_its_life_again(it: Subject) -> None:
    it.cache.bury("a")
    it.cache.bury("b")
    it.clock.advance(2 * FETCH_MAX_S - 1)
    it.cache.bury("a")
    it.clock.advance(2)
    it.cache.sweep()
    assert it.cache.is_buried("a")
    assert not it.cache.is_buried("b"), "one that lives does not keep those that are over"


async def test_tombstones_are_bounded_by_their_life_and_not_by_the_sweeper_alone(it: Subject) -> None:
    for number in range(100_000):
        it.cache.bury(str(number))
        it.clock.advance(0.01)  # 100 endings a second
    assert sum(it.cache.is_buried(str(number)) for number in range(100_000)) <= 100 * 2 * FETCH_MAX_S + 1


async def test_a_strangers_word_buries_only_what_is_there(it: Subject) -> None:
    forget: Callable[[str], None] = it.cache.forget
    forget("never seen")
    assert not it.cache.is_buried("never seen"), "or anyone could fill the memory with deletes of nothing"
    await it.fill("a")
    forget("a")
    assert it.cache.is_buried("a")
    hold = it.load.hold()
    waiter: Awaitable[str | None] = it.fetch("b")
    await hold.reached.wait()
    forget("b")
    hold.go.set()
    assert await waiter is None
