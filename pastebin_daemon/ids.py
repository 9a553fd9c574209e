"""Randomness enters the program here and nowhere else (the linter holds it).

Ids are never reused (G13): that is what makes a late job harmless. So they are drawn from the operating system's
generator, long enough never to meet again, never chosen by a user and never derived from a row number. Letters and
digits only, since mail programs and chats cut other characters off the end of a link.
"""

import hashlib
import hmac
import itertools
import random
import re
import secrets
from string import ascii_lowercase, ascii_uppercase, digits

__all__ = ["ID", "delete_token", "jitter", "new_id", "new_owner", "new_request_id", "new_secret", "token_sha256"]

_ALPHABET = digits + ascii_uppercase + ascii_lowercase
_PAIRS = [first + second for first in _ALPHABET for second in _ALPHABET]
_LENGTH = 18  # 62**18 is 107 bits; G13 asks for 96
_SPACE = 62**_LENGTH

_START = secrets.token_hex(4)
_REQUESTS = itertools.count(1)

ID = re.compile(rf"[0-9A-Za-z]{{{_LENGTH}}}")
"""What `new_id` gives. Anything else is the id of nothing."""


def new_id() -> str:
    """An id for a paste, an object or a probe: 18 letters and digits, 107 bits."""
    n = int.from_bytes(secrets.token_bytes(16)) % _SPACE  # one system call; no id is likelier than another by 2**-20
    out = []
    for _ in range(_LENGTH // 2):
        n, rest = divmod(n, 62 * 62)
        out.append(_PAIRS[rest])
    return "".join(out)


def new_owner() -> str:
    """Who holds a lease: random for each start of the process, never a host name or a pid, which come back."""
    return secrets.token_hex(16)


def new_request_id() -> str:
    """Tells requests apart in logs, of this start and others. Nobody's secret, so it is counted and costs no system call."""
    return f"{_START}{next(_REQUESTS):08x}"


def new_secret() -> bytes:
    """The key that delete tokens are derived from: 32 bytes."""
    return secrets.token_bytes(32)


def delete_token(secret: bytes, paste_id: str) -> str:
    """The delete token of a paste, 40 hex digits: derived, so that an idempotent replay can give the same one again."""
    return hmac.new(secret, b"delete-token:" + paste_id.encode(), hashlib.sha256).hexdigest()[:40]


def token_sha256(token: str) -> bytes:
    """What the row keeps of a delete token. Verification needs no secret, so losing the secret breaks no token."""
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()


def jitter(span_ms: int) -> int:
    """Half of the span fixed and half random, so that failures of one instant do not come back as one."""
    return span_ms // 2 + random.randrange(span_ms // 2 + 1)  # noqa: S311  spreads load, guards nothing
