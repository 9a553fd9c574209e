"""The breaks: each is one small edit of the program that drops one of its rules.

An edit says which text of which file becomes which, so a rule that is written otherwise one day makes the list fail
(tests/test_mutations.py), and somebody finds the new place of it.
"""

from dataclasses import dataclass

__all__ = ["EDITS", "Edit"]

CUTS, ERRORS, GROUPS, MACHINES = "powercuts", "ioerrors", "groups", "machines"
MODEL, RACES, SIMULATION = "model", "races", "simulation"


@dataclass(frozen=True)
class Edit:
    name: str
    guarantee: str
    file: str
    """In pastebin_daemon/."""
    old: str
    new: str
    searchers: tuple[str, ...] = (SIMULATION,)
    """Who should see it, the first of them first."""


EDITS = (
    # --- the fence (G6)
    Edit("fence without the owner", "G6", "outbox.py", "o.owner = :owner and ", "", (MODEL, MACHINES)),
    Edit(
        "fence without the generation",
        "G6",
        "outbox.py",
        " and o.generation = j.value ->> 1\n",
        "\n",
        (MODEL, MACHINES),
    ),
    Edit("fence without the lease's end", "G6", "outbox.py", " and o.lease_ms > :now", "", (SIMULATION, MODEL)),
    Edit(
        "fence asks only for the job",
        "G6",
        "outbox.py",
        "o.state = 'leased' and o.owner = :owner and o.lease_ms > :now and o.generation = j.value ->> 1",
        "o.state = 'leased'",
        (SIMULATION, MODEL),
    ),
    Edit(
        "a claim keeps the generation",
        "G6",
        "outbox.py",
        " generation = generation + 1 where",
        " generation = max(generation, 1) where",
        (SIMULATION, MODEL),
    ),
    Edit(
        "a lease is taken over before its end",
        "G6",
        "outbox.py",
        "state = 'leased' and kind = :kind and lease_ms <= :now\"\n        \" and attempts",
        "state = 'leased' and kind = :kind and lease_ms <= :now + 5000\"\n        \" and attempts",
        (MODEL, SIMULATION),
    ),
    Edit(
        "claims take what is leased",
        "G6",
        "outbox.py",
        "where state = 'pending' and kind = :kind and due_ms",
        "where kind = :kind and due_ms",
        (SIMULATION, MODEL),
    ),
    # --- effect, inbox, ack (G5, G7)
    Edit(
        "inbox before effect",
        "G7",
        "dispatcher.py",
        "        seen = inbox.seen(tx, number, [claim.job for claim in claims]) if claims else set()\n",
        "        seen = inbox.seen(tx, number, [claim.job for claim in claims]) if claims else set()\n"
        "        inbox.record(tx, number, [claim.job for claim in claims])\n",
    ),
    Edit(
        "ack without inbox",
        "G7",
        "dispatcher.py",
        "        inbox.record(tx, self._consumer.number, [claim.job for claim in plan.done])\n",
        "",
    ),
    Edit(
        "ack before effect",
        "G5",
        "dispatcher.py",
        "        return claims, seen, acked, buried\n",
        "        outbox.ack(tx, self._owner, claims)\n        return claims, seen, acked, buried\n",
    ),
    Edit(
        "inbox of failures too",
        "G7",
        "dispatcher.py",
        "[claim.job for claim in plan.done])",
        "[claim.job for claim in (*plan.done, *(r[0] for r in plan.retry))])",
    ),
    Edit(
        "the inbox is not asked",
        "G9",
        "dispatcher.py",
        "inbox.seen(tx, number, [claim.job for claim in claims]) if claims else set()",
        "set[int]()",
    ),
    Edit(
        "a lost answer counts as done",
        "G7",
        "consumers.py",
        "outcomes[job] = Done(result) if isinstance(result, str) else result",
        'outcomes[job] = Done(result) if isinstance(result, str) else Done("deleted")',
    ),
    Edit(
        "attempts are not counted at the claim",
        "G5",
        "outbox.py",
        'attempts = attempts + 1,"',
        'attempts = max(attempts, 1),"',
        (MODEL, MACHINES, SIMULATION),
    ),
    Edit(
        "the exhausted are buried whatever the inbox says",
        "G7",
        "outbox.py",
        "select id, exists (select 1 from inbox where outbox_id = outbox.id and consumer = ?)",
        "select id, 0 and ?",
        (SIMULATION, MODEL),
    ),
    Edit("an outage buries", "G5", "dispatcher.py", "outage = await self._is_outage(doubtful)", "outage = False"),
    Edit(
        "given back attempts count",
        "G5",
        "outbox.py",
        '[(claim, tx.now_ms, why) for claim, why in claims], ", attempts = attempts - 1")',
        '[(claim, tx.now_ms, why) for claim, why in claims], "")',
        (SIMULATION, MODEL),
    ),
    Edit(
        "a drain forgets what it holds",
        "G5",
        "dispatcher.py",
        '                case None:\n                    plan.give_back.append((claim, "the daemon was stopped"))',
        "                case None:\n                    pass",
    ),
    # --- what lives stays (G4, G12)
    Edit(
        "no look at the row before a delete",
        "G4",
        "consumers.py",
        "live = await self._database.read(pastes.live_objects, list(objects.values()))",
        "live: set[str] = set()",
    ),
    Edit(
        "no look at the row before a reap",
        "G4",
        "consumers.py",
        "return pastes.live_objects(tx, objects), pastes.uploading(tx, objects)",
        "return set(), pastes.uploading(tx, objects)",
    ),
    Edit("reaps take what is young", "G12", "consumers.py", "elif age_s < self._age_min_s:", "elif age_s < 0:"),
    Edit(
        "a reap that finds nothing is done at once",
        "G12",
        "consumers.py",
        "if now_ms >= created_ms + floor_ms:",
        "if True:",
    ),
    Edit(
        "no look at the upload at the commit",
        "G12",
        "pastes.py",
        '        " where exists (select 1 from uploads where object = value ->> 1)",\n',
        '        "",\n',
        (SIMULATION, MACHINES),
    ),
    Edit(
        "a late commit leaves no reap",
        "G12",
        "pastes.py",
        '        outbox.enqueue(tx, outbox.REAP, [{"object": calls[0][0].object}])\n',
        "",
        (SIMULATION, MACHINES),
    ),
    Edit(
        "abandoned uploads are forgotten",
        "G3",
        "pastes.py",
        '    outbox.enqueue(tx, outbox.REAP, [{"object": key} for (key,) in rows])\n',
        "",
    ),
    # --- endings and their jobs (G1, G2, G3)
    Edit(
        "expiry without jobs",
        "G3",
        "pastes.py",
        '    outbox.enqueue(tx, outbox.OBJECT_DELETE, [{"object": key, "paste": paste_id} for paste_id, key in rows])\n',
        "",
    ),
    Edit(
        "a delete without its second purge",
        "G3",
        "pastes.py",
        "in enumerate(purge_delays_ms):",
        "in enumerate(purge_delays_ms[:1]):",
    ),
    Edit(
        "no upload's record",
        "G12",
        "creation.py",
        "        await self._database.grow(pastes.begin_upload, new, self._bytes_max)\n        if",
        "        if",
    ),
    Edit(
        "what a member wrote before it failed stays",
        "G1",
        "database/group_commit.py",
        "            if len(members) > 1 or connection.total_changes != changes:",
        "            if len(members) > 1:",
        (GROUPS,),
    ),
    Edit(
        "a refusal in a batch is not told",
        "G1",
        "database/group_commit.py",
        "                member.fail(result)",
        "                pass",
        (SIMULATION, ERRORS),
    ),
    Edit(
        "members of a failed commit are told that all is well",
        "G1",
        "database/group_commit.py",
        '            member.fail(DatabaseUnavailable(f"the outcome of a commit is unknown: {cause!r}"))',
        "            pass",
        (SIMULATION, ERRORS),
    ),
    Edit(
        "a full disk is not told",
        "G1",
        "database/group_commit.py",
        "                    member.fail(_no_space(member, full))  # the reserve is for those that make room",
        "                    pass",
        (SIMULATION, ERRORS),
    ),
    Edit(
        "on after an unknown outcome",
        "G2",
        "database/group_commit.py",
        "        self.fatal = cause\n",
        "",
        (SIMULATION, ERRORS),
    ),
    Edit(
        "synchronous = NORMAL",
        "G1",
        "database/database.py",
        '"pragma synchronous = full",',
        '"pragma synchronous = normal",',
        (CUTS,),
    ),
    # --- the cache (G2)
    Edit("no tombstone", "G2", "daemon.py", "        cache.bury(event.id)\n", ""),
    Edit(
        "a fill does not look at the tombstone",
        "G2",
        "origin_cache.py",
        "if value is not None and key not in self._tombstones:",
        "if value is not None:",
    ),
    Edit(
        "no last look at the tombstone",
        "G2",
        "reading.py",
        "if self._cache.is_buried(paste.id) or not paste.is_live(",
        "if not paste.is_live(",
        (RACES, SIMULATION),
    ),
    # A waiter of a fetch looks at it too, and so does the reader, a moment later: either of them would be enough.
    Edit(
        "a tombstone does not drop the value",
        "G2",
        "origin_cache.py",
        "        self._drop(key)\n        self._tombstones.pop(key, None)\n",
        "        self._tombstones.pop(key, None)\n",
    ),
    Edit("tombstones go at once", "G2", "origin_cache.py", "self.life_s = 2 * fetch_max_s", "self.life_s = 0.0"),
    Edit(
        "a fetch believes its timer",
        "G2",
        "origin_cache.py",
        "if self._clock.monotonic() - began > self._fetch_max_s:",
        "if False:",
        (RACES,),
    ),
    Edit("cached pastes outlive their time", "G11", "reading.py", " or not paste.is_live(self._clock.now_ms()):", ":"),
    Edit(
        "edges keep past the end",
        "G11",
        "web/reads.py",
        "kept_s = min(kept_s, (paste.expires_ms - self._clock.now_ms()) // 1000 - 1)",
        "pass",
    ),
    Edit(
        "404 in an outage",
        "G1",
        "reading.py",
        "            raise StoreUnavailable(str(error)) from error\n        if body",
        "            raise NotFound(ABSENT) from error\n        if body",
    ),
    # --- inbox, replay, sweeps (G9)
    Edit(
        "retention below the replay window",
        "G9",
        "inbox.py",
        "horizon_s = (tx.now_ms - retention_ms) // 1000\n",
        "horizon_s = (tx.now_ms - retention_ms // 100) // 1000\n",
        (SIMULATION, MODEL, MACHINES),
    ),
    Edit(
        "the inbox's sweep goes by age alone",
        "G9",
        "inbox.py",
        '        " and not exists (select 1 from outbox where id = outbox_id)"\n'
        '        " and not exists (select 1 from dead_letters where id = outbox_id)",\n',
        '        "",\n',
        (MODEL, MACHINES, SIMULATION),
    ),
    Edit(
        "the inbox's sweep has no bound",
        "G9",
        "inbox.py",
        'order by outbox_id limit ?)",\n        (after, limit),',
        'order by outbox_id limit ? * 1000000)",\n        (after, limit),',
        (MACHINES,),
    ),
    Edit(
        "expiry has no bound",
        "G9",
        "pastes.py",
        'where expires_ms <= ? order by expires_ms limit ?)"',
        'where expires_ms <= ? order by expires_ms limit ? * 1000000)"',
        (MACHINES,),
    ),
    Edit(
        "a replay begins at generation 0",
        "G9",
        "outbox.py",
        "generation if inside else 0, by, tx.now_ms,",
        "0, by, tx.now_ms,",
        (SIMULATION, MODEL),
    ),
    Edit(
        "a replay always has a new id",
        "G9",
        "outbox.py",
        "job if inside else None, kind",
        "None, kind",
        (MODEL, MACHINES),
    ),
    Edit(
        "expiry goes on when the clock was set",
        "clock",
        "sweepers.py",
        "return wall_ms if now >= self._paused_until else None",
        "return wall_ms",
    ),
    Edit(
        "expiry goes by the transaction's time",
        "clock",
        "pastes.py",
        "(min(until_ms, tx.now_ms), limit),",
        "(tx.now_ms, limit),",
    ),
    Edit(
        "two creates under one key",
        "idempotency",
        "creation.py",
        "if asked.key_sha256 in self._under_way:",
        "if False:",
    ),
)
