"""The ways in: the terminal's, the API's and the form's. Links come from `public_url` alone: a Host header is the
client's word, and a link with it could lead anywhere."""

import html
import json
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import urlsplit

from aiohttp import web

from pastebin_daemon.clock import rfc3339
from pastebin_daemon.creation import Creation, Draft, Made
from pastebin_daemon.errors import BadRequest, ReadOnly, Unauthorized
from pastebin_daemon.ids import token_sha256
from pastebin_daemon.pastes import Paste
from pastebin_daemon.web.clients import CreateLimit
from pastebin_daemon.web.envelope import page
from pastebin_daemon.web.intake import Expiries, draft_of_form, draft_of_json, draft_of_terminal
from pastebin_daemon.web.receiving import Memory

__all__ = ["Creates", "bearer", "delete_action", "paste_json"]


@dataclass(frozen=True, slots=True)
class Creates:
    creation: Creation
    memory: Memory
    limit: CreateLimit
    client: Callable[[web.Request], str]
    expiries: Expiries
    body_bytes_max: int
    public_url: str
    read_only: bool
    token_hashes: frozenset[bytes]
    """SHA-256 of the tokens that may create; empty: anyone may."""

    async def terminal(self, request: web.Request) -> web.Response:
        self._admit(request)
        self._authorize(bearer(request))
        with self.memory.hold() as hold:
            draft = await draft_of_terminal(request, self.body_bytes_max, self.expiries, hold)
            made = await self._make(request, draft, bearer(request))
        url = f"{self.public_url}/{made.paste.id}"
        answer = web.Response(status=201, text=f"{url}\n")
        answer.headers["X-Delete-Token"] = made.delete_token
        answer.headers["X-Expires-At"] = "never" if made.paste.expires_ms is None else rfc3339(made.paste.expires_ms)
        return _located(answer, url, made)

    async def api(self, request: web.Request) -> web.Response:
        self._admit(request)
        self._authorize(bearer(request))
        with self.memory.hold() as hold:
            draft = await draft_of_json(request, self.body_bytes_max, self.expiries, hold)
            made = await self._make(request, draft, bearer(request))
        answer = paste_json(made.paste, self.public_url) | {"delete_token": made.delete_token}
        response = web.Response(status=201, body=json.dumps(answer).encode(), content_type="application/json")
        return _located(response, f"{self.public_url}/{made.paste.id}", made)

    async def form(self, request: web.Request) -> web.Response:
        self._admit(request)
        with self.memory.hold() as hold:
            draft, token = await draft_of_form(request, self.body_bytes_max, self.expiries, hold)
            self._authorize(token)
            made = await self._make(request, draft, token)
        url = f"{self.public_url}/{made.paste.id}"  # plain ASCII without quotes: the configuration takes nothing else
        gone = (
            "It stays until you delete it."
            if made.paste.expires_ms is None
            else f"Gone on {rfc3339(made.paste.expires_ms)}."
        )
        answer = page(
            "Pasted",
            f"<h1>Pasted</h1>\n<p><a href='{url}'>{url}</a> · <a href='{url}/raw'>raw</a></p>\n<p>{gone}</p>\n"
            f"<p>The delete token, shown only here: <code>{made.delete_token}</code></p>\n"
            f"<form method='post' action='{delete_action(made.paste, self.public_url)}'>"
            f"<input type='hidden' name='token' value='{made.delete_token}'><button>Delete it now</button></form>",
            status=201,
        )
        return _located(answer, url, made)

    def _admit(self, request: web.Request) -> None:
        """What can be said before the body is read."""
        if self.read_only:
            raise ReadOnly("this pastebin takes no new pastes at the moment; reading and deleting go on")
        self.limit.take(self.client(request))
        key = request.headers.get("Idempotency-Key")
        if key is not None and not (8 <= len(key) <= 255 and key.isascii() and key.isprintable()):
            raise BadRequest(
                "Idempotency-Key is a secret of 8 to 255 printable characters; a random UUID is a good one"
            )

    def _authorize(self, token: str) -> None:
        if self.token_hashes and token_sha256(token) not in self.token_hashes:
            raise Unauthorized("creating needs a token here (Authorization: Bearer TOKEN)")

    async def _make(self, request: web.Request, draft: Draft, token: str) -> Made:
        key = request.headers.get("Idempotency-Key")
        draft = Draft(draft.body, draft.lifetime_s, draft.title, draft.language, token if self.token_hashes else "")
        return await self.creation.create(draft, key)


def _located(response: web.Response, url: str, made: Made) -> web.Response:
    response.headers["Location"] = url
    if made.replayed:
        response.headers["Idempotency-Replayed"] = "true"
    return response


def bearer(request: web.Request) -> str:
    """The token of `Authorization: Bearer TOKEN`, or ""."""
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def delete_action(paste: Paste, public_url: str) -> str:
    """Where a page's delete form posts to: a path, since `form-action 'self'` is the host that the reader came by."""
    return html.escape(f"{urlsplit(public_url).path}/{paste.id}/delete")


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
