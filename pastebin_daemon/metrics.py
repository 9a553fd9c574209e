"""The metrics, by the names that dashboards depend on. No label's values grow with pastes or clients (G14).

Counters and histograms are fed where things happen. Gauges that are kept elsewhere (the totals table, the breakers, the
WAL's size) are set when `/metrics` is asked. One `Metrics` for each daemon, so that two in one process do not mix.

What to alert on: the outbox's age over 60 s, page over 300 s; page on any dead letter, `row_is_live`, `body_missing` or
inbox insert failure. Never page on the depth of the queue: a burst is no trouble.
"""

from bisect import bisect_left
from collections.abc import Iterable
from itertools import accumulate

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics
from prometheus_client.metrics_core import HistogramMetricFamily
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

__all__ = ["Metrics", "RequestTimes"]

# A second series for each counter, which nobody asks for.
disable_created_metrics()  # type: ignore[no-untyped-call]  # the library forgot the annotation

_FAST = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10)
_LAG = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 3600)


class RequestTimes(Collector):
    """A histogram by route, method and status. The library's own takes a lock for each of its counts, and each observation
    3 % of a cached read; this one belongs to the event loop's thread."""

    def __init__(self, name: str, text: str) -> None:
        self._name = name
        self._text = text
        self._seen: dict[tuple[str, str, int], tuple[list[int], list[float]]] = {}

    def observe(self, key: tuple[str, str, int], seconds: float) -> None:
        seen = self._seen.get(key)
        if seen is None:
            seen = self._seen[key] = ([0] * (len(_FAST) + 1), [0.0])
        seen[0][bisect_left(_FAST, seconds)] += 1
        seen[1][0] += seconds

    def collect(self) -> Iterable[HistogramMetricFamily]:
        family = HistogramMetricFamily(self._name, self._text, labels=("route", "method", "status"))
        bounds = [*map(floatToGoString, _FAST), "+Inf"]
        for (route, method, status), (counts, (total,)) in self._seen.items():
            family.add_metric((route, method, str(status)), list(zip(bounds, accumulate(counts), strict=True)), total)
        yield family


class Metrics:
    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"pastebin_{name}", text, labels, registry=registry)

        def gauge(name: str, text: str, *labels: str) -> Gauge:
            return Gauge(f"pastebin_{name}", text, labels, registry=registry)

        def histogram(name: str, text: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
            return Histogram(f"pastebin_{name}", text, labels, buckets=buckets, registry=registry)

        self.outbox_age = gauge(
            "outbox_oldest_unpublished_age_seconds",
            "Age of the oldest job, from its first due time, leased ones included",
        )
        self.outbox_jobs = gauge("outbox_jobs", "Jobs by state", "state")
        self.dead_letters = gauge("outbox_dead_letters", "Jobs given up; each wants an operator")
        self.settled = counter("outbox_settled", "Settlements that moved a job", "consumer", "result")
        self.claims = counter("outbox_claims", "Jobs claimed", "kind", "reason")
        self.stale = counter(
            "outbox_stale_settlements", "Settlements that came after their lease and changed nothing", "transition"
        )
        self.breaker_open = gauge(
            "outbox_breaker_open", "1 while the consumer claims nothing: open or paused", "consumer"
        )
        self.unknown_kinds = gauge("outbox_unknown_kinds", "Kinds of waiting jobs that this version does not know")
        self.expiry_paused = gauge("expiry_paused", "1 while the expiry sweeper waits after a step of the clock")
        self.pastes_live = gauge("pastes_live", "Rows of pastes, those not swept yet included")
        self.bodies_bytes = gauge("bodies_bytes", "Bytes of all live bodies")
        self.inbox_rows = gauge("inbox_rows", "Rows of the inbox")
        self.inbox_failures = counter("inbox_insert_failures", "Settlements that could not be written")
        self.inbox_duplicates = counter("inbox_duplicates", "Deliveries that the inbox made cheap", "consumer")
        self.inbox_swept = counter("inbox_swept", "Inbox rows removed after their retention")
        self.object_missing = counter("object_delete_missing", "Objects that were gone already, where the store tells")
        self.orphans = gauge("orphan_objects", "Objects without a row, from the last fsck")
        self.body_missing = counter("body_missing", "Live pastes whose body the store does not have")
        self.row_is_live = counter("row_is_live", "Object deletes refused since a live row has the object: a bug")
        self.abandoned = counter("uploads_abandoned", "Uploads that no paste took over")
        self.created = counter("pastes_created", "Pastes created")
        self.ended = counter("pastes_ended", "Pastes ended", "reason")
        self.purge_lag = histogram("purge_lag_seconds", "From an ending's commit to its purge", _LAG)
        self.requests = RequestTimes("pastebin_http_request_seconds", "Requests answered")
        registry.register(self.requests)
        self.wal_bytes = gauge("wal_bytes", "Size of the write-ahead logs", "file")
        self.commit_seconds = histogram("commit_seconds", "Group commits, the sync included", _FAST)
        self.commit_group = histogram(
            "commit_group_size", "Transactions that shared a commit", (1, 2, 4, 8, 16, 32, 64, 128, 256)
        )
        self.loop_lag = gauge(
            "event_loop_lag_seconds", "How late the event loop came to a timer, last and worst of 10 s"
        )
        self.sweep_seconds = histogram("sweep_seconds", "Batches of the sweepers", _FAST, "sweeper")
        self.full = gauge("disk_full", "1 while creates are refused since the disk is full", "file")

        for reason in ("delete", "expiry", "takedown"):  # shown as 0 before the first one, so that rates begin right
            self.ended.labels(reason)
        for transition in ("ack", "retry", "give_back", "postpone", "bury"):
            self.stale.labels(transition)
