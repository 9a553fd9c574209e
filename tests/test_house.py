"""The shape of the code: imports point one way, SQL can't reach the network, drivers can't see the database, time and
randomness have one door each, and nothing lies about that belongs nowhere.

A new module fails here until it has a layer; a new kind of file at the top level, until somebody has said that it
belongs there.
"""

import ast
import fnmatch
import subprocess
import sys
import tomllib
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "pastebin_daemon"
LINES_MAX = 360

LAYERS: tuple[frozenset[str], ...] = tuple(
    frozenset(layer.split())
    for layer in (
        # each may import what stands above it, and nothing beside it or below it
        "allocator clock errors ids",
        "logs metrics quantities",
        "section",
        "database bodies edge origin_cache secret systemd client breaker loops",
        "outbox inbox config_sources config_sections",
        "pastes operating config_rules",
        "consumers creation reading config highlight_child",
        "dispatcher sweepers listeners highlighting",
        "health history",
        "web",
        "daemon",
        "cli",
        "__main__",
    )
)
"""The modules and packages. Inside of a package its modules import one another, in no circle."""

STATED = {("bodies.local", "database")}
"""The embedded store is a body store and a database at once; daemon.py treats it as the first."""

SQL = ("pastes", "outbox", "inbox", "operating", "database")
NETWORK = frozenset(
    {"aiohttp", "aiobotocore", "botocore", "socket", "ssl", "http", "urllib", "requests", "httpx", "asyncio.streams"}
)
DRIVERS = ("bodies", "edge")
TIME_AND_CHANCE = {"time": "clock", "datetime": "clock", "random": "ids", "secrets": "ids", "uuid": "ids"}
SQLITE = frozenset({"sqlite3", "aiosqlite"})

FILES = {file: ast.parse(file.read_text()) for file in sorted(PACKAGE.rglob("*.py"))}


def name_of(file: Path) -> str:
    """`web.reads` for web/reads.py, `web` for web/__init__.py, "" for the package itself."""
    parts = file.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {name_of(file): tree for file, tree in FILES.items()}


def imports(module: str) -> set[str]:
    """The full names of what it imports, those inside of functions included: `pastebin_daemon.errors`, `aiohttp.web`."""
    found: set[str] = set()
    for node in ast.walk(MODULES[module]):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}: imports are absolute here"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def own_imports(module: str) -> set[str]:
    """Those of this program, as the names of MODULES."""
    found = set()
    for full in imports(module):
        if full.split(".")[0] != "pastebin_daemon":
            continue
        name = full.removeprefix("pastebin_daemon").removeprefix(".")
        while name not in MODULES:
            name = name.rpartition(".")[0]
        if name:
            found.add(name)
    return found - {module}


def others_imports(module: str) -> set[str]:
    return {full for full in imports(module) if full.split(".")[0] != "pastebin_daemon"}


def reached_from(module: str) -> set[str]:
    """What it imports, what that imports, and so on; itself included."""
    reached, waiting = set(), {module}
    while waiting:
        reached |= waiting
        waiting = {name for each in waiting for name in own_imports(each)} - reached
    return reached


def top(module: str) -> str:
    return module.split(".")[0]


def layer_of(module: str) -> int:
    for number, layer in enumerate(LAYERS):
        if top(module) in layer:
            return number
    raise AssertionError(f"{module} has no layer: give it one in {Path(__file__).name}")


INSIDE = [name for name in MODULES if name]


@pytest.mark.parametrize("module", INSIDE)
def test_imports_point_one_way(module: str) -> None:
    for other in own_imports(module):
        if top(other) != top(module) and (module, top(other)) not in STATED:
            assert layer_of(other) < layer_of(module), f"{module} must not import {other}"


def test_every_layer_is_of_modules_that_there_are() -> None:
    named = [name for layer in LAYERS for name in layer]
    assert sorted(named) == sorted({top(name) for name in INSIDE})


