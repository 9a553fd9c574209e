"""The small client: what goes in comes out, and the tokens that it remembers are nobody else's."""

import asyncio
import json
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from aiohttp import web

from tests.connection import connected
from tests.process import Child, child, command, environment, python

ODD = b"\xff\x00 no text\r\nat all\xef\xbb\xbf\n"


async def kept(it: Child, path: str) -> tuple[int, bytes]:
    async with connected(it.url) as client:
        answer = await client.ask("GET", path)
        assert answer is not None
        return answer.status, answer.body


async def bytes_of(it: Child, paste: str) -> bytes:
    """What `paste get` writes, byte for byte."""
    process = await asyncio.create_subprocess_exec(
        *python("-m", "pastebin_daemon", "paste", "get", paste, "--server", it.url),
        env=environment({}), stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    out, _ = await process.communicate()
    assert process.returncode == 0
    return out


async def test_what_is_put_is_got_byte_for_byte_and_removed_by_the_remembered_token(tmp_path: Path) -> None:
    home = {"XDG_STATE_HOME": str(tmp_path / "home")}
    async with child(tmp_path) as it:
        put = await command("paste", "put", "--server", it.url, environ=home, stdin=ODD)
        assert (put.status, put.err) == (0, "")
        paste = put.out.strip().rpartition("/")[2]
        assert put.out == f"http://127.0.0.1:8080/{paste}\n", (
            "the link that the server's public_url makes, and a newline"
        )
        assert await bytes_of(it, paste) == ODD

        tokens = tmp_path / "home" / "pastebin-daemon" / "tokens"
        assert stat.S_IMODE(tokens.stat().st_mode) == 0o600
        assert stat.S_IMODE(tokens.parent.stat().st_mode) == 0o700
        assert len(tokens.read_text().splitlines()) == 1

        removed = await command("paste", "rm", paste, "--server", it.url, environ=home)
        assert (removed.status, removed.err) == (0, "")
        assert removed.out == f"{paste} is gone there now; from caches within a minute\n"
        assert (await kept(it, f"/{paste}/raw"))[0] == 404


async def test_a_file_keeps_its_name_and_options_are_passed_on(tmp_path: Path) -> None:
    home = {"XDG_STATE_HOME": str(tmp_path / "home")}
    (tmp_path / "hello.py").write_bytes(b"print()\n")
    async with child(tmp_path) as it:
        options = ["--expires-in", "10m", "--language", "python", "--server", it.url + "/"]
        put = await command("paste", "put", str(tmp_path / "hello.py"), *options, environ=home)
        assert put.status == 0, put.err
        paste = put.out.strip().rpartition("/")[2]
        facts = json.loads((await kept(it, f"/api/v1/pastes/{paste}"))[1])
        assert (facts["title"], facts["language"], facts["size"]) == ("hello.py", "python", 8)

        named = await command("paste", "put", str(tmp_path / "hello.py"), "--title", "x y", *options, environ=home)
        paste = named.out.strip().rpartition("/")[2]
        assert json.loads((await kept(it, f"/api/v1/pastes/{paste}"))[1])["title"] == "x y"


async def test_a_token_is_used_for_the_server_and_the_paste_that_it_is_of(tmp_path: Path) -> None:
    home, other = ({"XDG_STATE_HOME": str(tmp_path / name)} for name in ("home", "other"))
    async with child(tmp_path) as it:
        pastes = []
        for body in (b"one", b"two"):
            put = await command("paste", "put", "--server", it.url, environ=home, stdin=body)
            pastes.append(put.out.strip().rpartition("/")[2])
        token = (tmp_path / "home" / "pastebin-daemon" / "tokens").read_text().splitlines()[0].split(" ")[2]

        stranger = await command("paste", "rm", pastes[0], "--server", it.url, environ=other)
        assert (stranger.status, stranger.out) == (1, "")
        assert f"no delete token of {pastes[0]} is remembered" in stranger.err
        assert "--token" in stranger.err
        wrong = await command("paste", "rm", pastes[1], "--token", token, "--server", it.url, environ=other)
        assert (wrong.status, wrong.out) == (1, "")
        assert wrong.err == "pastebin-daemon: this is not the delete token of this paste\n"
        given = await command("paste", "rm", pastes[0], "--token", token, "--server", it.url, environ=other)
        assert given.status == 0
        second = await command("paste", "rm", pastes[1], "--server", it.url, environ=home)
        assert second.status == 0


async def test_without_xdg_state_home_tokens_are_under_the_home_directory(tmp_path: Path) -> None:
    async with child(tmp_path) as it:
        home = {"HOME": str(tmp_path / "me"), "XDG_STATE_HOME": ""}
        put = await command("paste", "put", "--server", it.url, environ=home, stdin=b"hi")
        assert put.status == 0, put.err
        assert (tmp_path / "me" / ".local" / "state" / "pastebin-daemon" / "tokens").exists()


async def test_refusals_and_silence_are_told_in_one_line_with_status_1(tmp_path: Path) -> None:
    home = {"XDG_STATE_HOME": str(tmp_path / "home")}
    async with child(tmp_path, {"pastes.body_bytes_max": 10}) as it:
        large = await command("paste", "put", "--server", it.url, environ=home, stdin=b"x" * 11)
        empty = await command("paste", "put", "--server", it.url, environ=home, stdin=b"")
        absent = await command("paste", "get", "nothing", "--server", it.url)
        odd = await command("paste", "get", "../a b", "--server", it.url)
    silent = await command("paste", "get", "x", "--server", "http://127.0.0.1:1")
    for done in (large, empty, absent, odd, silent):
        assert (done.status, done.out) == (1, ""), done
        assert done.err.startswith("pastebin-daemon: ")
        assert len(done.err.splitlines()) == 1
    assert "10 bytes" in large.err
    assert "There is no paste here" in absent.err
    assert "does not answer" in silent.err


async def test_what_is_no_url_is_told_with_an_example() -> None:
    for server in ("127.0.0.1:8080", "ftp://x", "http://", "http://[::1", "http://x:y", "http://x:99999"):
        done = await command("paste", "get", "x", "--server", server)
        assert (done.status, done.out) == (1, ""), server
        assert done.err == f"pastebin-daemon: --server {server} is no URL: write one such as http://127.0.0.1:8080\n"


async def test_what_is_no_pastebin_is_told_and_a_redirect_is_no_success(tmp_path: Path) -> None:
    home = {"XDG_STATE_HOME": str(tmp_path / "home")}

    async def moved(request: web.Request) -> web.Response:
        raise web.HTTPMovedPermanently("https://elsewhere.example/")

    async def page(request: web.Request) -> web.Response:
        return web.Response(text="<p>Welcome")

    async def other_json(request: web.Request) -> web.Response:
        return web.json_response([])

    app = web.Application()
    app.router.add_post("/page/api/v1/pastes", page)
    app.router.add_post("/json/api/v1/pastes", other_json)
    app.router.add_route("*", "/{any:.*}", moved)
    async with served(app) as url:
        for path in ("page", "json"):
            done = await command("paste", "put", "--server", f"{url}/{path}", environ=home, stdin=b"hi")
            assert (done.status, done.out) == (1, ""), done
            assert done.err == f"pastebin-daemon: what answers on {url}/{path} is no pastebin\n"
        for arguments in (["put"], ["get", "x"], ["rm", "x", "--token", "y"]):
            done = await command("paste", *arguments, "--server", url, environ=home, stdin=b"hi")
            assert (done.status, done.out) == (1, ""), done
            assert done.err.startswith("pastebin-daemon: the server answered 301 ")


@asynccontextmanager
async def served(app: web.Application) -> AsyncIterator[str]:
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


async def test_a_paste_whose_token_can_not_be_remembered_is_linked_and_its_token_told(tmp_path: Path) -> None:
    home = {"XDG_STATE_HOME": f"{tmp_path}/file"}
    (tmp_path / "file").write_text("in the way")
    async with child(tmp_path) as it:
        put = await command("paste", "put", "--server", it.url, environ=home, stdin=b"hi")
        assert put.status == 0, put.err
        paste = put.out.strip().rpartition("/")[2]
        assert put.err.startswith("the delete token could not be remembered (")
        token = put.err.split()[-1]
        unknown = await command("paste", "rm", paste, "--server", it.url, environ=home)
        assert unknown.status == 1
        assert "give the token by --token" in unknown.err
        removed = await command("paste", "rm", paste, "--token", token, "--server", it.url, environ=home)
        assert removed.status == 0, removed.err
