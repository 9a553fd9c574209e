"""The pages that belong to no paste: the form, the manual, robots.txt. They are never kept by a cache, so here, and
only here, a client that does not ask for HTML gets plain text: `curl HOST` answers with the manual."""

import html
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from aiohttp import web

from pastebin_daemon.quantities import duration_text, size_text
from pastebin_daemon.web.envelope import page

__all__ = ["Pages"]


@dataclass(frozen=True, slots=True)
class Pages:
    public_url: str
    body_bytes_max: int
    expiry_default_s: int | None
    expiry_choices_s: Sequence[int | None]
    asks_token: bool

    async def form(self, request: web.Request) -> web.Response:
        if "text/html" not in request.headers.get("Accept", ""):
            return self._text()
        choices = "".join(
            f"<option value='{_lifetime(choice)}'{' selected' if choice == self.expiry_default_s else ''}>"
            f"{_lifetime(choice)}</option>"
            for choice in dict.fromkeys((*self.expiry_choices_s, self.expiry_default_s))
        )
        asked = "<p><label>Create token <input name='create_token' type='password' required></label></p>\n"
        base = html.escape(urlsplit(self.public_url).path)
        return page(
            "New paste",
            f"<form method='post' action='{base}/new' enctype='multipart/form-data'>\n"
            "<p><label>Text<br><textarea name='content' rows='24' cols='100' required autofocus></textarea></label></p>\n"
            "<p><label>Title <input name='title' maxlength='200'></label> <label>Language <input name='language'></label> "
            f"<label>Keep for <select name='expires_in'>{choices}</select></label> <button>Paste</button></p>\n"
            f"{asked if self.asks_token else ''}</form>\n"
            f"<p>Up to {size_text(self.body_bytes_max)}. From a terminal: <a href='{base}/help'>how</a>.</p>",
        )

    async def help(self, request: web.Request) -> web.Response:
        if "text/html" in request.headers.get("Accept", ""):
            return page("Manual", f"<h1>Manual</h1>\n<pre>\n{html.escape(self._manual())}</pre>")
        return self._text()

    async def robots(self, request: web.Request) -> web.Response:
        return web.Response(text="User-agent: *\nDisallow: /\n")

    def _text(self) -> web.Response:
        return web.Response(text=self._manual())

    def _manual(self) -> str:
        token = "\nCreating needs a token here: add -H 'Authorization: Bearer TOKEN'.\n" if self.asks_token else ""
        return MANUAL.format(
            url=self.public_url,
            limit=size_text(self.body_bytes_max),
            kept=_lifetime(self.expiry_default_s),
            token=token,
        )


def _lifetime(lifetime_s: int | None) -> str:
    return "never" if lifetime_s is None else duration_text(lifetime_s)


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

JSON, for programs; with an Idempotency-Key, a secret of 8 characters or more, sending it again is safe for a day

  curl -H 'Content-Type: application/json' -H 'Idempotency-Key: SECRET' \\
       -d '{{"content": "hi", "expires_in": "1h"}}' {url}/api/v1/pastes

Up to {limit}; kept for {kept} unless you say otherwise.
After a delete it is gone here at once, and from caches within a minute.
{token}"""
