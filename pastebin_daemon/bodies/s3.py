"""Bodies in any S3-compatible bucket.

What this module guarantees above the seam (bodies/__init__.py):

- Every call, a bulk delete with all its retreats included, ends within `timeout_s`. botocore and aiohttp have limits of
  their own, but not one for each way of being slow, so `asyncio.timeout` stands around all of them, and around the
  reading of a body too.
- Nothing is tried twice here: retrying lives in the outbox. botocore's own retries are off. aiohttp still re-sends a
  PUT, GET or DELETE once on a lost connection; one object per random key, written once, makes that harmless.
- Only the plainest S3 is spoken: PUT, GET, DELETE of an object and the bulk DELETE. No HEAD (a HEAD has no body that
  could say what is wrong, and some stores frame it wrongly), no conditional request, no listing.

Settings that differ from botocore's, and why:

- Checksums only `when_required`. By default botocore uploads over HTTPS as `aws-chunked` with a trailing CRC, without
  Content-Length: Swift answers 501 to it and Ceph's gateway 411. Over plain HTTP it does not, so tests without TLS
  can't see it.
- No `Expect: 100-continue`. botocore sends it on every PUT and then waits for the answer without any time limit, so a
  store that accepts and says nothing would hang a create for ever.
- No redirects. aiohttp follows them by itself and turns a POST into a GET: a store behind a login page would seem to
  have deleted a whole batch.
- A Content-MD5 on the bulk delete. botocore replaced it by a CRC, which Swift (400) and older stores don't take.

A bulk delete may fail as a whole for the fault of one key, or because the store knows no such thing. Both end in
single deletes, which carry no checksum and work everywhere; the second is remembered.

A bucket with versioning keeps every body that is deleted here, as an old version. `doctor` warns of it.
"""

import asyncio
import base64
import hashlib
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from email.utils import parsedate_to_datetime
from typing import Any, Literal

import aiohttp
import structlog
from aiobotocore.config import AioConfig
from aiobotocore.httpsession import AIOHTTPSession
from aiobotocore.session import get_session
from botocore.exceptions import BotoCoreError, ClientError, HTTPClientError, ParamValidationError
from botocore.handlers import add_expect_header
from botocore.parsers import ResponseParserError

from pastebin_daemon.bodies import Deletion
from pastebin_daemon.errors import EffectError, Misconfigured, Permanent, Temporary

__all__ = ["DELETE_MAX", "S3Store", "open_s3"]

DELETE_MAX = 1000
"""Keys in one DeleteObjects (S3 API reference; Swift and Ceph refuse more)."""

_CONNECTIONS = (
    64  # the dispatcher's batches and the creates of a peak second (350 at about 0.1 s each) fit side by side
)
_SINGLES_AT_ONCE = 16  # a quarter of the connections: creates and reads keep the rest

# --- What an answer means. One table; names from the S3 API reference's list of error codes and from what servers sent.

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

_MISSING = frozenset({"NoSuchKey", "NoSuchVersion"})

# Statuses by which a store says that it has no bulk delete at all. (Swift without Content-MD5 says 400, like others
# that dislike one member: that splits the batch and is not remembered.)
_NO_BULK = frozenset({404, 405, 411, 501})

# 4xx that may work later: time-out, conflict, too early. 401 and 403 are credentials, which the operator can mend.
_PASSING_STATUS = frozenset({401, 403, 408, 409, 425})

# The families of errors that a call may raise. `ValueError` is an answer whose dates or numbers make no sense.
_FAILURES = (ClientError, BotoCoreError, ResponseParserError, aiohttp.ClientError, OSError, ValueError)


def _answered(operation: str, error: ClientError) -> EffectError:
    """What an error answer of the store means."""
    status, code = _status(error), _code(error)
    message = f"{operation}: the store answered {status} {code}"
    if code in _THROTTLED or status == 429:
        return Temporary(message, throttled=True, retry_after_s=_retry_after_s(error))
    if code in _SURROUNDINGS or status in _PASSING_STATUS or not 400 <= status < 500:
        return Temporary(message, retry_after_s=_retry_after_s(error))
    if status == 404:  # not of the key, so of what is around it: a proxy's page, an endpoint that is no S3
        return Temporary(message)
    return Permanent(message)


