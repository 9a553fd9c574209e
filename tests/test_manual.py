"""The manual's examples, each as a person would run it: in a shell, with this host's own URL, by `curl`."""

import asyncio
import json
import re
import subprocess
from pathlib import Path

from tests.real import free_port
from tests.support import Harness, running

LINES = re.compile(r"^  ((?:.*\\\n)*.*)$", re.MULTILINE)


def examples(manual: str) -> list[str]:
    """The indented commands, each with the lines that it goes on with."""
    return [" ".join(part.strip() for part in match[1].split("\\\n")) for match in LINES.finditer(manual)]


async def shell(command: str, directory: Path) -> str:
    """What it prints; the loop, in which the daemon runs, goes on meanwhile."""
    ran = await asyncio.to_thread(
        subprocess.run, ["bash", "-c", command], cwd=directory, capture_output=True, timeout=30, check=False
    )
    assert ran.returncode == 0, (command, ran.stderr)
    return ran.stdout.decode()


async def raw(it: Harness, link: str) -> bytes:
    assert link == f"{it.url}/{link[-19:-1]}\n", "the link and one newline"
    return (await it.get(f"{link[-19:-1]}/raw"))[1]


async def test_every_example_of_the_manual_does_what_it_says(tmp_path: Path) -> None:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    (tmp_path / "notes.txt").write_bytes(b"two\r\nlines\n")
    settings = {"server.public_url": url}
    async with running(tmp_path, settings=settings, port=port) as it:
        manual = await shell(f"curl -s {url}", tmp_path)
        assert manual == await shell(f"curl -s {url}/help", tmp_path)
        made = await it.paste(b"of the manual\n", title="its name.txt")
        filled = {"ID": made.id, "TOKEN": made.token, "SECRET": "a-secret-of-mine"}
        ran = []
        for example in examples(manual):
            command = example.replace("curl ", "curl -sS ")
            for word, value in filled.items():
                command = re.sub(rf"\b{word}\b", value, command)
            said = await shell(command, tmp_path)
            ran.append(example)
            if "DELETE" in example:
                assert (await it.get(made.id))[0] == 404
            elif "/download" in example:
                assert (tmp_path / "its name.txt").read_bytes() == b"of the manual\n"
            elif "/raw" in example:
                assert said == "of the manual\n"
            elif "application/json" in example:
                told = json.loads(said)
                assert await raw(it, told["url"] + "\n") == b"hi"
                assert json.loads(await shell(command, tmp_path)) == told, "sending it again is safe"
            elif "notes.txt" in example:
                assert await raw(it, said) == b"two\r\nlines\n"
            else:
                assert await raw(it, said) == b"hi\n"
        assert len(ran) == 9
        assert await it.rows("select count(*) from pastes where language = 'python'") == [(1,)]
