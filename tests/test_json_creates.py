"""JSON creates: a document that is not what is taken is refused, with all of its mistakes at once, and what says to be
no JSON is never read as such."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support import Harness, running

API = "/api/v1/pastes"


async def post(it: Harness, document: bytes | str, kind: str = "application/json", query: str = "") -> tuple[int, Any]:
    async with it.http.post(f"{it.url}{API}{query}", data=document, headers={"Content-Type": kind}) as answer:
        return answer.status, json.loads(await answer.read())


REFUSED: dict[str, tuple[bytes | str, str]] = {
    "lone surrogate in content": (r'{"content": "a\ud800"}', "as the body itself"),
    "lone low surrogate": (r'{"content": "\udc00\ud83d"}', "as the body itself"),
    "surrogates the wrong way round": (r'{"content": "\ude00\ud83d"}', "as the body itself"),
    "lone surrogate in title": (r'{"content": "a", "title": "\ud83d"}', "as the body itself"),
    "lone surrogate in language": (r'{"content": "a", "language": "\udfff"}', "as the body itself"),
    "lone surrogate in a name": (r'{"content": "a", "\ud800": 1}', "as the body itself"),
    "invalid UTF-8 in content": (b'{"content": "caf\xe9"}', "as the body itself"),
    "invalid UTF-8 in a name": (b'{"content": "a", "\xff": 1}', "as the body itself"),
    "UTF-16": ('{"content": "a"}'.encode("utf-16"), "JSON"),
    "a BOM": (b'\xef\xbb\xbf{"content": "a"}', "JSON"),
    "nothing": ("", "JSON"),
    "white space": (" \n", "JSON"),
    "no JSON": ("content=a", "JSON"),
    "cut off": ('{"content": "a', "JSON"),
    "two documents": ('{"content": "a"}{"content": "b"}', "JSON"),
    "a control character": ('{"content": "a\nb"}', "JSON"),
    "a list": ('[{"content": "a"}]', "document"),
    "a text": ('"content"', "document"),
    "null": ("null", "document"),
    "no content": ("{}", "content"),
    "unknown name": ('{"content": "a", "expire": "1h"}', "did you mean expires_in?"),
    "content is a number": ('{"content": 1}', "content"),
    "content is null": ('{"content": null}', "content"),
    "content is a list": ('{"content": ["a"]}', "content"),
    "title is a number": ('{"content": "a", "title": 1}', "title"),
    "language is true": ('{"content": "a", "language": true}', "language"),
    "lifetime is true": ('{"content": "a", "expires_in": true}', "expires_in"),
    "lifetime is half": ('{"content": "a", "expires_in": 1.5}', "expires_in"),
    "lifetime is a float": ('{"content": "a", "expires_in": 3600.0}', "expires_in"),
    "lifetime is NaN": ('{"content": "a", "expires_in": NaN}', "expires_in"),
    "lifetime is Infinity": ('{"content": "a", "expires_in": -Infinity}', "expires_in"),
    "lifetime is 1e308": ('{"content": "a", "expires_in": 1e308}', "expires_in"),
    "lifetime is 1e999": ('{"content": "a", "expires_in": 1e999}', "expires_in"),
    "lifetime is huge": ('{"content": "a", "expires_in": 99999999999999999999}', "expires_in"),
    "lifetime has 5,000 digits": ('{"content": "a", "expires_in": ' + "9" * 5000 + "}", ""),
    "NaN as the document": ("NaN", "document"),
    "deep nesting": ("[" * 100_000, "JSON"),
    "deep nesting in content": ('{"content": ' + "[" * 100_000, "JSON"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
async def test_a_document_that_is_not_taken_is_refused_with_its_reason(tmp_path: Path, name: str) -> None:
    document, reason = REFUSED[name]
    async with running(tmp_path) as it:
        status, problem = await post(it, document)
        assert (status, problem["code"]) == (400, "bad_request")
        assert reason in problem["detail"]
        assert len(problem["detail"]) < 2000, "and not the whole document again"
        assert await it.rows("select * from uploads") == []
        assert (await post(it, '{"content": "a"}'))[0] == 201, "and the next one goes well"


async def test_all_mistakes_are_named_at_once(tmp_path: Path) -> None:
    async with running(tmp_path) as it:
        _, problem = await post(it, '{"titel": "x", "title": 1, "language": [], "expires_in": {}}')
        assert all(name in problem["detail"] for name in ("content", "mean title?", "title:", "language", "expires_in"))

        asked = {"content": "", "title": "a\nb", "language": "<b>", "expires_in": "soon"}
        _, problem = await post(it, json.dumps(asked))
        assert all(name in problem["detail"] for name in ("zero bytes", "title", "language", "expires_in"))


async def test_what_is_no_json_by_its_type_is_never_read_as_json(tmp_path: Path) -> None:
    body = b'{"content": "a"}'
    async with running(tmp_path) as it:
        for kind in ("text/plain", "application/octet-stream", "application/x-www-form-urlencoded", "text/json", "x/y"):
            status, made = await post(it, body, kind)
            assert (status, made["size"]) == (201, len(body)), kind
        async with it.http.post(f"{it.url}/", data=body, headers={"Content-Type": "application/json"}) as answer:
            assert answer.status == 201
            assert (await it.get((await answer.text()).strip().rpartition("/")[2] + "/raw"))[1] == body
        async with it.http.post(it.url + API, data=body, skip_auto_headers=["Content-Type"]) as answer:
            assert (await answer.json())["size"] == len(body)


async def test_a_charset_beside_json_changes_nothing(tmp_path: Path) -> None:
    async with running(tmp_path) as it:
        for kind in ("application/json; charset=utf-8", "application/json; charset=latin-1", "Application/JSON"):
            status, made = await post(it, '{"content": "é"}', kind)
            assert (status, made["size"]) == (201, 2)


async def test_options_of_json_stand_in_the_document_and_those_of_a_body_in_the_query(tmp_path: Path) -> None:
    async with running(tmp_path) as it:
        asked = {"content": "a", "title": "x", "language": "Python", "expires_in": "1h"}
        _, made = await post(it, json.dumps(asked))
        _, same = await post(it, b"a", "text/plain", "?title=x&language=Python&expires_in=1h")
        for name in ("title", "language", "expires_at", "created_at", "sha256", "size"):
            assert made[name] == same[name]
        assert (made["title"], made["language"], made["expires_at"]) == ("x", "python", "2023-11-14T23:13:20Z")
        assert (await post(it, '{"content": "a"}', query="?title=x"))[0] == 400


async def test_an_option_that_is_not_known_is_refused_with_a_guess(tmp_path: Path) -> None:
    async with running(tmp_path) as it:
        status, problem = await post(it, b"a", "text/plain", "?expire_in=1h")
        assert (status, "expires_in?" in problem["detail"]) == (400, True)
        status, problem = await post(it, b"a", "text/plain", "?x=1h")
        assert (status, "write expires_in, title, language" in problem["detail"]) == (400, True)


async def test_text_beyond_ascii_goes_in_escaped_or_not(tmp_path: Path) -> None:
    text = "aé日🦉\u2028\x7f\x00\x1f"
    async with running(tmp_path) as it:
        for document in (json.dumps({"content": text}), json.dumps({"content": text}, ensure_ascii=False)):
            status, made = await post(it, document.encode())
            assert status == 201
            assert await it.get(f"{made['id']}/raw") == (200, text.encode())
