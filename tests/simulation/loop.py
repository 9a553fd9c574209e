"""An event loop in which time is simulated and every choice that a real machine makes is drawn from a seed.

It runs asyncio's own tasks, futures, locks and timeouts. What asyncio promises is kept (callbacks run in the order in
which they were scheduled); what no one promises is drawn: which of two timers of one instant comes first, how long a
thread takes to do its work and to be heard of, how far time moves while callbacks run. So every order of events here is
one that a real loop could show.

Each callback belongs to a `Life`, by its context: a process, or one of several dispatchers in it. A life that is over is
never resumed: nothing of it runs any more, no `finally` and no `except`, as after SIGKILL. A life can also stand still
(SIGSTOP, a machine that swaps), and goes on later as if nothing had happened.
"""

import asyncio
import contextvars
import heapq
import inspect
import itertools
import random
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any

__all__ = ["LIFE", "Life", "SimLoop"]

STEP_S = 0.0001
"""How long a callback takes."""


class Life:
    """What a kill ends, and what a stop halts."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.dead = False
        self.halted_until = 0.0
        self.tasks: set[asyncio.Task[Any]] = set()
        self.context = contextvars.copy_context()
        self.context.run(LIFE.set, self)

    def end(self) -> None:
        self.dead = True
        for task in self.tasks:
            task._log_destroy_pending = False  # type: ignore[attr-defined]  # it is meant to be left pending
            coro = task.get_coro()
            if inspect.iscoroutine(coro) and inspect.getcoroutinestate(coro) == inspect.CORO_CREATED:
                coro.close()  # it had not begun, of which Python would warn


LIFE: contextvars.ContextVar[Life | None] = contextvars.ContextVar("LIFE", default=None)


class SimLoop(asyncio.AbstractEventLoop):
    def __init__(self, rng: random.Random) -> None:
        self.now = 1000.0
        self.steps = 0
        self.halted = False
        self.errors: list[dict[str, Any]] = []
        """What asyncio reported because nobody else would have heard of it."""
        self._rng = rng
        self._ready: deque[asyncio.Handle] = deque()
        self._timers: list[tuple[float, float, int, asyncio.Handle]] = []
        self._number = itertools.count()
        self._heard_until = 0.0

    # --- what asyncio's tasks, futures and timeouts ask of a loop

    def time(self) -> float:
        return self.now

    def call_soon(self, callback: Any, *args: Any, context: Any = None) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    def call_later(self, delay: float, callback: Any, *args: Any, context: Any = None) -> asyncio.TimerHandle:
        return self.call_at(self.now + delay, callback, *args, context=context)

    def call_at(self, when: float, callback: Any, *args: Any, context: Any = None) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        heapq.heappush(self._timers, (when, self._rng.random(), next(self._number), handle))
        return handle

    def call_soon_threadsafe(self, callback: Any, *args: Any, context: Any = None) -> asyncio.Handle:
        """From a thread: heard of at once or a little later, in the order of the calls."""
        delay = 0.0 if self._rng.random() < 0.6 else self._rng.random() * 0.02
        self._heard_until = max(self.now + delay, self._heard_until + 1e-9)
        return self.call_at(self._heard_until, callback, *args, context=context)

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(
        self, coro: Coroutine[Any, Any, Any], *, name: str | None = None, context: Any = None
    ) -> asyncio.Task[Any]:
        task = asyncio.Task(coro, loop=self, name=name, context=context)
        life = LIFE.get() if context is None else context.get(LIFE)
        if life is not None:
            life.tasks.add(task)
            task.add_done_callback(life.tasks.discard)
        return task

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        self.errors.append(context)
        self.halt()

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return False

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        pass

    # --- the crank

    def leap(self, seconds: float) -> None:
        """Let time pass in which nothing runs: every clock goes on, and what is due comes late, all at once."""
        self.now += seconds

    def run(self, ends: float, after_step: Callable[[], None], done: Callable[[], bool] = lambda: False) -> None:
        """Run callbacks until the time `ends`, or until `halt` was called, or the condition holds, or nothing is left."""
        timers, ready = self._timers, self._ready
        self.halted = False
        asyncio._set_running_loop(self)
        try:
            while not self.halted and not done():
                if not ready:
                    if not timers:
                        return
                    if timers[0][0] > self.now:
                        self.now = timers[0][0]
                if self.now >= ends:
                    return
                while timers and timers[0][0] <= self.now:
                    ready.append(heapq.heappop(timers)[3])
                handle = ready.popleft()
                if handle._cancelled:
                    continue
                life = handle._context.get(LIFE)  # type: ignore[attr-defined]  # the only way to tell whose it is
                if life is not None:
                    if life.dead:
                        continue
                    if life.halted_until > self.now:
                        heapq.heappush(timers, (life.halted_until, 0.0, next(self._number), handle))
                        continue
                self.now += STEP_S
                self.steps += 1
                handle._run()
                after_step()
        finally:
            asyncio._set_running_loop(None)

    def halt(self) -> None:
        """Let the callback that runs be the last."""
        self.halted = True
