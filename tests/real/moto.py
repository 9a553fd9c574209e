"""moto: an S3 that is quick to start and checks little (no signatures, no checksums, no limits of keys).

It shows that the calls are understood, not that a strict store takes them: the headers that strict stores refuse are
checked on the wire, through faults.py. It closes the connection after every answer.
"""

import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from tempfile import TemporaryFile

from tests.real import end, free_port, wait_until

__all__ = ["make_bucket", "running_moto"]


@contextmanager
def running_moto() -> Iterator[int]:
    """The port of a moto server, which is a child process."""
    port = free_port()
    with TemporaryFile() as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )

        def ready() -> bool:
            if process.poll() is not None:
                log.seek(0)
                raise RuntimeError(f"moto has ended: {log.read().decode(errors='replace')}")
            return answers(f"http://127.0.0.1:{port}/moto-api/")

        try:
            wait_until(ready, "moto answers")
            yield port
        finally:
            end(process)


def make_bucket(port: int, name: str) -> None:
    with urllib.request.urlopen(urllib.request.Request(f"http://127.0.0.1:{port}/{name}", method="PUT"), timeout=10):
        pass


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5):
            return True
    except (urllib.error.URLError, ConnectionError):
        return False
