"""The search by hand: `python -m tests.powercuts [--seed N] [--count M | --minutes T] [--only cuts|faults]`.

From the seed on, each seed is the life on the embedded store and the life with a bucket, every cut of them and every
fault in them, until so many cases are done (without a limit: the one seed). The first violation ends it and is told with
its seed.
"""

import argparse
import sys
import time

import structlog

from tests.powercuts.faults import fault_life, small_disks
from tests.powercuts.search import Cuts, cut_life
from tests.powercuts.secrets import cut_secret


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.powercuts")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=0, help="so many cases at least")
    parser.add_argument("--minutes", type=float, default=0.0, help="for so long at least")
    parser.add_argument("--only", choices=("cuts", "faults"))
    options = parser.parse_args()
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(50), logger_factory=structlog.ReturnLoggerFactory()
    )

    began, seed, cases = time.monotonic(), options.seed, {"cuts": 0, "faults": 0}

    def bad(kind: str, cuts: Cuts) -> bool:
        cases[kind] += cuts.count
        if cuts.violation is not None:
            print(f"{cuts.where}\nreplay: python -m tests.powercuts --seed {seed} --only {kind}")
        return cuts.violation is not None

    def tell() -> None:
        seconds = time.monotonic() - began
        rate = sum(cases.values()) / seconds * 3600
        print(f"seeds {options.seed} to {seed}: {cases}, {rate:,.0f} cases an hour", flush=True)

    while True:
        if options.only != "faults":
            found = [bad("cuts", cut_secret(10)), *(bad("cuts", cut_life(seed, bucket=kind)) for kind in (False, True))]
            if any(found):
                return 1
        if options.only != "cuts":
            searches = (fault_life, small_disks)
            if any(bad("faults", search(seed, bucket=bucket)) for bucket in (False, True) for search in searches):
                return 1
        tell()
        if sum(cases.values()) >= options.count and time.monotonic() - began >= options.minutes * 60:
            return 0
        seed += 1


if __name__ == "__main__":
    sys.exit(main())
