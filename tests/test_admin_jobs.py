"""The operator's API: jobs as JSON, replay and discard of dead letters, takedown. Changes are asked for as JSON only; a GET
changes nothing; and what is no sound request changes nothing either."""

import json
from pathlib import Path
from typing import Any

import pytest

from pastebin_daemon import operating
from pastebin_daemon.errors import Permanent
from tests.fakes import FakeClock, FakeEdge, FakeStore
from tests.support import Harness, Made, running

ABSENT = "a" * 18
BY = "operator"


async def get(it: Harness, path: str) -> tuple[int, Any]:
    async with it.http.get(it.admin + path) as answer:
        return answer.status, json.loads(await answer.read())


async def post(it: Harness, path: str, asked: object) -> tuple[int, Any]:
    async with it.http.post(it.admin + path, json=asked) as answer:
        return answer.status, json.loads(await answer.read())


async def dead_letters(it: Harness, count: int) -> list[int]:
    """So many deletes whose object can't be deleted, each given up."""
    for _ in range(count):
        made = await it.paste()
        ((key,),) = await it.rows("select object from pastes where id = ?", made.id)
        it.store.stuck[key] = Permanent("the key is malformed")
        await it.delete(made)
    await it.drain()
    return [job for (job,) in await it.rows("select id from dead_letters order by id")]


async def everything(it: Harness) -> list[list[tuple[object, ...]]]:
    tables = ("pastes", "uploads", "outbox", "inbox", "dead_letters", "idempotency", "totals")
    return [await it.rows(f"select * from {table}") for table in tables]


async def test_waiting_jobs_are_listed_and_shown(tmp_path: Path) -> None:
    clock = FakeClock()
    async with running(tmp_path, clock=clock, store=FakeStore(clock), edge=FakeEdge()) as it:
        assert await get(it, "/api/v1/jobs") == (200, {"jobs": [], "more": False})
        made = await it.paste()
        await it.delete(made)
        status, listed = await get(it, "/api/v1/jobs")
        assert (status, listed["more"]) == (200, False)
        assert [job["kind"] for job in listed["jobs"]] == ["object-delete", "edge-purge", "edge-purge"]
        first = listed["jobs"][0]
        assert (first["state"], first["attempts"], first["created_ms"]) == ("pending", 0, clock.now_ms())
        assert json.loads(first["payload"])["paste"] == made.id
        assert await get(it, f"/api/v1/jobs/{first['id']}") == (200, first | {"effect_done_ms": None})
        assert (await get(it, f"/api/v1/jobs?after={first['id']}"))[1]["jobs"] == listed["jobs"][1:]
        assert (await get(it, "/api/v1/jobs?state=dead"))[1]["jobs"] == []


async def test_a_dead_letter_says_why(tmp_path: Path) -> None:
    clock = FakeClock()
    async with running(tmp_path, clock=clock, store=FakeStore(clock)) as it:
        (job,) = await dead_letters(it, 1)
        status, found = await get(it, f"/api/v1/jobs/{job}")
        assert (status, found["state"], found["last_error"]) == (200, "dead", "the key is malformed")
        assert found["reason"]
        assert found["died_ms"] == clock.now_ms()
        (listed,) = (await get(it, "/api/v1/jobs?state=dead"))[1]["jobs"]
        assert found == listed | {"effect_done_ms": None}


async def test_a_replayed_job_runs_again_under_its_id(tmp_path: Path) -> None:
    clock = FakeClock()
    store = FakeStore(clock)
    async with running(tmp_path, clock=clock, store=store) as it:
        first, second = await dead_letters(it, 2)
        store.stuck.clear()
        assert await post(it, "/api/v1/jobs/replay", {"ids": [first, 999], "by": BY}) == (
            200,
            {"replayed": {str(first): first}},
        )
        _, job = await get(it, f"/api/v1/jobs/{first}")
        assert (job["state"], job["attempts"], job["replayed_by"], job["replayed_ms"]) == (
            "pending",
            0,
            BY,
            clock.now_ms(),
        )
        await it.drain()
        assert len(store.objects) == 1
        assert (await get(it, f"/api/v1/jobs/{first}"))[0] == 404, "done"
        assert await post(it, "/api/v1/jobs/replay", {"ids": [first], "by": BY}) == (200, {"replayed": {}})
        assert (await get(it, f"/api/v1/jobs/{second}"))[1]["state"] == "dead"


