"""The tree of errors, drawn once, each with its HTTP status; nothing else in the program knows the status of an error.

    PastebinError
    ├── Refusal             what the caller can mend; the text is shown to the caller
    ├── Trouble             what we must mend; the text goes to the log, the caller gets a fixed sentence
    ├── EffectError         what a driver may raise or return, and nothing else crosses its seam
    │   ├── Temporary       may work later: unreachable, time-out, 5xx, 401/403, or throttled
    │   └── Permanent       will not work as it is: a malformed key, a 4xx that will not change
    └── StartError          the process can't start; it ends with `exit_status`

`code` is stable: other people's scripts compare it.
"""

from collections.abc import Iterable
from typing import ClassVar

__all__ = [
    "BadRequest", "BodyMissing", "Busy", "DatabaseUnavailable", "EffectError", "Forbidden", "Held",
    "IdempotencyEnded", "IdempotencyInProgress", "IdempotencyMismatch", "Misconfigured", "NotFound", "PastebinError",
    "Permanent", "RateLimited", "ReadOnly", "Refusal", "RequestTimeout", "StartError", "StorageFull",
    "StoreUnavailable", "Temporary", "TooLarge", "Trouble", "Unauthorized", "UnsupportedMediaType", "UploadExpired",
    "did_you_mean",
]  # fmt: skip


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """The question about a name that is not known, or "" when no known one is close to it."""
    from difflib import get_close_matches  # most processes never need it, and it takes 0.7 MB

    close = get_close_matches(word[:100], list(known), n=1, cutoff=0.65)
    return f"did you mean {close[0]}?" if close else ""


class PastebinError(Exception):
    """Everything that this program raises on purpose."""


class Refusal(PastebinError):
    code: ClassVar[str]
    status: ClassVar[int]

    def __init__(self, message: str, *, retry_after_s: int | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class BadRequest(Refusal):
    code, status = "bad_request", 400


class Unauthorized(Refusal):
    code, status = "unauthorized", 401


class Forbidden(Refusal):
    code, status = "forbidden", 403


class NotFound(Refusal):
    code, status = "not_found", 404


class RequestTimeout(Refusal):
    code, status = "request_timeout", 408


class IdempotencyInProgress(Refusal):
    code, status = "idempotency_in_progress", 409


class IdempotencyEnded(Refusal):
    code, status = "idempotency_ended", 410


class TooLarge(Refusal):
    code, status = "too_large", 413


class UnsupportedMediaType(Refusal):
    code, status = "unsupported_media_type", 415


class IdempotencyMismatch(Refusal):
    code, status = "idempotency_mismatch", 422


class RateLimited(Refusal):
    code, status = "rate_limited", 429


class ReadOnly(Refusal):
    code, status = "read_only", 503


class Trouble(PastebinError):
    """`public` is all that a caller is told; the message is for the log."""

    code: ClassVar[str]
    status: ClassVar[int] = 503
    public: ClassVar[str]
    retry_after_s: int | None = 5


class StoreUnavailable(Trouble):
    code = "store_unavailable"
    public = "The storage behind this pastebin does not answer. Nothing is lost; try again in a moment."


class UploadExpired(Trouble):
    """The upload's record was gone when its paste was to be committed (G12)."""

    code = "store_unavailable"
    public = "Storing took too long and was given up. Please send it again."


class Busy(Trouble):
    code = "busy"
    public = "Too much is being uploaded at this moment. Try again in a few seconds."


class DatabaseUnavailable(Trouble):
    """The outcome of the commit is unknown (the rules are in database/__init__.py): the process is about to end."""

    code = "database_unavailable"
    public = "The database failed, and it is not known whether the request took effect. Try again in a moment."


class StorageFull(Trouble):
    code, status = "storage_full", 507
    public = "This pastebin is full. Reading and deleting still work."
    retry_after_s = 60


class BodyMissing(Trouble):
    code, status = "body_missing", 500
    public = "The text of this paste is missing from the storage. The operator has been alarmed."
    retry_after_s = None


class EffectError(PastebinError):
    """What a driver says of a failed effect."""


class Temporary(EffectError):
    """May work later. `throttled` says that the provider asked for less (429, SlowDown): it pauses the consumer."""

    def __init__(self, message: str, *, throttled: bool = False, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.throttled = throttled
        self.retry_after_s = retry_after_s


class Permanent(EffectError):
    """Will not work as it is, however often it is tried."""


class StartError(PastebinError):
    exit_status: ClassVar[int] = 1


class Held(StartError):
    """Another process holds the database."""

    exit_status = 75


class Misconfigured(StartError):
    exit_status = 78
