"""The operator's page: what is true for users now, what waits and why, and what to do about what is red.

Two time scales, since a paste that ended is gone in three steps: for readers within a minute (at once here, within
`[edge] max_age` from every cache), and in the store within hours at worst. The first is what users see; the second is
what the operator owes them.

Nothing here is new: the figures are those of `/metrics`, read once for the page, and the alert lines are those of
metrics.py. The buttons post forms to the admin listener, which takes none from elsewhere (admin.py).
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from pastebin_daemon.clock import spoken_time
from pastebin_daemon.history import HOUR_S, Sample
from pastebin_daemon.metrics import Metrics
from pastebin_daemon.operating import COUNT_MAX, Queue, Totals
from pastebin_daemon.outbox import EDGE_PURGE, OBJECT_DELETE
from pastebin_daemon.quantities import size_text

__all__ = ["ALERT_S", "PAGE_S", "Look", "values_of"]

ALERT_S, PAGE_S = 60, 300
"""Of the outbox's age: alert, and wake somebody."""
WAL_BYTES = 64 << 20
DEAD_SHOWN = 50


@dataclass(frozen=True, slots=True)
class Look:
    """All that the page shows."""

    now_ms: int
    totals: Totals
    queues: Sequence[Queue]
    dead: Sequence[dict[str, Any]]
    breakers: dict[str, str]
    files: dict[str, tuple[int, bool]]
    not_ready: str
    samples: Sequence[Sample]
    has_edge: bool
    edge_max_age_s: int


