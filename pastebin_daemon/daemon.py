"""The composition root. Read this first: it shows every part of the daemon and what it is given.

    request ─► web ─► creation / reading / pastes ─► database (one writer, group commit)
                                                       │ commit: row gone + job there
                         origin cache ◄── Ended ───────┤
                                                       ▼ Enqueued
              sweepers ─► pastes.expire, abandon … ─► outbox ─► dispatcher ─► consumers ─► body store, edge
                                                                    └─ effect, then inbox, then ack

`assembled` builds the parts and closes them in the reverse order; tests take it and turn the crank by hand. `serve` adds
the listeners, the loops and the end. Every loop is owned by one TaskGroup, so a loop that raises ends the process with
its reason, and the supervisor starts it anew.

The stop, inside `[server] grace` (G14: grace < systemd's TimeoutStopSec): readiness says no; the public listener closes
and requests that are being answered are let finish, then the admin listener's, while the dispatchers claim nothing more
and finish or give back what they hold; then the loops end, and the database closes last.
"""

import asyncio
import dataclasses
import signal
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path

from pastebin_daemon import sweepers
from pastebin_daemon.allocator import give_large_blocks_back
from pastebin_daemon.bodies import BodyStore
from pastebin_daemon.bodies.local import LocalStore, open_local
from pastebin_daemon.breaker import Breaker
from pastebin_daemon.clock import Clock, SystemClock
from pastebin_daemon.config import Config, credential
from pastebin_daemon.consumers import Consumer, EdgePurge, ObjectDelete, Reap
from pastebin_daemon.creation import Creation
from pastebin_daemon.database import Database, hold_directory, open_database
from pastebin_daemon.dispatcher import Dispatcher, Limits, Turns
from pastebin_daemon.edge import EdgePurger, NoEdge
from pastebin_daemon.edge.drivers import drivers
from pastebin_daemon.errors import Misconfigured
from pastebin_daemon.health import Health
from pastebin_daemon.highlighting import Highlighter
from pastebin_daemon.history import EVERY_S, History
from pastebin_daemon.ids import new_owner, token_sha256
from pastebin_daemon.listeners import Listeners
from pastebin_daemon.logs import get_logger
from pastebin_daemon.loops import Loop, measure_lag
from pastebin_daemon.metrics import Metrics
from pastebin_daemon.origin_cache import OriginCache
from pastebin_daemon.outbox import EDGE_PURGE
from pastebin_daemon.pastes import Created, Ended
from pastebin_daemon.reading import Entry, Reading, weigh
from pastebin_daemon.secret import delete_token_secret
from pastebin_daemon.sweepers import Sweeper
from pastebin_daemon.systemd import notify, watchdog_interval_s
from pastebin_daemon.web.admin import Admin, admin_app
from pastebin_daemon.web.app import App
from pastebin_daemon.web.clients import Clients, CreateLimit
from pastebin_daemon.web.creates import Creates
from pastebin_daemon.web.deletes import Deletes
from pastebin_daemon.web.form_page import FormPage
from pastebin_daemon.web.intake import Expiries
from pastebin_daemon.web.pages import Pages
from pastebin_daemon.web.paste_page import PastePages
from pastebin_daemon.web.public import public_app
from pastebin_daemon.web.reads import Reads
from pastebin_daemon.web.receiving import Memory
from pastebin_daemon.web.site import Site

__all__ = ["Daemon", "assembled", "open_purger", "open_store", "serve"]

log = get_logger()

FETCH_MARGIN_S = 5.0
"""A fetch may take the store's time limit and this much for the database and the queue before it."""
TEND_S = 2.0


@dataclasses.dataclass(frozen=True, slots=True)
class Daemon:
    """The assembled parts. Nothing here runs by itself."""

    config: Config
    clock: Clock
    metrics: Metrics
    database: Database
    store: BodyStore
    cache: OriginCache[Entry]
    dispatchers: Mapping[str, Dispatcher]
    sweepers: Mapping[str, Sweeper]
    loops: list[Loop]
    public: App
    admin: App
    health: Health
    history: History


