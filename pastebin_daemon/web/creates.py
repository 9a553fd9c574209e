"""The ways in: the terminal's, the API's and the form's. Links come from `public_url` alone: a Host header is the
client's word, and a link with it could lead anywhere."""

import json
from dataclasses import dataclass

from aiohttp import web

from pastebin_daemon.clock import rfc3339
from pastebin_daemon.creation import Creation, Draft, Made
from pastebin_daemon.errors import BadRequest, NotFound, ReadOnly, Trouble, Unauthorized
from pastebin_daemon.ids import ID, token_sha256
from pastebin_daemon.pastes import Paste
from pastebin_daemon.reading import Reading
from pastebin_daemon.web.clients import Clients, CreateLimit
from pastebin_daemon.web.intake import Asked, Expiries, ask_form, draft_of_form, draft_of_json, draft_of_terminal
from pastebin_daemon.web.paste_page import gone_text
from pastebin_daemon.web.receiving import Memory
from pastebin_daemon.web.routing import Request
from pastebin_daemon.web.site import Site

__all__ = ["TYPED", "Creates", "bearer", "paste_json"]

TYPED = web.RequestKey("typed", Asked)
"""What stood in a form that could not be saved."""


@dataclass(frozen=True, slots=True)
class Creates:
    creation: Creation
    memory: Memory
    limit: CreateLimit
    clients: Clients
    expiries: Expiries
    body_bytes_max: int
    site: Site
    reading: Reading
    read_only: bool
    token_hashes: frozenset[bytes]
    """SHA-256 of the tokens that may create; empty: anyone may."""

    async def terminal(self, request: Request) -> web.Response:
        self._admit(request)
        self._authorize(bearer(request))
        with self.memory.hold() as hold:
            draft = await draft_of_terminal(request, self.body_bytes_max, self.expiries, hold)
            made = await self._make(request, draft, bearer(request))
        url = f"{self.site.public_url}/{made.paste.id}"
        answer = web.Response(status=201, text=f"{url}\n")
        answer.headers["X-Delete-Token"] = made.delete_token
        answer.headers["X-Expires-At"] = "never" if made.paste.expires_ms is None else rfc3339(made.paste.expires_ms)
        return _located(answer, url, made)

    async def api(self, request: Request) -> web.Response:
        self._admit(request)
        self._authorize(bearer(request))
        with self.memory.hold() as hold:
            draft = await draft_of_json(request, self.body_bytes_max, self.expiries, hold)
            made = await self._make(request, draft, bearer(request))
        answer = paste_json(made.paste, self.site.public_url) | {"delete_token": made.delete_token}
        response = web.Response(status=201, body=json.dumps(answer).encode(), content_type="application/json")
        return _located(response, f"{self.site.public_url}/{made.paste.id}", made)

    async def form(self, request: Request) -> web.Response:
        """The page's form is read before anything is refused, so that the refusal can give the text back (app.py)."""
        with self.memory.hold() as hold:
            request[TYPED] = asked = await ask_form(request, self.body_bytes_max, hold)
            self._admit(request)
            self._authorize(asked.token)
            original = await self._original(asked.clone_of)
            draft = draft_of_form(asked, original, self.body_bytes_max, self.expiries)
            made = await self._make(request, draft, asked.token)
        url = f"{self.site.public_url}/{made.paste.id}"
        answer = self.site.page(
            "created.html", 201, id=made.paste.id, url=url, token=made.delete_token, gone=gone_text(made.paste)
        )
        return _located(answer, url, made)

    async def _original(self, clone_of: str) -> bytes | None:
        if not ID.fullmatch(clone_of):
            return None
        try:
            return (await self.reading.read(clone_of)).body
        except (NotFound, Trouble):
            return None  # the text that was typed is what there is

    def _admit(self, request: Request) -> None:
        """What can be said before the body is read."""
        if self.read_only:
            raise ReadOnly("this pastebin takes no new pastes at the moment; reading and deleting go on")
        self.limit.take(self.clients.of(request))
        key = request.headers.get("Idempotency-Key")
        if key is not None and not (8 <= len(key) <= 255 and key.isascii() and key.isprintable()):
            raise BadRequest(
                "Idempotency-Key is a secret of 8 to 255 printable characters; a random UUID is a good one"
            )

    def _authorize(self, token: str) -> None:
        if self.token_hashes and token_sha256(token) not in self.token_hashes:
            raise Unauthorized("creating needs a token here (Authorization: Bearer TOKEN)")

    async def _make(self, request: Request, draft: Draft, token: str) -> Made:
        key = request.headers.get("Idempotency-Key")
        draft = Draft(draft.body, draft.lifetime_s, draft.title, draft.language, token if self.token_hashes else "")
        return await self.creation.create(draft, key)


def _located(response: web.Response, url: str, made: Made) -> web.Response:
    response.headers["Location"] = url
    if made.replayed:
        response.headers["Idempotency-Replayed"] = "true"
    return response


def bearer(request: Request) -> str:
    """The token of `Authorization: Bearer TOKEN`, or ""."""
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def paste_json(paste: Paste, public_url: str) -> dict[str, object]:
    """What the API says of a paste."""
    url = f"{public_url}/{paste.id}"
    return {
        "id": paste.id,
        "url": url,
        "raw_url": f"{url}/raw",
        "created_at": rfc3339(paste.created_ms),
        "expires_at": None if paste.expires_ms is None else rfc3339(paste.expires_ms),
        "size": paste.size,
        "sha256": paste.sha256.hex(),
        "title": paste.title,
        "language": paste.language,
    }
