"""An outage is never called a 404, and a 404 never an outage: what readers are told when the body does not come."""

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from pastebin_daemon.errors import EffectError, Permanent, Temporary
from tests.fakes import FakeClock, FakeStore, StoredObject
from tests.support import Harness, running

TEXT = b"a text"
SAID = "x-the-words-of-the-store"
WAYS = ["{}", "{}/raw", "{}/download"]


async def ask(it: Harness, path: str) -> tuple[int, Mapping[str, str], bytes]:
    async with it.http.get(f"{it.url}/{path}") as answer:
        assert answer.headers["Cache-Control"] == "no-store" or answer.status == 200
        return answer.status, answer.headers, await answer.read()


def replace_body(store: FakeStore, body: bytes) -> None:
    (key,) = store.objects
    store.objects[key] = StoredObject(body, 0)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("body", [None, b"another text", b"", TEXT[:-1], TEXT + b"\n"])
async def test_a_live_paste_without_its_bytes_is_a_500_and_an_alarm_and_never_other_bytes(
    tmp_path: Path, way: str, body: bytes | None
) -> None:
    clock = FakeClock()
    store = FakeStore(clock)
    async with running(tmp_path, clock=clock, store=store) as it:
        made = await it.paste(TEXT)
        if body is None:
            store.objects.clear()
        else:
            replace_body(store, body)
        for count in (1, 2):  # nor is it remembered: the operator may put the body back
            status, _, answer = await ask(it, way.format(made.id))
            assert status == 500
            assert b"missing from the storage" in answer
            assert it.metric("pastebin_body_missing_total") == count
        assert (await it.get(f"api/v1/pastes/{made.id}"))[0] == 200, "the paste is there; its text is what is missing"
        await it.delete(made)
        assert (await ask(it, way.format(made.id)))[0] == 404


async def test_a_body_that_was_put_back_is_read_again(tmp_path: Path) -> None:
    clock = FakeClock()
    store = FakeStore(clock)
    async with running(tmp_path, clock=clock, store=store) as it:
        made = await it.paste(TEXT)
        replace_body(store, b"other")
        status, _, answer = await ask(it, f"{made.id}/raw")
        assert (status, json.loads(answer)["code"]) == (500, "body_missing")
        replace_body(store, TEXT)
        assert await it.get(f"{made.id}/raw") == (200, TEXT)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("error", [Temporary(SAID), Temporary(SAID, throttled=True), Permanent(SAID)])
async def test_a_store_that_is_down_is_a_503_for_what_is_not_cached_and_nothing_to_the_rest(
    tmp_path: Path, way: str, error: EffectError
) -> None:
    clock = FakeClock()
    store = FakeStore(clock)
    async with running(tmp_path, clock=clock, store=store) as it:
        cached, other = await it.paste(TEXT), await it.paste(TEXT)
        assert await it.get(f"{cached.id}/raw") == (200, TEXT)
        store.faults.fail("get", error, times=None)

        status, headers, answer = await ask(it, way.format(other.id))
        assert status == 503
        assert "Retry-After" in headers
        assert SAID.encode() not in answer, "what the store said is for the log"
        assert (await ask(it, way.format(cached.id)))[0] == 200
        assert (await ask(it, way.format("a" * 18)))[0] == 404
        assert it.metric("pastebin_body_missing_total") == 0

        store.faults.clear()
        assert (await ask(it, way.format(other.id)))[0] == 200


async def test_a_store_that_hangs_is_a_503_for_all_who_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pastebin_daemon.daemon.FETCH_MARGIN_S", -9.8)  # of the 10 s that the store has
    clock = FakeClock()
    store = FakeStore(clock)
    async with running(tmp_path, clock=clock, store=store) as it:
        made = await it.paste(TEXT)
        store.faults.hold("get")
        status, _, answer = await ask(it, f"{made.id}/raw")
        assert (status, json.loads(answer)["code"]) == (503, "store_unavailable")
        assert await it.get(f"{made.id}/raw") == (200, TEXT)
