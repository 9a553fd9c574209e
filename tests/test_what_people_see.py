"""A stored text stays a text: nothing that somebody put into a body, a title, a language or a file name becomes markup, a
header or a path for somebody else."""

import html
import re
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import quote, unquote

import pytest
from markupsafe import escape
from yarl import URL

from tests.support import Harness, running
from tests.wire import multipart

API = "/api/v1/pastes"


LINE = {
    ("span", "class"),
    ("span", "id"),
    ("a", "href", "data-n", "tabindex", "aria-hidden"),
    ("br",),
}
"""What is made of each line of the text."""


class Page(HTMLParser):
    """Reads a page as a browser would as far as it matters here: which elements and attributes there are besides the
    lines' own, and what the text of `<pre>` is, without the newline that stands right after the tag."""

    def __init__(self, document: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[str] = []
        self._texts: list[str] = []
        self._inside = False
        self.feed(document.replace("\r\n", "\n").replace("\r", "\n"))
        self.close()

    @property
    def pre(self) -> str | None:
        return self._texts[0].removeprefix("\n") if self._texts else None

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if self._inside and (tag, *(name for name, _ in attrs)) in LINE:
            return
        self.tags.append(tag)
        self.attributes += [name for name, _ in attrs]
        if tag == "pre":
            self._inside = True
            self._texts.append("")

    def handle_endtag(self, tag: str) -> None:
        if tag == "pre":
            self._inside = False

    def handle_data(self, data: str) -> None:
        if self._inside:
            self._texts[-1] += data


async def page_of(it: Harness, paste: str) -> Page:
    status, body = await it.get(paste)
    assert status == 200
    return Page(body.decode())


BODIES = [
    "<script>alert(1)</script>",
    "</pre><script>alert(1)</script>",
    "</textarea></pre></html><img src=x onerror=alert(1)>",
    "&amp;&lt;&#13;&quot;'\"",
    "<!-- <![CDATA[ ]]> --> <?php",
    "\n\nstarts with newlines",
    "\n",
    "a\n\n\nb",
    "    if x:\n\ty",
    "a\r\nb\rc",
    "\ufefftext",
    "a\u2028b",
    "{{ 7*7 }} ${7*7} %s {0}",
    "javascript:alert(1)",
]


@pytest.mark.parametrize("text", BODIES)
async def test_the_page_shows_the_very_text_and_no_markup_of_it(tmp_path: Path, text: str) -> None:
    async with running(tmp_path) as it:
        plain = await page_of(it, (await it.paste(b"plain")).id)
        made = await it.paste(text.encode())
        page = await page_of(it, made.id)
        assert page.pre == text
        assert (page.tags, page.attributes) == (plain.tags, plain.attributes)


@pytest.mark.parametrize(
    "text", ["<script>alert(1)</script>", "'\"><img src=x onerror=alert(1)>", "</title><script>", "&lt;", "a' b=c"]
)
async def test_a_title_stays_text_on_the_page(tmp_path: Path, text: str) -> None:
    async with running(tmp_path) as it:
        plain = await page_of(it, (await it.paste(title="plain")).id)
        made = await it.paste(title=text)
        page = await page_of(it, made.id)
        assert (page.tags, page.attributes) == (plain.tags, plain.attributes)
        document = (await it.get(made.id))[1].decode()
        assert document.count(str(escape(text))) == 2, "in the head and above the text"
        async with it.http.get(f"{it.url}{API}/{made.id}") as answer:
            assert (await answer.json())["title"] == text
            assert answer.headers["Content-Type"] == "application/json"


@pytest.mark.parametrize("language", ["<b>", "a'b", 'a"b', "x\ny", "-x", "x" * 41, "é", "a;b", "a/b"])
async def test_a_language_is_the_name_of_one(tmp_path: Path, language: str) -> None:
    async with running(tmp_path) as it:
        async with it.http.post(f"{it.url}/", data=b"x", params={"language": language}) as answer:
            assert (answer.status, "language" in await answer.text()) == (400, True)
        for good in ("c++", "C#", "objective-c", "plain text", "asp.net"):
            made = await it.paste(language=good)
            assert html.escape(good.lower()) in (await it.get(made.id))[1].decode().lower()


@pytest.mark.parametrize("title", ["a\nb", "a\r\nX: y", "\x00", "\x1b[31m", "\u2028", "\x85", "x" * 201])
async def test_a_title_with_control_characters_is_refused(tmp_path: Path, title: str) -> None:
    async with running(tmp_path) as it:
        async with it.http.post(it.url + API, json={"content": "x", "title": title}) as answer:
            assert answer.status == 400
        async with it.http.post(f"{it.url}/", data=b"x", params={"title": title}) as answer:
            assert answer.status == 400


@pytest.mark.parametrize(
    "kind", ["text/html", "image/svg+xml", "application/javascript", "text/xml", "application/pdf"]
)
async def test_whatever_type_was_sent_raw_is_plain_text_in_a_sandbox(tmp_path: Path, kind: str) -> None:
    body = b"<svg xmlns='http://www.w3.org/2000/svg' onload='alert(1)'><script>alert(1)</script></svg>"
    part = (f'Content-Disposition: form-data; name="file"; filename="x.svg"\r\nContent-Type: {kind}', body)
    async with running(tmp_path) as it:
        async with it.http.put(f"{it.url}/x.html", data=body, headers={"Content-Type": kind}) as first:
            link = (await first.text()).strip()
        form = {"Content-Type": "multipart/form-data; boundary=b"}
        async with it.http.post(f"{it.url}/", data=multipart("b", part), headers=form) as second:
            links = [link, (await second.text()).strip()]
        for paste in (link.rpartition("/")[2] for link in links):
            async with it.http.get(f"{it.url}/{paste}/raw") as answer:
                assert answer.headers["Content-Type"] == "text/plain; charset=utf-8"
                assert answer.headers["X-Content-Type-Options"] == "nosniff"
                assert answer.headers["Content-Security-Policy"] == "default-src 'none'; sandbox"
                assert await answer.read() == body
            async with it.http.get(f"{it.url}/{paste}/download") as answer:
                assert answer.headers["Content-Type"] == "application/octet-stream"
                assert answer.headers["Content-Disposition"].startswith("attachment; ")
                assert answer.headers["Content-Security-Policy"] == "default-src 'none'; sandbox"


async def test_bytes_that_are_no_text_are_an_attachment_and_have_a_page_all_the_same(tmp_path: Path) -> None:
    async with running(tmp_path) as it:
        for body in (b"\xff\xfe\x00<script>", "\ufeffhi".encode("utf-16-le"), b"caf\xe9"):
            made = await it.paste(body)
            async with it.http.get(f"{made.url}/raw") as answer:
                assert answer.headers["Content-Type"] == "application/octet-stream"
                assert answer.headers["Content-Disposition"] == f'attachment; filename="{made.id}.bin"'
                assert await answer.read() == body
            page = await page_of(it, made.id)
            assert page.pre == f"0000  {body.hex(' '):<47}  {''.join(chr(b) if 32 <= b < 127 else '.' for b in body)}"
            assert page.tags.count("script") == 1, "the page's own"


NAMES = {
    "notes.txt": "notes.txt",
    "a b.txt": "a b.txt",
    'résumé "x";\r\n日本.txt': 'résumé "x";__日本.txt',
    'a;b"c': 'a;b"c.txt',
    "<img src=x onerror=alert(1)>": "<img src=x onerror=alert(1)>.txt",
    "../../etc/passwd": "_.._etc_passwd",
    "..\\..\\windows\\system.ini": "_.._windows_system.ini",
    "..": None,
    ".": None,
    "...": None,
    " ": None,
    ".bashrc": "bashrc.txt",
    "a%20b": "a%20b.txt",
    "100%.txt": "100%.txt",
    "x\x00y\x1b[31m.txt": "x_y_[31m.txt",
    "a\u2028b.txt": "a_b.txt",
    "日本": "日本.txt",
    "🦉.md": "🦉.md",
    "it's.txt": "it's.txt",
    "C:\\x.txt": "C:_x.txt",
    "a\tb.txt": "a_b.txt",
}
ENDING = re.compile(r'attachment; filename="([A-Za-z0-9._ -]+)"(?:; filename\*=UTF-8\'\'([A-Za-z0-9!#$&+.^_`|~%-]+))?')


def saved_as(disposition: str) -> str:
    """The name under which a browser saves it (RFC 6266 and 8187)."""
    match = ENDING.fullmatch(disposition)
    assert match, disposition
    return unquote(match[2], errors="strict") if match[2] else match[1]


@pytest.mark.parametrize("name", NAMES)
async def test_a_download_has_a_safe_name_that_is_the_files_own(tmp_path: Path, name: str) -> None:
    async with running(tmp_path) as it:
        if re.search(r"[\x00-\x1f]", name):  # no header can carry it, but a path can
            async with it.http.put(URL(f"{it.url}/{quote(name, safe='')}", encoded=True), data=b"hi") as answer:
                link = (await answer.text()).strip()
        else:
            escaped = name.replace("\\", "\\\\").replace('"', '\\"')
            part = (f'Content-Disposition: form-data; name="file"; filename="{escaped}"', b"hi")
            kind = {"Content-Type": "multipart/form-data; boundary=b"}
            async with it.http.post(f"{it.url}/", data=multipart("b", part), headers=kind) as answer:
                link = (await answer.text()).strip()
        paste = link.rpartition("/")[2]
        for query in ("", "?x=1"):
            async with it.http.get(f"{it.url}/{paste}/download{query}") as answer:
                assert saved_as(answer.headers["Content-Disposition"]) == (NAMES[name] or f"{paste}.txt")
                assert await answer.read() == b"hi"


async def test_a_title_given_by_name_wins_over_the_files(tmp_path: Path) -> None:
    part = ('Content-Disposition: form-data; name="file"; filename="x.txt"', b"hi")
    title = ('Content-Disposition: form-data; name="title"', "schön".encode())
    kind = {"Content-Type": "multipart/form-data; boundary=b"}
    async with running(tmp_path) as it:
        async with it.http.post(f"{it.url}/", data=multipart("b", part, title), headers=kind) as answer:
            assert answer.status == 201
        async with it.http.put(f"{it.url}/y.txt", params={"title": "z"}, data=b"hi") as answer:
            assert answer.status == 201
        assert await it.rows("select title from pastes order by title") == [("schön",), ("z",)]
