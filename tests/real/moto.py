"""moto: an S3 that is quick to start and checks little (no signatures, no checksums, no limits of keys).

It shows that the calls are understood, not that a strict store takes them: the headers that strict stores refuse are
checked on the wire, through faults.py. It closes the connection after every answer.
"""

import functools
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from tempfile import TemporaryFile

from aiobotocore.session import get_session

from pastebin_daemon.ids import new_id
from tests.real import end, free_port, wait_until

__all__ = ["Bucket", "make_bucket", "new_bucket", "running_moto"]

_session = functools.cache(get_session)


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


@dataclass(frozen=True)
class Bucket:
    """A bucket of its own for one test."""

    port: int
    name: str

    def settings(self, url: str = "") -> dict[str, object]:
        """The daemon's configuration for this bucket, reached by `url` (moto itself, when it is not said)."""
        return {
            "bodies.store": "s3",
            "bodies.s3.endpoint_url": url or f"http://127.0.0.1:{self.port}",
            "bodies.s3.bucket": self.name,
            "bodies.s3.access_key_id": "key",
            "bodies.s3.secret_access_key": "secret",
        }

    async def keys(self) -> list[str]:
        """Every key in it, by a client that the daemon has no part in."""
        keys: list[str] = []
        async with _session().create_client(
            "s3",
            endpoint_url=f"http://127.0.0.1:{self.port}",
            region_name="us-east-1",
            aws_access_key_id="key",
            aws_secret_access_key="secret",
        ) as client:
            async for page in client.get_paginator("list_objects_v2").paginate(Bucket=self.name):
                keys += [found["Key"] for found in page.get("Contents", ())]
        return sorted(keys)


def new_bucket(port: int) -> Bucket:
    bucket = Bucket(port, f"pastes-{new_id().lower()}")
    make_bucket(port, bucket.name)
    return bucket


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5):
            return True
    except (urllib.error.URLError, ConnectionError):
        return False
