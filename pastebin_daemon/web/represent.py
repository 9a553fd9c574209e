"""What is kept of an answer: its bytes, its ETag, and every header that does not change from one request to the next."""

from multidict import CIMultiDict

from pastebin_daemon.pastes import Paste
from pastebin_daemon.reading import Representation
from pastebin_daemon.web.app import COMMON_HEADERS

__all__ = ["represent"]


def represent(paste: Paste, body: bytes, etag: str, content_type: str, csp: str, **headers: str) -> Representation:
    """`headers` with `_` for `-`. What is missing is Cache-Control, which counts the seconds, and the request's id."""
    tag = f"paste-{paste.id}"
    return Representation(
        body,
        etag,
        CIMultiDict(
            {name.replace("_", "-"): value for name, value in headers.items()}
            | COMMON_HEADERS
            | {
                "Content-Type": content_type,
                "ETag": etag,
                "Cache-Tag": tag,
                "Surrogate-Key": tag,
                "Content-Security-Policy": csp,
            }
        ),
    )
