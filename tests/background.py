"""A long search that goes on beside the other tests: it gets what they leave of the processors (SCHED_IDLE), so that the
whole suite takes little longer than without it, and no test waits for it but the one that asks what it found."""

import os
import subprocess
import tempfile

from tests.process import ROOT, python
from tests.real import require

__all__ = ["Search"]


class Search:
    """`python -m ARGUMENT...`, begun by `begin`, or else by `result`."""

    def __init__(self, *arguments: str) -> None:
        self._arguments = arguments
        self._said = tempfile.TemporaryFile()  # noqa: SIM115  it lives as long as the search does
        self._process: subprocess.Popen[bytes] | None = None

    def begin(self) -> None:
        self._process = subprocess.Popen(
            [require("chrt"), "--idle", "0", *python("-m", *self._arguments)],
            cwd=ROOT, env=os.environ | {"PYTHONHASHSEED": "0"}, stdout=self._said, stderr=subprocess.STDOUT,
        )  # fmt: skip

    def result(self, limit_s: float) -> tuple[int, str]:
        """The exit status and what was said. Raises `subprocess.TimeoutExpired`."""
        if self._process is None:
            self.begin()
        assert self._process is not None
        status = self._process.wait(limit_s)
        self._said.seek(0)
        return status, self._said.read().decode()

    def end(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()
