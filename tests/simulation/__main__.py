"""Search for a schedule that breaks a guarantee.

    python -m tests.simulation --count 20000              # seeds 0 to 19999, on all cores
    python -m tests.simulation --seed 7 --minutes 60      # from seed 7 on, for an hour
    python -m tests.simulation --seed 1234                # one schedule, told step by step

Ends with status 1 at the first violation, with its seed and its story.
"""

import argparse
import os
import subprocess
import sys
import time

from tests.process import python
from tests.simulation.run import Schedule, Workshop


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tests.simulation", description=__doc__.partition("\n")[0])
    parser.add_argument("--seed", type=int, default=0, help="the first one")
    parser.add_argument(
        "--count", type=int, default=None, help="how many; without it and without minutes one, and told"
    )
    parser.add_argument("--minutes", type=float, default=None)
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--every", type=int, default=1, help=argparse.SUPPRESS)
    return parser.parse_args()


def tell(seed: int) -> int:
    """Run one and print its story."""
    workshop = Workshop()
    try:
        schedule = Schedule(seed, workshop, trace=True)
        violations = schedule.run()
    finally:
        workshop.close()
    print("\n".join(schedule.lines))
    print(f"\nseed {seed}: {schedule.config.outbox}")
    for violation in violations:
        print(f"seed {seed}: {violation}")
    return 1 if violations else 0


def search(options: argparse.Namespace) -> int:
    """Every `every`-th seed. Prints how many were run."""
    ends = None if options.minutes is None else time.monotonic() + options.minutes * 60
    workshop = Workshop()
    seed, ran, kills, commits = options.seed, 0, 0, 0
    began = time.monotonic()
    try:
        while (options.count is None or ran < options.count) and (ends is None or time.monotonic() < ends):
            schedule = Schedule(seed, workshop)
            violations = schedule.run()
            ran += 1
            kills += schedule.kills
            commits += schedule.watch.commits
            if violations:
                print(f"seed {seed} after {ran} schedules: {violations[0]}", flush=True)
                return 1
            seed += options.every
    finally:
        workshop.close()
    rate = ran / (time.monotonic() - began) * 3600
    print(f"{ran} schedules, {kills} kills, {commits} commits, no violation, {rate:.0f} schedules an hour", flush=True)
    return 0


def spread(options: argparse.Namespace) -> int:
    """Share the seeds out among worker processes; the first violation ends all."""
    workers = max(1, options.workers)
    shares: list[int | None] = [None] * workers
    if options.count is not None:
        shares = [len(range(first, options.count, workers)) for first in range(workers)]
    running = []
    for first, share in enumerate(shares):
        if share == 0:
            continue
        command = python("-m", "tests.simulation", "--workers", "0", "--every", str(workers))
        command += ["--seed", str(options.seed + first)]
        command += [] if share is None else ["--count", str(share)]
        command += [] if options.minutes is None else ["--minutes", str(options.minutes)]
        running.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
    out = []
    try:
        while running:
            for worker in list(running):
                try:
                    text, _ = worker.communicate(timeout=0.2)
                except subprocess.TimeoutExpired:
                    continue
                running.remove(worker)
                out.append(text)
                if worker.returncode != 0:
                    return 1
    finally:
        for worker in running:
            worker.kill()
            worker.communicate()
        print("".join(out), end="", flush=True)
        failed = next((line.split()[1] for text in out for line in text.splitlines() if line.startswith("seed ")), None)
        if failed is not None:
            subprocess.run([sys.executable, "-m", "tests.simulation", "--seed", failed], check=False)
    return 0


def main() -> int:
    options = arguments()
    if os.environ.get("PYTHONHASHSEED") != "0":  # the order of a set of texts is part of a schedule
        environ = os.environ | {"PYTHONHASHSEED": "0"}
        return subprocess.run(
            [sys.executable, "-m", "tests.simulation", *sys.argv[1:]], env=environ, check=False
        ).returncode
    if options.count is None and options.minutes is None:
        return tell(options.seed)
    return search(options) if options.workers == 0 else spread(options)


if __name__ == "__main__":
    sys.exit(main())
