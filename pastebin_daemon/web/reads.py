"""The ways out: page, raw, download and API, each one representation of one URL.

There is no negotiation on Accept or User-Agent, which CDNs ignore, and no compression here, which the cache does. Every
answer of a live paste carries its cache tag, and may be kept by an edge for N = min(`[edge] max_age`, whole seconds of
life left - 1), below 1 not at all: so no edge serves a paste past its expiry, and none serves a deleted one for longer
than `max_age` (G11). A request that spells the URL otherwise (a query string, `%41` for `A`) gets the same answer, but
one that is not kept, so that there never is a second copy to purge. `must-revalidate` and the two `stale-` directives
at 0 keep caches from serving on past that (Varnish's grace of 10 s among them). Liveness is checked before
If-None-Match, and a 304 says a fresh N.
"""

import hashlib
import io
import json
import re
from urllib.parse import quote

from aiohttp import web

from pastebin_daemon.clock import Clock
from pastebin_daemon.errors import BadRequest, NotFound
from pastebin_daemon.ids import ID
from pastebin_daemon.pastes import ABSENT, Paste
from pastebin_daemon.reading import Entry, Reading, Representation
from pastebin_daemon.web.app import RAW_CSP
from pastebin_daemon.web.creates import paste_json
from pastebin_daemon.web.paste_page import PastePages
from pastebin_daemon.web.represent import represent
from pastebin_daemon.web.routing import Request
from pastebin_daemon.web.site import Site

__all__ = ["Reads", "paste_id"]


def paste_id(request: Request) -> str:
    """The id in the path. Raises `NotFound` for what no id can be."""
    found = request.argument
    if not ID.fullmatch(found):
        raise NotFound(ABSENT)
    return found


class Reads:
    def __init__(self, reading: Reading, clock: Clock, site: Site, pages: PastePages, edge_max_age_s: int) -> None:
        self._reading = reading
        self._clock = clock
        self._public_url = site.public_url
        self._pages = pages
        self._controls = [
            f"public, max-age=0, s-maxage={kept_s}, must-revalidate, stale-while-revalidate=0, stale-if-error=0"
            for kept_s in range(edge_max_age_s + 1)
        ]
        """By the seconds that an edge may keep an answer."""

    async def raw(self, request: Request) -> web.Response:
        entry = await self._reading.read(paste_id(request))
        if entry.raw is None:
            entry.raw = _raw(entry)
        return self._answer(request, entry.paste, entry.raw)

    async def download(self, request: Request) -> web.Response:
        entry = await self._reading.read(paste_id(request))
        return self._answer(request, entry.paste, _download(entry))

    async def page(self, request: Request) -> web.Response:
        render = None if request.is_canonical else request.query.get("render")
        if render not in (None, "markdown"):
            raise BadRequest("a page can be rendered as markdown, or not: write ?render=markdown, or nothing")
        began = self._clock.monotonic()
        entry = await self._reading.read(paste_id(request))
        page = entry.page if render is None else None
        if page is None:
            page = await (self._pages.page(entry) if render is None else self._pages.rendered(entry))
            self._reading.check(entry.paste, began)
        return self._answer(request, entry.paste, page)

    async def qr(self, request: Request) -> web.Response:
        """The link as a QR code, with the quiet zone of four modules that the standard asks for (ISO/IEC 18004)."""
        import segno  # many daemons are never asked for one, and it takes 0.5 MB

        paste = await self._reading.look(paste_id(request))
        image = io.BytesIO()
        segno.make(f"{self._public_url}/{paste.id}", error="m", micro=False).save(
            image, kind="svg", border=4, light="#fff", omitsize=True
        )
        return web.Response(
            body=image.getvalue(), headers={"Content-Type": "image/svg+xml", "Content-Security-Policy": RAW_CSP}
        )

    async def api(self, request: Request) -> web.Response:
        paste = await self._reading.look(paste_id(request))
        body = json.dumps(paste_json(paste, self._public_url)).encode()
        etag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
        return self._answer(request, paste, represent(paste, body, etag, "application/json", RAW_CSP))

    def _answer(self, request: Request, paste: Paste, shown: Representation) -> web.Response:
        """The answer for a paste that was found live in this very step of the loop."""
        if "If-None-Match" in request.headers and _matches(request, shown.etag):
            response = web.Response(status=304, headers=shown.headers)
            del response.headers["Content-Type"]
        else:
            response = web.Response(body=shown.body, headers=shown.headers)
        response.headers["Cache-Control"] = self._cache_control(paste, request)
        return response

    def _cache_control(self, paste: Paste, request: Request) -> str:
        kept_s = len(self._controls) - 1
        if paste.expires_ms is not None:
            kept_s = min(kept_s, (paste.expires_ms - self._clock.now_ms()) // 1000 - 1)
        return "no-store" if kept_s < 1 or not request.is_canonical else self._controls[kept_s]


def _raw(entry: Entry) -> Representation:
    if not entry.paste.is_text:
        return _download(entry)
    return represent(entry.paste, entry.body, _etag(entry), "text/plain; charset=utf-8", RAW_CSP)


def _download(entry: Entry) -> Representation:
    disposition = _attachment(entry.paste)
    return represent(
        entry.paste, entry.body, _etag(entry), "application/octet-stream", RAW_CSP, Content_Disposition=disposition
    )


def _etag(entry: Entry) -> str:
    return f'"{entry.paste.sha256.hex()}"'


def _matches(request: Request, etag: str) -> bool:
    """RFC 9110, 13.1.2: a weak comparison; `*` matches whatever is there."""
    asked = ",".join(request.headers.getall("If-None-Match", []))
    return asked.strip() == "*" or etag in re.findall(r'"[^"]*"', asked)


def _attachment(paste: Paste) -> str:
    """RFC 6266 and 8187: a plain name for every client, and the true one for those who read `filename*`."""
    name = (paste.title or paste.id).replace("/", "_").replace("\\", "_").strip(". ") or paste.id
    if "." not in name:
        name += ".txt" if paste.is_text else ".bin"
    plain = re.sub(r"[^A-Za-z0-9._ -]", "_", name)
    extended = "" if plain == name else f"; filename*=UTF-8''{quote(name, safe='')}"
    return f'attachment; filename="{plain}"{extended}'