def _failed(operation: str, error: Exception) -> EffectError:
    """What it means that there was no (readable) answer."""
    if isinstance(error, ClientError):
        return _answered(operation, error)
    if isinstance(error, ParamValidationError):  # refused by botocore, before anything was sent
        return Permanent(f"{operation}: refused by botocore as no request to S3")
    return Temporary(f"{operation}: {_reason(error)}")


def _member(error: Mapping[str, str]) -> Deletion:
    """What an error inside a bulk answer means for its key."""
    code = error.get("Code", "")
    message = f"delete: the store answered {code or 'an error without a code'} for this key"
    if code in _MISSING:
        return "missing"
    if code in _OWN_FAULT:
        return Permanent(message)
    return Temporary(message, throttled=code in _THROTTLED)


def _is_name(name: str) -> bool:
    """1 to 1,024 bytes of UTF-8 (S3 user guide). No control characters and no lone surrogates: XML can't carry them, and
    some servers answer 500 to a bulk delete with one of them, which would look like an outage."""
    return name.isprintable() and 1 <= len(name.encode()) <= 1024


def _status(error: ClientError) -> int:
    return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


def _code(error: ClientError) -> str:
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


@asynccontextmanager
async def open_s3(
    endpoint_url: str,
    bucket: str,
    prefix: str,
    region: str,
    addressing: Literal["path", "virtual"],
    access_key_id: str,
    secret_access_key: str,
    connect_timeout_s: float,
    timeout_s: float,
) -> AsyncIterator["S3Store"]:
    """A store on `bucket`, with `prefix` before every key. An empty endpoint is AWS; empty keys are AWS's usual chain
    (environment, files, instance role). Raises Misconfigured. Nothing is sent yet."""
    config = AioConfig(
        region_name=region,
        connect_timeout=connect_timeout_s,
        read_timeout=timeout_s,
        max_pool_connections=_CONNECTIONS,
        retries={"total_max_attempts": 1, "mode": "standard"},
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        signature_version="s3v4",
        s3={"addressing_style": addressing},
        http_session_cls=_StraightSession,
    )
    async with AsyncExitStack() as stack:
        try:
            client = await stack.enter_async_context(
                get_session().create_client(
                    "s3",
                    endpoint_url=endpoint_url or None,
                    aws_access_key_id=access_key_id or None,
                    aws_secret_access_key=secret_access_key or None,
                    config=config,
                )
            )
        except (BotoCoreError, ValueError) as error:
            raise Misconfigured(f"[bodies.s3] can't be used as it is: {error}") from error
        client.meta.events.unregister("before-call.s3", add_expect_header)
        client.meta.events.register("before-sign.s3.DeleteObjects", _add_content_md5)
        yield S3Store(client, bucket, prefix, timeout_s)


class Redirected(HTTPClientError):  # type: ignore[misc]  # ships no types
    """The name is what the log will say."""


class _StraightSession(AIOHTTPSession):  # type: ignore[misc]  # ships no types
    """Refuses what came by a redirect."""

    async def send(self, request: Any) -> Any:
        response = await super().send(request)
        if response.raw.history:
            response.raw.close()
            raise Redirected(error=response.raw.history[0].status)
        return response


def _add_content_md5(request: Any, **_: object) -> None:
    digest = hashlib.md5(request.data, usedforsecurity=False).digest()
    request.headers["Content-MD5"] = base64.b64encode(digest).decode()


