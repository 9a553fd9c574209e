"""What every answer has, whatever the handler did: a request id, the security headers, an error in the right shape, a
metric, and a log line where somebody would look for one.

Errors come as `application/problem+json` (RFC 9457) with a stable `code`, as one plain line on the terminal's routes,
and as a small page where a person looks. The text of a 5xx goes to the log only. Everything that says nothing else is
`no-store`: an error, a 404 above all, must never be kept by a cache.
"""

import json
from collections.abc import Callable
from typing import Literal

import structlog
from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from pastebin_daemon.clock import Clock
from pastebin_daemon.errors import PastebinError, Refusal, Trouble
from pastebin_daemon.ids import new_request_id
from pastebin_daemon.logs import get_logger
from pastebin_daemon.metrics import Metrics
from pastebin_daemon.web.site import PAGE_CSP

__all__ = ["RAW_CSP", "Envelope", "Style"]

log = get_logger()

Style = Literal["problem", "line", "page"]

RAW_CSP = "default-src 'none'; sandbox"
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "DELETE"})


class Envelope:
    def __init__(
        self, clock: Clock, metrics: Metrics | None, style: Callable[[web.Request], Style],
        page: Callable[[web.Request, int, str], web.Response],
    ) -> None:  # fmt: skip
        """`metrics` None: not counted (the admin listener's own requests are nobody's latency). `page` makes the page of
        an error, from its status and its text."""
        self._clock = clock
        self._metrics = metrics
        self._style = style
        self._page = page
        self._observers: dict[tuple[str, str, int], Callable[[float], None]] = {}

    def middleware(self) -> Middleware:
        @web.middleware
        async def envelope(request: web.Request, handler: Handler) -> web.StreamResponse:
            started = self._clock.monotonic()
            request_id = new_request_id()
            structlog.contextvars.bind_contextvars(
                request_id=request_id
            )  # each request has a task, so a context, of its own
            try:
                response = await handler(request)
            except (PastebinError, web.HTTPException) as error:
                response = self._refuse(request, error)
            except (ConnectionError, web.RequestPayloadError):
                raise  # the client has gone; there is nobody to answer
            except Exception:
                log.exception("request.crashed", method=request.method, route=_route(request))
                response = self._answer(request, 500, "internal", "Something went wrong here. It has been logged.")
            headers = response.headers
            headers["X-Request-Id"] = request_id
            headers["X-Content-Type-Options"] = "nosniff"
            headers.setdefault("Referrer-Policy", "no-referrer")
            headers.setdefault("Cache-Control", "no-store")
            headers.setdefault("Content-Security-Policy", PAGE_CSP)
            headers["Server"] = "pastebin"
            if not request.content.is_eof():
                response.force_close()  # the rest of the body is thrown away: nothing may be sent after it
            self._observe(request, response.status, self._clock.monotonic() - started)
            return response

        return envelope

    def _refuse(self, request: web.Request, error: PastebinError | web.HTTPException) -> web.Response:
        if isinstance(error, Refusal):
            log.info("request.refused", code=error.code, method=request.method, route=_route(request), why=str(error))
            response = self._answer(request, error.status, error.code, str(error))
            if error.retry_after_s is not None:
                response.headers["Retry-After"] = str(error.retry_after_s)
            if error.status == 401:
                response.headers["WWW-Authenticate"] = "Bearer"
            return response
        if isinstance(error, Trouble):
            log.error("request.failed", code=error.code, method=request.method, route=_route(request), error=str(error))
            response = self._answer(request, error.status, error.code, error.public)
            if error.retry_after_s is not None:
                response.headers["Retry-After"] = str(error.retry_after_s)
            return response
        if not isinstance(error, web.HTTPException):
            raise error  # an EffectError or StartError must not come this far
        if error.status < 400:
            return web.Response(status=error.status, headers=error.headers)
        code = {404: "not_found", 405: "method_not_allowed", 413: "too_large"}.get(error.status, "bad_request")
        log.info("request.refused", code=code, method=request.method, route=_route(request))
        response = self._answer(request, error.status, code, _TEXTS.get(error.status, error.reason))
        if "Allow" in error.headers:
            response.headers["Allow"] = error.headers["Allow"]
        return response

    def _answer(self, request: web.Request, status: int, code: str, text: str) -> web.Response:
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

    def _observe(self, request: web.Request, status: int, seconds: float) -> None:
        if self._metrics is None:
            return
        method = request.method if request.method in _METHODS else "OTHER"
        key = (_route(request), method, status)
        observe = self._observers.get(key)
        if observe is None:
            observe = self._observers[key] = self._metrics.requests.labels(*map(str, key)).observe
        observe(seconds)


_CODES = {404: "not_found", 405: "method_not_allowed", 413: "too_large"}
_TEXTS = {404: "There is nothing here.", 405: "This address does not take that method."}


def _route(request: web.Request) -> str:
    """The name of the route, never the path: labels and log lines must not grow with what strangers ask for."""
    resource = request.match_info.route.resource
    return (resource.name or "unnamed") if resource is not None else "none"
