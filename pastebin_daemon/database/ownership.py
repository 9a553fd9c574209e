"""One process per database: a `flock` on a side file, and no network file system underneath.

The lock goes with the process, however it ends, so there is nothing to clean up after a kill. WAL needs shared memory
between the connections, which network file systems do not give: there it locks for ever or corrupts in silence
(sqlite.org/wal.html, "All processes using a database must be on the same host computer").
"""

import fcntl
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pastebin_daemon.errors import Held, StartError

__all__ = ["hold_directory"]

MOUNTS = Path("/proc/self/mountinfo")
_NETWORK = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "afs", "ceph", "9p", "glusterfs", "lustre", "fuse.sshfs", "fuse.s3fs",
     "fuse.rclone", "fuse.glusterfs"}
)  # fmt: skip


@contextmanager
def hold_directory(directory: Path) -> Iterator[None]:
    """Make the state directory (mode 0700) if it is missing, and hold it alone. Raises `Held` or `StartError`."""
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        kind = _file_system(directory)
        if kind in _NETWORK:
            raise StartError(
                f"{directory} is on a network file system ({kind}), where SQLite corrupts: use a local disk"
            )
        lock = os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise StartError(
            f"the state directory {directory} can't be used: {error.strerror}; make it writable"
        ) from error
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise Held(
                f"another pastebin-daemon holds {directory}: stop it, or set another [storage] directory"
            ) from error
        except OSError as error:
            raise StartError(f"{directory} can't be locked ({error.strerror}): use a local disk") from error
        yield
    finally:
        os.close(lock)


def _file_system(directory: Path) -> str:
    """The type of the mount that the directory is on, by /proc/self/mountinfo (proc(5)); "" when it can't be told."""
    path, best, kind = str(directory.resolve()), -1, ""
    try:
        lines = os.fsdecode(MOUNTS.read_bytes()).split("\n")  # a name may hold any other byte
    except OSError:
        return ""
    for line in lines:
        left, _, right = line.partition(" - ")
        fields = left.split(" ")
        if len(fields) < 5:
            continue
        mount = re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), fields[4])
        if (path == mount or path.startswith(mount.rstrip("/") + "/")) and len(mount) >= best:
            best, kind = len(mount), right.split(" ")[0]
    return kind
