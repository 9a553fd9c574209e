"""By the system calls of a running daemon: what it answers is on the disk before the first byte of the answer leaves.

For a create, in this order: the upload's record written to the WAL of the metadata and synced; the body written to the
WAL of the bodies and synced; the paste's row written and synced; "201" sent. For a delete: the jobs, which are in the
transaction that removes the row, written and synced; "204" sent. A write is told by what it holds (an id, a title), an
answer by its connection, so that each request is judged alone, also among others. With `synchronous=NORMAL`, where a
power cut undoes what was answered, the same judgement is a violation for every answer.
"""

import asyncio
import re
import signal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.connection import Connection, connected
from tests.process import Child, child
from tests.real import require

CALLS = "fsync,fdatasync,pwrite64,write,writev,sendto,sendmsg"
LINE = re.compile(r"(\d+) +(?:<\.\.\. (\w+) resumed>)?(.*)")
METADATA, BODIES = "/pastebin.sqlite-wal", "/bodies.sqlite-wal"


@dataclass(frozen=True)
class Call:
    """`began` and `ended` are places in the trace."""

    began: int
    ended: int
    text: str

    def is_write(self, file: str, holding: str) -> bool:
        return self.text.startswith("pwrite64(") and f"{file}>" in self.text[:300] and holding in self.text

    def is_sync(self, file: str) -> bool:
        return re.match(rf"f(?:data)?sync\(\d+<[^>]*{re.escape(file)}>\)\s+= 0", self.text) is not None

    def is_answer(self, port: int, status: int) -> bool:
        """Whether it sends the first bytes of an answer to the client on that port."""
        return re.match(rf'\w+\(\d+<TCP:\[[^]]*->127\.0\.0\.1:{port}\]>.*?"HTTP/1\.1 {status} ', self.text) is not None


def calls(trace: str) -> Iterator[Call]:
    """The calls in the order of their end, those put together that strace shows in two lines."""
    unfinished: dict[str, tuple[int, str]] = {}
    for place, line in enumerate(trace.splitlines()):
        found = LINE.fullmatch(line)
        assert found, line[:200]
        thread, resumed, text = found.groups()
        began, before = unfinished.pop(thread) if resumed else (place, "")
        if text.endswith("<unfinished ...>"):
            unfinished[thread] = (began, before + text.removesuffix(" <unfinished ...>"))
        else:
            yield Call(began, place, before + text)


@dataclass(frozen=True)
class Step:
    """What must be on the disk: a write to `file` that holds `mark`, and then a sync of that file."""

    file: str
    mark: str


@dataclass(frozen=True)
class Request:
    """What a client has seen, and what must have come before it, in this order."""

    port: int
    status: int
    steps: Sequence[Step]


def violations(trace: Sequence[Call], request: Request) -> list[str]:
    """What came too late for the request: nothing, when all is well."""
    after, wrong = -1, []
    (answer,) = [call for call in trace if call.is_answer(request.port, request.status)]
    for step in request.steps:
        write = next(call for call in trace if call.is_write(step.file, step.mark))
        if write.began <= after:
            wrong.append(f"{step} was written too early")
        synced = [call.ended for call in trace if call.is_sync(step.file) and call.began > write.ended]
        after = min(synced, default=len(trace) * 1000)
        if after >= answer.began:
            wrong.append(f"{request.status} was sent before {step} was synced")
    return wrong


async def create(it: Child, name: str) -> tuple[Request, str, str]:
    """The request, the paste's id and its token. Title and body bear the name."""
    async with connected(it.url) as client:
        made = await client.ask("POST", f"/?title=title-of-{name}", f"body of {name}".encode())
        assert made is not None
        assert made.status == 201
        paste = made.headers["location"].rpartition("/")[2]
        steps = [Step(METADATA, paste), Step(BODIES, f"body of {name}"), Step(METADATA, f"title-of-{name}")]
        return Request(port(client), 201, steps), paste, made.headers["x-delete-token"]


