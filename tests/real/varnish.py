"""A real Varnish with the project's own VCL and default parameters, on the loopback."""

import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pastebin_daemon.edge.varnish import vcl
from tests.real import end, free_port, require, wait_until

__all__ = ["missing", "running_varnish"]


def missing(program: str = "varnishd") -> None:
    """Skips or fails the test when Varnish is not there."""
    require(program)


@contextmanager
def running_varnish(backend_port: int, port: int = 0) -> Iterator[str]:
    """The URL of a Varnish in front of the origin on `backend_port` of the loopback, which need not be up yet. `port` 0:
    any that is free."""
    program = require("varnishd")
    port = port or free_port()
    directory = Path(tempfile.mkdtemp(prefix="varnish-"))
    config, log_path = directory / "pastebin.vcl", directory / "log"
    config.write_text(vcl("127.0.0.1", backend_port))
    # -n: a private work directory; -S none -T none: no admin port; -j none: no other users, so that it starts anywhere.
    command = [program, "-F", "-n", str(directory / "work"), "-a", f"http=127.0.0.1:{port},HTTP", "-f", str(config)]
    command += ["-s", "default,32m", "-S", "none", "-T", "none", "-j", "none"]
    try:
        with log_path.open("wb") as log:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:

            def ready() -> bool:
                if process.poll() is not None:
                    raise RuntimeError(f"varnishd has ended: {log_path.read_text(errors='replace')}")
                return listens(port)

            wait_until(ready, "Varnish listens")
            yield f"http://127.0.0.1:{port}"
        finally:
            end(process)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def listens(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=5):
            return True
    except OSError:
        return False
