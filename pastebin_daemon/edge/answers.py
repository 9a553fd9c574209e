"""How every purger asks its edge, and what the edge's answers mean. One table for all of them.

The rules, each seen on a real cache or CDN:

- 404, 410 and 412 are success: they say "nothing of this is cached" (nginx's purge module and Squid say 404).
- A 200 may carry `"success": false` in a JSON body, and then nothing was purged.
- A redirect is never followed: it is a login page or the origin, and following it would turn it into a 200.
- 401, 403 and 405 are `Temporary`: credentials, an ACL or a missing rule: the operator's to mend, no fault of a job.
- aiohttp adds `Accept-Encoding: gzip, deflate` to every request by itself. nginx purges only the variant that the
  purge's own headers select, so with it a PURGE hits no variant at all: here nothing is added that wasn't asked for.

Nothing is tried twice here: retrying lives in the outbox.
"""

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass

import aiohttp
from yarl import URL

from pastebin_daemon.errors import EffectError, Permanent, Temporary

__all__ = ["CONNECTIONS", "Answer", "ask", "open_session", "verdict", "worst"]

CONNECTIONS = 16
"""Requests in flight to one edge. A purge takes about 0.2 ms in Varnish and 50 to 300 ms at a CDN."""

_BODY_BYTES_MAX = 64 * 1024
_KEEPALIVE_S = 3.0  # below Varnish's timeout_idle of 5 s, so that the edge never closes a connection just as it's used

_NOTHING_CACHED = frozenset({404, 410, 412})
_PASSING = frozenset({401, 403, 405, 408, 425})


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes
    """The first 64 KiB."""


@asynccontextmanager
async def open_session() -> AsyncIterator[aiohttp.ClientSession]:
    """A session that adds nothing to a request and remembers nothing but its connections. Proxies of the environment
    are not used: the cache to purge is most often on the loopback.

    It has no time limit: each purger puts one `asyncio.timeout` around a whole purge. aiohttp's own limit, if it ends in
    the same instant, swallows that cancellation, and the purge would go on with its next request."""
    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=CONNECTIONS, keepalive_timeout=_KEEPALIVE_S),
        cookie_jar=aiohttp.DummyCookieJar(),
        timeout=aiohttp.ClientTimeout(total=None),
        headers={"User-Agent": "pastebin-daemon"},
        skip_auto_headers=("Accept-Encoding",),
    ) as session:
        yield session


async def ask(
    session: aiohttp.ClientSession,
    method: str,
    url: str,
    headers: Mapping[str, str],
    body: bytes | None = None,
) -> Answer:
    """One request, `url` sent as it stands. Raises Temporary without an answer, Permanent if it can't be a request."""
    try:
        async with session.request(
            method, URL(url, encoded=True), headers=headers, data=body, allow_redirects=False
        ) as response:
            return Answer(response.status, response.headers, await _beginning(response.content))
    except ValueError as error:  # no URL (aiohttp.InvalidURL), a header with a line break, a method that is no word
        raise Permanent(f"{method}: this can't be sent ({type(error).__name__})") from error
    except (aiohttp.ClientError, OSError) as error:
        raise Temporary(f"{method}: {_reason(error)}") from error


async def _beginning(stream: aiohttp.StreamReader) -> bytes:
    body = b""
    while len(body) < _BODY_BYTES_MAX and (chunk := await stream.read(_BODY_BYTES_MAX - len(body))):
        body += chunk
    return body


def _reason(error: Exception) -> str:
    """No URL and no header, which may hold a secret."""
    if isinstance(error, aiohttp.ClientConnectorError):
        return f"{type(error).__name__}: {error.os_error}"
    return type(error).__name__


def verdict(operation: str, answer: Answer) -> EffectError | None:
    """None when the edge has dropped what it was asked to, or had none of it; else why not."""
    status = answer.status
    message = f"{operation}: the edge answered {status}"
    if 200 <= status < 300:
        return Temporary(f"{message} with success: false") if _denies_success(answer.body) else None
    if status in _NOTHING_CACHED:
        return None
    retry_after_s = _retry_after_s(answer.headers)
    if status == 429:
        return Temporary(message, throttled=True, retry_after_s=retry_after_s)
    if status in _PASSING or not 400 <= status < 500:
        return Temporary(message, retry_after_s=retry_after_s)
    return Permanent(message)


def _denies_success(body: bytes) -> bool:
    if not body.lstrip().startswith(b"{"):
        return False
    try:
        said = json.loads(body)
    except ValueError:
        return False
    return isinstance(said, dict) and said.get("success") is False


def _retry_after_s(headers: Mapping[str, str]) -> float | None:
    """Retry-After in its form in seconds. The form of a date is as good as none: it would need the edge's clock."""
    value = headers.get("Retry-After", "")
    return float(value) if value.isascii() and value.isdigit() else None


def worst(errors: list[EffectError]) -> EffectError | None:
    """The one error that stands for several of one target: throttling first, since it pauses everything; then what may
    pass, so that a retry finishes the rest; what never will is said when it is all that is left."""

    def rank(error: EffectError) -> int:
        return 2 if not isinstance(error, Temporary) else 0 if error.throttled else 1

    return min(errors, key=rank, default=None)
