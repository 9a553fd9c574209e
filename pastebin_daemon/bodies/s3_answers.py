"""What a store's answer means: one table, from S3's statuses and error codes to `Temporary`, `Permanent` and "missing".

The names are from the S3 API reference's list of error codes and from what servers sent. In doubt an error is Temporary:
it is tried again for an hour, or waited out, while Permanent ends a job at once. Messages name the operation, the status
and the code, never the object.
"""

from collections.abc import Mapping

import aiohttp
from botocore.exceptions import BotoCoreError, ClientError, ParamValidationError
from botocore.parsers import ResponseParserError

from pastebin_daemon.bodies import Deletion
from pastebin_daemon.errors import EffectError, Permanent, Temporary

__all__ = ["FAILURES", "MISSING", "NO_BULK", "code_of", "failed", "is_name", "of_member", "status_of"]

# Asks for less, whatever the status. MinIO tells reads from writes; the others are names that gateways borrow.
_THROTTLED = frozenset(
    {"SlowDown", "SlowDownRead", "SlowDownWrite", "Throttling", "ThrottlingException", "RequestLimitExceeded",
     "RequestThrottled", "TooManyRequests", "TooManyRequestsException", "BandwidthLimitExceeded"}
)  # fmt: skip

# A 4xx (or no status at all, inside a bulk answer) that is not this request's own fault: another time, another clock,
# other credentials or another configuration, and the same request works.
_SURROUNDINGS = frozenset(
    {
        "InternalError", "ServiceUnavailable", "OperationAborted", "RestoreAlreadyInProgress",
        "NoSuchBucket", "AuthorizationHeaderMalformed",     # bucket or region wrong: the operator's to mend
        "AccessDenied", "ExpiredToken", "InvalidToken", "TokenRefreshRequired", "RequestTimeTooSkewed",
        "RequestTimeout", "IncompleteBody", "BadDigest", "XAmzContentSHA256Mismatch",  # lost or damaged on the way
    }
)  # fmt: skip

# Says inside a bulk answer that the key itself is at fault.
_OWN_FAULT = frozenset(
    {"KeyTooLongError", "InvalidObjectName", "InvalidArgument", "InvalidRequest", "InvalidURI", "MalformedXML"}
)  # fmt: skip

MISSING = frozenset({"NoSuchKey", "NoSuchVersion"})

# Statuses by which a store says that it has no bulk delete at all. (Swift without Content-MD5 says 400, like others
# that dislike one member: that splits the batch and is not remembered.)
NO_BULK = frozenset({404, 405, 411, 501})

# 4xx that may work later: time-out, conflict, too early. 401 and 403 are credentials, which the operator can mend.
_PASSING_STATUS = frozenset({401, 403, 408, 409, 425})

# The families of errors that a call may raise. `ValueError` is an answer whose dates or numbers make no sense.
FAILURES = (ClientError, BotoCoreError, ResponseParserError, aiohttp.ClientError, OSError, ValueError)


def _answered(operation: str, error: ClientError) -> EffectError:
    """What an error answer of the store means."""
    status, code = status_of(error), code_of(error)
    message = f"{operation}: the store answered {status} {code}"
    if code in _THROTTLED or status == 429:
        return Temporary(message, throttled=True, retry_after_s=_retry_after_s(error))
    if code in _SURROUNDINGS or status in _PASSING_STATUS or not 400 <= status < 500:
        return Temporary(message, retry_after_s=_retry_after_s(error))
    if status == 404:  # not of the key, so of what is around it: a proxy's page, an endpoint that is no S3
        return Temporary(message)
    return Permanent(message)


def failed(operation: str, error: Exception) -> EffectError:
    """What it means that there was no (readable) answer."""
    if isinstance(error, ClientError):
        return _answered(operation, error)
    if isinstance(error, ParamValidationError):  # refused by botocore, before anything was sent
        return Permanent(f"{operation}: refused by botocore as no request to S3")
    return Temporary(f"{operation}: {_reason(error)}")


def of_member(error: Mapping[str, str]) -> Deletion:
    """What an error inside a bulk answer means for its key."""
    code = error.get("Code", "")
    message = f"delete: the store answered {code or 'an error without a code'} for this key"
    if code in MISSING:
        return "missing"
    if code in _OWN_FAULT:
        return Permanent(message)
    return Temporary(message, throttled=code in _THROTTLED)


def is_name(name: str) -> bool:
    """1 to 1,024 bytes of UTF-8 (S3 user guide). No control characters and no lone surrogates: XML can't carry them, and
    some servers answer 500 to a bulk delete with one of them, which would look like an outage."""
    return name.isprintable() and 1 <= len(name.encode()) <= 1024


def status_of(error: ClientError) -> int:
    return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


def code_of(error: ClientError) -> str:
    return str(error.response.get("Error", {}).get("Code", ""))


def _retry_after_s(error: ClientError) -> float | None:
    """Retry-After in its form in seconds. The form of a date is as good as none: no store is known to send it."""
    value = error.response.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("retry-after", "")
    return float(value) if value.isascii() and value.isdigit() else None


def _reason(error: Exception) -> str:
    """The error's name and the operating system's reason below it. botocore's own texts would name the object."""
    text = type(error).__name__
    cause: BaseException | None = error
    while cause is not None:
        cause = cause.__cause__ or cause.__context__
        if isinstance(cause, OSError) and not isinstance(cause, aiohttp.ClientError) and str(cause):
            text = f"{type(error).__name__}: {cause}"
    return text
