"""What an edge may keep, and for how long (G11): N = min(max_age, whole seconds of life left - 1), below 1 not at all;
one copy for one URL; errors never. And the conditions by which a client saves the body."""

import hashlib
import json
from pathlib import Path

import pytest

from tests.fakes import FakeClock
from tests.support import Harness, Made, running
from tests.wire import request

API = "/api/v1/pastes"


def kept(seconds: int) -> str:
    return f"public, max-age=0, s-maxage={seconds}, must-revalidate, stale-while-revalidate=0, stale-if-error=0"


def representations(made: Made) -> list[str]:
    return [f"/{made.id}", f"/{made.id}/raw", f"/{made.id}/download", f"{API}/{made.id}"]


@pytest.mark.parametrize(
    ("left_s", "cache_control"),
    [
        (0.001, "no-store"),
        (0.5, "no-store"),
        (1, "no-store"),
        (1.999, "no-store"),
        (2, kept(1)),
        (2.999, kept(1)),
        (3, kept(2)),
        (60.999, kept(59)),
        (61, kept(60)),
        (62, kept(60)),
        (599, kept(60)),
        (None, kept(60)),
    ],
)
async def test_an_edge_keeps_a_paste_until_a_second_before_its_end_and_for_a_minute_at_most(
    tmp_path: Path, left_s: float | None, cache_control: str
) -> None:
    clock = FakeClock()
    async with running(tmp_path, clock=clock, settings={"pastes.expiry_max": 0}) as it:
        made = await it.paste(b"hi", expires_in="never" if left_s is None else "10m")
        clock.advance(10**9 if left_s is None else round(600 - left_s, 3))
        for path in representations(made):
            for headers in ({}, {"If-None-Match": "*"}):
                async with it.http.get(it.url + path, headers=headers) as answer:
                    assert answer.status == (304 if headers else 200)
                    assert answer.headers["Cache-Control"] == cache_control, path


async def test_max_age_is_what_the_operator_allows(tmp_path: Path) -> None:
    async with running(tmp_path, settings={"edge.max_age": "7s"}) as it:
        made = await it.paste()
        async with it.http.get(made.url) as answer:
            assert answer.headers["Cache-Control"] == kept(7)


async def test_a_paste_is_gone_at_the_very_millisecond(tmp_path: Path) -> None:
    clock = FakeClock()
    async with running(tmp_path, clock=clock) as it:
        cached, never_read = await it.paste(expires_in="10m"), await it.paste(expires_in="10m")
        for path in representations(cached):
            await it.get(path)
        clock.advance(599.999)
        assert {(await it.get(path))[0] for path in representations(cached)} == {200}
        clock.advance(0.001)
        for made in (cached, never_read):
            for path in representations(made):
                for headers in ({}, {"If-None-Match": "*"}):
                    async with it.http.get(it.url + path, headers=headers) as answer:
                        assert (answer.status, answer.headers["Cache-Control"]) == (404, "no-store")


async def test_a_query_string_gets_the_same_answer_but_no_copy(tmp_path: Path) -> None:
    async with running(tmp_path) as it:
        made = await it.paste(b"hi")
        for path in representations(made):
            async with it.http.get(it.url + path) as plain:
                body, etag = await plain.read(), plain.headers["ETag"]
            for query in ("?", "?fbclid=x&utm_source=y", "?expires_in=1h"):
                status, headers, same = await raw_get(it, path + query)
                assert (status, same, headers["ETag"]) == (200, body, etag)
                assert headers["Cache-Control"] == "no-store"


