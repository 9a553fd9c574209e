"""The pages for people, with scripts off: the form at /, what it answers, the manual, robots.txt; and links that come from
`public_url` alone, whatever a client or a proxy says of the host."""

import json
import re
from pathlib import Path
from urllib.parse import urljoin

import pytest
from markupsafe import escape

from tests.support import Harness, running
from tests.wire import multipart, request

API = "/api/v1/pastes"
BROWSER = {"Accept": "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"}
LIES = {
    "Host": "evil.example.org",
    "X-Forwarded-Host": "evil.example.org",
    "X-Forwarded-Proto": "gopher",
    "X-Forwarded-Prefix": "/evil.example.org",
    "X-Forwarded-Port": "666",
    "Forwarded": "host=evil.example.org;proto=gopher",
    "X-Original-URL": "/evil.example.org",
    "Referer": "http://evil.example.org/",
}
URLS = ["http://127.0.0.1:8080", "https://paste.example.org", "https://example.org:8443/pastes/here"]


async def page(it: Harness, path: str) -> str:
    async with it.http.get(it.url + path, headers=BROWSER) as answer:
        assert (answer.status, answer.headers["Content-Type"]) == (200, "text/html; charset=utf-8")
        assert answer.headers["Cache-Control"] == "no-store"
        return await answer.text()


async def plain(it: Harness, path: str) -> str:
    for accept in ({"Accept": "*/*"}, {}, {"Accept": "text/plain"}):
        async with it.http.get(it.url + path, headers=accept) as answer:
            assert (answer.status, answer.headers["Content-Type"]) == (200, "text/plain; charset=utf-8")
            assert answer.headers["Cache-Control"] == "no-store"
            text = await answer.text()
    return text


@pytest.mark.parametrize("url", URLS)
async def test_the_manual_has_this_hosts_url(tmp_path: Path, url: str) -> None:
    async with running(tmp_path, settings={"server.public_url": url}) as it:
        manual = await plain(it, "/help")
        assert f"| curl -T - {url}\n" in manual
        assert f"{url}{API}" in manual
        assert "--data-binary" in manual, "curl's -d would strip the newlines"
        assert "1MiB" in manual
        assert "30d" in manual
        assert await plain(it, "/") == manual
        assert str(escape(manual)) in await page(it, "/help")


async def test_a_browser_gets_the_form_and_it_works_with_scripts_off(tmp_path: Path) -> None:
    async with running(tmp_path) as it:
        form = await page(it, "/")
        action = re.search(r'<form [^>]*method="post" action="([^"]+)" enctype="multipart/form-data"', form)
        assert action
        assert set(re.findall(r' name="(\w+)"', form.partition("<form ")[2].partition("</form>")[0])) == {
            "content",
            "title",
            "language",
            "expires_in",
            "file",
        }
        choices = re.findall(r'<option value="(\w+)"( selected)?>', form)
        assert [value for value, _ in choices] == ["10m", "1h", "1d", "7d", "30d", "365d"]
        assert [value for value, selected in choices if selected] == ["30d"]

        fields = {"content": "one\r\ntwo\r\n", "title": "", "language": "", "expires_in": "1h"}
        parts = [(f'Content-Disposition: form-data; name="{name}"', value.encode()) for name, value in fields.items()]
        kind = {"Content-Type": "multipart/form-data; boundary=b"} | BROWSER
        target = urljoin(f"{it.url}/", action[1])
        async with it.http.post(target, data=multipart("b", *parts), headers=kind) as answer:
            assert (answer.status, answer.headers["Cache-Control"]) == (201, "no-store")
            made = await answer.text()
        (link,) = re.findall(r'readonly value="([^"]+)"', made)
        paste = link.rpartition("/")[2]
        assert f'<a href="/{paste}/raw">' in made
        assert "Gone on 14 November 2023, 23:13 UTC; delete it sooner here" in made
        assert await it.get(f"{paste}/raw") == (200, b"one\ntwo\n")

        delete = re.search(
            r'<form [^>]*method="post" action="([^"]+)"><input type="hidden" name="token" value="(\w+)">', made
        )
        assert delete
        async with it.http.post(urljoin(target, delete[1]), data={"token": delete[2]}) as answer:
            assert answer.status == 200
        assert (await it.get(paste))[0] == 404