def test_no_import_goes_in_a_circle() -> None:
    order = list(TopologicalSorter({module: own_imports(module) for module in INSIDE}).static_order())
    assert set(order) == set(INSIDE)


@pytest.mark.parametrize("module", [name for name in INSIDE if top(name) in SQL])
def test_sql_cannot_reach_the_network(module: str) -> None:
    for reached in reached_from(module):
        for full in others_imports(reached):
            assert full.split(".")[0] not in NETWORK, f"{module} reaches {full} by way of {reached}"


@pytest.mark.parametrize(
    "module", [name for name in INSIDE if top(name) in DRIVERS and (name, "database") not in STATED]
)
def test_drivers_cannot_see_the_database(module: str) -> None:
    seen = {top(reached) for reached in reached_from(module)}
    assert not seen & {"database", "outbox", "inbox", "pastes"}
    assert not {full.split(".")[0] for full in others_imports(module)} & SQLITE


def test_only_the_database_and_the_embedded_store_know_sqlite() -> None:
    for module in INSIDE:
        if {full.split(".")[0] for full in others_imports(module)} & SQLITE:
            assert top(module) == "database" or module == "bodies.local", module


@pytest.mark.parametrize("module", INSIDE)
def test_time_and_randomness_have_one_door_each(module: str) -> None:
    for full in others_imports(module):
        door = TIME_AND_CHANCE.get(full.split(".")[0], module)
        assert door == module, f"{module} imports {full}: take it from {door}"
    for node in ast.walk(MODULES[module]):
        if isinstance(node, ast.Attribute) and node.attr in ("urandom", "getrandom", "time_ns", "clock_gettime"):
            assert module in ("clock", "ids"), f"{module}, line {node.lineno}"


@pytest.mark.parametrize("module", INSIDE)
def test_a_file_is_short_and_opens_with_what_it_is(module: str) -> None:
    (file,) = [file for file in FILES if name_of(file) == module]
    count = len(file.read_text().splitlines())
    assert count < LINES_MAX, f"{count} lines: it is looking for its second noun"
    if file.name != "__main__.py":
        assert ast.get_docstring(FILES[file]), "say what it guarantees"


def test_the_daemon_starts_without_what_only_s3_needs() -> None:
    """aiobotocore is most of the start time and of the memory."""
    asked = (
        "import sys, pastebin_daemon.daemon, pastebin_daemon.cli; print(*{name.split('.')[0] for name in sys.modules})"
    )
    run = subprocess.run(
        [sys.executable, "-c", asked], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60
    )
    loaded = set(run.stdout.split())
    assert "aiosqlite" in loaded
    assert not loaded & {"aiobotocore", "botocore", "boto3", "pytest", "moto"}


def test_what_is_installed_is_all_there_is() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    packages = {".".join(file.parent.relative_to(ROOT).parts) for file in FILES}
    assert set(project["packages"]) == packages, "a package that is not listed is not installed"
    others = {
        file
        for file in PACKAGE.rglob("*")
        if file.is_file() and file.suffix not in (".py", ".pyc") and "__pycache__" not in file.parts
    }
    installed = {
        file
        for package, patterns in project["package-data"].items()
        for pattern in patterns
        for file in ROOT.joinpath(*package.split(".")).glob(pattern)
    }
    assert others == installed


def test_nothing_lies_about_at_the_top_level() -> None:
    belongs = {
        "LICENSE", "README.md", "config.example.toml", "pastebin_daemon", "pyproject.toml", "requirements.lock",
        "systemd", "tests",
    }  # fmt: skip
    ignored = [line.strip("/") for line in (ROOT / ".gitignore").read_text().splitlines()]
    found = {
        path.name
        for path in ROOT.iterdir()
        if not path.name.startswith(".") and not any(fnmatch.fnmatch(path.name, pattern) for pattern in ignored)
    }
    assert found == belongs
