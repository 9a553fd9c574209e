"""What a large upload took of memory is given back when it is over."""

import subprocess
from pathlib import Path

from tests.process import python

STORY = """
import re, sys
from pathlib import Path
from pastebin_daemon.allocator import give_large_blocks_back

def resident_kib():
    return int(re.search(r"VmRSS:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])

if sys.argv[1] == "set":
    give_large_blocks_back()
bytes(16 << 20)                   # after it, glibc would take blocks up to this size from its heap
at_rest = resident_kib()
large = [b"x" * (1 << 20) for _ in range(16)]
kept = b"x" * (100 << 10)         # something small above them
large.clear()
print(resident_kib() - at_rest)
"""


def left_kib(tmp_path: Path, how: str) -> int:
    story = tmp_path / "story.py"
    story.write_text(STORY)
    said = subprocess.run(python(str(story), how), check=True, capture_output=True, text=True, timeout=60)
    return int(said.stdout)


def test_large_blocks_go_back_to_the_system_though_small_ones_stay_above_them(tmp_path: Path) -> None:
    assert left_kib(tmp_path, "set") < 1000


def test_without_the_setting_they_would_stay(tmp_path: Path) -> None:
    """Else the setting is needless."""
    assert left_kib(tmp_path, "not set") > 10_000
