"""The admin listener tells how the daemon is: alive, ready, in what trouble, and all the metrics by the names that
dashboards depend on. A page in the operator's browser can't use it."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from pastebin_daemon.database import Database
from pastebin_daemon.errors import Busy, DatabaseUnavailable, Permanent, Temporary
from tests.fakes import FakeClock, FakeEdge, FakeStore
from tests.support import Harness, running
from tests.wire import request

ABSENT = "a" * 18


async def get(it: Harness, path: str, **headers: str) -> tuple[int, str]:
    async with it.http.get(it.admin + path, headers=headers) as answer:
        assert answer.headers["Cache-Control"] == "no-store"
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        return answer.status, await answer.text()


async def ready(it: Harness) -> tuple[int, dict[str, Any]]:
    status, text = await get(it, "/readyz")
    return status, json.loads(text)


async def test_health_is_whether_the_loops_turn(tmp_path: Path) -> None:
    clock = FakeClock()
    async with running(tmp_path, clock=clock) as it:
        assert await get(it, "/healthz") == (200, "ok\n")
        clock.advance(3600)
        status, text = await get(it, "/healthz")
        assert status == 503
        assert {"object-delete", "reap", "sweep expiry", "tend"} <= set(
            text.removeprefix("stuck: ").strip().split(", ")
        )
        assert (await ready(it))[0] == 200, "another question"


async def test_ready_until_it_drains(tmp_path: Path) -> None:
    async with running(tmp_path) as it:
        assert await ready(it) == (200, {"ready": True, "reason": "", "troubles": {}})
        it.daemon.health.draining = True
        assert await ready(it) == (503, {"ready": False, "reason": "the daemon is being stopped", "troubles": {}})


@pytest.mark.parametrize("error", [DatabaseUnavailable("no commit"), Busy("too many wait")])
async def test_a_database_that_takes_no_writes_is_not_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    async def fail(*_: object) -> None:
        raise error

    async with running(tmp_path) as it:
        monkeypatch.setattr(Database, "write", fail)
        status, said = await ready(it)
        assert (status, said["reason"]) == (503, str(error))


async def test_trouble_with_the_store_is_named_and_no_reason_to_go_elsewhere(tmp_path: Path) -> None:
    clock = FakeClock()
    store, edge = FakeStore(clock), FakeEdge()
    async with running(tmp_path, clock=clock, store=store, edge=edge) as it:
        await it.delete(await it.paste())
        store.faults.fail("delete", Temporary("bucket unreachable"), times=None)
        await it.tick("object-delete")
        status, said = await ready(it)
        assert (status, said["ready"], list(said["troubles"])) == (200, True, ["breaker of object-delete"])
        assert "bucket unreachable" in said["troubles"]["breaker of object-delete"]
        assert "object-delete waits: " in (await get(it, "/"))[1]


FAMILIES = {
    "pastebin_outbox_oldest_unpublished_age_seconds": ("gauge", []),
    "pastebin_outbox_jobs": ("gauge", ["state"]),
    "pastebin_outbox_dead_letters": ("gauge", []),
    "pastebin_outbox_settled": ("counter", ["consumer", "result"]),
    "pastebin_outbox_claims": ("counter", ["kind", "reason"]),
    "pastebin_outbox_stale_settlements": ("counter", ["transition"]),
    "pastebin_outbox_breaker_open": ("gauge", ["consumer"]),
    "pastebin_expiry_paused": ("gauge", []),
    "pastebin_pastes_live": ("gauge", []),
    "pastebin_bodies_bytes": ("gauge", []),
    "pastebin_inbox_rows": ("gauge", []),
    "pastebin_inbox_insert_failures": ("counter", []),
    "pastebin_inbox_duplicates": ("counter", ["consumer"]),
    "pastebin_inbox_swept": ("counter", []),
    "pastebin_object_delete_missing": ("counter", []),
    "pastebin_orphan_objects": ("gauge", []),
    "pastebin_body_missing": ("counter", []),
    "pastebin_row_is_live": ("counter", []),
    "pastebin_uploads_abandoned": ("counter", []),
    "pastebin_pastes_created": ("counter", []),
    "pastebin_pastes_ended": ("counter", ["reason"]),
    "pastebin_purge_lag_seconds": ("histogram", []),
    "pastebin_http_request_seconds": ("histogram", ["route", "method", "status"]),
    "pastebin_wal_bytes": ("gauge", ["file"]),
    "pastebin_commit_seconds": ("histogram", []),
    "pastebin_commit_group_size": ("histogram", []),
    "pastebin_event_loop_lag_seconds": ("gauge", []),
    "pastebin_sweep_seconds": ("histogram", ["sweeper"]),
}


async def scraped(it: Harness) -> dict[str, Any]:
    status, text = await get(it, "/metrics")
    assert status == 200
    return {family.name: family for family in text_string_to_metric_families(text)}


async def test_every_metric_has_its_name_its_labels_and_a_help(tmp_path: Path) -> None:
    clock = FakeClock()
    store, edge = FakeStore(clock), FakeEdge()
    async with running(tmp_path, clock=clock, store=store, edge=edge) as it:
        made = await it.paste()
        await it.get(made.id)
        await it.delete(made)
        await it.drain()
        await it.execute(
            "insert into outbox (kind, payload, created_ms, first_due_ms, due_ms) values ('object-delete', '{', 0, 0, 0)"
        )
        await it.drain()
        for name in it.daemon.sweepers:
            await it.sweep(name)
        families = await scraped(it)
        for name, (kind, labels) in FAMILIES.items():
            family = families[name]
            assert family.type == kind, name
            assert family.documentation, name
            used = {label for sample in family.samples for label in sample.labels} - {"le"}
            assert used <= set(labels), name
            if name != "pastebin_inbox_duplicates":  # nothing was delivered twice
                assert used == set(labels), name
        for name, family in families.items():
            if not name.endswith("_created"):  # the client library's own: when a series began
                assert re.fullmatch(r"pastebin_[a-z_]+", name)
                assert name.endswith("_seconds") == ("second" in name)
                assert not re.search(r"(milli|micro|_ms$|_total$|_count$|_sum$)", name)
                assert family.type != "unknown"


async def test_the_gauges_tell_what_is_there(tmp_path: Path) -> None:
    clock = FakeClock()
    store = FakeStore(clock)
    async with running(tmp_path, clock=clock, store=store) as it:
        made, _ = await it.paste(b"12345"), await it.paste(b"123")
        await it.delete(made)
        clock.advance(7)
        await get(it, "/metrics")
        assert it.metric("pastebin_pastes_live") == 1
        assert it.metric("pastebin_bodies_bytes") == 3
        assert it.metric("pastebin_pastes_created_total") == 2
        assert it.metric("pastebin_outbox_jobs", state="pending") == 1
        assert it.metric("pastebin_outbox_oldest_unpublished_age_seconds") == 7
        store.stuck = {key: Permanent("no") for key in store.objects}
        await it.drain()
        await get(it, "/metrics")
        assert it.metric("pastebin_outbox_jobs", state="pending") == 0
        assert it.metric("pastebin_outbox_oldest_unpublished_age_seconds") == 0
        assert it.metric("pastebin_outbox_dead_letters") == 1
        assert it.metric("pastebin_wal_bytes", file="pastebin.sqlite") > 0


async def test_no_label_grows_with_what_strangers_ask_for(tmp_path: Path) -> None:
    async with running(tmp_path) as it:
        for number in range(50):
            made = await it.paste()
            await it.get(f"{made.id}/raw")
            await it.get(f"stranger-{number}/x/y")
            await it.get(f"stranger-{number}?x={number}")
            method = ("PATCH", "OPTIONS", "TRACE", "PROPFIND", "MKCOL", "LOCK", f"BREW{number}")[number % 7]
            assert (await request(it.url, f"{method} / HTTP/1.1\r\nHost: x\r\n\r\n".encode())).status >= 400
        samples = (await scraped(it))["pastebin_http_request_seconds"].samples
        labels = {tuple(sorted((k, v) for k, v in sample.labels.items() if k != "le")) for sample in samples}
        assert len(labels) < 12
        assert {dict(each)["route"] for each in labels} <= {"pastes", "raw", "page", "root", "none"}
        assert {dict(each)["method"] for each in labels} <= {"GET", "POST", "OTHER"}


async def test_the_status_page_says_how_much_there_is(tmp_path: Path) -> None:
    async with running(tmp_path) as it:
        await it.paste(b"12345")
        status, text = await get(it, "/")
        assert status == 200
        assert "1 live pastes with 5 bytes" in text


PATHS = ("/healthz", "/readyz", "/metrics", "/", "/api/v1/jobs")


async def asks(it: Harness, fields: str, path: str = "/readyz") -> int:
    return (await request(it.admin, f"GET {path} HTTP/1.1\r\n{fields}\r\n".encode())).status


@pytest.mark.parametrize("path", PATHS)
async def test_a_name_that_a_stranger_points_here_is_refused(tmp_path: Path, path: str) -> None:
    async with running(tmp_path) as it:
        for host in (
            "evil.example.org",
            "evil.example.org:8081",
            "127.0.0.1.evil.example.org",
            "localhost.evil.org",
            "a:b:c",
            "x",
        ):
            assert await asks(it, f"Host: {host}\r\n", path) == 403, host
        for host in (
            "127.0.0.1",
            "127.0.0.1:8081",
            "localhost:1",
            "LOCALHOST",
            "[::1]:8081",
            "[::1]",
            "192.0.2.7:8081",
        ):
            assert await asks(it, f"Host: {host}\r\n", path) == 200, host


async def test_the_name_of_the_configuration_is_ours(tmp_path: Path) -> None:
    async with running(tmp_path, settings={"admin.listen": "admin.example.org:8081"}) as it:
        assert await asks(it, "Host: admin.example.org:8081\r\n") == 200
        assert await asks(it, "Host: Admin.Example.Org\r\n") == 200
        assert await asks(it, "Host: example.org\r\n") == 403


@pytest.mark.parametrize("path", PATHS)
async def test_a_page_from_elsewhere_is_refused(tmp_path: Path, path: str) -> None:
    host = "Host: 127.0.0.1:8081\r\n"
    async with running(tmp_path) as it:
        for origin in (
            "http://evil.example.org",
            "null",
            "https://127.0.0.1:8081",
            "http://127.0.0.1",
            "http://127.0.0.1:8080",
            "",
        ):
            assert await asks(it, f"{host}Origin: {origin}\r\n", path) == 403, origin
        assert await asks(it, f"{host}Origin: http://127.0.0.1:8081\r\n", path) == 200
        for site in ("cross-site", "same-site", "?"):
            assert await asks(it, f"{host}Sec-Fetch-Site: {site}\r\n", path) == 403, site
        for site in ("none", "same-origin"):
            assert await asks(it, f"{host}Sec-Fetch-Site: {site}\r\n", path) == 200, site


async def test_nobody_answers_a_browser_that_asks_whether_it_may(tmp_path: Path) -> None:
    async with running(tmp_path) as it:
        for origin in ("http://evil.example.org", it.admin):
            ask = {
                "Origin": origin,
                "Access-Control-Request-Method": "POST",
                "Access-Control-Request-Headers": "content-type",
            }
            async with it.http.options(f"{it.admin}/api/v1/takedown", headers=ask) as answer:
                assert answer.status in (403, 405)
                assert not [name for name in answer.headers if name.lower().startswith("access-control-")]


async def test_the_public_listener_has_none_of_it(tmp_path: Path) -> None:
    async with running(tmp_path) as it:
        for path in ("/healthz", "/readyz", "/metrics"):
            assert (await it.get(path))[0] == 404
        for path in ("/api/v1/jobs", "/api/v1/jobs/1"):
            assert (await it.get(path))[0] == 404
        async with it.http.post(f"{it.url}/api/v1/takedown", json={"id": ABSENT, "reason": "x", "by": "y"}) as answer:
            assert answer.status in (404, 405)
