"""The admin listener: health, readiness, metrics, and the operator's API. Never public.

It has no login: whoever reaches it is the operator. So what must be kept out is a web page in the operator's own
browser, which reaches it too:

- The `Host` must be an IP address, `localhost`, or what `[admin] listen` says: a name that a stranger points at
  127.0.0.1 (DNS rebinding) is refused.
- An `Origin`, which browsers send along with every change, must be this listener's own, and so must `Sec-Fetch-Site`.
- Changes are JSON with that content type, which no page can send elsewhere without asking first (CORS), and here nobody
  answers that question. The buttons of the status page are plain forms, so that they work with scripts off: those must
  carry this listener's own `Origin`, which every browser sends with a POST.
"""

from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any, Literal, TypeVar

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from pydantic import BaseModel, ConfigDict, ValidationError

from pastebin_daemon import operating, outbox, pastes
from pastebin_daemon.clock import Clock
from pastebin_daemon.database import Database, Tx
from pastebin_daemon.errors import BadRequest, Forbidden, NotFound, UnsupportedMediaType
from pastebin_daemon.health import Health
from pastebin_daemon.history import History
from pastebin_daemon.ids import ID
from pastebin_daemon.logs import get_logger
from pastebin_daemon.metrics import Metrics
from pastebin_daemon.operating import LIST_MAX
from pastebin_daemon.web.app import App, Style
from pastebin_daemon.web.routing import Request, Routes
from pastebin_daemon.web.site import Site, static_file
from pastebin_daemon.web.status import Look, values_of

__all__ = ["Admin", "admin_app"]

log = get_logger()

STATUS_PAGE = "status page"


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


B = TypeVar("B", bound=_Body)


class _Replay(_Body):
    ids: list[int] | Literal["all-dead"]
    by: str


class _Discard(_Body):
    ids: list[int]
    by: str


class _Takedown(_Body):
    id: str
    reason: str
    by: str


