"""The secret that delete tokens come from: nobody else reads it, it is on the disk before the first answer, and no token
that was given depends on it."""

import os
import stat
from pathlib import Path

import pytest

from pastebin_daemon.daemon import assembled
from pastebin_daemon.errors import StartError
from pastebin_daemon.secret import BYTES_MIN, delete_token_secret
from tests.fakes import FakeClock
from tests.support import Harness, Made, configured, running

KEY = "a-key-of-the-client"


async def paste_under_key(it: Harness) -> Made:
    headers = {"Idempotency-Key": KEY, "Content-Type": "x/y"}
    async with it.http.post(f"{it.url}/api/v1/pastes", data=b"hi", headers=headers) as answer:
        assert answer.status == 201
        made = await answer.json()
    return Made(made["id"], made["delete_token"], f"{it.url}/{made['id']}")


def test_the_first_start_makes_a_file_for_this_user_alone_and_later_ones_read_it(tmp_path: Path) -> None:
    secret = delete_token_secret(None, tmp_path)
    assert len(secret) >= 32
    assert stat.S_IMODE((tmp_path / "secret").stat().st_mode) == 0o600
    assert [file.name for file in tmp_path.iterdir()] == ["secret"]
    assert delete_token_secret(None, tmp_path) == secret
    (other := tmp_path / "other").mkdir()
    assert delete_token_secret(None, other) != secret


def test_it_is_never_readable_by_others_not_even_for_an_instant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    modes: list[int] = []
    sync = os.fsync

    def look(number: int) -> None:
        if not stat.S_ISDIR(os.fstat(number).st_mode):
            modes.append(stat.S_IMODE(os.fstat(number).st_mode))
        sync(number)

    monkeypatch.setattr(os, "fsync", look)
    before = os.umask(0)
    try:
        delete_token_secret(None, tmp_path)
    finally:
        os.umask(before)
    assert modes == [0o600]


def test_its_bytes_are_synced_then_named_and_then_the_name_is_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    sync, rename = os.fsync, Path.rename

    def note_sync(number: int) -> None:
        path = os.readlink(f"/proc/self/fd/{number}")
        size = os.fstat(number).st_size if os.path.isfile(path) else 0
        seen.append(f"sync {os.path.relpath(path, tmp_path)}" + (f" of {size} bytes" if size else ""))
        sync(number)

    def note_rename(old: Path, new: Path) -> Path:
        seen.append(f"{old.name} is named {new.name}")
        return rename(old, new)

    monkeypatch.setattr(os, "fsync", note_sync)
    monkeypatch.setattr(Path, "rename", note_rename)
    delete_token_secret(None, tmp_path)
    assert seen == ["sync secret.new of 65 bytes", "secret.new is named secret", "sync ."]
    seen.clear()
    delete_token_secret(None, tmp_path)
    assert seen == []


@pytest.mark.parametrize("fails", ["fsync", "rename"])
def test_what_could_not_be_made_durable_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os if fails == "fsync" else Path, fails, refuse)
        with pytest.raises(StartError, match="secret can't be read or made: Input/output error"):
            delete_token_secret(None, tmp_path)
    assert not (tmp_path / "secret").exists()
    assert delete_token_secret(None, tmp_path), "what a broken start left is in nobody's way"


async def test_the_secret_is_there_before_anything_listens(tmp_path: Path) -> None:
    async with assembled(configured(tmp_path), {}, clock=FakeClock()):
        assert (tmp_path / "state" / "secret").exists()


def test_the_credential_wins_and_makes_no_file(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("f" * 32)
    assert delete_token_secret(b"c" * 32 + b"\n", tmp_path) == b"c" * 32
    (tmp_path / "secret").unlink()
    assert delete_token_secret(b"c" * 32, tmp_path) == b"c" * 32
    assert not (tmp_path / "secret").exists()


async def test_a_daemon_takes_systemds_credential(tmp_path: Path) -> None:
    credentials = tmp_path / "credentials"
    credentials.mkdir()
    (credentials / "delete-token-secret").write_text("c" * 32)
    async with assembled(configured(tmp_path), {"CREDENTIALS_DIRECTORY": str(credentials)}, clock=FakeClock()):
        assert not (tmp_path / "state" / "secret").exists()


@pytest.mark.parametrize("short", [b"", b"\n", b"x" * (BYTES_MIN - 1), b"  " + b"x" * (BYTES_MIN - 1) + b" \n"])
def test_a_short_secret_is_refused_wherever_it_is_from(tmp_path: Path, short: bytes) -> None:
    with pytest.raises(StartError, match=f"credential delete-token-secret is shorter than {BYTES_MIN} bytes"):
        delete_token_secret(short, tmp_path)
    (tmp_path / "secret").write_bytes(short)
    with pytest.raises(StartError, match=f"{tmp_path}/secret is shorter than {BYTES_MIN} bytes: put a longer"):
        delete_token_secret(None, tmp_path)
    assert (tmp_path / "secret").read_bytes() == short, "whatever it is, it is not thrown away"


def test_a_secret_that_can_not_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "secret").mkdir()
    with pytest.raises(StartError, match=f"{tmp_path}/secret can't be read or made: .*; make it readable"):
        delete_token_secret(None, tmp_path)


async def test_a_replay_after_a_restart_gives_the_same_token(tmp_path: Path) -> None:
    async with running(tmp_path) as it:
        first = await paste_under_key(it)
    async with running(tmp_path) as it:
        again = await paste_under_key(it)
        assert (again.id, again.token) == (first.id, first.token)
        await it.delete(again)


async def test_a_token_that_was_given_survives_the_loss_of_the_secret(tmp_path: Path) -> None:
    async with running(tmp_path) as it:
        made = await it.paste(b"hi")
        kept = await it.paste(b"hello")
    (tmp_path / "state" / "secret").unlink()
    async with running(tmp_path) as it:
        assert await it.get(f"{made.id}/raw") == (200, b"hi")
        assert await it.try_delete(Made(kept.id, made.token, kept.url)) == 403
        await it.delete(made)
        await it.delete(await it.paste(b"new"))
