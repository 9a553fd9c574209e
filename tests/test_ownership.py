"""One process per database, on a file system that can hold one; and each refusal says what to do about it."""

import fcntl
import os
import signal
import stat
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from pastebin_daemon.database import hold_directory, ownership
from pastebin_daemon.errors import Held, StartError
from tests.process import ROOT, child, environment, python
from tests.real import require

MOUNTINFO = "{id} 1 0:{id} / {mount} rw,relatime shared:1 - {kind} source rw\n"


def serve(directory: Path, *wrapper: str) -> "subprocess.CompletedProcess[str]":
    """Start the daemon as a user would, to see it refuse."""
    settings = {"storage.directory": directory, "server.listen": "127.0.0.1:0", "admin.listen": "127.0.0.1:0"}
    return subprocess.run(
        [*wrapper, *python("-m", "pastebin_daemon", "serve")],
        cwd=ROOT, env=environment(settings), capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


def in_a_namespace(*script: str) -> list[str]:
    """A command that runs another after a few shell commands, with mounts of its own."""
    who = ["--mount"] if os.geteuid() == 0 else ["--user", "--map-root-user", "--mount"]
    return [require("unshare"), *who, "sh", "-c", 'set -e; {}; exec "$@"'.format("; ".join(script)), "sh"]


def hold(directory: Path) -> None:
    with hold_directory(directory):
        pass


def refusal(directory: Path) -> StartError:
    with pytest.raises(StartError) as refused:
        hold(directory)
    return refused.value


# --- one process


def test_a_directory_is_held_by_one_and_let_go_at_the_end(tmp_path: Path) -> None:
    directory = tmp_path / "state"
    with hold_directory(directory):
        error = refusal(directory)
    assert isinstance(error, Held)
    assert f"another pastebin-daemon holds {directory}" in str(error)
    hold(directory)


def test_a_failure_inside_lets_the_directory_go(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), hold_directory(tmp_path):
        raise ZeroDivisionError
    hold(tmp_path)


def test_a_second_daemon_ends_with_75_and_says_why_in_one_line(tmp_path: Path) -> None:
    with hold_directory(tmp_path / "state"):
        ended = serve(tmp_path / "state")
    assert ended.returncode == 75
    assert ended.stderr.splitlines()[-1].startswith(f"pastebin-daemon: another pastebin-daemon holds {tmp_path}/state")
    assert "Traceback" not in ended.stderr


async def test_a_killed_daemon_holds_nothing(tmp_path: Path) -> None:
    async with child(tmp_path) as it:
        assert isinstance(refusal(tmp_path / "state"), Held)
        it.send(signal.SIGKILL)
        assert await it.ended() == -signal.SIGKILL
    hold(tmp_path / "state")


def test_a_lock_is_not_inherited_by_programs_that_are_started(tmp_path: Path) -> None:
    with hold_directory(tmp_path):
        open_files = os.listdir("/proc/self/fd")
        locks = [int(name) for name in open_files if _path_of(name) == str(tmp_path / "lock")]
        assert locks
        assert not any(os.get_inheritable(number) for number in locks)


def _path_of(name: str) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{name}")
    except OSError:
        return ""


# --- a directory that can be used


def test_a_missing_directory_is_made_for_this_user_alone(tmp_path: Path) -> None:
    with hold_directory(tmp_path / "a" / "b"):
        assert stat.S_IMODE((tmp_path / "a" / "b").stat().st_mode) == 0o700


def test_a_file_in_the_place_of_the_directory_is_named(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("")
    error = str(refusal(tmp_path / "state"))
    assert error.startswith(f"the state directory {tmp_path}/state can't be used: ")
    assert error.endswith("; make it writable")


def test_a_read_only_directory_is_refused_with_its_name_and_the_remedy(tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir()
    mounted = in_a_namespace(f"mount -t tmpfs none {state}", f"mount -o remount,ro {state}")
    ended = serve(state, *mounted)
    assert ended.returncode == 1
    assert ended.stderr.splitlines() == [
        f"pastebin-daemon: the state directory {state} can't be used: Read-only file system; make it writable"
    ]


def test_a_lock_that_can_not_be_taken_here_is_no_traceback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(37, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    assert str(refusal(tmp_path)) == f"{tmp_path} can't be locked (No locks available): use a local disk"


# --- a file system that can be used


@contextmanager
def mounted(monkeypatch: pytest.MonkeyPatch, directory: Path, mounts: Sequence[tuple[str, str]]) -> Iterator[None]:
    table = directory / "mountinfo"
    lines = [MOUNTINFO.format(id=n, mount=mount, kind=kind) for n, (mount, kind) in enumerate(mounts, start=20)]
    table.write_bytes(os.fsencode("".join(lines)))
    with monkeypatch.context() as patch:
        patch.setattr(ownership, "MOUNTS", table)
        yield


@pytest.mark.parametrize("kind", ["nfs", "nfs4", "cifs", "smb3", "9p", "ceph", "fuse.sshfs", "glusterfs"])
def test_a_network_file_system_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    state = tmp_path / "state"
    with mounted(monkeypatch, tmp_path, [("/", "ext4"), (str(tmp_path), kind)]):
        error = str(refusal(state))
    assert f"{state} is on a network file system ({kind})" in error
    assert error.endswith("use a local disk")
    assert not (state / "lock").exists()


@pytest.mark.parametrize(
    ("mounts", "refused"),
    [
        ([("/", "nfs"), ("{parent}", "ext4")], False),
        ([("/", "ext4"), ("{parent}", "nfs"), ("{parent}", "ext4")], False),
        ([("/", "ext4"), ("{parent}", "ext4"), ("{parent}", "nfs")], True),
        ([("/", "ext4"), ("{parent}/stat", "nfs")], False),
        ([("/", "nfs")], True),
        ([("/", "ext4"), ("{parent}/state", "fuse.s3fs")], True),
    ],
    ids=["nearest is local", "mounted over by a local one", "mounted over by a network", "only alike in name",
         "the root itself", "the directory itself"],
)  # fmt: skip
def test_the_mount_that_counts_is_the_nearest_and_the_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mounts: list[tuple[str, str]], refused: bool
) -> None:
    table = [(mount.format(parent=tmp_path), kind) for mount, kind in mounts]
    with mounted(monkeypatch, tmp_path, table):
        if refused:
            assert "network file system" in str(refusal(tmp_path / "state"))
        else:
            hold(tmp_path / "state")


@pytest.mark.parametrize("name", ["with space", "größe", "back\\slash", "tab\tnew\nline", "\udcff not text"])
def test_a_mount_is_found_by_whatever_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    share = tmp_path / name
    share.mkdir()
    escaped = str(share)
    for character in "\\ \t\n":  # as the kernel writes them
        escaped = escaped.replace(character, f"\\{ord(character):03o}")
    with mounted(monkeypatch, tmp_path, [("/", "ext4"), (escaped, "nfs")]):
        assert "network file system" in str(refusal(share / "state"))


def test_a_link_does_not_hide_a_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    share, link = tmp_path / "share", tmp_path / "link"
    share.mkdir()
    link.symlink_to(share)
    with mounted(monkeypatch, tmp_path, [("/", "ext4"), (str(share), "nfs")]):
        assert "network file system" in str(refusal(link / "state"))


@pytest.mark.parametrize("content", [None, b"", b"what is this\n", b"\xff - \n"])
def test_what_can_not_be_told_stops_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes | None
) -> None:
    table = tmp_path / "mountinfo"
    if content is not None:
        table.write_bytes(content)
    monkeypatch.setattr(ownership, "MOUNTS", table)
    hold(tmp_path / "state")


def test_the_real_table_of_mounts_is_understood(tmp_path: Path) -> None:
    assert ownership._file_system(Path("/proc")) == "proc"
    assert ownership._file_system(tmp_path) != ""
