"""The operator's commands against a daemon that runs, and without one: dead letters seen, replayed and discarded, and
pastes taken down."""

import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from pastebin_daemon import cli
from tests.connection import connected
from tests.process import Child, child, command, rows
from tests.real import poll
from tests.traffic import Edge, edge


def operator(it: Child) -> dict[str, str]:
    """The environment that a command finds the daemon by."""
    return {"PASTEBIN_ADMIN__LISTEN": it.admin.removeprefix("http://")}


async def pasted(it: Child) -> tuple[str, str]:
    async with connected(it.url) as client:
        made = await client.ask("POST", "/", b"hi")
        assert made is not None
        assert made.status == 201
        return made.headers["location"].rpartition("/")[2], made.headers["x-delete-token"]


async def status(it: Child, paste: str) -> int:
    async with connected(it.url) as client:
        answer = await client.ask("GET", f"/{paste}/raw")
        assert answer is not None
        return answer.status


def dead(directory: Path) -> list[int]:
    return [job for (job,) in rows(directory / "state" / "pastebin.sqlite", "select id from dead_letters order by id")]


@asynccontextmanager
async def with_dead_letters(directory: Path, count: int) -> AsyncIterator[tuple[Child, Edge, list[int], list[str]]]:
    """A daemon whose edge has refused so many purges for good: the jobs and the pastes that they are of."""
    async with edge() as cache:
        cache.refusals.extend([400] * count)
        async with child(directory, cache.settings() | {"outbox.poll_interval": "50ms"}) as it:
            pastes = []
            for number in range(count):
                paste, token = await pasted(it)
                async with connected(it.url) as client:
                    gone = await client.ask("DELETE", f"/api/v1/pastes/{paste}", headers={"X-Delete-Token": token})
                    assert gone is not None
                    assert gone.status == 204
                pastes.append(paste)

                async def buried(wanted: int = number + 1) -> bool:
                    return len(dead(directory)) == wanted

                await poll(buried, "the refused purge is a dead letter")
            yield it, cache, dead(directory), pastes


async def test_a_dead_letter_is_listed_and_shown_with_its_reason_and_its_error(tmp_path: Path) -> None:
    async with with_dead_letters(tmp_path, 1) as (it, _, (job,), (paste,)):
        listed = await command("jobs", "list", environ=operator(it))
        assert (listed.status, listed.err) == (0, "")
        first = listed.out.splitlines()[0]
        assert first.split()[:6] == [str(job), "dead", "permanent", "edge-purge", "attempts", "1"]
        assert "400" in first

        as_json = json.loads((await command("jobs", "list", "--json", environ=operator(it))).out)
        assert (as_json[0]["id"], as_json[0]["state"]) == (job, "dead")
        waiting = {found["kind"] for found in as_json[1:]}
        assert waiting <= {"edge-purge", "object-delete"}
        assert {found["state"] for found in as_json[1:]} <= {"pending", "leased"}

        shown = await command("jobs", "show", str(job), environ=operator(it))
        assert shown.status == 0
        facts = dict(line.split(maxsplit=1) for line in shown.out.splitlines())
        assert (facts["id"], facts["kind"], facts["reason"]) == (str(job), "edge-purge", "permanent")
        assert json.loads(facts["payload"]) == {"paste": paste}
        as_json = json.loads((await command("jobs", "show", str(job), "--json", environ=operator(it))).out)
        assert (as_json["id"], as_json["attempts"], as_json["effect_done_ms"]) == (job, 1, None)


async def test_a_job_that_is_not_there_is_said_to_be_done_or_never_to_have_been(tmp_path: Path) -> None:
    async with child(tmp_path) as it:
        nothing = await command("jobs", "list", environ=operator(it))
        assert (nothing.status, nothing.out) == (0, "nothing waits, and nothing was given up\n")
        assert (await command("jobs", "list", "--json", environ=operator(it))).out == "[]\n"
        shown = await command("jobs", "show", "7", environ=operator(it))
        assert (shown.status, shown.out) == (1, "")
        assert shown.err == "pastebin-daemon: there is no such job: it is done, or never was\n"


