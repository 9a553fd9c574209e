"""Any edge that purges on an HTTP request: a template of method, URL and headers.

`{url}`, `{path}`, `{tag}` and `{id}` stand in the URL and in headers for what is to be purged, `{token}` in headers
only, since URLs end up in logs. With `{url}` or `{path}` there is one request for each URL of a target, and the target
is purged when all of them are; else one for each target. What stands after the `?` of the URL is percent-encoded, what
stands before it is not: `{url}` alone is the URL itself, and `https://api.example/purge?url={url}` a parameter.

The requests of all purges together keep to `rate_per_second`: they are spaced evenly, so no second has more (a bucket
of tokens that holds one). One `purge` ends within `timeout_s`, whatever the number of its requests; what was not
reached by then is Temporary.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Annotated
from urllib.parse import quote, urlsplit

import aiohttp
from pydantic import AfterValidator, Field, SecretStr

from pastebin_daemon.clock import Clock
from pastebin_daemon.edge import DriverSettings, Target
from pastebin_daemon.edge.answers import CONNECTIONS, ask, open_session, verdict, worst
from pastebin_daemon.errors import EffectError, Permanent, Temporary
from pastebin_daemon.quantities import base_url
from pastebin_daemon.section import Secret, count, spelt

__all__ = ["HttpPurger", "Pace", "Settings", "Template", "contradictions", "open_purger"]

_PLACEHOLDERS = ("url", "path", "tag", "id")
_PLACE = re.compile(r"\{([a-z]+)\}")
_WORD = re.compile(r"[A-Za-z0-9-]{1,128}")
_BATCH_MAX = 100
_URLS_A_TARGET = 4  # page, raw, download, API


def _template(text: str, allowed: tuple[str, ...]) -> str:
    """Only known placeholders and no stray brace: `str.format` can't fail on it."""
    unknown = [name for name in re.findall(r"\{([^{}]*)\}", text) if name not in allowed]
    if unknown or re.search(r"[{}]", re.sub(r"\{[^{}]*\}", "", text)):
        raise ValueError(
            f"has an unknown placeholder or a stray brace; write {', '.join(f'{{{p}}}' for p in allowed)} only"
        )
    return text


def _purge_url(text: str) -> str:
    if not text:
        return text
    match = re.fullmatch(r"(?:\{url\}|(https?://[^/?#\s{}]+))[!-~]*", text)
    if not match:
        raise ValueError('is not an http or https URL; write one such as "{url}" or "http://127.0.0.1:6081{path}"')
    if match[1]:
        base_url(match[1])
    return _template(text, _PLACEHOLDERS)


def _purge_header(text: str) -> str:
    if not re.fullmatch(r"[ -~]{0,4096}", text):
        raise ValueError("holds characters that no header may have; write printable ASCII on one line")
    return _template(text, (*_PLACEHOLDERS, "token"))


HeaderName = Annotated[
    str, spelt(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}", 'is not the name of a header; write one such as "X-Purge"')
]


class Settings(DriverSettings):
    """`url` and the values of `headers` are templates: url, path, tag, id; in headers also token. Neither is shown in a
    message, since people put tokens into them."""

    method: Annotated[str, spelt(r"[A-Z]{1,20}", 'is not an HTTP method; write one such as "PURGE"')] = "PURGE"
    url: Annotated[str, AfterValidator(_purge_url)] = Field(default="", repr=False)
    headers: dict[HeaderName, Annotated[str, AfterValidator(_purge_header)]] = Field(default={}, repr=False)
    token: Secret = SecretStr("")
    rate_per_second: Annotated[int, count(0, 100_000)] = 50
    """0: unlimited."""


def contradictions(settings: Settings) -> Iterator[tuple[tuple[str, ...], str]]:
    if not settings.url:
        yield (
            ("url",),
            'is needed with [edge] driver = "http"; write one such as "{url}" or "http://127.0.0.1:6081{path}"',
        )
    elif not any("{" in text.replace("{token}", "") for text in (settings.url, *settings.headers.values())):
        yield (
            ("url", "headers"),
            'names no paste, nor does a header; write a placeholder into it, as in "{url}" or "http://127.0.0.1:6081{path}"',
        )
    uses_token = any("{token}" in value for value in settings.headers.values())
    if uses_token and not settings.token:
        yield (
            ("token", "headers"),
            "is empty but a header uses {token}; write the token",
        )
    if settings.token and not uses_token:
        yield (
            ("headers", "token"),
            'makes no use of the token that is given; write { Authorization = "Bearer {token}" } or leave token away',
        )


