"""The commands as they are typed: exit statuses, what they say on which stream, and that every refusal has a remedy."""

import asyncio
import json
import os
import signal
import sys
from pathlib import Path

import pytest

from tests.process import ROOT, child, command, environment, python

HELD, MISCONFIGURED = 75, 78
FIVE_MISTAKES = """
[server]
listen = "everywhere"
grace = "2h"

[pastes]
expiry_defualt = "1d"

[outbox]
lease = "30s"
effect_timeout = "20s"

[bodies]
store = "tape"
"""


async def test_help_names_every_command(tmp_path: Path) -> None:
    done = await command("--help")
    assert (done.status, done.err) == (0, "")
    assert done.out.startswith("Usage: pastebin-daemon ")
    listed = {line.split()[0] for line in done.out.partition("Commands:\n")[2].splitlines() if line.strip()}
    assert listed >= {"serve", "check-config", "jobs", "paste", "takedown"}


@pytest.mark.parametrize(
    "arguments",
    [
        ["sreve"],
        ["serve", "--prot", "80"],
        ["takedown", "x"],
        ["jobs", "replay"],
        ["jobs", "replay", "1", "--all-dead"],
        ["jobs", "discard"],
        ["jobs", "show", "one"],
        ["paste", "get"],
        ["paste", "put", "/no/such/file"],
    ],
    ids=" ".join,
)
async def test_wrong_usage_is_told_with_status_2(arguments: list[str]) -> None:
    done = await command(*arguments)
    assert (done.status, done.out) == (2, "")
    assert done.err.startswith("Usage: pastebin-daemon ")


async def test_check_config_names_five_mistakes_at_once_each_with_its_remedy(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text(FIVE_MISTAKES)
    done = await command("check-config", "--config", str(path))
    assert (done.status, done.out) == (MISCONFIGURED, "")
    *problems, total = done.err.splitlines()
    assert total == "5 problems"
    named = {
        "[server] listen",
        "[server] grace",
        "[pastes] expiry_defualt",
        "[outbox] effect_timeout",
        "[bodies] store",
    }
    assert {key for key in named for problem in problems if problem.startswith(key)} == named
    for remedy in ('"127.0.0.1:8080"', '"80s"', "expiry_default", '"15s"', '"s3"'):
        assert sum(remedy in problem for problem in problems) == 1, (remedy, problems)


async def test_check_config_says_what_is_good(tmp_path: Path) -> None:
    assert (await command("check-config")).out == "the embedded defaults are good (no file was named)\n"
    by_option = await command("check-config", "--config", "config.example.toml")
    by_environment = await command("check-config", environ={"PASTEBIN_CONFIG": "config.example.toml"})
    assert by_option.status == by_environment.status == 0
    assert by_option.out == by_environment.out == "the configuration is good\n"


async def test_a_configuration_file_that_is_not_there_is_a_wrong_configuration(tmp_path: Path) -> None:
    for arguments in (["serve"], ["check-config"], ["jobs", "list"], ["takedown", "x", "--reason", "y"]):
        done = await command(*arguments, "--config", f"{tmp_path}/none.toml")
        assert done.status == MISCONFIGURED, arguments
        assert f"{tmp_path}/none.toml" in done.err


async def test_serve_refuses_a_wrong_configuration_and_leaves_nothing_behind(tmp_path: Path) -> None:
    wrong = {"PASTEBIN_STORAGE__DIRECTORY": f"{tmp_path}/state", "PASTEBIN_INBOX__RETENTION": "1d"}
    done = await command("serve", environ=wrong)
    assert (done.status, done.out) == (MISCONFIGURED, "")
    assert "[inbox] retention" in done.err
    assert '"8d"' in done.err
    assert os.listdir(tmp_path) == []


async def test_serve_says_where_it_listens_in_one_line_and_nothing_else_on_its_output(tmp_path: Path) -> None:
    settings = {"server.listen": "127.0.0.1:0", "admin.listen": "127.0.0.1:0", "storage.directory": f"{tmp_path}/state"}
    process = await asyncio.create_subprocess_exec(
        *python("-m", "pastebin_daemon", "serve"),
        cwd=ROOT, env=environment(settings), stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        assert process.stderr is not None
        async with asyncio.timeout(60):
            line = (await process.stdout.readline()).decode()
            process.send_signal(signal.SIGTERM)
            rest, log = await process.stdout.read(), await process.stderr.read()
            assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert line.startswith("pastebin-daemon: public on http://127.0.0.1:")
    assert f"state in {tmp_path}/state" in line
    assert rest == b""
    assert [json.loads(entry)["event"] for entry in log.splitlines()] == [
        "daemon.started",
        "daemon.stopping",
        "daemon.stopped",
    ]


async def test_a_second_daemon_on_the_directory_is_refused_with_status_75(tmp_path: Path) -> None:
    async with child(tmp_path) as first:
        done = await command("serve", environ={"PASTEBIN_STORAGE__DIRECTORY": f"{tmp_path}/state"})
        assert (done.status, done.out) == (HELD, "")
        assert done.err == (
            f"pastebin-daemon: another pastebin-daemon holds {tmp_path}/state: "
            "stop it, or set another [storage] directory\n"
        )
        first.send(signal.SIGTERM)
        assert await first.ended() == 0


async def test_a_state_directory_that_can_not_be_one_is_status_1_with_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("a file")
    done = await command("serve", environ={"PASTEBIN_STORAGE__DIRECTORY": f"{tmp_path}/state"})
    assert (done.status, done.out) == (1, "")
    assert done.err.startswith(f"pastebin-daemon: the state directory {tmp_path}/state can't be used: ")
    assert len(done.err.splitlines()) == 1


async def test_a_damaged_database_is_status_1_with_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "pastebin.sqlite").write_bytes(b"no database at all, and long enough to be seen as none" * 99)
    done = await command("serve", environ={"PASTEBIN_STORAGE__DIRECTORY": f"{tmp_path}/state"})
    assert (done.status, done.out) == (1, "")
    assert "restore it from a backup" in done.err


async def test_the_console_script_is_the_same_command() -> None:
    script = Path(sys.executable).parent / "pastebin-daemon"
    process = await asyncio.create_subprocess_exec(script, "--help", stdout=asyncio.subprocess.PIPE)
    out, _ = await process.communicate()
    assert process.returncode == 0
    assert out.decode() == (await command("--help")).out