@pytest.mark.parametrize(
    ("settings", "offered", "selected"),
    [
        ({"pastes.expiry_max": 0, "pastes.expiry_default": "never"}, "never", "never"),
        (
            {"pastes.expiry_max": 0, "pastes.expiry_choices": '["1h", "never"]', "pastes.expiry_default": "1h"},
            "never",
            "1h",
        ),
        ({"pastes.expiry_default": "2h"}, "2h", "2h"),
    ],
)
async def test_the_form_offers_what_is_configured(
    tmp_path: Path, settings: dict[str, object], offered: str, selected: str
) -> None:
    async with running(tmp_path, settings=settings) as it:
        form = await page(it, "/")
        assert f'<option value="{offered}"' in form
        assert re.findall(r'<option value="(\w+)" selected>', form) == [selected]
        option = ('Content-Disposition: form-data; name="expires_in"', offered.encode())
        text = ('Content-Disposition: form-data; name="content"', b"x")
        kind = {"Content-Type": "multipart/form-data; boundary=b"}
        async with it.http.post(f"{it.url}/new", data=multipart("b", option, text), headers=kind) as answer:
            assert answer.status == 201


async def test_the_form_takes_one_text_and_no_other_type(tmp_path: Path) -> None:
    text = ('Content-Disposition: form-data; name="content"', b"x")
    kind = {"Content-Type": "multipart/form-data; boundary=b"}
    async with running(tmp_path) as it:
        async with it.http.post(f"{it.url}/new", data={"content": "x"}) as answer:
            assert answer.status == 415
        async with it.http.post(f"{it.url}/new", data=multipart("b", text, text), headers=kind) as answer:
            assert (answer.status, "2 texts" in await answer.text()) == (400, True)
        assert await it.rows("select * from pastes") == []


@pytest.mark.parametrize("url", URLS)
async def test_links_come_from_public_url_alone(tmp_path: Path, url: str) -> None:
    form = LIES | {"Content-Type": "multipart/form-data; boundary=b"}
    text = ('Content-Disposition: form-data; name="content"', b"x")
    async with running(tmp_path, settings={"server.public_url": url}) as it:
        seen = []
        for method, path in (("PUT", "/"), ("PUT", "/x"), ("POST", "/")):
            async with it.http.request(method, it.url + path, data=b"x", headers=LIES) as answer:
                link = (await answer.text()).removesuffix("\n")
                assert re.fullmatch(re.escape(url) + "/[0-9A-Za-z]{18}", link)
                assert answer.headers["Location"] == link
                seen.append(link.rpartition("/")[2])
        async with it.http.post(it.url + API, data=b"x", headers=LIES) as answer:
            made = json.loads(await answer.read())
            assert answer.headers["Location"] == made["url"] == f"{url}/{made['id']}"
            assert made["raw_url"] == f"{made['url']}/raw"
        texts = []
        async with it.http.post(f"{it.url}/new", data=multipart("b", text), headers=form) as answer:
            assert answer.headers["Location"].startswith(f"{url}/")
            texts.append(await answer.text())
        for path in ("/", "/help", f"/{seen[0]}", f"{API}/{seen[0]}"):
            async with it.http.get(it.url + path, headers=LIES | BROWSER) as answer:
                texts.append(await answer.text())
        prefix = url.removeprefix("http://").removeprefix("https://").partition("/")[1:]
        for said in texts:
            assert "evil" not in said
            assert "gopher" not in said
            for target in re.findall(r'(?:href|action|src)="([^"#]+)"', said):
                assert target.startswith((url, "".join(prefix) + "/")), target


async def test_without_a_host_there_are_links_all_the_same(tmp_path: Path) -> None:
    async with running(tmp_path) as it:
        answer = await request(it.url, b"PUT / HTTP/1.0\r\nContent-Length: 1\r\n\r\nx")
        assert answer.status == 201
        assert answer.body.startswith(b"http://127.0.0.1:8080/")


async def test_robots_index_nothing(tmp_path: Path) -> None:
    async with running(tmp_path) as it:
        assert await plain(it, "/robots.txt") == "User-agent: *\nDisallow: /\n"
        made = await it.paste()
        for path in ("/", "/help", f"/{made.id}"):
            async with it.http.get(it.url + path, headers=BROWSER) as answer:
                assert '<meta name="robots" content="noindex">' in await answer.text()


async def test_the_page_of_a_paste_says_what_there_is_to_know(tmp_path: Path) -> None:
    async with running(tmp_path, settings={"pastes.expiry_max": 0}) as it:
        made = await it.paste(b"x = 1\n", title="notes & more", language="Python", expires_in="1h")
        text = (await it.get(made.id))[1].decode()
        for part in (
            "notes &amp; more",
            "Python",
            "6 bytes",
            "1 line",
            "Gone on 14 November 2023, 23:13 UTC",
            "2023-11-14T23:13:20Z",
        ):
            assert part in text
        for way in ("/raw", "/download"):
            assert f'<a href="/{made.id}{way}"' in text
        for size, said in ((1, "1 byte<"), (10_239, "10239 bytes"), (10_240, "10KiB"), (102_400, "100KiB")):
            other = await it.paste(b"x" * size, expires_in="never")
            text = (await it.get(other.id))[1].decode()
            assert said in text
            assert "Kept until it is deleted" in text


