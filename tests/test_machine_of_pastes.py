"""Pastes, uploads and idempotency keys, in stories that nobody wrote: after every transition the result, the refusal, the
events, the jobs and all rows are what a reference of plain dictionaries says.

The reference is the table at the top of pastes.py once more, written without SQL. The clock also goes back, and stands at
the very instant of an expiry.
"""

import json
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule

from pastebin_daemon import operating, pastes
from pastebin_daemon.errors import (
    Forbidden,
    IdempotencyEnded,
    IdempotencyMismatch,
    NotFound,
    PastebinError,
    StorageFull,
)
from pastebin_daemon.ids import token_sha256
from pastebin_daemon.outbox import EDGE_PURGE, OBJECT_DELETE, REAP, Enqueued
from pastebin_daemon.pastes import Created, Ended, Ending, Idempotency, NewPaste, Paste
from tests.machines import SETTINGS, START_MS, Machine

AGE_MS, KEPT_MS, BYTES_MAX = 100_000, 200_000, 1000
delays = st.sampled_from(((), (0,), (0, 20_000)))
numbers = st.integers(1, 6)


def _id(kind: str, number: int) -> str:
    return f"{kind}{number:017}"


@dataclass
class Live:
    paste: Paste
    token_sha256: bytes


class Pastes(Machine):
    def __init__(self) -> None:
        super().__init__()
        self.made = 0
        self.drafts: list[NewPaste] = []
        self.live: dict[str, Live] = {}
        self.uploads: dict[str, tuple[str, int]] = {}
        self.keys: dict[bytes, tuple[bytes, str, int]] = {}
        self.jobs: list[tuple[str, dict[str, object], int]] = []

    def refused(self, error: type[PastebinError] | None, function: Any, *args: Any) -> tuple[Any, list[object]]:
        """Run it, and hold it to this refusal, or to none."""
        if error is None:
            return self.write(function, *args)
        with pytest.raises(error):
            self.write(function, *args)
        return None, []

    def ended(self, ids: list[str], reason: Ending, purges: tuple[int, ...]) -> list[object]:
        """The events of these endings, their jobs put down."""
        events: list[object] = []
        gone = {paste_id: self.live.pop(paste_id).paste for paste_id in ids}
        for paste_id, paste in gone.items():
            self.jobs.append((OBJECT_DELETE, {"object": paste.object, "paste": paste_id}, self.now_ms))
        if gone:
            events.append(Enqueued(OBJECT_DELETE, len(gone), self.now_ms))
        for paste_id in ids:
            for again, delay_ms in enumerate(purges):
                payload: dict[str, object] = {"paste": paste_id} | ({"again": again} if again else {})
                self.jobs.append((EDGE_PURGE, payload, self.now_ms + delay_ms))
                events.append(Enqueued(EDGE_PURGE, 1, self.now_ms + delay_ms))
        return [*events, *(Ended(paste_id, reason) for paste_id in ids)]

    def stored(self) -> int:
        return sum(live.paste.size for live in self.live.values())

    # --- creates

    @rule(lifetime_ms=st.sampled_from((None, 1, 1000)), count=st.integers(1, 3))
    def create(self, lifetime_ms: int | None, count: int) -> None:
        for _ in range(count):
            self.begin_upload(lifetime_ms, 10, is_text=True, title=None, bytes_max=0)
            self.drafts.insert(0, self.drafts.pop())
            self.commit(0, None, b"a" * 32, 0)

    @rule(
        lifetime_ms=st.sampled_from((None, 1, 1000, 50_000)), size=st.integers(1, 400), is_text=st.booleans(),
        title=st.none() | st.text(st.characters(exclude_categories=["Cs"]), max_size=5),
        bytes_max=st.sampled_from((0, BYTES_MAX)),
    )  # fmt: skip
    def begin_upload(
        self, lifetime_ms: int | None, size: int, is_text: bool, title: str | None, bytes_max: int
    ) -> None:
        self.made += 1
        paste_id, key = _id("p", self.made), _id("o", self.made)
        token = token_sha256(paste_id)
        new = NewPaste(paste_id, key, lifetime_ms, size, b"s" * 32, is_text, title, None, token)
        full = bool(bytes_max) and self.stored() + size > bytes_max
        _, events = self.refused(StorageFull if full else None, pastes.begin_upload, new, bytes_max)
        assert events == []
        if not full:
            self.uploads[key] = paste_id, self.now_ms
            self.drafts.append(new)

    @precondition(lambda self: self.drafts)
    @rule(
        which=st.integers(0, 5), key=st.none() | st.binary(min_size=32, max_size=32).map(lambda _: b"k" * 32),
        asked=st.sampled_from((b"a" * 32, b"b" * 32)), bytes_max=st.sampled_from((0, BYTES_MAX)),
    )  # fmt: skip
    def commit(self, which: int, key: bytes | None, asked: bytes, bytes_max: int) -> None:
        """In time or too late; an earlier row under its key is past its retention, or was never looked for."""
        new = self.drafts.pop(which % len(self.drafts))
        late = new.object not in self.uploads
        full = not late and bool(bytes_max) and self.stored() + new.size > bytes_max
        idempotency = None if key is None else Idempotency(key, asked)
        paste, events = self.refused(StorageFull if full else None, pastes.commit, new, idempotency, bytes_max)
        if full:
            return
        if late:
            assert paste is None
            assert events == [Enqueued(REAP, 1, self.now_ms)]
            self.jobs.append((REAP, {"object": new.object}, self.now_ms))
            return
        del self.uploads[new.object]
        expires_ms = None if new.lifetime_ms is None else self.now_ms + new.lifetime_ms
        expected = Paste(
            new.id, new.object, self.now_ms, expires_ms, new.size, new.sha256, new.is_text, new.title, new.language
        )  # fmt: skip
        assert paste == expected
        assert events == [Created(expected)]
        self.live[new.id] = Live(expected, new.token_sha256)
        if key is not None:
            self.keys[key] = asked, new.id, self.now_ms

    @rule(asked=st.sampled_from((b"a" * 32, b"b" * 32)))
    def find_replay(self, asked: bytes) -> None:
        kept = self.keys.get(b"k" * 32)
        error: type[PastebinError] | None = None
        expected = None
        if kept is not None and kept[2] > self.now_ms - KEPT_MS:
            live = self.live.get(kept[1])
            if kept[0] != asked:
                error = IdempotencyMismatch
            elif live is None or not self._is_live(live):
                error = IdempotencyEnded
            else:
                expected = live.paste
        assert self.refused(error, pastes.find_replay, Idempotency(b"k" * 32, asked), KEPT_MS)[0] == expected

    # --- endings

    def _is_live(self, live: Live) -> bool:
        return live.paste.expires_ms is None or self.now_ms < live.paste.expires_ms

    @rule(number=numbers, right=st.booleans(), purges=delays)
    def delete(self, number: int, right: bool, purges: tuple[int, ...]) -> None:
        paste_id = _id("p", number)
        live = self.live.get(paste_id)
        there = live is not None and self._is_live(live)
        error = None if there and right else Forbidden if there else NotFound
        token = token_sha256(paste_id if right else "another")
        _, events = self.refused(error, pastes.delete, paste_id, token, purges)
        assert events == ([] if error else self.ended([paste_id], "delete", purges))

    @rule(number=numbers, purges=delays)
    def take_down(self, number: int, purges: tuple[int, ...]) -> None:
        paste_id = _id("p", number)
        there = paste_id in self.live
        _, events = self.refused(None if there else NotFound, pastes.take_down, paste_id, purges)
        assert events == (self.ended([paste_id], "takedown", purges) if there else [])

    @rule(limit=st.integers(0, 3), ahead_ms=st.sampled_from((-1000, 0, 10**9)))
    def expire(self, limit: int, ahead_ms: int) -> None:
        """`ahead_ms`: how far the time that was found steady is from the transaction's."""
        until_ms = min(self.now_ms, self.now_ms + ahead_ms)
        over = [live.paste for live in self.live.values() if live.paste.expires_ms is not None]
        over = [paste for paste in over if (paste.expires_ms or 0) <= until_ms]
        over.sort(key=lambda paste: (paste.expires_ms, paste.id))
        count, events = self.write(pastes.expire, limit, self.now_ms + ahead_ms)
        ids = [paste.id for paste in over[:limit]]
        assert count == len(ids)
        expected = self.ended(ids, "expiry", ())
        assert sorted(map(repr, events)) == sorted(map(repr, expected))

    # --- sweeps

    @rule(limit=st.integers(0, 3))
    def abandon(self, limit: int) -> None:
        old = [(began, key) for key, (_, began) in self.uploads.items() if began <= self.now_ms - AGE_MS]
        keys = [key for _, key in sorted(old)[:limit]]
        count, events = self.write(pastes.abandon, AGE_MS, limit)
        assert count == len(keys)
        assert events == ([Enqueued(REAP, len(keys), self.now_ms)] if keys else [])
        for key in keys:
            del self.uploads[key]
            self.jobs.append((REAP, {"object": key}, self.now_ms))

    @rule(limit=st.integers(0, 2))
    def sweep_idempotency(self, limit: int) -> None:
        old = [key for key, (_, _, created) in self.keys.items() if created <= self.now_ms - KEPT_MS][:limit]
        assert self.write(pastes.sweep_idempotency, KEPT_MS, limit) == (len(old), [])
        for key in old:
            del self.keys[key]

    @rule(ms=st.sampled_from((0, 1, 999, 1000, 50_000, AGE_MS, KEPT_MS, -1, -1000)))
    def time(self, ms: int) -> None:
        self.now_ms = max(START_MS, self.now_ms + ms)

    # --- what must be

    @rule(number=numbers)
    def find(self, number: int) -> None:
        live = self.live.get(_id("p", number))
        expected = live.paste if live is not None and self._is_live(live) else None
        assert self.write(pastes.find, _id("p", number)) == (expected, [])

    @rule(asked=st.lists(numbers, max_size=4))
    def owners_of_objects(self, asked: list[int]) -> None:
        keys = [_id("o", number) for number in asked]
        owned = {live.paste.object for live in self.live.values()}
        assert self.write(pastes.live_objects, keys)[0] == set(keys) & owned
        assert self.write(pastes.uploading, keys)[0] == set(keys) & set(self.uploads)

    @invariant()
    def the_rows_are_those_of_the_reference(self) -> None:
        columns = ", ".join(Paste.__dataclass_fields__)
        found = [Paste(*row) for row in self.rows(f"select {columns} from pastes order by id")]
        assert found == [live.paste for _, live in sorted(self.live.items())]
        assert dict(self.rows("select id, token_sha256 from pastes")) == {
            paste_id: live.token_sha256 for paste_id, live in self.live.items()
        }
        assert self.rows("select object, paste, started_ms from uploads order by object") == [
            (key, *upload) for key, upload in sorted(self.uploads.items())
        ]
        assert self.rows("select key_sha256, fingerprint, paste, created_ms from idempotency") == [
            (key, *kept) for key, kept in self.keys.items()
        ]

    @invariant()
    def each_ending_has_its_jobs_and_there_are_no_others(self) -> None:
        jobs = self.rows("select kind, payload, due_ms, state, attempts from outbox")
        found = [(kind, json.loads(payload), due_ms) for kind, payload, due_ms, *rest in jobs if rest == ["pending", 0]]
        assert sorted(map(repr, found)) == sorted(map(repr, self.jobs))
        assert len(found) == len(jobs)

    @invariant()
    def the_totals_say_what_is_stored(self) -> None:
        totals = self.write(operating.totals)[0]
        assert (totals.pastes, totals.bytes, totals.pending) == (len(self.live), self.stored(), len(self.jobs))


TestPastes = Pastes.TestCase
TestPastes.settings = SETTINGS
