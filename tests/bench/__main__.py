import argparse
import asyncio
import compileall
import os
import tempfile
from pathlib import Path

import pastebin_daemon
import tests.bench
from tests.bench.dispatching import dispatching, tables
from tests.bench.reads import reads
from tests.bench.starting import memory, starting
from tests.bench.steady import bulk, expiry, tenfold
from tests.bench.writes import sweep, writes

GROUPS = {
    "reads": reads,
    "writes": writes,
    "sweep": sweep,
    "dispatcher": dispatching,
    "tables": tables,
    "start": starting,
    "memory": memory,
    "expiry": expiry,
    "bulk": bulk,
    "tenfold": tenfold,
}


async def main() -> None:
    parser = argparse.ArgumentParser(prog="tests.bench", description=tests.bench.__doc__)
    parser.add_argument("groups", nargs="*", help=f"of {', '.join(GROUPS)}; none: all")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=int, default=3, help="of each turn")
    options = parser.parse_args()
    # As an installer does; else a start would compile each time where PYTHONDONTWRITEBYTECODE is set.
    assert compileall.compile_dir(Path(pastebin_daemon.__file__).parent, quiet=1)
    print(f"Load before: {os.getloadavg()[0]:.1f}; {options.rounds} rounds of {options.seconds} s.\n")
    print("| what | reach | reached | figures |\n|---|---|---|---|", flush=True)
    for name in options.groups or GROUPS:
        with tempfile.TemporaryDirectory(prefix="bench-") as directory:
            async for row in GROUPS[name](Path(directory), options.rounds, options.seconds):
                print(row, flush=True)


if __name__ == "__main__":
    asyncio.run(main())