@dataclass(frozen=True, slots=True)
class Admin:
    database: Database
    metrics: Metrics
    condition: Health
    replay_window_ms: int
    purge_delays_ms: tuple[int, ...]
    history: History
    site: Site
    has_edge: bool
    edge_max_age_s: int

    async def health(self, request: Request) -> web.Response:
        stuck = self.condition.stuck()
        if stuck:
            return web.Response(status=503, text=f"stuck: {', '.join(stuck)}\n")
        return web.Response(text="ok\n")

    async def ready(self, request: Request) -> web.Response:
        why = await self.condition.not_ready()
        answer = {"ready": not why, "reason": why, "troubles": self.condition.troubles()}
        return web.json_response(answer, status=503 if why else 200)

    async def show_metrics(self, request: Request) -> web.Response:
        totals = await self.database.read(operating.totals)
        metrics = self.metrics
        metrics.outbox_age.set(totals.oldest_age_ms / 1000)
        metrics.outbox_jobs.labels("pending").set(totals.pending)
        metrics.outbox_jobs.labels("leased").set(totals.leased)
        metrics.dead_letters.set(totals.dead_letters)
        metrics.unknown_kinds.set(len(totals.unknown_kinds))
        metrics.pastes_live.set(totals.pastes)
        metrics.bodies_bytes.set(totals.bytes)
        metrics.inbox_rows.set(totals.inbox)
        self.condition.set_gauges()
        return web.Response(body=generate_latest(metrics.registry), headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def status(self, request: Request) -> web.Response:
        now_ms, totals, queues, dead = await self.database.read(_look)
        look = Look(
            now_ms, totals, queues, dead, self.condition.breakers(), self.condition.files(),
            await self.condition.not_ready(), self.history.samples, self.has_edge, self.edge_max_age_s,
        )  # fmt: skip
        answer = self.site.page("status.html", 200, **values_of(look, self.metrics))
        answer.headers["Referrer-Policy"] = "same-origin"  # with none at all, its buttons' Origin would be "null"
        return answer

    async def replay_form(self, request: Request) -> web.Response:
        """The page's buttons: only from the page itself."""
        asked = await _form_id(request)
        ids = await self.database.read(operating.dead_ids) if asked == "all-dead" else [int(asked)]
        started = await self.database.write(operating.replay, ids, STATUS_PAGE, self.replay_window_ms)
        log.info("jobs.replayed", jobs=started, by=STATUS_PAGE)
        raise web.HTTPSeeOther("/")

    async def discard_form(self, request: Request) -> web.Response:
        job = int(await _form_id(request, all_dead=False))
        discarded = await self.database.write(outbox.discard, job)
        log.warning("jobs.discarded", jobs=[job] if discarded else [], by=STATUS_PAGE)
        raise web.HTTPSeeOther("/")

    async def list_jobs(self, request: Request) -> web.Response:
        state = request.query.get("state", "waiting")
        after = request.query.get("after", "0")
        if state not in ("waiting", "dead") or not (after.isascii() and after.isdigit() and len(after) < 19):
            raise BadRequest("write state=waiting or state=dead, and after=ID of the last job seen")
        found = await self.database.read(operating.jobs, "dead" if state == "dead" else "waiting", int(after))
        return web.json_response({"jobs": found, "more": len(found) == LIST_MAX})

    async def show_job(self, request: Request) -> web.Response:
        asked = request.argument
        is_number = asked.isascii() and asked.isdigit() and len(asked) < 19
        job = await self.database.read(operating.one_job, int(asked)) if is_number else None
        if job is None:
            raise NotFound("there is no such job: it is done, or never was")
        return web.json_response(job)

    async def replay(self, request: Request) -> web.Response:
        asked = await _parse(request, _Replay)
        ids = await self.database.read(operating.dead_ids) if asked.ids == "all-dead" else list(asked.ids)
        _bounded(ids)
        started = await self.database.write(operating.replay, ids, asked.by[:100], self.replay_window_ms)
        log.info("jobs.replayed", jobs=started, by=asked.by)
        return web.json_response({"replayed": {str(job): new for job, new in started.items()}})

    async def discard(self, request: Request) -> web.Response:
        asked = await _parse(request, _Discard)
        _bounded(asked.ids)
        discarded = [job for job in asked.ids if await self.database.write(outbox.discard, job)]
        log.warning("jobs.discarded", jobs=discarded, by=asked.by)
        return web.json_response({"discarded": discarded})

    async def takedown(self, request: Request) -> web.Response:
        asked = await _parse(request, _Takedown)
        if not ID.fullmatch(asked.id):
            raise NotFound("that is the id of nothing")
        await self.database.write(pastes.take_down, asked.id, self.purge_delays_ms)
        log.warning("paste.taken_down", paste=asked.id, reason=asked.reason, by=asked.by)
        return web.json_response({"id": asked.id})


def _look(tx: Tx) -> tuple[int, operating.Totals, list[operating.Queue], list[dict[str, Any]]]:
    return tx.now_ms, operating.totals(tx), operating.queues(tx), operating.jobs(tx, "dead", 0)


async def _form_id(request: Request, *, all_dead: bool = True) -> str:
    """The job that a button of the status page names."""
    if request.headers.get("Origin") != f"http://{request.host}":
        raise Forbidden("this form is sent by the status page itself; elsewhere use /api/v1/jobs with JSON")
    asked = str((await request.post()).get("id", ""))
    if not (asked.isascii() and asked.isdigit() and len(asked) < 19) and not (all_dead and asked == "all-dead"):
        raise BadRequest("name a job by its number")
    return asked


def _style(request: Request) -> Style:
    return "page" if request.path == "/" or request.path.startswith("/jobs/") else "problem"


async def _parse(request: Request, shape: type[B]) -> B:
    if request.content_type != "application/json":
        raise UnsupportedMediaType("changes are asked for with Content-Type: application/json")
    try:
        return shape.model_validate_json(await request.read())
    except ValidationError as error:
        problems = [
            f"{'.'.join(map(str, e['loc'])) or 'document'}: {e['msg']}" for e in error.errors(include_url=False)
        ]
        raise BadRequest("; ".join(problems[:10])) from error


def _bounded(ids: list[int]) -> None:
    if len(ids) > LIST_MAX or any(not 0 <= job < 2**63 for job in ids):
        raise BadRequest(f"name at most {LIST_MAX} jobs at a time, by their numbers")


def admin_app(admin: Admin, listen_host: str, clock: Clock) -> App:
    """`listen_host`: what `[admin] listen` says, "" on a unix socket (which no web page reaches)."""
    routes = Routes()
    routes.add("health", "/healthz", GET=admin.health)
    routes.add("ready", "/readyz", GET=admin.ready)
    routes.add("metrics", "/metrics", GET=admin.show_metrics)
    routes.add("status", "/", GET=admin.status)
    routes.add("static", "/static/{}", GET=static_file)
    routes.add("replay-form", "/jobs/replay", POST=admin.replay_form)
    routes.add("discard-form", "/jobs/discard", POST=admin.discard_form)
    routes.add("jobs", "/api/v1/jobs", GET=admin.list_jobs)
    routes.add("job", "/api/v1/jobs/{}", GET=admin.show_job)
    routes.add("replay", "/api/v1/jobs/replay", POST=admin.replay)
    routes.add("discard", "/api/v1/jobs/discard", POST=admin.discard)
    routes.add("takedown", "/api/v1/takedown", POST=admin.takedown)

    def only_ours(request: Request) -> None:
        if listen_host and not _is_ours(request.host, listen_host):
            raise Forbidden("this Host is not the admin listener's: use its address")
        origin = request.headers.get("Origin")
        if origin is not None and origin != f"http://{request.host}":
            raise Forbidden("a page from elsewhere can't use the admin listener")
        if request.headers.get("Sec-Fetch-Site", "none") not in ("none", "same-origin"):
            raise Forbidden("a page from elsewhere can't use the admin listener")

    return App(routes, clock, None, _style, lambda _, status, text: admin.site.error(status, text), only_ours)


def _is_ours(host_header: str, listen_host: str) -> bool:
    host = host_header.rpartition(":")[0] if host_header.rpartition(":")[2].isdigit() else host_header
    host = host.strip("[]").lower()
    if host in ("localhost", listen_host.lower()):
        return True
    try:
        ip_address(host)
    except ValueError:
        return False
    return True
