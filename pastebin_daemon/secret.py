"""The secret that delete tokens are derived from.

Its only use is to give the same token again to an idempotent replay: rows keep a hash of the token, so losing or
rotating the secret breaks no token that was given. It is on the disk, with its directory's entry, before the first
answer goes out, and it is part of the backup.
"""

import os
from pathlib import Path

from pastebin_daemon.errors import StartError
from pastebin_daemon.ids import new_secret

__all__ = ["BYTES_MIN", "delete_token_secret"]

BYTES_MIN = 16


def delete_token_secret(credential: bytes | None, directory: Path) -> bytes:
    """The systemd credential if there is one, else the file `secret`, made at the first start. Raises `StartError`."""
    if credential is not None:
        return _checked(credential.strip(), "the credential delete-token-secret")
    path = directory / "secret"
    try:
        if not path.exists():
            _write(path, new_secret().hex().encode() + b"\n")
        return _checked(path.read_bytes().strip(), str(path))
    except OSError as error:
        raise StartError(f"{path} can't be read or made: {error.strerror}; make it readable for this user") from error


def _checked(secret: bytes, where: str) -> bytes:
    if len(secret) < BYTES_MIN:
        raise StartError(f"{where} is shorter than {BYTES_MIN} bytes: put a longer random secret there")
    return secret


def _write(path: Path, content: bytes) -> None:
    """All of it or nothing, and on the disk: mode 0600, synced, renamed, the directory synced."""
    temporary = path.with_name("secret.new")
    temporary.unlink(missing_ok=True)
    with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    temporary.rename(path)
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