@asynccontextmanager
async def open_store(config: Config, directory: Path, clock: Clock) -> AsyncIterator[BodyStore]:
    """The body store that `[bodies]` names. aiobotocore is imported only here: it is most of the start time."""
    if config.bodies.store == "local":
        async with open_local(directory / "bodies.sqlite", clock) as local:
            yield local
        return
    from pastebin_daemon.bodies.s3 import open_s3

    s3 = config.bodies.s3
    async with open_s3(
        s3.endpoint_url, s3.bucket, s3.prefix, s3.region, s3.addressing,
        s3.access_key_id.get_secret_value(), s3.secret_access_key.get_secret_value(), s3.connect_timeout, s3.timeout,
    ) as store:  # fmt: skip
        yield store


@asynccontextmanager
async def open_purger(config: Config, clock: Clock) -> AsyncIterator[EdgePurger | None]:
    """The purger that `[edge]` names; None for none, and then no purges are enqueued at all."""
    settings = config.edge.settings
    if settings is None:
        yield None
    else:
        async with drivers()[config.edge.driver].open_purger(settings, clock) as purger:
            yield purger


@asynccontextmanager
async def assembled(
    config: Config,
    environ: Mapping[str, str],
    *,
    clock: Clock | None = None,
    open_store: Callable[..., AbstractAsyncContextManager[BodyStore]] = open_store,
    open_purger: Callable[..., AbstractAsyncContextManager[EdgePurger | None]] = open_purger,
) -> AsyncIterator[Daemon]:
    """Hold the state directory, open everything and wire it up. Raises `StartError`."""
    clock = clock or SystemClock()
    directory = config.storage.directory
    metrics = Metrics()
    with hold_directory(directory):
        secret = delete_token_secret(credential("delete-token-secret", environ), directory)
        async with AsyncExitStack() as stack:
            enter = stack.enter_async_context

            def committed(members: int, seconds: float) -> None:
                metrics.commit_group.observe(members)
                metrics.commit_seconds.observe(seconds)

            database = await enter(open_database(directory / "pastebin.sqlite", "metadata", clock, observe=committed))
            store = await enter(open_store(config, directory, clock))
            purger = await enter(open_purger(config, clock))

            fetch_max_s = config.bodies.s3.timeout + FETCH_MARGIN_S
            cache: OriginCache[Entry] = OriginCache(clock, config.cache.bytes_max, weigh, fetch_max_s)
            stack.push_async_callback(cache.close)
            highlighter = Highlighter()
            stack.push_async_callback(highlighter.close)
            # A purge that comes while an edge fetches is lost on every cache: so once more, after the longest answer.
            purge_delays_ms = () if purger is None else (0, int((fetch_max_s + FETCH_MARGIN_S) * 1000))

            _follow_commits(database, cache, metrics)
            dispatchers = _dispatchers(config, database, store, purger, cache, clock, metrics)
            sweeps = _sweepers(config, database, clock, metrics)
            databases = [database]
            if isinstance(store, LocalStore):
                databases.append(store.database)
                database.neighbours.append(store.database)
            history = History(database)
            loops = _loops(config, dispatchers, sweeps, databases, cache, clock)
            loops.append(Loop("history", history.sample, EVERY_S, 60.0, clock))
            health = Health(databases, dispatchers, loops, metrics)
            admin = Admin(
                database, metrics, health, int(config.outbox.replay_window * 1000), purge_delays_ms, history,
                dataclasses.replace(_site(config), public_url=""), purger is not None, config.edge.max_age,
            )  # fmt: skip
            yield Daemon(
                config, clock, metrics, database, store, cache, dispatchers, sweeps, loops,
                _public(config, database, store, cache, highlighter, secret, clock, metrics, purge_delays_ms),
                admin_app(admin, config.admin.listen.host, clock), health, history,
            )  # fmt: skip


