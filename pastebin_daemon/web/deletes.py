"""The way to nothing: token present (401), row there (404), token right (403), then gone before the answer (G2).

The 204 is written after the commit that deletes the row and inserts the jobs was synced, and after the tombstone, which
the database's completion callback set in the loop step that resolved the commit. It never waits for the store or the
edge.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import parse_qsl

from aiohttp import web

from pastebin_daemon import pastes
from pastebin_daemon.database import Database
from pastebin_daemon.errors import BadRequest, NotFound, TooLarge, Unauthorized
from pastebin_daemon.ids import token_sha256
from pastebin_daemon.logs import get_logger
from pastebin_daemon.origin_cache import OriginCache
from pastebin_daemon.reading import Entry
from pastebin_daemon.web.creates import bearer
from pastebin_daemon.web.reads import paste_id
from pastebin_daemon.web.receiving import Memory, read_body
from pastebin_daemon.web.routing import Request
from pastebin_daemon.web.site import Site

__all__ = ["Deletes"]

log = get_logger()

FORM_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Deletes:
    database: Database
    cache: OriginCache[Entry]
    purge_delays_ms: Sequence[int]
    site: Site
    edge_max_age_s: int

    async def api(self, request: Request) -> web.Response:
        token = bearer(request) or request.headers.get("X-Delete-Token", "")
        if not token:
            raise Unauthorized(
                "deleting needs the paste's token (Authorization: Bearer TOKEN, or X-Delete-Token: TOKEN)"
            )
        await self._delete(paste_id(request), token)
        return web.Response(status=204)

    async def form(self, request: Request) -> web.Response:
        if request.content_type != "application/x-www-form-urlencoded":
            raise BadRequest("post the form of the paste's page")
        with Memory(FORM_BYTES).hold() as hold:
            body = await read_body(request, FORM_BYTES, _too_large, hold)
        token = dict(parse_qsl(body.decode("ascii", "replace"))).get("token", "").strip()
        if not token:
            raise Unauthorized("type the delete token that was shown when this was pasted")
        paste = paste_id(request)
        await self._delete(paste, token)
        return self.site.page("deleted.html", id=paste, edge_s=self.edge_max_age_s)

    async def _delete(self, paste: str, token: str) -> None:
        try:
            await self.database.write(pastes.delete, paste, token_sha256(token), self.purge_delays_ms)
        except NotFound:
            self.cache.forget(paste)  # should an earlier delete's tombstone have been lost, this one is as good
            raise
        log.info("paste.deleted", paste=paste)


def _too_large() -> TooLarge:
    return TooLarge("post the form of the paste's page, no more")
