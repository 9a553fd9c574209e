"""Where the power is cut: at every sync, at every answer, and at writes between them, each with several outcomes.

One life is recorded, and every cut of it is made from its log. A seed is one life, with its sizes and its outcomes.
"""

import asyncio
import random
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pastebin_daemon.config import Config
from tests.fakes import FakeClock
from tests.powercuts.daemon import Committed, Returned, small
from tests.powercuts.disk import Entry, Linked, Note, Player, Recorder, Synced, Truncated
from tests.powercuts.judge import Promises, judge
from tests.powercuts.life import Life, Violation, live
from tests.support import configured

__all__ = ["Cuts", "cut_life", "scratch"]

OUTCOMES = 5
JUNK_SHARE = 0.25


@contextmanager
def scratch() -> Iterator[Path]:
    """A directory for a moment, in memory where there is a place for that."""
    shm = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=shm if shm.is_dir() else None, prefix="powercuts-") as directory:
        yield Path(directory)


@dataclass
class Cuts:
    """What a search came to."""

    count: int = 0
    violation: Violation | None = None
    where: str = ""


def places(log: Sequence[Entry], chance: random.Random) -> list[int]:
    """Before every sync and after it, at every change of the directory, after every answer, and at a tenth of the writes."""
    found = {len(log)}
    for at, entry in enumerate(log):
        if isinstance(entry, Synced | Linked | Truncated):
            found |= {at, at + 1}
        elif isinstance(entry, Note):
            if not isinstance(entry.fact, Committed | Returned):
                found.add(at + 1)
        elif chance.random() < 0.1:
            found.add(at)
    return sorted(found)


def trace(log: Sequence[Entry], at: int, notes: int = 12) -> str:
    """What was said last before the cut."""
    lines: list[str] = []
    for entry in reversed(log[:at]):
        if isinstance(entry, Note) and len(lines) < notes:
            lines.append(_shown(entry.fact))
    return "\n".join(f"    {line}" for line in reversed(lines))


def _shown(fact: object) -> str:
    if isinstance(fact, Committed):
        return f"Committed {fact.file} {fact.number}"
    text = repr(fact)
    return text if len(text) < 110 else f"{text[:110]} ..."


def cut_life(
    seed: int, *, bucket: bool, limit: int | None = None, swaps: Mapping[str, str] | None = None, lies: bool = False
) -> Cuts:
    """Record the life of this seed and cut it, up to `limit` cuts. Ends at the first violation."""
    cuts = Cuts()
    with scratch() as home:
        config = configured(home)
        recorder = Recorder(lies=lies)
        (home / "life").mkdir()
        life = live(config, home / "life", recorder, seed, bucket=bucket, swaps=swaps)
        assert not life.refused, life.refused
        chance = random.Random(f"places of {seed}")
        chosen = [(at, outcome) for at in places(recorder.log, chance) for outcome in range(OUTCOMES)]
        if limit is not None and len(chosen) > limit:
            chosen = sorted(chance.sample(chosen, limit))

        async def run() -> None:
            async with small():
                player, promises = Player(recorder.log, seed), Promises(recorder.log)
                for at, outcome in chosen:
                    player.play(at)
                    promises.advance(at)
                    cuts.count += 1
                    drawn = await _cut(config, home, life, player, promises, outcome, f"{seed}/{at}/{outcome}", cuts)
                    if cuts.violation is not None:
                        kind = "bucket" if bucket else "local"
                        cuts.where = (
                            f"seed {seed} ({kind}), cut {cuts.count} at entry {at} of {len(recorder.log)}, writes that"
                            f" were not synced: {drawn}\n{cuts.violation}\n  before it:\n{trace(recorder.log, at)}"
                        )
                        return

        asyncio.run(run())
    return cuts


async def _cut(
    config: Config, home: Path, life: Life, player: Player, promises: Promises, outcome: int, seed: str, cuts: Cuts
) -> str:
    image = home / "image"
    shutil.rmtree(image, ignore_errors=True)
    image.mkdir()
    chance = random.Random(seed)
    drawn = player.image(image, outcome, chance)
    for file in image.glob("*.sqlite"):
        if chance.random() < JUNK_SHARE:  # the log's index is never synced, and made anew
            file.with_name(f"{file.name}-shm").write_bytes(chance.randbytes(32768))
    try:
        await judge(config, image, FakeClock(life.clock.now_ms()), promises, bucket=life.objects is not None)
    except Violation as violation:
        cuts.violation = violation
    return drawn
