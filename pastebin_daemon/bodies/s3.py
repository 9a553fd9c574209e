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

from aiobotocore.config import AioConfig
from aiobotocore.httpsession import AIOHTTPSession
from aiobotocore.session import get_session
from botocore.exceptions import BotoCoreError, ClientError, HTTPClientError
from botocore.handlers import add_expect_header

from pastebin_daemon.bodies import Deletion
from pastebin_daemon.bodies.s3_answers import FAILURES, MISSING, NO_BULK, code_of, failed, is_name, of_member, status_of
from pastebin_daemon.errors import Misconfigured, Permanent, Temporary
from pastebin_daemon.logs import get_logger

__all__ = ["DELETE_MAX", "S3Store", "open_s3"]

log = get_logger()

DELETE_MAX = 1000
"""Keys in one DeleteObjects (S3 API reference; Swift and Ceph refuse more)."""

_CONNECTIONS = (
    64  # the dispatcher's batches and the creates of a peak second (350 at about 0.1 s each) fit side by side
)
_SINGLES_AT_ONCE = 16  # a quarter of the connections: creates and reads keep the rest


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
                    if code_of(error) == "NoSuchKey":
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
                    if code_of(error) == "NoSuchKey":
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
            if status_of(error) != 416:
                raise
            return await self._client.get_object(**self._object(key))  # an empty object has no first byte

    async def delete(self, keys: Sequence[str]) -> Mapping[str, Deletion]:
        """`deleted` is also said of what was not there: S3 doesn't tell, but for a few stores that do."""
        assert len(keys) <= DELETE_MAX
        results: dict[str, Deletion] = {}
        late = Temporary(f"delete: not done within {self._timeout_s:g} s")
        for key in (key for key in keys if not is_name(self._prefix + key)):
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
        except FAILURES as error:
            if isinstance(error, ClientError) and status_of(error) in NO_BULK and code_of(error) != "NoSuchBucket":
                self._knows_bulk = False
                log.info("bulk_delete.refused", status=status_of(error), code=code_of(error))
                return None
            why = failed("delete", error)
            return None if isinstance(why, Permanent) else dict.fromkeys(keys, why)
        results: dict[str, Deletion] = dict.fromkeys(keys, "deleted")
        for failure in answer.get("Errors", ()):
            if failure.get("Key") not in names:
                return None  # whose it is can't be told, so no key of the batch may count as deleted
            results[names[failure["Key"]]] = of_member(failure)
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
        except FAILURES as error:
            if isinstance(error, ClientError) and code_of(error) in MISSING:
                return "missing"
            return failed("delete", error)
        return "deleted"

    def _object(self, key: str) -> dict[str, str]:
        name = self._prefix + key
        if not is_name(name):
            raise Permanent("not a key that S3 can have")
        return {"Bucket": self._bucket, "Key": name}

    @contextmanager
    def _only_effect_errors(self, operation: str) -> Iterator[None]:
        try:
            yield
        except FAILURES as error:
            if type(error) is TimeoutError:  # asyncio.timeout's own
                raise Temporary(f"{operation}: not done within {self._timeout_s:g} s") from error
            raise failed(operation, error) from error