class S3Store:
    """A BodyStore. Made by `open_s3`."""

    def __init__(self, client: Any, bucket: str, prefix: str, timeout_s: float) -> None:
        self._client = client
        self._bucket = bucket
        self._prefix = prefix
        self._timeout_s = timeout_s
        self._knows_bulk = True

    async def put(self, key: str, body: bytes) -> None:
        with self._only_effect_errors("put"):
            async with asyncio.timeout(self._timeout_s):
                answer = await self._client.put_object(**self._object(key), Body=body, ContentLength=len(body))
        if "ETag" not in answer:  # every S3 sends it: G1 is not to hang on a 200 of something else
            raise Temporary("put: the answer has no ETag, so it isn't an S3 that answered")

    async def get(self, key: str) -> bytes | None:
        with self._only_effect_errors("get"):
            async with asyncio.timeout(self._timeout_s):
                try:
                    answer = await self._client.get_object(**self._object(key))
                except ClientError as error:
                    if _code(error) == "NoSuchKey":
                        return None
                    raise
                async with answer["Body"] as stream:
                    body: bytes = await stream.read()
                    return body

    async def age_s(self, key: str) -> float | None:
        with self._only_effect_errors("age"):
            async with asyncio.timeout(self._timeout_s):
                try:
                    answer = await self._first_byte(key)
                except ClientError as error:
                    if _code(error) == "NoSuchKey":
                        return None
                    raise
                async with answer["Body"] as stream:
                    if answer["ResponseMetadata"]["HTTPStatusCode"] == 206:
                        await stream.read()  # so that the connection is used again; a 200 would be the whole body
            written, date = answer.get("LastModified"), answer["ResponseMetadata"]["HTTPHeaders"].get("date")
            if written is None or date is None:
                raise Temporary("age: the store's answer has no Last-Modified or no Date")
            # Both have whole seconds, and a store of many machines may have set them by two clocks.
            return max(0.0, parsedate_to_datetime(date).timestamp() - float(written.timestamp()))

    async def _first_byte(self, key: str) -> Any:
        try:
            return await self._client.get_object(**self._object(key), Range="bytes=0-0")
        except ClientError as error:
            if _status(error) != 416:
                raise
            return await self._client.get_object(**self._object(key))  # an empty object has no first byte

    async def delete(self, keys: Sequence[str]) -> Mapping[str, Deletion]:
        """`deleted` is also said of what was not there: S3 doesn't tell, but for a few stores that do."""
        assert len(keys) <= DELETE_MAX
        results: dict[str, Deletion] = {}
        late = Temporary(f"delete: not done within {self._timeout_s:g} s")
        for key in (key for key in keys if not _is_name(self._prefix + key)):
            results[key] = Permanent("delete: not a key that S3 can have")
        keys = [key for key in keys if key not in results]
        try:
            async with asyncio.timeout(self._timeout_s):
                together = await self._delete_together(keys) if self._knows_bulk and keys else None
                if together is None:
                    await self._delete_singly(keys, results)
                else:
                    results.update(together)
        except TimeoutError:
            pass  # what is not in the results is late
        return dict.fromkeys(keys, late) | results

    async def _delete_together(self, keys: Sequence[str]) -> Mapping[str, Deletion] | None:
        """A result for every key, or None when they must be asked for one by one."""
        names = {self._prefix + key: key for key in keys}
        wanted = {"Objects": [{"Key": name} for name in names], "Quiet": True}
        try:
            answer = await self._client.delete_objects(Bucket=self._bucket, Delete=wanted)
        except _FAILURES as error:
            if isinstance(error, ClientError) and _status(error) in _NO_BULK and _code(error) != "NoSuchBucket":
                self._knows_bulk = False
                structlog.get_logger().info("bulk_delete.refused", status=_status(error), code=_code(error))
                return None
            why = _failed("delete", error)
            return None if isinstance(why, Permanent) else dict.fromkeys(keys, why)
        results: dict[str, Deletion] = dict.fromkeys(keys, "deleted")
        for failure in answer.get("Errors", ()):
            if failure.get("Key") not in names:
                return None  # whose it is can't be told, so no key of the batch may count as deleted
            results[names[failure["Key"]]] = _member(failure)
        return results

    async def _delete_singly(self, keys: Sequence[str], results: dict[str, Deletion]) -> None:
        """Fills `results`, so that what was done counts even when the time is up."""
        waiting = iter(dict.fromkeys(keys))

        async def work() -> None:
            for key in waiting:
                results[key] = await self._delete_one(key)

        async with asyncio.TaskGroup() as group:
            for _ in range(min(_SINGLES_AT_ONCE, len(keys))):
                group.create_task(work())

    async def _delete_one(self, key: str) -> Deletion:
        try:
            await self._client.delete_object(**self._object(key))
        except _FAILURES as error:
            if isinstance(error, ClientError) and _code(error) in _MISSING:
                return "missing"
            return _failed("delete", error)
        return "deleted"

    def _object(self, key: str) -> dict[str, str]:
        name = self._prefix + key
        if not _is_name(name):
            raise Permanent("not a key that S3 can have")
        return {"Bucket": self._bucket, "Key": name}

    @contextmanager
    def _only_effect_errors(self, operation: str) -> Iterator[None]:
        try:
            yield
        except _FAILURES as error:
            if type(error) is TimeoutError:  # asyncio.timeout's own
                raise Temporary(f"{operation}: not done within {self._timeout_s:g} s") from error
            raise _failed(operation, error) from error
