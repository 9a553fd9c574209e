"""Search for a fault of the machine after which an answer was not honest.

    python -m tests.machine cut --count 100              # seeds 0 to 99
    python -m tests.machine injected --minutes 60 --seed 1000
    python -m tests.machine cut --seed 1234              # one again

Ends with status 1 at the first violation, with its seed and the log of the daemon.
"""

import argparse
import asyncio
import sys
import time
import traceback
from collections import Counter
from collections.abc import Awaitable, Callable
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.machine.clients import Record

SEARCHES = ("cut", "injected", "full", "network")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tests.machine", description=__doc__.partition("\n")[0])
    parser.add_argument("search", choices=SEARCHES)
    parser.add_argument("--seed", type=int, default=0, help="the first one")
    parser.add_argument("--count", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=None, help="in the place of a count")
    return parser.parse_args()


def main() -> int:
    options = arguments()
    once: Callable[[Path, int], Awaitable[Record]] = getattr(
        import_module(f"tests.machine.{options.search}"), f"{options.search}_once"
    )
    began, ran, seed = time.monotonic(), 0, options.seed
    heard: Counter[str] = Counter()
    while ran < options.count if options.minutes is None else time.monotonic() < began + options.minutes * 60:
        with TemporaryDirectory() as directory:
            try:
                heard += asyncio.run(_run(once, Path(directory), seed)).heard
            except Exception:  # noqa: BLE001  whatever it is, it is told with its seed
                traceback.print_exc()
                print((Path(directory) / "log").read_text(errors="replace")[-5000:])
                print(f"seed {seed} after {ran + 1} rounds: python -m tests.machine {options.search} --seed {seed}")
                return 1
        ran, seed = ran + 1, seed + 1
    rate = ran / (time.monotonic() - began) * 3600
    print(f"{ran} rounds, no violation, {rate:.0f} rounds an hour; the clients heard {dict(sorted(heard.items()))}")
    return 0


async def _run(once: Callable[[Path, int], Awaitable[Record]], directory: Path, seed: int) -> Record:
    return await once(directory, seed)


if __name__ == "__main__":
    sys.exit(main())
