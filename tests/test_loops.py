"""The loops: one that raises ends its group with the reason, one that hangs is named, and none starves the others."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from pastebin_daemon.loops import Loop, overdue
from tests.fakes import FakeClock, FakeEdge, FakeStore
from tests.support import running

FAR_S = 3600.0
"""Longer than any test: nobody waits for this."""


class Ticks:
    """A tick that does as a test says, and an event for each that has begun."""

    def __init__(self, *answers: bool | Exception | asyncio.Event) -> None:
        self.count = 0
        self.began = asyncio.Event()
        self._answers = list(answers)

    async def tick(self) -> bool:
        self.count += 1
        self.began.set()
        answer = self._answers.pop(0) if self._answers else False
        if isinstance(answer, Exception):
            raise answer
        if isinstance(answer, asyncio.Event):
            await answer.wait()
            return False
        return answer


def looped(
    tick: Callable[[], Awaitable[bool]], clock: FakeClock | None = None, woken: asyncio.Event | None = None
) -> Loop:
    return Loop("the loop", tick, FAR_S, 60, clock or FakeClock(), woken)


async def run_all(*loops: Loop) -> None:
    """As the daemon owns them: by one group."""
    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        for loop in loops:
            group.create_task(loop.run())


async def test_a_loop_that_raises_ends_its_group_with_the_reason() -> None:
    others, broken = Ticks(), Ticks(True, RuntimeError("a bug"))
    with pytest.raises(ExceptionGroup, match="unhandled") as ended:
        await run_all(looped(others.tick), looped(broken.tick))
    assert [str(error) for error in ended.value.exceptions] == ["a bug"]
    assert others.count == 1


@pytest.mark.parametrize("name", ["object-delete", "reap", "sweep expiry", "sweep uploads", "sweep inbox", "tend"])
async def test_every_loop_of_the_daemon_ends_the_process_when_it_raises(tmp_path: Path, name: str) -> None:
    clock = FakeClock()
    async with running(tmp_path, clock=clock, store=FakeStore(clock)) as it:
        broken = {loop.name: loop for loop in it.daemon.loops}[name]

        async def bug() -> bool:
            raise RuntimeError("a bug")

        broken._tick = bug
        with pytest.raises(ExceptionGroup, match="unhandled"):
            await run_all(*it.daemon.loops)


async def test_a_tick_that_has_more_to_do_comes_again_at_once_and_lets_others_run() -> None:
    ticks, turns = Ticks(*[True] * 100, RuntimeError("enough")), []

    async def bystander() -> None:
        while True:
            turns.append(ticks.count)
            await asyncio.sleep(0)

    beside = asyncio.create_task(bystander())
    with pytest.raises(RuntimeError, match="enough"):
        async with asyncio.timeout(30):
            await looped(ticks.tick).run()
    beside.cancel()
    assert ticks.count == 101
    assert len(set(turns)) > 50, "a request gets its turn between any two"


async def test_being_woken_ends_the_wait() -> None:
    woken = asyncio.Event()
    ticks = Ticks(False, RuntimeError("woken"))
    running_loop = asyncio.create_task(looped(ticks.tick, woken=woken).run())
    await ticks.began.wait()
    woken.set()
    with pytest.raises(RuntimeError, match="woken"):
        async with asyncio.timeout(30):
            await running_loop


async def test_the_tick_that_runs_at_the_stop_is_the_last() -> None:
    hang = asyncio.Event()
    ticks = Ticks(hang)
    loop = looped(ticks.tick)
    running_loop = asyncio.create_task(loop.run())
    await ticks.began.wait()
    loop.stop()
    hang.set()
    async with asyncio.timeout(30):
        await running_loop
    assert ticks.count == 1


async def test_a_backlog_does_not_outlive_the_stop() -> None:
    ticks = Ticks(*[True] * 1000)
    loop = looped(ticks.tick)
    running_loop = asyncio.create_task(loop.run())
    await ticks.began.wait()
    loop.stop()
    async with asyncio.timeout(30):
        await running_loop
    assert ticks.count < 10


async def test_a_loop_that_hangs_is_named_and_one_that_turns_is_not() -> None:
    clock, hang, woken = FakeClock(), asyncio.Event(), asyncio.Event()
    stuck = Ticks(hang)
    well = Ticks()

    async def tick_well() -> bool:
        woken.clear()
        return await well.tick()

    loops = [
        Loop("stuck", stuck.tick, 1, 60, clock),
        Loop("well", tick_well, 1, 60, clock, woken),
    ]
    tasks = [asyncio.create_task(loop.run()) for loop in loops]
    await stuck.began.wait()
    await well.began.wait()
    clock.advance(61)
    assert overdue(loops) == []
    clock.advance(0.001)
    well.began.clear()
    woken.set()
    await well.began.wait()
    await asyncio.sleep(0)
    assert overdue(loops) == ["stuck"]

    hang.set()
    for loop in loops:
        loop.stop()
    await asyncio.gather(*tasks)
    assert overdue(loops) == []


async def test_a_loop_that_was_never_started_is_named_too() -> None:
    clock = FakeClock()
    loop = looped(Ticks().tick, clock)
    clock.advance(FAR_S + 61)
    assert overdue([loop]) == ["the loop"]


async def test_a_dispatcher_that_waits_while_every_other_kind_tries_a_suspect_is_not_called_stuck(
    tmp_path: Path,
) -> None:
    """After an unclean stop, with a store and an edge that hang: each suspect takes an effect's time and a probe's."""
    clock = FakeClock()
    settings = {"outbox.effect_timeout": "20s"}
    async with running(tmp_path, clock=clock, store=FakeStore(clock), edge=FakeEdge(), settings=settings) as it:
        loops = [loop for loop in it.daemon.loops if loop.name in it.daemon.dispatchers]
        assert len(loops) == 3
        clock.advance(20 + 3 * (20 + 20))
        assert overdue(loops) == []
        clock.advance(60)
        assert len(overdue(loops)) == 3


async def test_health_names_the_loops_that_do_not_turn(tmp_path: Path) -> None:
    clock = FakeClock()
    async with running(tmp_path, clock=clock, store=FakeStore(clock)) as it:
        async with it.http.get(f"{it.admin}/healthz") as answer:
            assert answer.status == 200
        clock.advance(24 * 3600)
        async with it.http.get(f"{it.admin}/healthz") as answer:
            assert answer.status == 503
            text = await answer.text()
        for loop in it.daemon.loops:
            assert loop.name in text