@pytest.mark.parametrize(
    ("contact", "link"),
    [
        ("me@example.org", '<a href="mailto:me@example.org" rel="noreferrer">me@example.org</a>'),
        ("https://example.org/me", '<a href="https://example.org/me" rel="noreferrer">https://example.org/me</a>'),
        ("javascript:alert(1)", " javascript:alert(1)</p>"),
        ("room 5, <b>ring</b>", " room 5, &lt;b&gt;ring&lt;/b&gt;</p>"),
    ],
)
async def test_every_page_says_who_runs_this(tmp_path: Path, contact: str, link: str) -> None:
    settings = {"site.name": "Café <Paste>", "site.notice": "No & no.", "site.contact": contact}
    async with running(tmp_path, settings=settings) as it:
        made = await it.paste(title="x")
        for path in ("/", "/help", "/mine", f"/{made.id}", "/nothing", f"/{made.id}?render=markdown"):
            async with it.http.get(it.url + path, headers=BROWSER) as answer:
                text = await answer.text()
            assert " · Café &lt;Paste&gt;</title>" in text
            assert "<p>No &amp; no." in text
            assert link in text


async def test_static_files_are_kept_for_ever_and_no_other_name_is_one(tmp_path: Path) -> None:
    async with running(tmp_path) as it:
        for path in re.findall(r'"(/static/[^"]+)"', await page(it, "/")):
            async with it.http.get(it.url + path) as answer:
                assert (answer.status, answer.headers["Cache-Control"]) == (200, "public, max-age=31536000, immutable")
        for path in ("/static/", "/static/style.css", "/static/..%2fsite.py", "/static/%2e%2e", "/static/x/y"):
            answered = await request(it.url, f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
            assert answered.status == 404, path
        async with it.http.get(it.url + re.findall(r'"(/static/[^"]+)"', await page(it, "/"))[0]) as answer:
            assert answer.headers["Content-Security-Policy"] == "default-src 'none'"


async def test_only_markdown_is_a_way_to_render(tmp_path: Path) -> None:
    async with running(tmp_path) as it:
        made = await it.paste(b"*x*\n", title="x.md")
        assert (await it.get(f"{made.id}?render=html"))[0] == 400
        assert b"<em>x</em>" in (await it.get(f"{made.id}?render=markdown"))[1]
        assert b"<em>" not in (await it.get(made.id))[1]


@pytest.mark.parametrize(
    ("original", "typed", "kept"),
    [
        (b"a\r\nb\n", b"a\r\nb\r\n", b"a\r\nb\n"),
        (b"a\rb", b"a\r\nb", b"a\rb"),
        (b"a\r\nb\r\n", b"a\r\nb\r\nc\r\n", b"a\r\nb\r\nc\r\n"),
        (b"a\nb\n", b"a\r\nb\r\nc", b"a\nb\nc"),
        (b"a\r\nb\n", b"a\r\nb\r\nc", b"a\nb\nc"),
        (b"x", b"y", b"y"),
    ],
)
async def test_a_form_that_was_a_clone_knows_what_browsers_rewrite(
    tmp_path: Path, original: bytes, typed: bytes, kept: bytes
) -> None:
    async with running(tmp_path) as it:
        made = await it.paste(original)
        for clone_of, expected in ((made.id, kept), ("x" * 18, typed.replace(b"\r\n", b"\n")), ("no id", None)):
            parts = [
                ('Content-Disposition: form-data; name="content"', typed),
                ('Content-Disposition: form-data; name="clone_of"', clone_of.encode()),
            ]
            kind = {"Content-Type": "multipart/form-data; boundary=b"}
            async with it.http.post(f"{it.url}/new", data=multipart("b", *parts), headers=kind) as answer:
                assert answer.status == 201
                link = answer.headers["Location"].rpartition("/")[2]
            assert (await it.get(f"{link}/raw"))[1] == (typed.replace(b"\r\n", b"\n") if expected is None else expected)


async def test_a_text_and_a_file_are_one_too_many_and_the_text_comes_back(tmp_path: Path) -> None:
    parts = [
        ('Content-Disposition: form-data; name="content"', b"typed <text>"),
        ('Content-Disposition: form-data; name="file"; filename="x.txt"', b"file"),
    ]
    kind = {"Content-Type": "multipart/form-data; boundary=b"}
    async with running(tmp_path) as it:
        async with it.http.post(f"{it.url}/new", data=multipart("b", *parts), headers=kind) as answer:
            text = await answer.text()
        assert answer.status == 400
        assert "there is a text and a file; send one of them. The file has to be chosen again." in text
        assert "\ntyped &lt;text&gt;</textarea>" in text
        async with it.http.post(f"{it.url}/new", data=multipart("b", parts[1]), headers=kind) as answer:
            assert answer.status == 201
        assert await it.rows("select title, size from pastes") == [("x.txt", 4)]
