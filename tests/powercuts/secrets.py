"""The first start's secret under power cuts: a file that is no database, made with calls of its own.

Delete tokens that were given must be given again to an idempotent replay, so after any cut the daemon starts, and if the
secret had been used before it, it is the same one.
"""

import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from pastebin_daemon.errors import StartError
from pastebin_daemon.secret import delete_token_secret
from tests.powercuts.disk import Note, Player, Recorder
from tests.powercuts.life import Violation
from tests.powercuts.search import Cuts, scratch

__all__ = ["cut_secret"]


class _RecordedOs:
    """The module `os` as the module under test sees it."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._paths: dict[int, Path] = {}
        self._told: dict[str, int] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def open(self, path: Path, flags: int, *more: int) -> int:
        created = not path.exists()
        descriptor = os.open(path, flags, *more)
        self._paths[descriptor] = path
        if not path.is_dir():
            self._recorder.opened(path.name, created)
        return descriptor

    def fsync(self, descriptor: int) -> None:
        path = self._paths[descriptor]
        if path.is_dir():
            self._recorder.directory_synced()
        else:
            self.written(path)
            self._recorder.synced(path.name)

    def written(self, path: Path) -> None:
        """Tell what the file has grown by, if that was not told yet."""
        told, content = self._told.get(path.name, 0), path.read_bytes()
        if content[told:]:
            self._recorder.wrote(path.name, told, content[told:])
            self._told[path.name] = len(content)


@contextmanager
def _recorded(recorder: Recorder) -> Iterator[None]:
    shim, rename = _RecordedOs(recorder), Path.rename

    def told(path: Path, target: Path) -> Path:
        shim.written(path)
        recorder.renamed(path.name, target.name)
        return rename(path, target)

    with patch("pastebin_daemon.secret.os", shim), patch.object(Path, "rename", told):
        yield


def cut_secret(outcomes: int) -> Cuts:
    cuts = Cuts()
    with scratch() as home:
        (home / "life").mkdir()
        recorder = Recorder()
        with _recorded(recorder):
            recorder.note(delete_token_secret(None, home / "life"))
        log = recorder.log
        for outcome in range(outcomes):
            player = Player(log, outcome)
            for at in range(1, len(log) + 1):
                player.play(at)
                image = home / f"{outcome}-{at}"
                image.mkdir()
                cuts.count += 1
                drawn = player.image(image, outcome, random.Random(f"secret/{at}/{outcome}"))
                last = log[at - 1]
                given = last.fact if isinstance(last, Note) else None
                try:
                    found = delete_token_secret(None, image)
                    if given not in (None, found):
                        raise Violation("G1", "the secret that tokens were given by is another now")
                except StartError as error:
                    cuts.violation = Violation("start", f"the daemon does not start again: {error}")
                except Violation as violation:
                    cuts.violation = violation
                if cuts.violation is not None:
                    cuts.where = f"outcome {outcome} at entry {at} of {len(log)}, {drawn}: {cuts.violation}\n{log[:at]}"
                    return cuts
    return cuts