async def raw_get(it: Harness, path: str) -> tuple[int, dict[str, str], bytes]:
    """The client's library would drop an empty query."""
    answer = await request(it.url, f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    return answer.status, dict(answer.headers), answer.body


async def test_one_url_has_one_representation(tmp_path: Path) -> None:
    asks: list[dict[str, str]] = [
        {},
        {"Accept": "application/json", "User-Agent": "curl/8"},
        {"Accept": "text/html", "User-Agent": "Mozilla/5.0", "Accept-Language": "de"},
        {"Accept-Encoding": "gzip, br"},
        {"Range": "bytes=0-0"},
        {"Range": "bytes=0-0", "If-Range": '"x"'},
        {"X-Forwarded-Host": "evil.example.org", "X-Forwarded-Proto": "https", "Forwarded": "host=evil.example.org"},
        {"Cookie": "a=b", "Authorization": "Bearer x"},
    ]
    async with running(tmp_path) as it:
        for made in (await it.paste(b"hello\n" * 999), await it.paste(b"\xff" * 999)):
            for path in representations(made):
                answers = []
                for headers in asks:
                    async with it.http.get(it.url + path, headers=headers) as answer:
                        assert answer.status == 200
                        assert "Content-Range" not in answer.headers
                        assert "Vary" not in answer.headers
                        assert "Content-Encoding" not in answer.headers
                        assert "Set-Cookie" not in answer.headers
                        answers.append((await answer.read(), answer.headers["ETag"], answer.headers["Content-Type"]))
                assert len(set(answers)) == 1


async def test_every_representation_has_the_tag_by_which_it_is_purged(tmp_path: Path) -> None:
    async with running(tmp_path) as it:
        for made in (await it.paste(b"hi"), await it.paste(b"\xff")):
            for path in representations(made):
                for method, headers in (("GET", {}), ("HEAD", {}), ("GET", {"If-None-Match": "*"})):
                    async with it.http.request(method, f"{it.url}{path}", headers=headers) as answer:
                        assert answer.headers["Cache-Tag"] == f"paste-{made.id}"
                        assert answer.headers["Surrogate-Key"] == f"paste-{made.id}"


async def test_the_etag_of_raw_and_download_is_the_bodys_hash_and_all_stay_as_they_are(tmp_path: Path) -> None:
    clock = FakeClock()
    async with running(tmp_path, clock=clock) as it:
        made, same = await it.paste(b"hi"), await it.paste(b"hi")
        etags = [await etag_of(it, path) for path in representations(made)]
        assert etags[1] == etags[2] == f'"{hashlib.sha256(b"hi").hexdigest()}"'
        assert etags[1] == await etag_of(it, f"/{same.id}/raw")
        assert etags[0] != await etag_of(it, f"/{same.id}")
        clock.advance(86_400)
        assert etags == [await etag_of(it, path) for path in representations(made)]


async def etag_of(it: Harness, path: str) -> str:
    async with it.http.get(it.url + path) as answer:
        return answer.headers["ETag"]


async def test_if_none_match_saves_the_body(tmp_path: Path) -> None:
    async with running(tmp_path) as it:
        made = await it.paste(b"hi")
        for path in representations(made):
            etag = await etag_of(it, path)
            for asked, status in (
                (etag, 304),
                (f"W/{etag}", 304),
                (f'"x", {etag}', 304),
                (f'W/"x",W/{etag} , "y"', 304),
                ("*", 304),
                (" * ", 304),
                ('"x"', 200),
                ('"*"', 200),
                (etag.strip('"'), 200),
                (etag[:-2] + '"', 200),
                ("", 200),
                ('"', 200),
                ("garbage, more", 200),
            ):
                async with it.http.get(it.url + path, headers={"If-None-Match": asked}) as answer:
                    assert answer.status == status, (path, asked)
                    assert answer.headers["ETag"] == etag
                    assert bool(await answer.read()) == (status == 200)
            headers = [("If-None-Match", '"x"'), ("If-None-Match", etag)]
            async with it.http.get(it.url + path, headers=headers) as answer:
                assert answer.status == 304, "two fields are one list"


async def test_what_is_gone_is_404_whatever_a_client_still_has(tmp_path: Path) -> None:
    async with running(tmp_path) as it:
        made = await it.paste(b"hi")
        etags = {path: await etag_of(it, path) for path in representations(made)}
        await it.delete(made)
        for path, etag in etags.items():
            for asked in ("*", etag):
                async with it.http.get(it.url + path, headers={"If-None-Match": asked}) as answer:
                    assert (answer.status, answer.headers["Cache-Control"]) == (404, "no-store")


async def test_the_answer_for_programs_says_what_the_create_said_but_the_token(tmp_path: Path) -> None:
    async with running(tmp_path) as it:
        async with it.http.post(it.url + API, json={"content": "é\n", "title": "t", "expires_in": 60}) as answer:
            made = json.loads(await answer.read())
        async with it.http.get(f"{it.url}{API}/{made['id']}") as answer:
            assert answer.headers["Content-Type"] == "application/json"
            assert await answer.json() | {"delete_token": made["delete_token"]} == made
        assert made == {
            "id": made["id"],
            "url": f"http://127.0.0.1:8080/{made['id']}",
            "raw_url": f"http://127.0.0.1:8080/{made['id']}/raw",
            "delete_token": made["delete_token"],
            "created_at": "2023-11-14T22:13:20Z",
            "expires_at": "2023-11-14T22:14:20Z",
            "size": 3,
            "sha256": hashlib.sha256("é\n".encode()).hexdigest(),
            "title": "t",
            "language": None,
        }
