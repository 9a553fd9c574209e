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
import html
import json
import re
from urllib.parse import quote

from aiohttp import web
from multidict import CIMultiDict

from pastebin_daemon.clock import Clock, rfc3339
from pastebin_daemon.errors import NotFound
from pastebin_daemon.ids import ID
from pastebin_daemon.pastes import ABSENT, Paste
from pastebin_daemon.quantities import size_text
from pastebin_daemon.reading import Reading
from pastebin_daemon.web.creates import delete_action, paste_json
from pastebin_daemon.web.envelope import PAGE_CSP, RAW_CSP

__all__ = ["Reads", "paste_id"]


def paste_id(request: web.Request) -> str:
    """The id in the path. Raises `NotFound` for what no id can be."""
    found = request.match_info["id"]
    if not ID.fullmatch(found):
        raise NotFound(ABSENT)
    return found


class Reads:
    def __init__(self, reading: Reading, clock: Clock, public_url: str, edge_max_age_s: int) -> None:
        self._reading = reading
        self._clock = clock
        self._public_url = public_url
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
        entry = await self._reading.read(paste_id(request))
        body = _document(entry.paste, entry.body, self._public_url)
        return self._answer(
            request, entry.paste, body, _etag(body), PAGE_CSP, {"Content-Type": "text/html; charset=utf-8"}
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


def _document(paste: Paste, body: bytes, public_url: str) -> bytes:
    """The page. A newline follows `<pre>` because a browser drops the first one, and CR is written as a reference
    because it would be read as LF."""
    url = html.escape(f"{public_url}/{paste.id}")
    title = html.escape(paste.title or paste.id)
    gone = "kept until it is deleted" if paste.expires_ms is None else f"gone on {rfc3339(paste.expires_ms)}"
    facts = " · ".join(filter(None, (html.escape(paste.language or ""), _size(paste.size), gone)))
    if paste.is_text:
        shown = f"<pre>\n{html.escape(body.decode()).replace(chr(13), '&#13;')}</pre>"
    else:
        shown = "<p>These bytes are no UTF-8 text; download them to see what they are.</p>"
    return (
        "<!doctype html>\n<html lang='en'>\n<meta charset='utf-8'>\n"
        "<meta name='viewport' content='width=device-width, initial-scale=1'>\n<meta name='robots' content='noindex'>\n"
        f"<title>{title}</title>\n<h1>{title}</h1>\n"
        f"<p>{facts} · <a href='{url}/raw'>raw</a> · <a href='{url}/download'>download</a></p>\n{shown}\n"
        f"<form method='post' action='{delete_action(paste, public_url)}'>"
        "<label>Delete token <input name='token' autocomplete='off' required></label> "
        "<button>Delete</button></form>\n</html>\n"
    ).encode()


def _size(size: int) -> str:
    return "1 byte" if size == 1 else f"{size} bytes" if size < 10_240 else size_text(size // 1024 * 1024)
