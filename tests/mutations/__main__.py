"""Break the program in one place after another, each in a copy, and see the searchers go red.

    python -m tests.mutations                    # all of them; a minute for each at most
    python -m tests.mutations --only tombstone   # those whose name has the word

Run before a release. Prints a table: the break, who saw it, and after how many cases. Ends with status 1 when one
survives: that is a missing test.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.mutations.edits import EDITS, Edit

ROOT = Path(__file__).parent.parent.parent
LIMIT_S = 60.0
_PYTEST = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider"]
SEARCHERS = {
    "simulation": [sys.executable, "-m", "tests.simulation", "--count", "100000"],
    "model": [*_PYTEST, "tests/test_protocol_model.py"],
    "machines": [*_PYTEST, *(str(path.relative_to(ROOT)) for path in sorted(ROOT.glob("tests/test_machine_*.py")))],
    "powercuts": [*_PYTEST, "tests/test_power_cuts.py"],
    "races": [*_PYTEST, "tests/test_delete_races.py"],
    "groups": [*_PYTEST, "tests/test_group_commit.py", "tests/test_batches.py"],
    "ioerrors": [*_PYTEST, "tests/test_io_errors.py"],
}


def copy_of_the_project(directory: Path) -> Path:
    copy = directory / "project"
    shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(".git", ".venv", ".*_cache", "__pycache__", "*.egg-info"))
    return copy


def search(copy: Path, searcher: str) -> str | None:
    """What it saw, or None."""
    process = subprocess.Popen(
        SEARCHERS[searcher], cwd=copy, env=os.environ | {"PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
    )  # fmt: skip
    try:
        out, _ = process.communicate(timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, 9)
        process.communicate()
        return None
    if process.returncode != 1:  # 0 is green, and anything else was no search
        assert process.returncode == 0, out
        return None
    found = re.search(r"^seed \d+ after .*|^FAILED .*|^E +\w.*", out, re.MULTILINE)
    return found[0][:150] if found else out.strip().rpartition("\n")[2][:150]


def attempt(edit: Edit, copy: Path) -> tuple[str, str] | None:
    """Who saw the break, and what; None when it survived."""
    file = copy / "pastebin_daemon" / edit.file
    whole = file.read_text()
    assert whole.count(edit.old) == 1, f"{edit.name}: {edit.file} has its text {whole.count(edit.old)} times"
    file.write_text(whole.replace(edit.old, edit.new))
    try:
        for searcher in edit.searchers:
            seen = search(copy, searcher)
            if seen is not None:
                return searcher, seen
    finally:
        file.write_text(whole)
    return None


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.mutations", description=__doc__.partition("\n")[0])
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    survived = []
    with tempfile.TemporaryDirectory() as directory:
        copy = copy_of_the_project(Path(directory))
        for edit in EDITS:
            if options.only not in edit.name:
                continue
            began = time.monotonic()
            seen = attempt(edit, copy)
            if seen is None:
                survived.append(edit.name)
            who, what = seen or ("NOBODY", "")
            print(f"| {edit.name} | {edit.guarantee} | {who} | {time.monotonic() - began:.0f} s | {what} |", flush=True)
    print(f"{len(survived)} survived: {survived}" if survived else "every break was seen")
    return 1 if survived else 0


if __name__ == "__main__":
    sys.exit(main())