@asynccontextmanager
async def open_purger(
    settings: Settings, clock: Clock, sleep: Callable[[float], Awaitable[object]] = asyncio.sleep
) -> AsyncIterator["HttpPurger"]:
    template = Template(settings.method, settings.url, settings.headers, settings.token.get_secret_value())
    async with open_session() as session:
        yield HttpPurger(session, template, settings.timeout, settings.rate_per_second, clock, sleep)


@dataclass(frozen=True, slots=True)
class Template:
    method: str
    url: str
    headers: Mapping[str, str] = field(repr=False)
    token: str = field(repr=False)

    @property
    def by_url(self) -> bool:
        texts = self.url + "".join(self.headers.values())
        return "{url}" in texts or "{path}" in texts

    def fill(self, target: Target) -> list[tuple[str, dict[str, str]]]:
        """URL and headers of each request that purges the target."""
        urls = target.urls if self.by_url else ("",)
        return [self._request({"id": target.id, "tag": target.tag, "url": url, "path": _path(url)}) for url in urls]

    def _request(self, values: Mapping[str, str]) -> tuple[str, dict[str, str]]:
        before, mark, after = self.url.partition("?")
        url = _put(before, values) + mark + _put(after, {name: quote(value, safe="") for name, value in values.items()})
        return url, {name: _put(value, {**values, "token": self.token}) for name, value in self.headers.items()}


def _put(text: str, values: Mapping[str, str]) -> str:
    return _PLACE.sub(lambda place: values.get(place[1], place[0]), text)


def _path(url: str) -> str:
    parts = urlsplit(url)
    return parts.path + (f"?{parts.query}" if parts.query else "")


class Pace:
    """Spaces moves evenly, `per_second` of them; 0 is no limit."""

    def __init__(self, per_second: int, clock: Clock, sleep: Callable[[float], Awaitable[object]]) -> None:
        self._interval_s = 1 / per_second if per_second else 0.0
        self._clock = clock
        self._sleep = sleep
        self._free_at = clock.monotonic()

    async def wait_turn(self) -> None:
        now = self._clock.monotonic()
        turn = max(now, self._free_at)
        self._free_at = turn + self._interval_s
        if turn > now:
            await self._sleep(turn - now)


class HttpPurger:
    """An EdgePurger. Made by `open_http`."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        template: Template,
        timeout_s: float,
        rate_per_second: int,
        clock: Clock,
        sleep: Callable[[float], Awaitable[object]],
    ) -> None:
        self._session = session
        self._template = template
        self._timeout_s = timeout_s
        self._pace = Pace(rate_per_second, clock, sleep)
        # About one second's worth, so that the wait for the rate stays far below the time limit.
        requests = _URLS_A_TARGET if template.by_url else 1
        self.batch_max = max(1, min(_BATCH_MAX, rate_per_second // requests)) if rate_per_second else _BATCH_MAX

    async def purge(self, targets: Sequence[Target]) -> Sequence[EffectError | None]:
        results: list[list[EffectError | None]] = [[] for _ in targets]
        requests = []
        for target, result in zip(targets, results, strict=True):
            if not (_WORD.fullmatch(target.id) and _WORD.fullmatch(target.tag)):
                result.append(Permanent("purge: an id or a tag that is not of letters, digits and '-'"))
                continue
            late = Temporary(f"{self._template.method}: not done within {self._timeout_s:g} s")
            for url, headers in self._template.fill(target):
                requests.append((url, headers, result, len(result)))
                result.append(late)
        waiting = iter(requests)

        async def work() -> None:
            for url, headers, result, place in waiting:
                await self._pace.wait_turn()
                result[place] = await self._send(url, headers)

        try:
            async with asyncio.timeout(self._timeout_s), asyncio.TaskGroup() as group:
                for _ in range(min(CONNECTIONS, len(requests))):
                    group.create_task(work())
        except TimeoutError:
            pass  # what has no answer keeps being late
        return [worst([error for error in result if error is not None]) for result in results]

    async def _send(self, url: str, headers: Mapping[str, str]) -> EffectError | None:
        try:
            return verdict(self._template.method, await ask(self._session, self._template.method, url, headers))
        except EffectError as error:
            return error
