"""The pages that belong to no paste: the form, the manual, robots.txt. They are never kept by a cache, so here, and
only here, a client that does not ask for HTML gets plain text: `curl HOST` answers with the manual."""

from dataclasses import dataclass

from aiohttp import web

from pastebin_daemon.errors import BadRequest, NotFound
from pastebin_daemon.ids import ID
from pastebin_daemon.pastes import ABSENT
from pastebin_daemon.quantities import size_text
from pastebin_daemon.reading import Reading
from pastebin_daemon.web.form_page import FormPage, lifetime_text
from pastebin_daemon.web.routing import Request
from pastebin_daemon.web.site import Site

__all__ = ["Pages"]


@dataclass(frozen=True, slots=True)
class Pages:
    site: Site
    form_page: FormPage
    reading: Reading

    async def form(self, request: Request) -> web.Response:
        if "text/html" not in request.headers.get("Accept", ""):
            return self._text()
        source = request.query.get("clone")
        if source is None:
            return self.form_page.empty()
        if not ID.fullmatch(source):
            raise NotFound(ABSENT)
        entry = await self.reading.read(source)
        if not entry.paste.is_text:
            raise BadRequest("only a text can be cloned here; download the bytes, and choose the file in a new paste")
        return self.form_page.clone(entry)

    async def help(self, request: Request) -> web.Response:
        if "text/html" in request.headers.get("Accept", ""):
            return self.site.page("help.html", manual=self._manual())
        return self._text()

    async def mine(self, request: Request) -> web.Response:
        return self.site.page("mine.html")

    async def robots(self, request: Request) -> web.Response:
        return web.Response(text="User-agent: *\nDisallow: /\n")

    def _text(self) -> web.Response:
        return web.Response(text=self._manual())

    def _manual(self) -> str:
        form = self.form_page
        token = "\nCreating needs a token here: add -H 'Authorization: Bearer TOKEN'.\n" if form.asks_token else ""
        return MANUAL.format(
            url=self.site.public_url,
            limit=size_text(form.body_bytes_max),
            kept=lifetime_text(form.expiry_default_s),
            token=token,
        )


MANUAL = """\
Paste from a terminal. The answer is the link, and one newline.

  echo hi | curl -T - {url}
  curl -T notes.txt {url}
  curl -F file=@notes.txt {url}
  curl --data-binary @notes.txt {url}

(curl's -d strips newlines: use --data-binary.) Bytes come back as they went in.

Options: expires_in (10m, 1h, 7d, or seconds), title, language

  echo hi | curl -T - '{url}?expires_in=1h&language=python'

Read it, or save it under its name

  curl {url}/ID/raw
  curl -OJ {url}/ID/download

The answer's header X-Delete-Token is the way to delete it (curl -i shows it)

  curl -X DELETE -H 'X-Delete-Token: TOKEN' {url}/api/v1/pastes/ID

JSON, for programs; with an Idempotency-Key, a secret of 8 characters or more,
sending it again is safe for a day

  curl -H 'Content-Type: application/json' -H 'Idempotency-Key: SECRET' \\
       -d '{{"content": "hi", "expires_in": "1h"}}' {url}/api/v1/pastes

Up to {limit}; kept for {kept} unless you say otherwise.
After a delete it is gone here at once, and from caches within a minute.
{token}"""
