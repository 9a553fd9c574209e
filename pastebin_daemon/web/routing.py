"""What is asked: a request, and the table of routes that says who answers it.

A path has at most one part that varies, written `{}`. It is looked up as it stands, then with its last part taken out, then
with its first; the first of these that knows the method answers. So `PUT /help` makes a paste with that file name, and
`GET /help` shows the manual. With no route there is a 404, and with routes for other methods only a 405.

The listeners run aiohttp's low-level server (`aiohttp.web.Server`). Its `Application` costs 8 of the 43 microseconds that a
handler takes which does nothing but answer 4 KiB: the router's regular expressions, a match object for each request, the
middlewares' wrappers. A cached read has not much more to do than that.
"""

import re
from collections.abc import Awaitable, Callable

from aiohttp import web

__all__ = ["Handler", "Request", "Routes"]

_PLAIN = re.compile(r"/[0-9A-Za-z/._~-]*")


class Request(web.BaseRequest):
    """A request, and after `Routes.find` what it asks for."""

    route = "none"
    """The name of its route, for labels and log lines."""
    argument = ""
    """What stands in the place of `{}`, decoded."""
    is_canonical = True
    """Whether the path is written as we write it in links: no query, nothing encoded that need not be."""


Handler = Callable[[Request], Awaitable[web.StreamResponse]]


class Routes:
    def __init__(self) -> None:
        self._table: dict[tuple[str, str], tuple[str, Handler]] = {}  # by method and path
        self._methods: set[str] = set()

    def add(self, name: str, path: str, **handlers: Handler) -> None:
        """`GET=handler` answers HEAD too. Several names may share a path, each with methods of its own."""
        for method, handler in handlers.items():
            for each in ("GET", "HEAD") if method == "GET" else (method,):
                assert (each, path) not in self._table, (each, path)
                self._table[each, path] = (name, handler)
                self._methods.add(each)

    def find(self, request: Request) -> Handler:
        """Who answers; notes the route and its argument in the request. Raises `HTTPNotFound`, `HTTPMethodNotAllowed`."""
        path = request.raw_path
        if not _PLAIN.fullmatch(path):
            request.is_canonical = path == request.path
            path = request.rel_url.path_safe  # which leaves %2F and %25 as they are
            if not path.startswith("/"):
                raise web.HTTPNotFound
        found, argument = self._look(request.method, path)
        if found is None:
            allowed = [method for method in sorted(self._methods) if self._look(method, path)[0] is not None]
            if allowed:
                raise web.HTTPMethodNotAllowed(request.method, allowed)
            raise web.HTTPNotFound
        request.route, handler = found
        request.argument = argument.replace("%2F", "/").replace("%25", "%") if "%" in argument else argument
        return handler

    def _look(self, method: str, path: str) -> tuple[tuple[str, Handler] | None, str]:
        found = self._table.get((method, path))
        if found is not None:
            return found, ""
        head, _, last = path.rpartition("/")
        found = self._table.get((method, head + "/{}"))
        if found is not None and last:
            return found, last
        first, _, rest = path[1:].partition("/")
        return self._table.get((method, "/{}/" + rest)) if first else None, first
