"""Varnish: one ban per batch, by cache tag.

A ban by tag reaches every copy of a paste: all its URLs, hosts and query strings, in all encodings. (A PURGE by URL
would miss other hosts and query strings.) The tags of a batch go out as one request and become one ban, an alternation,
since each ban is tested against each cached object until the lurker has worked it off.

`varnish.vcl` beside this file is the other half, and the two must agree: the header `Cache-Tag` of a `BAN /` holds tags
separated by `|`. The VCL checks their syntax again, because what it receives becomes a regular expression. Nothing in
it is about grace: the origin says `stale-while-revalidate=0`, which Varnish honours by default. A lifetime is cut by the
time that the answer took, which Varnish does not do by itself.

A ban that arrives while Varnish is fetching that object is lost. The outbox purges a second time for this reason.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from importlib import resources

import aiohttp

from pastebin_daemon.clock import Clock
from pastebin_daemon.edge import DriverSettings, Target
from pastebin_daemon.edge.answers import ask, open_session, verdict
from pastebin_daemon.errors import EffectError, Permanent, Temporary
from pastebin_daemon.section import BaseUrl, default

__all__ = ["Settings", "VarnishPurger", "contradictions", "open_purger", "vcl"]

_TAG = re.compile(r"[A-Za-z0-9-]{1,64}")


class Settings(DriverSettings):
    endpoint: BaseUrl = default("http://127.0.0.1:6081")
    """Scheme, host and port of Varnish itself."""


def contradictions(settings: Settings) -> Iterator[tuple[tuple[str, ...], str]]:
    yield from ()


@asynccontextmanager
async def open_purger(settings: Settings, clock: Clock) -> AsyncIterator["VarnishPurger"]:
    async with open_session() as session:
        yield VarnishPurger(session, settings.endpoint, settings.timeout)


class VarnishPurger:
    """An EdgePurger. Made by `open_varnish`."""

    batch_max = 100
    """Tags of 64 characters at most and their separators make 6,500 bytes, under http_req_hdr_len (default: 8 KB)."""

    def __init__(self, session: aiohttp.ClientSession, endpoint: str, timeout_s: float) -> None:
        self._session = session
        self._timeout_s = timeout_s
        self._url = endpoint.rstrip("/") + "/"

    async def purge(self, targets: Sequence[Target]) -> Sequence[EffectError | None]:
        assert len(targets) <= self.batch_max
        tags = list(dict.fromkeys(target.tag for target in targets if _TAG.fullmatch(target.tag)))
        outcome = await self._ban(tags) if tags else None
        return [
            outcome if _TAG.fullmatch(target.tag) else Permanent("BAN: not a tag of letters, digits and '-'")
            for target in targets
        ]

    async def _ban(self, tags: Sequence[str]) -> EffectError | None:
        try:
            async with asyncio.timeout(self._timeout_s):
                return verdict("BAN", await ask(self._session, "BAN", self._url, {"Cache-Tag": "|".join(tags)}))
        except EffectError as error:
            return error
        except TimeoutError:
            return Temporary(f"BAN: no answer within {self._timeout_s:g} s")


def vcl(backend_host: str, backend_port: int) -> str:
    """The configuration for Varnish that goes with this purger, in front of the daemon at the given address."""
    text = resources.files(__package__).joinpath("varnish.vcl").read_text(encoding="utf-8")
    return text.replace("@BACKEND_HOST@", backend_host).replace("@BACKEND_PORT@", str(backend_port))
