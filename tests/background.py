"""A long search that goes on beside the other tests: it gets what they leave of the processors (SCHED_IDLE), so that the
whole suite takes little longer than without it, and no test waits for it but the one that asks what it found."""

import os
import subprocess

from tests.process import ROOT, python
from tests.real import require

__all__ = ["Search"]


class Search:
    """`python -m ARGUMENT...`, begun by `begin`, or else by `result`. What it says fits into a pipe, or it says it last."""

    def __init__(self, *arguments: str) -> None:
        self._arguments = arguments
        self._process: subprocess.Popen[str] | None = None

    def begin(self) -> None:
        self._process = subprocess.Popen(
            [require("chrt"), "--idle", "0", *python("-m", *self._arguments)],
            cwd=ROOT, env=os.environ | {"PYTHONHASHSEED": "0"}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True,
        )  # fmt: skip

    def result(self, limit_s: float) -> tuple[int, str]:
        """The exit status and what was said. Raises `subprocess.TimeoutExpired`."""
        if self._process is None:
            self.begin()
        assert self._process is not None
        said, _ = self._process.communicate(timeout=limit_s)
        return self._process.returncode, said

    def end(self) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.kill()
            self._process.communicate()