async def test_all_dead_letters_are_replayed_at_once_and_after_the_window_under_new_ids(tmp_path: Path) -> None:
    clock = FakeClock()
    store = FakeStore(clock)
    async with running(tmp_path, clock=clock, store=store) as it:
        old = await dead_letters(it, 3)
        clock.advance(7 * 86_400)
        store.stuck.clear()
        status, said = await post(it, "/api/v1/jobs/replay", {"ids": "all-dead", "by": BY})
        assert status == 200
        assert list(said["replayed"]) == [str(job) for job in old]
        assert min(said["replayed"].values()) > max(old)
        await it.drain()
        assert store.objects == {}


async def test_a_discarded_dead_letter_is_gone_for_good_and_nothing_else_is(tmp_path: Path) -> None:
    clock = FakeClock()
    async with running(tmp_path, clock=clock, store=FakeStore(clock)) as it:
        first, second = await dead_letters(it, 2)
        await it.delete(await it.paste())
        ((waiting,),) = await it.rows("select id from outbox")
        asked = {"ids": [first, waiting, 999], "by": BY}
        assert await post(it, "/api/v1/jobs/discard", asked) == (200, {"discarded": [first]})
        assert await it.rows("select id from dead_letters") == [(second,)]
        assert await it.rows("select id from outbox") == [(waiting,)], "only what is dead can be discarded"


async def test_a_takedown_ends_a_paste_like_its_owner_would(tmp_path: Path) -> None:
    clock = FakeClock()
    store, edge = FakeStore(clock), FakeEdge()
    async with running(tmp_path, clock=clock, store=store, edge=edge) as it:
        made, other = await it.paste(b"hi"), await it.paste(b"hi")
        assert (await it.get(f"{made.id}/raw"))[0] == 200
        asked = {"id": made.id, "reason": "asked by its author", "by": BY}
        assert await post(it, "/api/v1/takedown", asked) == (200, {"id": made.id})
        assert (await it.get(f"{made.id}/raw"))[0] == 404
        assert await it.try_delete(made) == 404
        await it.drain()
        assert len(store.objects) == 1
        assert edge.purged == [f"paste-{made.id}"]
        assert it.metric("pastebin_pastes_ended_total", reason="takedown") == 1
        assert (await post(it, "/api/v1/takedown", asked))[0] == 404
        assert await it.get(f"{other.id}/raw") == (200, b"hi")


async def test_lists_are_bounded_and_walked_by_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (operating, "pastebin_daemon.web.admin"):
        where = module if isinstance(module, str) else module.__name__
        monkeypatch.setattr(f"{where}.LIST_MAX", 2)
    async with running(tmp_path) as it:
        for _ in range(5):
            await it.delete(await it.paste())
        seen, after, more = [], 0, True
        while more:
            _, listed = await get(it, f"/api/v1/jobs?after={after}")
            seen += [job["id"] for job in listed["jobs"]]
            assert len(listed["jobs"]) <= 2
            after, more = max(seen), listed["more"]
        assert seen == [job for (job,) in await it.rows("select id from outbox order by id")]
        status, problem = await post(it, "/api/v1/jobs/discard", {"ids": [1, 2, 3], "by": BY})
        assert (status, "at most 2" in problem["detail"]) == (400, True)


CHANGES: dict[str, dict[str, object]] = {
    "/api/v1/jobs/replay": {"ids": "all-dead", "by": BY},
    "/api/v1/jobs/discard": {"ids": [1], "by": BY},
    "/api/v1/takedown": {"id": ABSENT, "reason": "x", "by": BY},
}


async def ready_to_change(it: Harness) -> tuple[Made, dict[str, dict[str, object]]]:
    """A dead letter and a paste, and the sound requests that would change them."""
    (job,) = await dead_letters(it, 1)
    made = await it.paste()
    return made, {
        "/api/v1/jobs/replay": {"ids": [job], "by": BY},
        "/api/v1/jobs/discard": {"ids": [job], "by": BY},
        "/api/v1/takedown": {"id": made.id, "reason": "x", "by": BY},
    }


