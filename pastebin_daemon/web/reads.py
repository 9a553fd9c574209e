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

import segno
from aiohttp import web
from multidict import CIMultiDict

from pastebin_daemon.clock import Clock
from pastebin_daemon.errors import BadRequest, NotFound
from pastebin_daemon.ids import ID
from pastebin_daemon.pastes import ABSENT, Paste
from pastebin_daemon.reading import Reading
from pastebin_daemon.web.creates import paste_json
from pastebin_daemon.web.envelope import RAW_CSP
from pastebin_daemon.web.paste_page import PastePages
from pastebin_daemon.web.site import PAGE_CSP, Site

__all__ = ["Reads", "paste_id"]


def paste_id(request: web.Request) -> str:
    """The id in the path. Raises `NotFound` for what no id can be."""
    found = request.match_info["id"]
    if not ID.fullmatch(found):
        raise NotFound(ABSENT)
    return found


class Reads:
    def __init__(self, reading: Reading, clock: Clock, site: Site, pages: PastePages, edge_max_age_s: int) -> None:
        self._reading = reading
        self._clock = clock
        self._public_url = site.public_url
        self._pages = pages
        self._edge_max_age_s = edge_max_age_s

    async def raw(self, request: web.Request) -> web.Response:
        entry = await self._reading.read(paste_id(request))
        paste = entry.paste
        if paste.is_text:
            headers = {"Content-Type": "text/plain; charset=utf-8"}
        else:
            headers = {"Content-Type": "application/octet-stream", "Content-Disposition": _attachment(paste)}
        return self._answer(request, paste, entry.body, f'"{paste.sha256.hex()}"', RAW_CSP, headers)

    async def download(self, request: web.Request) -> web.Response:
        entry = await self._reading.read(paste_id(request))
        paste = entry.paste
        headers = {"Content-Type": "application/octet-stream", "Content-Disposition": _attachment(paste)}
        return self._answer(request, paste, entry.body, f'"{paste.sha256.hex()}"', RAW_CSP, headers)

    async def page(self, request: web.Request) -> web.Response:
        render = request.query.get("render")
        if render not in (None, "markdown"):
            raise BadRequest("a page can be rendered as markdown, or not: write ?render=markdown, or nothing")
        began = self._clock.monotonic()
        entry = await self._reading.read(paste_id(request))
        page = entry.page if render is None else None
        if page is None:
            page = await (self._pages.page(entry) if render is None else self._pages.rendered(entry))
            self._reading.check(entry.paste, began)
        headers = {"Content-Type": "text/html; charset=utf-8"}
        return self._answer(request, entry.paste, page.body, page.etag, PAGE_CSP, headers)

    async def qr(self, request: web.Request) -> web.Response:
        """The link as a QR code, with the quiet zone of four modules that the standard asks for (ISO/IEC 18004)."""
        paste = await self._reading.look(paste_id(request))
        image = io.BytesIO()
        segno.make(f"{self._public_url}/{paste.id}", error="m", micro=False).save(
            image, kind="svg", border=4, light="#fff", omitsize=True
        )
        return web.Response(
            body=image.getvalue(), headers={"Content-Type": "image/svg+xml", "Content-Security-Policy": RAW_CSP}
        )

    async def api(self, request: web.Request) -> web.Response:
        paste = await self._reading.look(paste_id(request))
        body = json.dumps(paste_json(paste, self._public_url)).encode()
        return self._answer(request, paste, body, _etag(body), RAW_CSP, {"Content-Type": "application/json"})

    def _answer(
        self, request: web.Request, paste: Paste, body: bytes, etag: str, csp: str, headers: dict[str, str]
    ) -> web.Response:
        """The answer for a paste that was found live in this very step of the loop."""
        tag = f"paste-{paste.id}"
        all_headers = CIMultiDict(headers)
        all_headers["Cache-Control"] = self._cache_control(paste, request)
        all_headers["ETag"] = etag
        all_headers["Cache-Tag"] = tag
        all_headers["Surrogate-Key"] = tag
        all_headers["Content-Security-Policy"] = csp
        if _matches(request, etag):
            del all_headers["Content-Type"]
            return web.Response(status=304, headers=all_headers)
        return web.Response(body=body, headers=all_headers)

    def _cache_control(self, paste: Paste, request: web.Request) -> str:
        kept_s = self._edge_max_age_s
        if paste.expires_ms is not None:
            kept_s = min(kept_s, (paste.expires_ms - self._clock.now_ms()) // 1000 - 1)
        if kept_s < 1 or request.raw_path != request.path:
            return "no-store"
        return (
            f"public, max-age=0, s-maxage={kept_s}, must-revalidate, stale-while-revalidate=0, stale-if-error=0"
        )  # fmt: skip


def _etag(body: bytes) -> str:
    return f'"{hashlib.sha256(body).hexdigest()[:32]}"'


def _matches(request: web.Request, etag: str) -> bool:
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
