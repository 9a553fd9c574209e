"""What every answer has, whatever the handler did: a request id, the security headers, an error in the right shape, a
metric, and a log line where somebody would look for one.

Errors come as `application/problem+json` (RFC 9457) with a stable `code`, as one plain line on the terminal's routes,
and as a small page where a person looks. The text of a 5xx goes to the log only. Everything that says nothing else is
`no-store`: an error, a 404 above all, must never be kept by a cache.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any, Literal, cast

from aiohttp import web

from pastebin_daemon.clock import Clock
from pastebin_daemon.errors import PastebinError, Refusal, Trouble
from pastebin_daemon.ids import new_request_id
from pastebin_daemon.listeners import PiecewiseServer
from pastebin_daemon.logs import REQUEST_ID, get_logger
from pastebin_daemon.metrics import Metrics
from pastebin_daemon.web.routing import Request, Routes
from pastebin_daemon.web.site import PAGE_CSP

__all__ = ["COMMON_HEADERS", "RAW_CSP", "App", "Style"]

log = get_logger()

Style = Literal["problem", "line", "page"]

RAW_CSP = "default-src 'none'; sandbox"
COMMON_HEADERS = {
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
    "Content-Security-Policy": PAGE_CSP,
    "X-Content-Type-Options": "nosniff",
    "Server": "pastebin",
}
"""What an answer has that says nothing else."""
READ_BYTES_MAX = 64 * 1024
"""A body that is read whole by aiohttp's own means: the admin listener's JSON and forms."""
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "DELETE"})


class App:
    """What a listener serves: routes, and around them what every answer has."""

    def __init__(
        self, routes: Routes, clock: Clock, metrics: Metrics | None, style: Callable[[Request], Style],
        page: Callable[[Request, int, str], web.Response], guard: Callable[[Request], None] | None = None,
    ) -> None:  # fmt: skip
        """`metrics` None: not counted (the admin listener's own requests are nobody's latency). `page` makes the page of
        an error, from its status and its text. `guard` raises a `Refusal` for what must not come in at all."""
        self.closing = False
        """Whether every answer from now on says that it is the last one on its connection."""
        self._routes = routes
        self._clock = clock
        self._metrics = metrics
        self._style = style
        self._page = page
        self._guard = guard

    def server(self, **options: Any) -> web.Server:
        """`options` are those of aiohttp's `RequestHandler`."""
        loop = asyncio.get_running_loop()

        def made(message: Any, payload: Any, protocol: Any, writer: Any, task: Any) -> Request:
            return Request(message, payload, protocol, writer, task, loop, client_max_size=READ_BYTES_MAX)

        answer = cast(Callable[[web.BaseRequest], Awaitable[web.StreamResponse]], self.answer)  # all are `made`
        return PiecewiseServer(answer, request_factory=made, access_log=None, **options)

    async def answer(self, request: Request) -> web.StreamResponse:
        started = self._clock.monotonic()
        request_id = new_request_id()
        REQUEST_ID.set(request_id)  # each request has a task, so a context, of its own
        try:
            if self._guard is not None:
                self._guard(request)
            response = await self._routes.find(request)(request)
        except (PastebinError, web.HTTPException) as error:
            response = self._refuse(request, error)
        except (ConnectionError, web.RequestPayloadError):
            raise  # the client has gone; there is nobody to answer
        except Exception:
            log.exception("request.crashed", method=request.method, route=request.route)
            response = self._answer(request, 500, "internal", "Something went wrong here. It has been logged.")
        headers = response.headers
        headers["X-Request-Id"] = request_id
        if "X-Content-Type-Options" not in headers:  # what is kept with a paste has them all already
            for name, value in COMMON_HEADERS.items():
                headers.setdefault(name, value)
        if self.closing or not request.content.is_eof():
            response.force_close()  # the rest of a body is thrown away: nothing may be sent after it
        if self._metrics is not None:
            method = request.method if request.method in _METHODS else "OTHER"
            self._metrics.requests.observe((request.route, method, response.status), self._clock.monotonic() - started)
        return response

    def _refuse(self, request: Request, error: PastebinError | web.HTTPException) -> web.Response:
        if isinstance(error, Refusal):
            log.info("request.refused", code=error.code, method=request.method, route=request.route, why=str(error))
            response = self._answer(request, error.status, error.code, str(error))
            if error.retry_after_s is not None:
                response.headers["Retry-After"] = str(error.retry_after_s)
            if error.status == 401:
                response.headers["WWW-Authenticate"] = "Bearer"
            return response
        if isinstance(error, Trouble):
            log.error("request.failed", code=error.code, method=request.method, route=request.route, error=str(error))
            response = self._answer(request, error.status, error.code, error.public)
            if error.retry_after_s is not None:
                response.headers["Retry-After"] = str(error.retry_after_s)
            return response
        if not isinstance(error, web.HTTPException):
            raise error  # an EffectError or StartError must not come this far
        if error.status < 400:
            return web.Response(status=error.status, headers=error.headers)
        code = _CODES.get(error.status, "bad_request")
        log.info("request.refused", code=code, method=request.method, route=request.route)
        response = self._answer(request, error.status, code, _TEXTS.get(error.status, error.reason))
        if "Allow" in error.headers:
            response.headers["Allow"] = error.headers["Allow"]
        return response

    def _answer(self, request: Request, status: int, code: str, text: str) -> web.Response:
        style = self._style(request)
        if style == "line":
            line = " ".join(text.split())
            return web.Response(status=status, text=f"{line}\n", headers={"Content-Security-Policy": RAW_CSP})
        if style == "page":
            return self._page(request, status, text)
        problem = {
            "type": "about:blank",
            "title": code.replace("_", " "),
            "status": status,
            "code": code,
            "detail": text,
        }
        return web.Response(status=status, body=json.dumps(problem).encode(), content_type="application/problem+json")


_CODES = {404: "not_found", 405: "method_not_allowed", 413: "too_large"}
_TEXTS = {404: "There is nothing here.", 405: "This address does not take that method."}