async def test_replayed_dead_letters_run_again_under_their_ids(tmp_path: Path) -> None:
    async with with_dead_letters(tmp_path, 3) as (it, cache, (one, two, three), pastes):
        replayed = await command("jobs", "replay", str(one), environ=operator(it))
        assert (replayed.status, replayed.out, replayed.err) == (0, f"{one} replayed\n", "")

        async def purged(count: int) -> bool:
            return sum(cache.purged[paste] > 0 for paste in pastes) == count

        await poll(lambda: purged(1), "the replayed purge is done")
        assert dead(tmp_path) == [two, three]

        others = await command("jobs", "replay", "--all-dead", "--json", environ=operator(it))
        assert json.loads(others.out) == {"replayed": {str(two): two, str(three): three}}
        await poll(lambda: purged(3), "the others are done")
        assert dead(tmp_path) == []


async def test_what_is_no_dead_letter_makes_replay_and_discard_fail_and_the_others_are_done(tmp_path: Path) -> None:
    async with with_dead_letters(tmp_path, 2) as (it, _, (one, two), _):
        replayed = await command("jobs", "replay", str(one), "999", environ=operator(it))
        assert (replayed.status, replayed.out) == (1, f"{one} replayed\n")
        assert replayed.err == "999 is no dead letter\n"

        discarded = await command("jobs", "discard", str(two), "999", environ=operator(it))
        assert (discarded.status, discarded.out) == (1, f"{two} discarded\n")
        assert discarded.err == "999 is no dead letter\n"
        assert dead(tmp_path) == []
        again = await command("jobs", "discard", str(two), environ=operator(it))
        assert (again.status, again.out, again.err) == (1, "", f"{two} is no dead letter\n")


async def test_without_a_daemon_the_operator_is_told_to_start_it() -> None:
    nobody = {"PASTEBIN_ADMIN__LISTEN": "127.0.0.1:1"}
    for arguments in (
        ["jobs", "list"],
        ["jobs", "show", "1"],
        ["jobs", "replay", "1"],
        ["jobs", "discard", "1"],
        ["takedown", "x", "--reason", "y"],
    ):
        done = await command(*arguments, environ=nobody)
        assert (done.status, done.out) == (1, ""), arguments
        assert done.err.startswith("pastebin-daemon: no daemon answers on 127.0.0.1:1 ")
        assert done.err.endswith("start the daemon first\n")


async def test_without_a_daemon_behind_its_unix_socket_the_operator_is_told_to_start_it(tmp_path: Path) -> None:
    done = await command("jobs", "list", environ={"PASTEBIN_ADMIN__LISTEN": f"unix:{tmp_path}/admin"})
    assert done.status == 1
    assert done.err.endswith("start the daemon first\n")


def test_an_operator_without_a_name_is_known_by_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container that runs under a bare number, where the system knows no name."""

    def nameless() -> str:
        raise KeyError("getpwuid(): uid not found")

    monkeypatch.setattr("getpass.getuser", nameless)
    assert cli._who() == f"user {os.getuid()}"


async def test_what_answers_in_the_place_of_the_daemon_is_told_apart(tmp_path: Path) -> None:
    async with child(tmp_path) as it:
        public = {"PASTEBIN_ADMIN__LISTEN": it.url.removeprefix("http://")}
        done = await command("jobs", "list", environ=public)
        assert (done.status, done.out) == (1, "")
        assert len(done.err.splitlines()) == 1


async def test_a_taken_down_paste_is_gone_and_its_jobs_are_there(tmp_path: Path) -> None:
    async with edge() as cache, child(tmp_path, cache.settings()) as it:
        paste, _ = await pasted(it)
        assert await status(it, paste) == 200
        done = await command("takedown", paste, "--reason", "a court said so", environ=operator(it))
        assert (done.status, done.err) == (0, "")
        assert done.out == f"{paste} is gone here now; from caches within a minute\n"
        assert await status(it, paste) == 404

        async def purged() -> bool:
            return cache.purged[paste] > 0

        await poll(purged, "the caches drop it")
        assert "a court said so" in it.log()

        again = await command("takedown", paste, "--reason", "twice", environ=operator(it))
        assert (again.status, again.out) == (1, "")
        assert again.err.startswith("pastebin-daemon: There is no paste here")


async def test_the_operator_reaches_an_admin_listener_on_a_unix_socket(tmp_path: Path) -> None:
    async with child(tmp_path, {"admin.listen": f"unix:{tmp_path}/admin"}) as it:
        paste, _ = await pasted(it)
        assert (await command("takedown", paste, "--reason", "r", environ=operator(it))).status == 0
        assert (await command("jobs", "list", environ=operator(it))).status == 0
