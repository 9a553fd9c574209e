"""What holds between the keys of the configuration: one `if` for each rule, and the remedy beside it.

Nested limits are ordered (G14): store and edge calls < effect < half of the lease, four uploads < the reaper's floor;
dedupe outlives replay (G9) and the promise of idempotency; a choice is never one that would be refused. Bounds of one
key alone stand with the key, in `config_sections.py`.
"""

import json
from collections.abc import Iterator

from pastebin_daemon.config_sections import Config, Pastes
from pastebin_daemon.edge.drivers import drivers
from pastebin_daemon.quantities import Listen, duration_text, size_text

__all__ = ["Broken", "contradictions"]

Broken = tuple[tuple[str, ...], str]
"""The keys that a rule compares, the one to change first, and what is wrong with that one."""

_DAY_S = 86_400


def contradictions(c: Config) -> Iterator[Broken]:
    """Each rule that these sections break. A store or an edge that is not in use has no time-out to order."""
    s3, outbox, pastes, edge = c.bodies.s3, c.outbox, c.pastes, c.edge.settings
    if c.inbox.retention <= outbox.replay_window:
        yield (
            ("inbox.retention", "outbox.replay_window"),
            "must be longer than [outbox] replay_window, or a replayed job could be done twice; "
            f'write "{duration_text(outbox.replay_window + _DAY_S)}", or a shorter replay_window',
        )
    if c.idempotency.retention <= _DAY_S:
        yield ("idempotency.retention",), 'must be longer than the 24h that clients are promised; write "25h"'
    if outbox.effect_timeout >= outbox.lease / 2:
        yield (
            ("outbox.effect_timeout", "outbox.lease"),
            "must be shorter than half of [outbox] lease, so that an effect has ended before its lease does; "
            f'write less than "{duration_text(outbox.lease / 2)}", or a longer lease',
        )
    if outbox.poll_interval >= outbox.lease / 2:
        yield (
            ("outbox.poll_interval", "outbox.lease"),
            "must be shorter than half of [outbox] lease, so that expired claims are found in time; "
            f'write less than "{duration_text(outbox.lease / 2)}"',
        )
    if s3.connect_timeout > s3.timeout:
        yield (
            ("bodies.s3.connect_timeout", "bodies.s3.timeout"),
            f'must not be longer than [bodies.s3] timeout; write at most "{duration_text(s3.timeout)}"',
        )
    for used, key, timeout in (
        (c.bodies.store == "s3", "bodies.s3.timeout", s3.timeout),
        (edge is not None, f"edge.{c.edge.driver}.timeout", 0.0 if edge is None else edge.timeout),
    ):
        if used and timeout >= outbox.effect_timeout:
            yield (
                (key, "outbox.effect_timeout"),
                "must be shorter than [outbox] effect_timeout, so that a call ends before its effect is cut off; "
                f'write less than "{duration_text(outbox.effect_timeout)}"',
            )
    if c.uploads.reap_after <= 4 * s3.timeout:
        yield (
            ("uploads.reap_after", "bodies.s3.timeout"),
            "must be longer than four times [bodies.s3] timeout, so that no body is reaped while it is being uploaded; "
            f'write more than "{duration_text(4 * s3.timeout)}", such as "1h"',
        )
    if pastes.body_bytes_max > c.uploads.memory_max:
        yield (
            ("uploads.memory_max", "pastes.body_bytes_max"),
            "must hold at least one paste of [pastes] body_bytes_max; "
            f'write at least "{size_text(pastes.body_bytes_max)}", or a smaller body_bytes_max',
        )
    if c.bodies.store == "s3" and not s3.bucket:
        yield (
            ("bodies.s3.bucket",),
            'is needed with [bodies] store = "s3"; write the name of your bucket',
        )
    if bool(s3.access_key_id) != bool(s3.secret_access_key):
        missing, other = "access_key_id", "secret_access_key"
        if s3.access_key_id:
            missing, other = other, missing
        yield (
            (f"bodies.s3.{missing}", f"bodies.s3.{other}"),
            f"is missing while {other} is given; give both, or neither for the usual AWS chain",
        )
    if c.server.listen == c.admin.listen and c.server.listen != Listen("tcp", c.server.listen.host, 0):
        yield (
            ("admin.listen", "server.listen"),
            'must differ from [server] listen, since it is never public; write one such as "127.0.0.1:8081"',
        )
    yield from _lifetimes(pastes)
    if edge is not None:
        for names, text in drivers()[c.edge.driver].contradictions(edge):
            yield tuple(f"edge.{c.edge.driver}.{name}" for name in names), text


def _lifetimes(pastes: Pastes) -> Iterator[Broken]:
    limit = pastes.expiry_max
    if limit is None:
        return

    def too_long(lifetime: int | None) -> bool:
        return lifetime is None or lifetime > limit

    longest = f'[pastes] expiry_max = "{duration_text(limit)}"'
    if too_long(pastes.expiry_default):
        yield (
            ("pastes.expiry_default", "pastes.expiry_max"),
            f'is longer than {longest}; write at most "{duration_text(limit)}", or a longer expiry_max (0: no limit)',
        )
    if any(map(too_long, pastes.expiry_choices)):
        allowed = [duration_text(choice) for choice in pastes.expiry_choices if choice is not None and choice <= limit]
        yield (
            ("pastes.expiry_choices", "pastes.expiry_max"),
            f"has a choice longer than {longest}; write {json.dumps(allowed)}, or a longer expiry_max (0: no limit)",
        )
