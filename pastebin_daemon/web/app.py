"""The public listener: the routes, each with its name (for metrics and logs) and the shape of its errors."""

from aiohttp import web
from aiohttp.typedefs import Handler

from pastebin_daemon.clock import Clock
from pastebin_daemon.metrics import Metrics
from pastebin_daemon.web.creates import TYPED, Creates
from pastebin_daemon.web.deletes import Deletes
from pastebin_daemon.web.envelope import Envelope, Style
from pastebin_daemon.web.pages import Pages
from pastebin_daemon.web.reads import Reads
from pastebin_daemon.web.receiving import wait_to_be_asked
from pastebin_daemon.web.site import static_file

__all__ = ["public_app"]


def public_app(
    creates: Creates, reads: Reads, deletes: Deletes, pages: Pages, clock: Clock, metrics: Metrics
) -> web.Application:
    def error_page(request: web.Request, status: int, text: str) -> web.Response:
        """A form that was read comes back with what was typed into it: a text is never lost by an error."""
        typed = request.get(TYPED)
        return pages.site.error(status, text) if typed is None else pages.form_page.again(typed, status, text)

    app = web.Application(middlewares=[Envelope(clock, metrics, _style, error_page).middleware()])

    def route(name: str, path: str, **handlers: Handler) -> None:
        resource = app.router.add_resource(path, name=name)
        for method, handler in handlers.items():
            for each in ("GET", "HEAD") if method == "GET" else (method,):
                resource.add_route(each, handler, expect_handler=wait_to_be_asked)

    route("root", "/", GET=pages.form, POST=creates.terminal, PUT=creates.terminal)
    route("pastes", "/api/v1/pastes", POST=creates.api)
    route("paste-api", "/api/v1/pastes/{id}", GET=reads.api, DELETE=deletes.api)
    route("help", "/help", GET=pages.help)
    route("robots", "/robots.txt", GET=pages.robots)
    route("mine", "/mine", GET=pages.mine)
    route("static", "/static/{file}", GET=static_file)
    route("new", "/new", POST=creates.form)
    route("raw", "/{id}/raw", GET=reads.raw)
    route("download", "/{id}/download", GET=reads.download)
    route("qr", "/{id}/qr", GET=reads.qr)
    route("delete", "/{id}/delete", POST=deletes.form)
    route("page", "/{id}", GET=reads.page)
    route("name", "/{name:[^/]+}", PUT=creates.terminal)
    return app


def _style(request: web.Request) -> Style:
    """The shape of an error, by what was asked for: also where no route was found."""
    path = request.path
    if request.method == "PUT" or (request.method == "POST" and path == "/"):
        return "line"
    if path.startswith("/api/") or path.endswith(("/raw", "/download")) or path.count("/") > 2:
        return "problem"
    return "page"
