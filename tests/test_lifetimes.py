"""How long a paste is asked to live: whole seconds or a short text, within what the operator allows; everything else is
refused with what to write, and nothing absurd becomes another value."""

import json
from pathlib import Path

import pytest

from tests.fakes import FakeClock
from tests.support import Harness, running
from tests.wire import multipart

API = "/api/v1/pastes"
ABSURD = [
    "1e308", "99999999999999999999", "9" * 40, "9" * 400, "36501d", "-1", "0", "0s", "0d", "NaN", "inf", "1h30",
    "1h30m", "1.5h", "1 h", " 1h", "1h ", "1h\n", "+1", "1H", "h", "h1", "١", "１ｈ", "500ms", "1w", "1y",
    "forever", "Never", "null", "true", "0x10", "1_000", "1,000", "366d", "31536001",
]  # fmt: skip


async def by_query(it: Harness, value: str) -> tuple[int, str]:
    async with it.http.put(f"{it.url}/", params={"expires_in": value}, data=b"x") as answer:
        return answer.status, answer.headers.get("X-Expires-At", "") or await answer.text()


async def by_json(it: Harness, value: object) -> tuple[int, str]:
    async with it.http.post(it.url + API, json={"content": "x", "expires_in": value}) as answer:
        said = await answer.json()
        return answer.status, said["detail"] if answer.status != 201 else said["expires_at"] or "never"


async def by_form(it: Harness, value: str) -> tuple[int, str]:
    option = ('Content-Disposition: form-data; name="expires_in"', value.encode())
    body = multipart("b", option, ('Content-Disposition: form-data; name="file"; filename="x"', b"x"))
    kind = {"Content-Type": "multipart/form-data; boundary=b"}
    async with it.http.post(f"{it.url}/", data=body, headers=kind) as answer:
        return answer.status, answer.headers.get("X-Expires-At", "") or await answer.text()


@pytest.mark.parametrize(
    ("value", "expires_at"),
    [
        ("1", "2023-11-14T22:13:21Z"),
        ("3600", "2023-11-14T23:13:20Z"),
        ("3600s", "2023-11-14T23:13:20Z"),
        ("60m", "2023-11-14T23:13:20Z"),
        ("1h", "2023-11-14T23:13:20Z"),
        ("0001h", "2023-11-14T23:13:20Z"),
        ("3600000ms", "2023-11-14T23:13:20Z"),
        ("1d", "2023-11-15T22:13:20Z"),
        ("365d", "2024-11-13T22:13:20Z"),
        ("31536000", "2024-11-13T22:13:20Z"),
    ],
)
async def test_a_lifetime_means_the_same_by_every_way_in(tmp_path: Path, value: str, expires_at: str) -> None:
    async with running(tmp_path) as it:
        for way in (by_query, by_json, by_form):
            assert await way(it, value) == (201, expires_at)
        if value.isdigit():
            assert await by_json(it, int(value)) == (201, expires_at)


@pytest.mark.parametrize("value", ABSURD, ids=lambda value: value[:12])
async def test_an_absurd_lifetime_is_refused_with_what_to_write(tmp_path: Path, value: str) -> None:
    async with running(tmp_path) as it:
        for way in (by_query, by_json, by_form):
            status, text = await way(it, value)
            assert status == 400, way
            assert "expires_in" in text
            assert "write" in text, "a remedy"
        assert await it.rows("select * from uploads") == []


async def test_an_absurd_number_is_refused_with_what_to_write(tmp_path: Path) -> None:
    async with running(tmp_path) as it:
        for value in (-1, 0, 31_536_001, 10**20, 10**300, -(10**300)):
            status, text = await by_json(it, value)
            assert (status, "expires_in" in text, "write" in text) == (400, True, True)


async def test_an_empty_lifetime_is_a_mistake_but_none_is_the_default(tmp_path: Path) -> None:
    async with running(tmp_path, settings={"pastes.expiry_default": "1d"}) as it:
        for way in (by_query, by_json, by_form):
            assert (await way(it, ""))[0] == 400
        assert await by_json(it, None) == (201, "2023-11-15T22:13:20Z")
        async with it.http.put(f"{it.url}/", data=b"x") as answer:
            assert answer.headers["X-Expires-At"] == "2023-11-15T22:13:20Z"


async def test_the_form_of_the_page_takes_an_empty_choice_for_the_default(tmp_path: Path) -> None:
    parts = [
        ('Content-Disposition: form-data; name="expires_in"', b""),
        ('Content-Disposition: form-data; name="title"', b""),
        ('Content-Disposition: form-data; name="language"', b""),
        ('Content-Disposition: form-data; name="content"', b"x"),
    ]
    kind = {"Content-Type": "multipart/form-data; boundary=b"}
    async with running(tmp_path) as it:
        async with it.http.post(f"{it.url}/new", data=multipart("b", *parts), headers=kind) as answer:
            assert answer.status == 201
        assert await it.rows("select title, language, expires_ms - created_ms from pastes") == [
            (None, None, 30 * 86_400_000)
        ]


async def test_never_is_refused_where_there_is_a_longest_life(tmp_path: Path) -> None:
    async with running(tmp_path, settings={"pastes.expiry_max": "40d", "pastes.expiry_choices": '["10m"]'}) as it:
        for way in (by_query, by_json, by_form):
            status, text = await way(it, "never")
            assert (status, '"40d"' in text) == (400, True)
            assert (await way(it, "40d"))[0] == 201
            assert (await way(it, str(40 * 86_400 + 1)))[0] == 400


async def test_a_paste_that_never_expires_survives_every_sweep(tmp_path: Path) -> None:
    clock = FakeClock()
    async with running(
        tmp_path, clock=clock, settings={"pastes.expiry_max": 0, "pastes.expiry_default": "never"}
    ) as it:
        for way in (by_query, by_json, by_form):
            assert await way(it, "never") == (201, "never")
            assert await way(it, "36500d") == (201, "2123-10-21T22:13:20Z")
            for value in ("0", "-1", "36501d", "1e308"):
                assert (await way(it, value))[0] == 400, "no limit is no way round the spelling"
        made = await it.paste(b"hi")
        brief = await it.paste(b"ho", expires_in="1s")
        for _ in range(3):
            clock.advance(20 * 365 * 86_400)
            while await it.sweep("expiry"):
                pass
            for name in ("uploads", "inbox", "idempotency"):
                await it.sweep(name)
            await it.drain()
        assert await it.get(f"{made.id}/raw") == (200, b"hi")
        assert (await it.get(f"{brief.id}/raw"))[0] == 404
        async with it.http.get(f"{it.url}{API}/{made.id}") as answer:
            assert json.loads(await answer.read())["expires_at"] is None
