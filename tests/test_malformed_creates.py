"""What can't be taken is refused with a reason, never with a 500, and leaves nothing behind: broken forms, broken
framing, content that is encoded, no content at all."""

from pathlib import Path

import pytest

from pastebin_daemon.web import receiving
from tests.fakes import FakeClock, FakeStore
from tests.support import Harness, running
from tests.wire import Answer, multipart, request, wire

KIND = "Content-Type: multipart/form-data; boundary=b"
FILE = 'Content-Disposition: form-data; name="file"; filename="x"'
TEXT = 'Content-Disposition: form-data; name="content"'
FORMS = {
    "no boundary": ("Content-Type: multipart/form-data", multipart("b", (FILE, b"hi"))),
    "an endless boundary": (f"Content-Type: multipart/form-data; boundary={'b' * 71}", multipart("b" * 71, (FILE, b"hi"))),
    "a boundary of another form": ("Content-Type: multipart/form-data; boundary=c", multipart("b", (FILE, b"hi"))),
    "no parts": (KIND, b"--b--\r\n"),
    "no form": (KIND, b"hi"),
    "nothing but a newline": (KIND, b"\r\n"),
    "one delimiter": (KIND, b"--b\r\n"),
    "cut off in a header": (KIND, b"--b\r\nContent-Dispo"),
    "cut off before the bytes": (KIND, f"--b\r\n{FILE}\r\n\r\n".encode()),
    "cut off in the bytes": (KIND, f"--b\r\n{FILE}\r\n\r\nhi".encode()),
    "cut off before the closing delimiter": (KIND, f"--b\r\n{FILE}\r\n\r\nhi\r\n".encode()),
    "cut off in the closing delimiter": (KIND, f"--b\r\n{FILE}\r\n\r\nhi\r\n--".encode()),
    "not closed": (KIND, f"--b\r\n{FILE}\r\n\r\nhi\r\n--b\r\n".encode()),
    "more after the end": (KIND, multipart("b", (FILE, b"hi")) + b"and more"),
    "another form after the end": (KIND, multipart("b", (FILE, b"hi")) * 2),
    "a header without a colon": (KIND, multipart("b", ("Content-Disposition", b"hi"))),
    "a header that is no text": (KIND, b"--b\r\nA\x00B: \xff\r\n\r\nhi\r\n--b--\r\n"),
    "an endless header": (KIND, multipart("b", (f"{FILE}\r\nX: {'y' * 9000}", b"hi"))),
    "a thousand headers": (KIND, multipart("b", (f"{FILE}\r\n" + "\r\n".join(["X: y"] * 1000), b"hi"))),
    "a thousand parts": (KIND, multipart("b", *[(TEXT, b"hi")] * 1000)),
    "a thousand options": (KIND, multipart("b", *[('Content-Disposition: form-data; name="title"', b"t")] * 1000)),
    "seventeen parts": (
        KIND, multipart("b", *[('Content-Disposition: form-data; name="title"', b"t")] * 16, (FILE, b"hi"))
    ),
    "two files": (KIND, multipart("b", (FILE, b"hi"), (FILE, b"ho"))),
    "a file and a text": (KIND, multipart("b", (FILE, b"hi"), (TEXT, b"ho"))),
    "an option alone": (KIND, multipart("b", ('Content-Disposition: form-data; name="title"', b"t"))),
    "an option without end": (
        KIND, multipart("b", ('Content-Disposition: form-data; name="title"', b"t" * 1025), (FILE, b"hi"))
    ),
    "an option that is no text": (
        KIND, multipart("b", ('Content-Disposition: form-data; name="title"', b"\xff"), (FILE, b"hi"))
    ),
    "an empty text": (KIND, multipart("b", (TEXT, b""))),
    "an empty file": (KIND, multipart("b", (FILE, b""))),
    "a form inside": (
        KIND, multipart("b", (f"{TEXT}\r\nContent-Type: multipart/mixed; boundary=c", multipart("c", (FILE, b"hi"))))
    ),
    "a form inside without a boundary": (KIND, multipart("b", (f"{TEXT}\r\nContent-Type: multipart/mixed", b"hi"))),
    "base64": (KIND, multipart("b", (f"{FILE}\r\nContent-Transfer-Encoding: base64", b"aGk="))),
    "quoted-printable": (KIND, multipart("b", (f"{FILE}\r\nContent-Transfer-Encoding: Quoted-Printable", b"hi"))),
    "gzip": (KIND, multipart("b", (f"{FILE}\r\nContent-Encoding: gzip", b"\x1f\x8b"))),
    "an unknown charset": (KIND, multipart("b", ("Content-Disposition: form-data; name=_charset_", b"x" * 32))),
}  # fmt: skip


async def post(it: Harness, path: str, kind: str, body: bytes) -> Answer:
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\n{kind}\r\nContent-Length: {len(body)}\r\n\r\n"
    return await request(it.url, head.encode() + body)


async def nothing_is_left(it: Harness) -> bool:
    return await it.rows("select object from pastes union all select object from uploads") == []


@pytest.mark.parametrize("path", ["/", "/new"])
async def test_a_broken_form_is_refused_with_a_reason(tmp_path: Path, path: str) -> None:
    wrong = {}
    async with running(tmp_path) as it:
        for name, (kind, body) in FORMS.items():
            answer = await post(it, path, kind, body)
            if answer.status != 400 or not answer.body:
                wrong[name] = answer.status, answer.body[:200]
        assert wrong == {}
        assert await nothing_is_left(it)