async def test_a_page_from_elsewhere_changes_nothing(tmp_path: Path) -> None:
    clock = FakeClock()
    async with running(tmp_path, clock=clock, store=FakeStore(clock)) as it:
        _, changes = await ready_to_change(it)
        before = await everything(it)
        for path, asked in changes.items():
            body = json.dumps(asked).encode()
            good = {"Content-Type": "application/json"}
            for headers, status in (
                ({"Content-Type": "text/plain"}, 415),
                ({"Content-Type": "application/x-www-form-urlencoded"}, 415),
                ({"Content-Type": "multipart/form-data; boundary=b"}, 415),
                ({"Content-Type": "text/plain; application/json"}, 415),
                ({"Content-Type": ""}, 415),
                (good | {"Host": "evil.example.org"}, 403),
                (good | {"Origin": "http://evil.example.org"}, 403),
                (good | {"Origin": "null"}, 403),
                (good | {"Sec-Fetch-Site": "cross-site"}, 403),
                (good | {"Sec-Fetch-Site": "same-site", "Origin": it.admin}, 403),
            ):
                async with it.http.post(it.admin + path, data=body, headers=headers) as answer:
                    assert answer.status == status, (path, headers)
                    assert (await answer.json())["code"] in ("unsupported_media_type", "forbidden")
        assert await everything(it) == before
        for path, asked in changes.items():
            async with it.http.post(it.admin + path, json=asked, headers={"Origin": it.admin}) as answer:
                assert answer.status == 200, "the same from here goes through"
        assert await everything(it) != before


async def test_get_changes_nothing(tmp_path: Path) -> None:
    clock = FakeClock()
    async with running(tmp_path, clock=clock, store=FakeStore(clock)) as it:
        made, changes = await ready_to_change(it)
        before = await everything(it)
        for path in (*changes, "/", "/healthz", "/readyz", "/metrics", "/api/v1/jobs", "/api/v1/jobs/1"):
            for query in ("", f"?ids=all-dead&by=x&id={made.id}&reason=x"):
                for method in ("GET", "HEAD", "DELETE", "PUT", "PATCH"):
                    async with it.http.request(method, f"{it.admin}{path}{query}") as answer:
                        assert answer.status in (200, 400, 404, 405), (method, path)
        assert await everything(it) == before


@pytest.mark.parametrize("path", CHANGES)
async def test_what_is_no_sound_request_is_refused_with_its_mistakes(tmp_path: Path, path: str) -> None:
    sound = CHANGES[path]
    documents: list[object] = [
        0, [], "x", {}, {"by": BY}, sound | {"more": 1}, sound | {"by": 1}, sound | {"by": None},
        *([sound | {"ids": ids} for ids in ("all", None, 1, ["1"], [1.5], [True], [-1], [2**63], [10**30], list(range(501)))]
          if "ids" in sound else [sound | {"id": 1}, sound | {"reason": None}]),
    ]  # fmt: skip
    async with running(tmp_path) as it:
        for document in documents:
            status, problem = await post(it, path, document)
            assert (status, problem["code"]) == (400, "bad_request"), document
            assert problem["detail"]
        for body, status in (
            (b"", 400),
            (b"null", 400),
            (b"{", 400),
            (b"\xff", 400),
            (b"[" * 60_000, 400),
            (b" " * 70_000, 413),
        ):
            async with it.http.post(it.admin + path, data=body, headers={"Content-Type": "application/json"}) as answer:
                assert answer.status == status
                assert answer.headers["Content-Type"] == "application/problem+json"


async def test_what_is_not_there_is_not_found(tmp_path: Path) -> None:
    async with running(tmp_path) as it:
        for path in (
            "/api/v1/jobs/1",
            "/api/v1/jobs/999999999999999999",
            "/api/v1/jobs/x",
            "/api/v1/jobs/1/2",
            "/x",
            "//",
        ):
            assert (await get(it, path))[0] == 404, path
        for query in ("state=x", "after=-1", "after=x", "after=1e3", "after=", "after=9999999999999999999", "after=١"):
            status, problem = await get(it, f"/api/v1/jobs?{query}")
            assert (status, problem["code"]) == (400, "bad_request"), query
        for paste in (ABSENT, "x", "", "../x", "\x00"):
            status, problem = await post(it, "/api/v1/takedown", {"id": paste, "reason": "x", "by": BY})
            assert (status, problem["code"]) == (404, "not_found")