async def delete(it: Child, paste: str, token: str) -> Request:
    async with connected(it.url) as client:
        gone = await client.ask("DELETE", f"/api/v1/pastes/{paste}", headers={"X-Delete-Token": token})
        assert gone is not None
        assert gone.status == 204
        return Request(port(client), 204, [Step(METADATA, rf"\"paste\":\"{paste}\"")])


def port(client: Connection) -> int:
    number: int = client.writer.get_extra_info("sockname")[1]
    return number


async def seen(it: Child) -> list[Request]:
    """Some creates and deletes one after the other, and then some at once."""
    requests = []
    for name in ("first", "second", "third"):
        made, paste, token = await create(it, name)
        requests += [made, await delete(it, paste, token)]
    some = await asyncio.gather(*(create(it, f"number-{number}-") for number in range(8)))
    requests += [made for made, _, _ in some]
    requests += await asyncio.gather(*(delete(it, paste, token) for _, paste, token in some))
    return requests


async def traced(directory: Path, *options: str) -> tuple[list[Call], list[Request]]:
    """The calls of a daemon, and the requests that it answered meanwhile."""
    path = directory / "trace"
    strace = [require("setpriv"), "--pdeathsig", "KILL", "--"]
    strace += [
        require("strace"),
        "-f",
        "-yy",
        "-s",
        "5000",
        "-e",
        f"trace={CALLS}",
        "-e",
        "signal=none",
        "-o",
        str(path),
    ]
    async with child(directory, wrapper=strace, options=options) as it:
        requests = await seen(it)
        it.send(signal.SIGTERM, pid=tracee(it.process.pid))
        assert await it.ended() == 0, it.log()
    return list(calls(path.read_text(errors="replace"))), requests


def tracee(strace: int) -> int:
    (pid,) = Path(f"/proc/{strace}/task/{strace}/children").read_text().split()
    return int(pid)


async def test_what_is_answered_was_synced_before_the_first_byte_of_the_answer(tmp_path: Path) -> None:
    trace, requests = await traced(tmp_path)
    assert len(requests) == 22
    assert [wrong for request in requests for wrong in violations(trace, request)] == []


async def test_without_full_syncs_every_answer_is_found_to_come_too_early(tmp_path: Path) -> None:
    trace, requests = await traced(tmp_path, "--synchronous", "normal")
    assert all(violations(trace, request) for request in requests)


@pytest.mark.parametrize(
    ("order", "is_right"),
    [
        (["body", "sync body", "row", "sync row", "answer"], True),
        (["body", "sync body", "row", "unfinished sync row", "resumed", "answer"], True),
        (["body", "row", "sync row", "sync body", "answer"], False),
        (["body", "sync body", "row", "answer", "sync row"], False),
        (["body", "sync body", "sync row", "row", "answer"], False),
        (["sync body", "body", "row", "sync row", "answer"], False),
        (["body", "sync body", "row", "unfinished sync row", "answer", "resumed"], False),
        (["body", "sync body", "unfinished sync row", "row", "resumed", "answer"], False),
    ],
)
def test_the_judge_knows_right_from_wrong(order: list[str], is_right: bool) -> None:
    lines = {
        "body": '1 pwrite64(9</d/bodies.sqlite-wal>, "\\0BODY", 4096, 56) = 4096',
        "row": '2 pwrite64(8</d/pastebin.sqlite-wal>, "\\0TITLE", 4096, 56) = 4096',
        "sync body": "1 fdatasync(9</d/bodies.sqlite-wal>) = 0",
        "sync row": "3 fdatasync(8</d/pastebin.sqlite-wal>) = 0",
        "unfinished sync row": "3 fdatasync(8</d/pastebin.sqlite-wal> <unfinished ...>",
        "resumed": "3 <... fdatasync resumed>) = 0",
        "answer": '1 write(20<TCP:[127.0.0.1:8080->127.0.0.1:4711]>, "HTTP/1.1 201 Created\\r\\n", 90) = 90',
    }
    trace = list(calls("\n".join(lines[name] for name in order)))
    request = Request(4711, 201, [Step(BODIES, "BODY"), Step(METADATA, "TITLE")])
    assert (violations(trace, request) == []) is is_right