def _follow_commits(database: Database, cache: OriginCache[Entry], metrics: Metrics) -> None:
    """What follows a commit, whoever asked for it and whatever became of them."""

    def ended(event: Ended) -> None:
        cache.bury(event.id)
        metrics.ended.labels(event.reason).inc()

    database.subscribe(Ended, ended)
    database.subscribe(Created, lambda event: metrics.created.inc())


def _dispatchers(
    config: Config, database: Database, store: BodyStore, purger: EdgePurger | None, cache: OriginCache[Entry],
    clock: Clock, metrics: Metrics,
) -> dict[str, Dispatcher]:  # fmt: skip
    outbox = config.outbox
    limits = Limits(
        outbox.batch,
        int(outbox.lease * 1000),
        outbox.effect_timeout,
        outbox.attempts_max,
        int(outbox.retry_span * 1000),
    )
    consumers: list[Consumer] = [
        ObjectDelete(database, store, cache.bury, metrics.row_is_live.inc),
        Reap(database, store, clock, config.uploads.reap_after),
        EdgePurge(purger or NoEdge(), config.server.public_url, clock, metrics.purge_lag.observe),
    ]
    turns, owner = Turns(), new_owner()

    def dispatcher(consumer: Consumer) -> Dispatcher:
        breaker = Breaker(consumer.kind, consumer.probe, clock, outbox.effect_timeout)
        at_once = consumer.kind == EDGE_PURGE  # the others wait for a full batch or one poll, so that bulk stays bulk
        return Dispatcher(
            database, consumer, breaker, turns, owner, clock, limits, metrics, wake_at=1 if at_once else outbox.batch
        )

    return {consumer.kind: dispatcher(consumer) for consumer in consumers}


def _sweepers(config: Config, database: Database, clock: Clock, metrics: Metrics) -> dict[str, Sweeper]:
    sweeps = {
        "expiry": (1.0, sweepers.expiry(database, clock, metrics)),
        "uploads": (10.0, sweepers.uploads(database, metrics, config.uploads.reap_after)),
        "inbox": (60.0, sweepers.inbox_rows(database, metrics, config.inbox.retention)),
        "idempotency": (60.0, sweepers.forgotten_keys(database, config.idempotency.retention)),
    }
    return {name: Sweeper(name, interval_s, sweep, clock, metrics) for name, (interval_s, sweep) in sweeps.items()}


def _loops(
    config: Config, dispatchers: Mapping[str, Dispatcher], sweeps: Mapping[str, Sweeper], databases: list[Database],
    cache: OriginCache[Entry], clock: Clock,
) -> list[Loop]:  # fmt: skip
    async def tend() -> bool:
        for database in databases:
            await database.tend()
        cache.sweep()
        return False

    # A probe before; for each kind that has the turn before, and for itself, the effects and a probe; and the commits.
    slowest_s = (1 + 2 * len(dispatchers)) * config.outbox.effect_timeout + 30
    return [
        *(
            Loop(name, dispatcher.tick, config.outbox.poll_interval, slowest_s, clock, dispatcher.woken)
            for name, dispatcher in dispatchers.items()
        ),
        *(Loop(f"sweep {name}", sweeper.tick, sweeper.interval_s, 60.0, clock) for name, sweeper in sweeps.items()),
        Loop("tend", tend, TEND_S, 60.0, clock),
    ]


def _public(
    config: Config, database: Database, store: BodyStore, cache: OriginCache[Entry], highlighter: Highlighter,
    secret: bytes, clock: Clock, metrics: Metrics, purge_delays_ms: tuple[int, ...],
) -> App:  # fmt: skip
    server, limits = config.server, config.pastes
    tokens = _create_tokens(config.access.create_tokens_file)
    creation = Creation(
        database, store, clock, secret, bytes_max=config.bodies.bytes_max, put_limit_s=config.bodies.s3.timeout,
        idempotency_retention_s=config.idempotency.retention,
    )  # fmt: skip
    reading = Reading(database, store, cache, clock, metrics)
    site = _site(config)
    form_page = FormPage(
        site, limits.body_bytes_max, limits.expiry_default, limits.expiry_choices, bool(tokens), server.read_only
    )
    creates = Creates(
        creation, Memory(config.uploads.memory_max), CreateLimit(config.limits.creates_per_minute, clock),
        Clients(server.trusted_proxies), Expiries(limits.expiry_default, limits.expiry_max),
        limits.body_bytes_max, site, reading, server.read_only, tokens,
    )  # fmt: skip
    reads = Reads(reading, clock, site, PastePages(site, highlighter, reading.keep_page), config.edge.max_age)
    deletes = Deletes(database, cache, purge_delays_ms, site, config.edge.max_age)
    return public_app(creates, reads, deletes, Pages(site, form_page, reading), clock, metrics)


