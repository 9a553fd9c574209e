"""The README and reality: its examples run and print what it says, and what it names is there.

Marked blocks: `<!-- run -->` and `<!-- tests -->` before the two commands for a fresh machine, `<!-- example -->` before
each block of bash that is run here against a daemon. In those, the lines that begin with `#=> ` are what the block prints,
in this order, where `…` stands for anything.
"""

import asyncio
import re
import subprocess
import tomllib
from pathlib import Path

import click
import pytest
from prometheus_client.metrics_core import Metric

from pastebin_daemon import config
from pastebin_daemon.cli import commands
from pastebin_daemon.edge.varnish import vcl
from pastebin_daemon.metrics import Metrics
from tests.process import ROOT, child, environment
from tests.real import free_port, require

README = (ROOT / "README.md").read_text()
CI = (ROOT / ".ci" / "run").read_text()
KEYS = config.keys()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
ADDRESS = "127.0.0.1:8080"
SAYS = "#=> "
BLOCK = re.compile(r"(?:^<!-- (?P<mark>\w+) -->\n)?^```(?P<language>\w*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(*, mark: str | None = None, language: str | None = None) -> list[str]:
    return [
        found["text"]
        for found in BLOCK.finditer(README)
        if (mark is None or found["mark"] == mark) and (language is None or found["language"] == language)
    ]


def code() -> list[str]:
    """What stands between backticks in the prose."""
    return re.findall(r"`([^`\n]+)`", BLOCK.sub("", README))


def test_each_mark_stands_before_a_block() -> None:
    marks = re.findall(r"^<!-- (\w+) -->$", README, re.MULTILINE)
    assert marks == [found["mark"] for found in BLOCK.finditer(README) if found["mark"]]
    assert set(marks) == {"run", "tests", "example"}


@pytest.mark.parametrize("example", blocks(mark="example"), ids=lambda text: text.splitlines()[0][:60])
async def test_an_example_prints_what_the_readme_says(tmp_path: Path, example: str) -> None:
    require("curl")
    address = f"127.0.0.1:{free_port()}"
    text = example.replace(ADDRESS, address)
    says = [line.removeprefix(SAYS) for line in text.splitlines() if line.startswith(SAYS)]
    assert says, "an example without a result shows nothing"
    async with child(tmp_path, {"server.listen": address, "server.public_url": f"http://{address}"}):
        bash = await asyncio.create_subprocess_exec(
            require("bash"), "-euo", "pipefail", "-c", text,
            cwd=tmp_path, env=environment({}) | {"TMPDIR": str(tmp_path)}, stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        async with asyncio.timeout(60):
            out, err = await bash.communicate()
    assert (bash.returncode, err.decode()) == (0, "")
    expected = "".join(".*".join(map(re.escape, line.split("…"))) + "\n" for line in says)
    assert re.fullmatch(expected, out.decode()), f"{out.decode()!r} is not what the README says: {says}"


def test_the_first_command_installs_what_the_daemon_needs_and_runs_it() -> None:
    (run,) = blocks(mark="run")
    steps = run.strip().split(" &&\n")
    assert steps[-1] == ".venv/bin/pastebin-daemon serve"
    assert PROJECT["scripts"].keys() == {"pastebin-daemon"}
    assert any("apt-get install" in step and "python3-venv" in step for step in steps)
    assert "python3 -m venv .venv" in steps
    (without_tests,) = [step for step in steps if "requirements.lock" in step]
    sed = re.fullmatch(
        r"(sed '[^']+' requirements\.lock) \| \.venv/bin/pip install -q --require-hashes -r /dev/stdin", without_tests
    )
    assert sed
    locked = names(subprocess.run(["bash", "-c", sed[1]], cwd=ROOT, capture_output=True, text=True, check=True).stdout)
    assert requirements(PROJECT["dependencies"]) <= locked
    assert not requirements(PROJECT["optional-dependencies"]["test"]) & locked


def test_the_second_command_is_the_one_that_ci_runs() -> None:
    (tests,) = blocks(mark="tests")
    awk = re.search(r"readme_tests\(\) \{\n(.*?)^\}", CI, re.MULTILINE | re.DOTALL)
    assert awk
    read_by_ci = subprocess.run(["bash", "-c", awk[1]], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert read_by_ci == tests
    steps = tests.strip().split(" &&\n")
    assert steps[-1].startswith(".venv/bin/pytest")
    assert ".venv/bin/pip install -q --require-hashes -r requirements.lock" in steps
    assert {"varnish", "strace", "systemd", "curl", "python3-venv", "e2fsprogs", "mount"} <= set(tests.split())
    everything = names((ROOT / "requirements.lock").read_text())
    assert requirements([*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["test"]]) <= everything


def names(lock: str) -> set[str]:
    return {name.lower() for name in re.findall(r"^([A-Za-z0-9][\w.-]*)==", lock, re.MULTILINE)}


def requirements(listed: list[str]) -> set[str]:
    return {re.split(r"[^\w.-]", each, maxsplit=1)[0].lower() for each in listed}


def test_every_key_in_its_tables_and_examples_is_one() -> None:
    named = {
        f"{section}.{key}"
        for line in README.splitlines()
        if line.startswith("|")
        for section, key in re.findall(r"`\[([\w.]+)\] (\w+)`", line)
    }
    assert named
    for text in blocks(language="toml"):
        named |= leaves(tomllib.loads(text))
    assert {key for key in named if key not in KEYS and key.removesuffix("_file") not in KEYS} == set()
    assert "`config.example.toml`" in README


def leaves(table: dict[str, object], prefix: str = "") -> set[str]:
    found: set[str] = set()
    for name, value in table.items():
        if isinstance(value, dict) and f"{prefix}{name}" not in KEYS:
            found |= leaves(value, f"{prefix}{name}.")
        else:
            found.add(f"{prefix}{name}")
    return found


def test_every_file_that_it_names_is_there() -> None:
    linked = [link.partition("#")[0] for link in re.findall(r"\]\(([^)]+)\)", README) if "://" not in link]
    ours = re.compile(r"(?:pastebin_daemon|tests|systemd|\.ci)/[\w./-]+|requirements\.lock|config\.example\.toml")
    named = [word for text in [*code(), *blocks(language="bash")] for word in text.split() if ours.fullmatch(word)]
    assert named
    assert [path for path in [*filter(None, linked), *named] if not (ROOT / path).exists()] == []


def test_every_command_that_it_names_is_one() -> None:
    lines = [line for text in [*code(), *blocks(language="bash")] for line in text.splitlines()]
    named = [words for line in lines for words in re.findall(r"pastebin-daemon ((?:[a-z-]+ ?)+)", line)]
    assert len(named) >= 5
    for words in named:
        first, *others = words.split()
        command = commands.commands.get(first)
        assert command is not None, words
        if isinstance(command, click.Group):
            assert others[0] in command.commands, words


def test_every_metric_that_it_names_is_one() -> None:
    named = {word for word in code() if word.startswith("pastebin_") and "/" not in word}
    assert named
    assert named <= {name for metric in Metrics().registry.collect() for name in exposed(metric)}


def exposed(metric: Metric) -> set[str]:
    return {metric.name, f"{metric.name}_total" if metric.type == "counter" else metric.name}


def test_its_way_to_a_vcl_makes_the_one_that_the_tests_prove() -> None:
    (command,) = [text.strip() for text in blocks(language="bash") if "varnish.vcl" in text]
    sed, arrow, path = command.partition(" > ")
    assert (arrow, path) == (" > ", "/etc/varnish/default.vcl")
    made = subprocess.run(["bash", "-c", sed], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert made == vcl("127.0.0.1", 8080)


def test_the_configuration_that_it_installs_under_systemd_leaves_the_directory_to_systemd() -> None:
    (install,) = [text for text in blocks(language="bash") if "systemctl enable" in text]
    edit = re.search(r"sudo sed -i ('[^']+') /etc/pastebin-daemon/config\.toml", install)
    assert edit
    sed = f"sed {edit[1]} config.example.toml"
    made = subprocess.run(["bash", "-c", sed], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert tomllib.loads(made).get("storage", {}) == {}
    assert made.count("\n") == (ROOT / "config.example.toml").read_text().count("\n") - 1
