"""The public listener: the routes, each with its name (for metrics and logs) and the shape of its errors."""

from aiohttp import web
from aiohttp.typedefs import Handler

from pastebin_daemon.clock import Clock
from pastebin_daemon.metrics import Metrics
from pastebin_daemon.web.creates import Creates
from pastebin_daemon.web.deletes import Deletes
from pastebin_daemon.web.envelope import Envelope, Style
from pastebin_daemon.web.pages import Pages
from pastebin_daemon.web.reads import Reads

__all__ = ["public_app"]


def public_app(
    creates: Creates, reads: Reads, deletes: Deletes, pages: Pages, clock: Clock, metrics: Metrics
) -> web.Application:
    app = web.Application(middlewares=[Envelope(clock, metrics, _style).middleware()])

    def route(name: str, path: str) -> web.Resource:
        return app.router.add_resource(path, name=name)

    def get(resource: web.Resource, handler: Handler) -> None:
        for method in ("GET", "HEAD"):
            resource.add_route(method, handler)

    expect = creates.expect
    root = route("root", "/")
    get(root, pages.form)
    root.add_route("POST", creates.terminal, expect_handler=expect)
    root.add_route("PUT", creates.terminal, expect_handler=expect)
    pastes = route("pastes", "/api/v1/pastes")
    pastes.add_route("POST", creates.api, expect_handler=expect)
    one = route("paste-api", "/api/v1/pastes/{id}")
    get(one, reads.api)
    one.add_route("DELETE", deletes.api)
    get(route("help", "/help"), pages.help)
    get(route("robots", "/robots.txt"), pages.robots)
    route("new", "/new").add_route("POST", creates.form, expect_handler=expect)
    get(route("raw", "/{id}/raw"), reads.raw)
    get(route("download", "/{id}/download"), reads.download)
    route("delete", "/{id}/delete").add_route("POST", deletes.form)
    get(route("page", "/{id}"), reads.page)
    route("name", "/{name}").add_route("PUT", creates.terminal, expect_handler=expect)
    return app


def _style(request: web.Request) -> Style:
    """The shape of an error, by what was asked for: also where no route was found."""
    path = request.path
    if request.method == "PUT" or (request.method == "POST" and path == "/"):
        return "line"
    if path.startswith("/api/") or path.endswith(("/raw", "/download")) or path.count("/") > 2:
        return "problem"
    return "page"