@pytest.mark.filterwarnings("ignore::aiohttp.multipart.BadContentDispositionHeader")
@pytest.mark.filterwarnings("ignore::aiohttp.multipart.BadContentDispositionParam")
async def test_a_part_with_odd_but_harmless_headers_is_content_all_the_same(tmp_path: Path) -> None:
    heads = (
        f"{FILE}\r\nContent-Transfer-Encoding: binary",
        f"{TEXT}\r\nContent-Transfer-Encoding: 8bit",
        "Content-Type: text/plain",
        "Content-Disposition: form-data; name",
        "Content-Disposition: ;;;",
        f"{TEXT}; a*b*c=x",
    )
    async with running(tmp_path) as it:
        for head in heads:
            answer = await post(it, "/", KIND, multipart("b", (head, b"hi")))
            assert answer.status == 201, head


async def test_a_part_has_the_bytes_between_its_delimiters_whatever_length_it_claims(tmp_path: Path) -> None:
    async with running(tmp_path) as it:
        for length in (0, 1, 99, 10**30):
            answer = await post(it, "/", KIND, multipart("b", (f"{FILE}\r\nContent-Length: {length}", b"hi")))
            assert answer.status == 201
            assert (await it.get(answer.body.decode().strip().rpartition("/")[2] + "/raw"))[1] == b"hi"


async def test_zero_bytes_are_refused_on_every_route(tmp_path: Path) -> None:
    async with running(tmp_path) as it:
        for method, path, kind, body in (
            ("POST", "/", "text/plain", b""),
            ("PUT", "/", "text/plain", b""),
            ("PUT", "/x.txt", "text/plain", b""),
            ("POST", "/api/v1/pastes", "text/plain", b""),
            ("POST", "/api/v1/pastes", "application/json", b'{"content": ""}'),
            ("POST", "/", "multipart/form-data; boundary=b", multipart("b", (TEXT, b""))),
            ("POST", "/new", "multipart/form-data; boundary=b", multipart("b", (TEXT, b""))),
        ):
            async with it.http.request(method, it.url + path, data=body, headers={"Content-Type": kind}) as answer:
                assert answer.status == 400, (method, path)
                assert "zero bytes" in await answer.text()
        chunked = await request(it.url, b"PUT / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n")
        assert (chunked.status, b"zero bytes" in chunked.body) == (400, True)
        assert (await request(it.url, b"PUT / HTTP/1.1\r\nHost: x\r\n\r\n")).status == 400
        assert await nothing_is_left(it)


@pytest.mark.parametrize("path", ["/", "/new", "/api/v1/pastes"])
@pytest.mark.parametrize("coding", ["gzip", "deflate", "br", "zstd", "gzip, identity", "GZIP"])
async def test_encoded_content_is_refused(tmp_path: Path, path: str, coding: str) -> None:
    async with running(tmp_path) as it:
        answer = await post(it, path, f"Content-Encoding: {coding}\r\n{KIND}", b"\x1f\x8b\x08")
        assert answer.status == 415
        assert await nothing_is_left(it)


async def test_a_transfer_coding_other_than_chunked_is_refused(tmp_path: Path) -> None:
    async with running(tmp_path) as it:
        head = b"PUT / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip, chunked\r\n\r\n"
        assert (await request(it.url, head + b"2\r\nhi\r\n0\r\n\r\n")).status == 415


@pytest.mark.parametrize("kind", [b"text/plain", b"multipart/form-data; boundary=b"])
@pytest.mark.parametrize(
    "after", [b"", b"zz\r\n", b"2\r\nhiXX", b"-1\r\n", b"fffffffffffffffffff\r\n"], ids=["silence", *"1234"]
)
async def test_a_body_that_stops_or_breaks_in_the_middle_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: bytes, after: bytes
) -> None:
    monkeypatch.setattr(receiving, "IDLE_S", 0.2)
    store = FakeStore(FakeClock())
    async with running(tmp_path, store=store) as it, wire(it.url) as line:
        head = b"PUT / HTTP/1.1\r\nHost: x\r\nContent-Type: " + kind + b"\r\nTransfer-Encoding: chunked\r\n"
        await line.send(head + b"Expect: 100-continue\r\n\r\n")
        assert (await line.answer()).status == 100, "the handler waits for the body"
        await line.send(b"3\r\n--b\r\n", after)
        answer = await line.answer()
        assert answer.status in (400, 408)
        assert answer.headers["Connection"] == "close"
        assert store.calls == []
        assert await nothing_is_left(it)


async def test_a_client_that_goes_away_in_the_middle_leaves_nothing(tmp_path: Path) -> None:
    store = FakeStore(FakeClock())
    async with running(tmp_path, store=store, settings={"uploads.memory_max": "1MiB"}) as it:
        async with wire(it.url) as line:
            await line.send(b"PUT / HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\nExpect: 100-continue\r\n\r\n")
            assert (await line.answer()).status == 100
            await line.send(b"hello")
        assert (await it.paste(b"x" * 1024 * 1024)).id, "what it had sent holds no memory"
        assert [operation for operation, _ in store.calls] == ["put"]
