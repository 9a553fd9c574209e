"""The public listener: the routes, each with its name (for metrics and logs) and the shape of its errors."""

from aiohttp import web

from pastebin_daemon.clock import Clock
from pastebin_daemon.metrics import Metrics
from pastebin_daemon.web.app import App, Style
from pastebin_daemon.web.creates import TYPED, Creates
from pastebin_daemon.web.deletes import Deletes
from pastebin_daemon.web.pages import Pages
from pastebin_daemon.web.reads import Reads
from pastebin_daemon.web.routing import Request, Routes
from pastebin_daemon.web.site import static_file

__all__ = ["public_app"]


def public_app(creates: Creates, reads: Reads, deletes: Deletes, pages: Pages, clock: Clock, metrics: Metrics) -> App:
    def error_page(request: Request, status: int, text: str) -> web.Response:
        """A form that was read comes back with what was typed into it: a text is never lost by an error."""
        typed = request.get(TYPED)
        return pages.site.error(status, text) if typed is None else pages.form_page.again(typed, status, text)

    routes = Routes()
    routes.add("root", "/", GET=pages.form, POST=creates.terminal, PUT=creates.terminal)
    routes.add("pastes", "/api/v1/pastes", POST=creates.api)
    routes.add("paste-api", "/api/v1/pastes/{}", GET=reads.api, DELETE=deletes.api)
    routes.add("help", "/help", GET=pages.help)
    routes.add("robots", "/robots.txt", GET=pages.robots)
    routes.add("mine", "/mine", GET=pages.mine)
    routes.add("static", "/static/{}", GET=static_file)
    routes.add("new", "/new", POST=creates.form)
    routes.add("raw", "/{}/raw", GET=reads.raw)
    routes.add("download", "/{}/download", GET=reads.download)
    routes.add("qr", "/{}/qr", GET=reads.qr)
    routes.add("delete", "/{}/delete", POST=deletes.form)
    routes.add("page", "/{}", GET=reads.page)
    routes.add("name", "/{}", PUT=creates.terminal)
    return App(routes, clock, metrics, _style, error_page)


def _style(request: Request) -> Style:
    """The shape of an error, by what was asked for: also where no route was found."""
    path = request.path
    if request.method == "PUT" or (request.method == "POST" and path == "/"):
        return "line"
    if path.startswith("/api/") or path.endswith(("/raw", "/download")) or path.count("/") > 2:
        return "problem"
    return "page"
