"""The people: clients who make, read and delete pastes, and the operator. Each story goes on through crashes, as people
do: whoever gets no answer asks again, or goes away."""

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

from pastebin_daemon import operating, outbox, pastes
from pastebin_daemon.creation import Draft, Made
from pastebin_daemon.errors import BodyMissing, IdempotencyEnded, NotFound, PastebinError
from pastebin_daemon.reading import Entry
from tests.simulation.loop import SimLoop
from tests.simulation.process import ConnectionLost, Process, purge_delays_ms
from tests.simulation.watch import ROGUE, Told, Watch
from tests.simulation.world import Copy, Edge, SimClock, Weather

__all__ = ["People"]

LIFETIMES_S = (None, None, 5, 20, 70, 200)
HERE = SimpleNamespace(is_canonical=True)


class People:
    def __init__(
        self, loop: SimLoop, clock: SimClock, weather: Weather, watch: Watch, edge: Edge, process: Callable[[], Process]
    ) -> None:
        """`process` gives the one that is there now."""
        self._loop = loop
        self._clock = clock
        self._weather = weather
        self._rng = weather.rng
        self._watch = watch
        self._edge = edge
        self._process = process
        self._keys: dict[str, str] = {}
        self.answers: dict[str, int] = {}

    async def _ask(self, what: str, handler: Callable[[Process], Awaitable[Any]]) -> Any:
        await asyncio.sleep(self._weather.way_s())
        try:
            result = await self._process().ask(handler)
            self._count(what)
        except ConnectionLost:
            self._count(f"{what}: no answer")
            raise
        except PastebinError as error:
            self._count(f"{what}: {type(error).__name__}")
            raise
        finally:
            await asyncio.sleep(self._weather.way_s())
        return result

    def _count(self, what: str) -> None:
        self.answers[what] = self.answers.get(what, 0) + 1

    # --- a client

    async def client(self, number: int, begins: float, busy_s: float) -> None:
        """Make a paste, have it read, and perhaps delete it; twice, when the first answer was lost."""
        rng = self._rng
        await asyncio.sleep(begins)
        draft = Draft(f"text {number}".encode(), rng.choice(LIFETIMES_S), None, None)
        key = f"key number {number}" if rng.random() < 0.5 else None
        made = None
        for _ in range(rng.choice((1, 2, 4))):
            if key is not None and rng.random() < 0.2:
                one, other = await asyncio.gather(self.create(draft, key), self.create(draft, key))
                made = one or other
            else:
                made = await self.create(draft, key)
            if made is not None:
                break
            await asyncio.sleep(rng.random() * 8)
        if made is None:
            return
        readers = [
            asyncio.ensure_future(self.reader(made.paste.id, draft.body, busy_s)) for _ in range(rng.choice((1, 1, 2)))
        ]
        if rng.random() < 0.75:
            await asyncio.sleep(rng.random() * busy_s)
            if rng.random() < 0.3:
                readers.append(asyncio.ensure_future(self.read_and_come_back(made.paste.id, draft.body)))
            if rng.random() < 0.2:
                await self.take_down(made.paste.id)
            else:
                await self.delete(made.paste.id, made.delete_token)
        if key is not None and rng.random() < 0.5:
            await self.create(draft, key)
        await asyncio.gather(*readers)

    async def create(self, draft: Draft, key: str | None) -> Made | None:
        watch = self._watch

        async def handler(process: Process) -> Made:
            made = await process.creation.create(draft, key)
            paste = made.paste
            watch.say(f"201 {paste.id}{' again' if made.replayed else ''}")
            told = watch.told.get(paste.id)
            if told is None:
                watch.fail("G1", f"{paste.id} was answered 201 before any commit of it")
                return made
            told.made = True
            if not told.ended and paste.id not in watch.rows.pastes:
                watch.fail("G1", f"{paste.id} was answered 201 and has no row")
            if key is not None:
                first = self._keys.get(key)
                if first is not None and first != paste.id and not watch.told[first].revived:
                    watch.fail("idempotency", f"{key} made {first} and {paste.id}")
                self._keys[key] = paste.id
            return made

        try:
            result: Made = await self._ask("create", handler)
        except IdempotencyEnded:
            return None
        except (ConnectionLost, PastebinError):
            return None
        return result

    async def delete(self, paste_id: str, token: str) -> None:
        """Until it is gone, or for so long as people try."""
        for _ in range(self._rng.choice((1, 2, 5))):
            if await self._end(f"204 {paste_id}", paste_id, lambda process: process.deletes._delete(paste_id, token)):
                return
            await asyncio.sleep(self._rng.random() * 8)

    async def take_down(self, paste_id: str) -> None:
        def handler(process: Process) -> Awaitable[None]:
            return process.database.write(pastes.take_down, paste_id, purge_delays_ms(process._config))

        await self._end(f"{paste_id} is taken down", paste_id, handler)

    async def _end(self, what: str, paste_id: str, handler: Callable[[Process], Awaitable[None]]) -> bool:
        watch = self._watch

        async def ended(process: Process) -> None:
            await handler(process)
            watch.say(what)
            if paste_id in watch.rows.pastes:
                watch.fail("G2", f"{paste_id} was answered to be gone and has its row")
            if process.cache.get(paste_id) is not None or not process.cache.is_buried(paste_id):
                watch.fail("G2", f"{paste_id} was answered to be gone and the origin cache has no tombstone of it")
            watch.told[paste_id].gone = True

        try:
            await self._ask("delete", ended)
        except NotFound:
            return True
        except (ConnectionLost, PastebinError):
            return False
        return True

    async def reader(self, paste_id: str, body: bytes, busy_s: float) -> None:
        for _ in range(self._rng.choice((1, 2, 4, 8))):
            await asyncio.sleep(self._rng.random() * self._rng.choice((0.3, 0.3, busy_s / 2)))
            if self._rng.random() < 0.5:
                await self.read(paste_id, body)
            else:
                await self.read_by_edge(paste_id, body)

    async def read_and_come_back(self, paste_id: str, body: bytes) -> None:
        """Now, while it is perhaps being deleted, and when every tombstone of now has gone."""
        await self.read(paste_id, body)
        if self._rng.random() < 0.3:
            await asyncio.sleep(30.0 + self._rng.random() * 30.0)
            await self.read(paste_id, body)

    async def read(self, paste_id: str, body: bytes) -> tuple[Entry, int] | None:
        """From the origin: the entry and for how many seconds an edge may keep it."""
        watch, told = self._watch, self._watch.told[paste_id]
        began_live = paste_id in watch.rows.pastes and self._is_live(told)
        calm = self._loop.now > self._weather.calm_from

        async def handler(process: Process) -> tuple[Entry, int]:
            try:
                if self._rng.random() < 0.3:
                    await process.reading.look(paste_id)
                    if told.gone:
                        watch.fail("G2", f"{paste_id} was looked at after its 204")
                entry = await process.reading.read(paste_id)
            except NotFound:
                still = paste_id in watch.rows.pastes and self._is_live(told)
                sure = told.expires_ms is None or not self._clock.steps  # set back, it may have been over once
                if told.made and began_live and still and sure:
                    watch.fail("G1", f"{paste_id} was answered 404 and is live")
                raise
            except BodyMissing:
                if not told.revived:
                    watch.fail("G4", f"the body of the live {paste_id} is missing")
                raise
            if entry.body != body:
                watch.fail("G15", f"{paste_id} came back as {entry.body!r}")
            if told.gone:
                watch.fail("G2", f"{paste_id} was read after its 204")
            if not self._is_live(told):
                watch.fail("expiry", f"{paste_id} was read past its time")
            control = process.reads._cache_control(entry.paste, HERE)  # type: ignore[arg-type]  # one field is asked
            kept_s = int(control.partition("s-maxage=")[2].partition(",")[0] or 0)
            return entry, kept_s

        try:
            result: tuple[Entry, int] = await self._ask("read", handler)
        except (ConnectionLost, PastebinError) as error:
            if calm and not isinstance(error, (NotFound, ConnectionLost, BodyMissing)):
                watch.fail("calm", f"reading {paste_id} failed when all was well: {error!r}")
            return None
        return result

    def _is_live(self, told: Told) -> bool:
        return told.expires_ms is None or self._clock.now_ms() < told.expires_ms

    async def read_by_edge(self, paste_id: str, body: bytes) -> None:
        """From a copy that the edge has, or through it. What it keeps is as old as the asking for it."""
        told, watch = self._watch.told[paste_id], self._watch
        copy = self._edge.copies.get(paste_id)
        if copy is not None and copy.fresh_until > self._loop.now:
            self._count("read from the edge")
            if copy.body != body:
                watch.fail("G15", f"the edge serves {paste_id} as {copy.body!r}")
            if not self._is_live(told) and not self._clock.steps:
                watch.fail("G11", f"the edge serves {paste_id} past its time")
            return
        asked_at = self._loop.now
        found = await self.read(paste_id, body)
        if found is not None and found[1] > 0:
            self._edge.copies[paste_id] = Copy(body, asked_at + found[1])

    # --- the operator, and bugs

    async def enqueue_rogue(self) -> None:
        """A job to remove what lives, as only a bug could enqueue it."""
        watch = self._watch
        if not watch.rows.pastes:
            return
        paste_id = self._rng.choice(sorted(watch.rows.pastes))
        key = watch.rows.pastes[paste_id][0]
        kind, payload = self._rng.choice(
            ((outbox.OBJECT_DELETE, {"object": key, "paste": ROGUE}), (outbox.REAP, {"object": key}))
        )
        watch.rogue.add(key)
        watch.say(f"a bug: a job is enqueued to remove {key}, which {paste_id} has")
        with contextlib.suppress(ConnectionLost, PastebinError):
            await self._ask("a bug", lambda process: process.database.write(outbox.enqueue, kind, [payload]))

    async def replay(self, window_ms: int) -> bool:
        """All dead letters, as `jobs replay --all-dead`. Says whether there are none left."""

        async def handler(process: Process) -> bool:
            ids = await process.database.read(operating.dead_ids)
            if ids:
                await process.database.write(operating.replay, ids, "operator", window_ms)
            return not ids

        try:
            return bool(await self._ask("replay", handler))
        except (ConnectionLost, PastebinError):
            return False

    async def discard(self, *, bugs: bool) -> None:
        """Give a dead letter up: any one, or those that only a bug can have made."""
        watch = self._watch

        async def handler(process: Process) -> None:
            for job in await process.database.read(operating.dead_ids):
                dead = watch.rows.dead.get(job)
                if dead is None or bugs != (dead.reason == "row_is_live"):
                    continue
                payload = json.loads(dead.payload)
                subjects = {payload.get("paste")} if bugs else {payload.get("object"), payload.get("paste")}
                watch.discarded |= subjects - {None}
                await process.database.write(outbox.discard, job)
                if not bugs:
                    return

        with contextlib.suppress(ConnectionLost, PastebinError):
            await self._ask("discard", handler)