def values_of(look: Look, metrics: Metrics) -> dict[str, object]:
    """What the template needs: texts, and for each whether it is good."""
    age_s = look.totals.oldest_age_ms // 1000
    return {
        "at": spoken_time(look.now_ms),
        "promises": _promises(look, metrics),
        "advice": _advice(look, metrics, age_s),
        "age": spoken_span(age_s),
        "age_state": "bad" if age_s >= PAGE_S else "late" if age_s >= ALERT_S else "ok",
        "alert": spoken_span(ALERT_S), "wake": spoken_span(PAGE_S),
        "queues": [
            (q.kind, _count(q.pending), _count(q.leased), spoken_span(q.overdue_ms // 1000), look.breakers.get(q.kind, ""))
            for q in look.queues
        ],
        "dead": [_dead(job) for job in look.dead[:DEAD_SHOWN]],
        "more_dead": max(0, look.totals.dead_letters - DEAD_SHOWN),
        "totals": look.totals, "stored": _size(look.totals.bytes),
        "files": [(name, _size(wal), full) for name, (wal, full) in look.files.items()],
        "plot": plot(look.samples, look.now_ms),
    }  # fmt: skip


def _promises(look: Look, metrics: Metrics) -> list[tuple[str, str, str, str, bool]]:
    """(time scale, who, what is promised, how it stands, is it well)."""
    overdue = {queue.kind: queue.overdue_ms // 1000 for queue in look.queues}
    origin = look.not_ready or "at once: the commit that ends a paste hides it"
    if not look.has_edge:
        edge, edge_ok = f"no edge is configured; a cache in front keeps copies for up to {look.edge_max_age_s} s", True
    elif why := look.breakers.get(EDGE_PURGE, ""):
        edge, edge_ok = f"purges wait ({why}); copies go by themselves within {look.edge_max_age_s} s of the end", False
    else:
        late = overdue.get(EDGE_PURGE, 0)
        edge, edge_ok = (
            f"purged {_lag(metrics)}" + (f"; the oldest purge is {spoken_span(late)} late" if late else ""),
            late < ALERT_S,
        )
    late = overdue.get(OBJECT_DELETE, 0)
    why = look.breakers.get(OBJECT_DELETE, "")
    store = (
        f"deletes wait ({why})"
        if why
        else f"the oldest delete is {spoken_span(late)} late"
        if late
        else "nothing is late"
    )
    return [
        ("within a minute", "Origin", "an ended paste is gone here at once", origin, not look.not_ready),
        ("within a minute", "Edges", f"copies go within {look.edge_max_age_s} s", edge, edge_ok),
        ("within hours", "Stored bytes", "the object follows its paste", store, not why and late < PAGE_S),
    ]


def _lag(metrics: Metrics) -> str:
    """From the histogram: the bound under which 95 of 100 purges stayed since the start."""
    buckets = [
        (s.labels["le"], s.value) for m in metrics.purge_lag.collect() for s in m.samples if s.name.endswith("_bucket")
    ]
    total = buckets[-1][1]
    if not total:
        return "as soon as there is something to purge: nothing yet since the start"
    bound = next(le for le, count in buckets if count >= 0.95 * total)
    return (
        "within "
        + (f"{float(bound):g} s" if bound != "+Inf" else "more than an hour")
        + " (95 of 100, since the start)"
    )


def _advice(look: Look, metrics: Metrics, age_s: int) -> list[str]:
    found = []
    if look.not_ready:
        found.append(f"Not ready: {look.not_ready}. Look at the log, the disk and its permissions.")
    for kind, why in look.breakers.items():
        if why:
            found.append(
                f"{kind} waits: {why}. Nothing is lost, and no attempt is counted. It is tried every 10 s and goes on by "
                f"itself; check that the {'edge' if kind == EDGE_PURGE else 'store'} is reachable and its credentials hold."
            )
    found += [
        f"The disk of {name} is full: creates are refused, deletes and reads go on. Make room; it is noticed by itself."
        for name, (_, full) in look.files.items() if full
    ]  # fmt: skip
    if look.totals.dead_letters:
        found.append(
            "There are dead letters: jobs that failed for good. Read the reason, mend it, and replay them; discard one "
            "only when you have done its work by hand."
        )
    if look.totals.unknown_kinds:
        kinds = ", ".join(look.totals.unknown_kinds)
        found.append(f"Jobs of a newer version wait ({kinds}): start that version again to have them done.")
    if age_s >= ALERT_S and not any(look.breakers.values()):
        found.append(
            "Jobs are late though nothing is broken: more ends than is cleaned up. Watch the plot; if it only grows, look "
            "at the store's answer times."
        )
    if metrics.registry.get_sample_value("pastebin_expiry_paused"):
        found.append("The clock was set: expiry waits ten minutes before it believes it. Check time synchronisation.")
    if metrics.registry.get_sample_value("pastebin_body_missing_total"):
        found.append(
            "Bodies of live pastes are missing from the store. See body.missing in the log; has somebody deleted objects, "
            "or has an old copy been restored?"
        )
    if metrics.registry.get_sample_value("pastebin_row_is_live_total"):
        found.append(
            "A delete of a live paste's object was refused (row_is_live): a bug. Please report it with the log."
        )
    found += [
        f"The write-ahead log of {name} has {_size(wal)}: something keeps reading an old snapshot, a backup for example."
        for name, (wal, _) in look.files.items() if wal > WAL_BYTES
    ]  # fmt: skip
    return found


def _dead(job: dict[str, Any]) -> dict[str, Any]:
    try:
        about = ", ".join(
            f"{key} {value}" for key, value in json.loads(job["payload"]).items() if isinstance(value, str)
        )
    except (ValueError, AttributeError):
        about = ""
    return job | {"died": spoken_time(job["died_ms"]), "about": about[:200]}


def _count(count: int) -> str:
    return f"{COUNT_MAX} or more" if count >= COUNT_MAX else str(count)


def spoken_span(span_s: int) -> str:
    """To two figures or so: `45 s`, `12 min`, `3 h`, `2 d`."""
    for unit, in_s in (("d", 86_400), ("h", 3600), ("min", 60)):
        if span_s >= 2 * in_s:
            return f"{span_s // in_s} {unit}"
    return f"{span_s} s"


def _size(count: int) -> str:
    for unit in (1 << 30, 1 << 20, 1 << 10):
        if count >= 10 * unit:
            return size_text(count // unit * unit)
    return f"{count} bytes"


WIDTH, HEIGHT, LEFT, BOTTOM = 720, 180, 44, 22


def plot(samples: Sequence[Sample], now_ms: int) -> Markup:
    """The last hour as SVG: bars for the backlog, a line for the oldest job's age with its alert line. Each has its own
    scale, named at the left and at the right."""
    recent = [sample for sample in samples if sample.at_ms > now_ms - HOUR_S * 1000]
    if not recent:
        return Markup("")
    age_top = max(2 * ALERT_S, *(sample.age_ms / 1000 for sample in recent)) if recent else ALERT_S
    jobs_top = max(10, *(sample.jobs for sample in recent))
    across, up = WIDTH - 2 * LEFT, HEIGHT - BOTTOM - 8

    def x(at_ms: int) -> float:
        return LEFT + across * (1 - (now_ms - at_ms) / (HOUR_S * 1000))

    def y(share: float) -> float:
        return 8 + up * (1 - share)

    bars = "".join(
        f'<rect x="{x(s.at_ms) - 1.5:.1f}" y="{y(s.jobs / jobs_top):.1f}" width="3" height="{up * s.jobs / jobs_top:.1f}"/>'
        for s in recent
    )
    line = " ".join(f"{x(s.at_ms):.1f},{y(s.age_ms / 1000 / age_top):.1f}" for s in recent)
    alert = y(ALERT_S / age_top)
    floor = HEIGHT - BOTTOM
    words = (
        f"The last hour: the oldest job was at most {spoken_span(int(max(s.age_ms for s in recent) // 1000))} old, and at "
        f"most {max(s.jobs for s in recent)} jobs waited."
    )
    return Markup(  # noqa: S704  # numbers and our own words
        f'<svg class="plot" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{words}">'
        f'<g class="backlog">{bars}</g><line class="alert" x1="{LEFT}" x2="{WIDTH - LEFT}" y1="{alert:.1f}" y2="{alert:.1f}"/>'
        f'<polyline class="age" points="{line}"/>'
        f'<text x="4" y="14">{spoken_span(int(age_top))}</text><text x="4" y="{floor}">0 s</text>'
        f'<g text-anchor="end"><text x="{WIDTH - 4}" y="14">{jobs_top} jobs</text><text x="{WIDTH - 4}" y="{floor}">0</text>'
        f'<text x="{WIDTH - LEFT}" y="{HEIGHT - 6}">now</text></g><text x="{LEFT}" y="{HEIGHT - 6}">an hour ago</text></svg>'
    )