def _site(config: Config) -> Site:
    return Site(config.server.public_url, config.site.name, config.site.notice, config.site.contact)


def _create_tokens(path: Path | None) -> frozenset[bytes]:
    """The hashes of the tokens in the file, one a line. Raises `Misconfigured` when it can't be read or holds none."""
    if path is None:
        return frozenset()
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise Misconfigured(
            f"[access] create_tokens_file = {path}: {error}; name a readable file, a token a line"
        ) from error
    tokens = frozenset(token_sha256(line.strip()) for line in lines if line.strip())
    if not tokens:
        raise Misconfigured(
            f"[access] create_tokens_file = {path}: holds no token, so nobody could create; write one a line"
        )
    return tokens


async def serve(
    config: Config,
    environ: Mapping[str, str],
    announce: Callable[[str], None],
    *,
    assemble: Callable[[Config, Mapping[str, str]], AbstractAsyncContextManager[Daemon]] = assembled,
) -> None:
    """Run until SIGTERM or SIGINT. `announce` gets one line that says where it listens. Raises `StartError`, or an
    ExceptionGroup with the reason when a loop or the database failed."""
    give_large_blocks_back()
    async with assemble(config, environ) as daemon:
        stopping = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stopping.set)
        grace_s = config.server.grace
        async with Listeners(shutdown_s=0.7 * grace_s) as listeners:
            public = await listeners.open(daemon.public, config.server.listen, "http")
            admin = await listeners.open(daemon.admin, config.admin.listen, "admin")
            async with asyncio.TaskGroup() as group:
                running = [group.create_task(each.run(), name=each.name) for each in daemon.loops]
                helpers = [
                    group.create_task(measure_lag(daemon.metrics.loop_lag.set)),
                    group.create_task(_feed_watchdog(daemon.health, environ)),
                    group.create_task(daemon.health.failure()),
                ]
                where = f"public on {public}, admin on {admin}"
                announce(f"pastebin-daemon: {where}, state in {config.storage.directory}")
                log.info("daemon.started", public=public, admin=admin, public_url=config.server.public_url)
                notify("READY=1", f"STATUS={where}", environ=environ)
                await stopping.wait()

                log.info("daemon.stopping", grace_s=grace_s)
                ends_at = loop.time() + 0.9 * grace_s
                notify("STOPPING=1", environ=environ)
                daemon.health.draining = True
                for dispatcher in daemon.dispatchers.values():
                    dispatcher.drain(within_s=0.6 * grace_s)
                await listeners.close()
                for each in daemon.loops:
                    each.stop()
                _, late = await asyncio.wait(running, timeout=max(0.1, ends_at - loop.time()))
                for task in late:
                    log.warning("loop.cut", loop=task.get_name())
                for task in (*late, *helpers):
                    task.cancel()
    log.info("daemon.stopped")


async def _feed_watchdog(health: Health, environ: Mapping[str, str]) -> None:
    """Tell the supervisor that we live, from the event loop and only while the loops turn."""
    interval_s = watchdog_interval_s(environ)
    while interval_s is not None:
        stuck = health.stuck()
        if stuck:
            log.critical("loops.stuck", loops=stuck)
        else:
            notify("WATCHDOG=1", environ=environ)
        await asyncio.sleep(interval_s)
