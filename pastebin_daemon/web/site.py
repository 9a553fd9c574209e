"""What every page shares: the templates, the static files, and who runs this pastebin.

A page's links are paths under `public_url`'s own path, since the host is the one that the reader came by. It loads one
stylesheet and one script, from here, by names that hold a hash of their bytes; so they are kept for ever and a new
version is a new name. Nothing is inline: the policy (`PAGE_CSP`) allows neither scripts nor styles in a page.

Templates escape everything; what is markup already is a `Markup`, and only paste_page.py, form_page.py and status.py
make any.
"""

import hashlib
import re
from dataclasses import dataclass
from functools import cached_property
from importlib import resources
from typing import Any
from urllib.parse import urlsplit

from aiohttp import web
from jinja2 import Environment, FunctionLoader, StrictUndefined

from pastebin_daemon.errors import NotFound
from pastebin_daemon.web.routing import Request

__all__ = ["PAGE_CSP", "Site", "static_file"]

PAGE_CSP = (
    "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'"
)
_TYPES = {"css": "text/css; charset=utf-8", "js": "text/javascript; charset=utf-8", "svg": "image/svg+xml"}
_HERE = resources.files("pastebin_daemon.web")


def _files() -> dict[str, tuple[str, bytes]]:
    """The static files: the name as written in a template → (the name with its hash, the bytes)."""
    found = {}
    for file in (_HERE / "static").iterdir():
        stem, _, ending = file.name.rpartition(".")
        if ending in _TYPES:
            body = file.read_bytes()
            found[file.name] = (f"{stem}-{hashlib.sha256(body).hexdigest()[:16]}.{ending}", body)
    return found


_FILES = _files()
_BY_PUBLIC_NAME = dict(_FILES.values())

# What an error's page says above and below the error's own text.
_HEADINGS = {
    400: "That can't be taken",
    401: "A token is needed",
    403: "Not allowed",
    404: "Nothing here",
    405: "Not that way",
    408: "Too slow",
    410: "It has ended",
    413: "Too large",
    415: "Not this type",
    429: "Slow down a little",
    500: "Something broke here",
    503: "Not at the moment",
    507: "Full",
}
_ADVICE = {
    404: "A link that was cut off, or a paste that its author deleted, looks the same from here.",
    507: "Whoever runs this pastebin has to make room.",
}


def _source(name: str) -> tuple[str, str, Any]:
    return (_HERE / "templates" / name).read_text("utf-8"), name, lambda: True


_TEMPLATES = Environment(
    loader=FunctionLoader(_source), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True,
    auto_reload=False,
)  # fmt: skip


@dataclass(frozen=True)
class Site:
    """`notice` and `contact` stand on every page; `contact` is a link where it is an address of mail or of the web."""

    public_url: str
    name: str = "Pastebin"
    notice: str = ""
    contact: str = ""

    @cached_property
    def base(self) -> str:
        """The path that links begin with: "" or "/pastes"."""
        return urlsplit(self.public_url).path

    @cached_property
    def contact_link(self) -> str:
        if re.fullmatch(r"https?://\S+", self.contact):
            return self.contact
        return f"mailto:{self.contact}" if re.fullmatch(r"[^\s@/:]+@[^\s@/:]+\.[^\s@/:]+", self.contact) else ""

    def static(self, name: str) -> str:
        return f"{self.base}/static/{_FILES[name][0]}"

    def document(self, template: str, **values: object) -> bytes:
        return _TEMPLATES.get_template(template).render(site=self, **values).encode()

    def page(self, template: str, status: int = 200, /, **values: object) -> web.Response:
        """An answer that no cache keeps: the app adds the policy and `no-store`."""
        body = self.document(template, **values)
        return web.Response(status=status, body=body, headers={"Content-Type": "text/html; charset=utf-8"})

    def error(self, status: int, text: str) -> web.Response:
        sentence = text[:1].upper() + text[1:] + ("" if text.endswith((".", "?", "!")) else ".")
        heading = _HEADINGS.get(status, "That did not work")
        values = {"heading": heading, "text": sentence, "advice": _ADVICE.get(status, "")}
        body = self.document("error.html", status=status, **values)
        return web.Response(status=status, body=body, headers={"Content-Type": "text/html; charset=utf-8"})


async def static_file(request: Request) -> web.Response:
    name = request.argument
    body = _BY_PUBLIC_NAME.get(name)
    if body is None:
        raise NotFound("there is no such file")
    headers = {
        "Content-Type": _TYPES[name.rpartition(".")[2]],
        "Cache-Control": "public, max-age=31536000, immutable",
        "Content-Security-Policy": "default-src 'none'",
    }
    return web.Response(body=body, headers=headers)
