"""The totals that metrics and the quota go by equal a recount, after any sequence of transitions (design: nothing counts
rows), and no job is ever in two places, or in none (G5).

The sequences are random, by seeds that stand in the tests; SQLite is real, in memory.
"""

import random
import sqlite3
from collections.abc import Callable

import pytest

from pastebin_daemon import inbox, outbox, pastes
from pastebin_daemon.database import Tx
from pastebin_daemon.database.migrate import bring_up
from pastebin_daemon.errors import PastebinError
from pastebin_daemon.outbox import KINDS, Claim
from pastebin_daemon.pastes import NewPaste

STEPS = 400
TOKEN = bytes(32)
OWNERS = ("one", "two")
RECOUNT = """
    select (select count(*) from pastes), (select coalesce(sum(size), 0) from pastes),
           (select count(*) from outbox where state = 'pending'), (select count(*) from outbox where state = 'leased'),
           (select count(*) from dead_letters), (select count(*) from inbox)
"""


class World:
    """Random moves, by two owners that lose their leases now and then and go on all the same."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.connection = sqlite3.connect(":memory:", isolation_level=None)
        bring_up(self.connection, "metadata")
        self.now_ms = 1_000_000
        self.count = 0
        self.uploads: list[NewPaste] = []
        self.claims: list[tuple[str, Claim]] = []
        self.generations: dict[int, int] = {}
        self.most = (0,) * 6

    def one(self, moves: int = 5) -> list[tuple[str, Claim]]:
        """A few claims of one owner, stale ones among them."""
        owner = self.chance.choice(OWNERS)
        mine = [pair for pair in self.claims if pair[0] == owner][-12:]
        return self.chance.sample(mine, min(len(mine), self.chance.randint(0, moves)))

    def step(self) -> None:
        self.now_ms += self.chance.randint(0, 2000)
        tx = Tx(self.connection, self.now_ms)
        moves: list[Callable[[Tx], None]] = [
            self.create, self.create, self.end, self.expire, self.abandon, self.claim, self.claim, self.reclaim,
            self.settle, self.settle, self.bury_exhausted, self.replay, self.discard, self.sweep,
        ]  # fmt: skip
        knew = list(self.uploads), list(self.claims)
        self.connection.execute("begin")
        try:
            self.chance.choice(moves)(tx)
            commits = self.chance.random() > 0.1
        except PastebinError:
            commits = False
        if commits:
            self.connection.execute("commit")
        else:
            self.connection.execute("rollback")
            self.uploads, self.claims = knew  # nobody hears of what did not happen

    def create(self, tx: Tx) -> None:
        if self.uploads and self.chance.random() < 0.6:
            pastes.commit(tx, self.uploads.pop(), None, 0)
            return
        lifetime_ms = self.chance.choice([None, 5_000, 50_000])
        size = self.chance.randint(1, 1000)
        self.count += 1
        new = NewPaste(
            f"paste{self.count:013}", f"object{self.count}", lifetime_ms, size, TOKEN, True, None, None, TOKEN
        )
        pastes.begin_upload(tx, new, 0)
        self.uploads.append(new)

    def end(self, tx: Tx) -> None:
        rows = tx.rows("select id from pastes")
        if rows:
            (paste_id,) = self.chance.choice(rows)
            if self.chance.random() < 0.5:
                pastes.delete(tx, paste_id, TOKEN, (0, 5_000))
            else:
                pastes.take_down(tx, paste_id, (0,))

    def expire(self, tx: Tx) -> None:
        pastes.expire(tx, 3, tx.now_ms)

    def abandon(self, tx: Tx) -> None:
        pastes.abandon(tx, 20_000, 3)

    def claim(self, tx: Tx) -> None:
        owner = self.chance.choice(OWNERS)
        for claim in outbox.claim(tx, self.chance.choice(KINDS), owner, 8_000, self.chance.randint(1, 5)):
            self.claims.append((owner, claim))

    def reclaim(self, tx: Tx) -> None:
        owner = self.chance.choice(OWNERS)
        for claim in outbox.reclaim(tx, self.chance.choice(KINDS), owner, 8_000, 3):
            self.claims.append((owner, claim))

    def settle(self, tx: Tx) -> None:
        some = self.one()
        if not some:
            return
        owner, claims = some[0][0], [claim for _, claim in some]
        match self.chance.randint(0, 5):
            case 0:
                inbox.record(tx, 1, [claim.job for claim in claims])
                outbox.ack(tx, owner, claims)
            case 1:
                outbox.ack(tx, owner, claims)
            case 2:
                outbox.retry(tx, owner, [(claim, tx.now_ms + 3_000, "e") for claim in claims])
            case 3:
                outbox.give_back(tx, owner, [(claim, "e") for claim in claims])
            case 4:
                outbox.postpone(tx, owner, [(claim, tx.now_ms + 9_000, "e") for claim in claims])
            case _:
                outbox.bury(tx, owner, [(claim, "permanent", "e") for claim in claims])

    def bury_exhausted(self, tx: Tx) -> None:
        outbox.bury_exhausted(tx, self.chance.choice(KINDS), 1, 3, 2)

    def dead(self, tx: Tx) -> int:
        rows = tx.rows("select id from dead_letters")
        return int(self.chance.choice(rows)[0]) if rows else 0

    def replay(self, tx: Tx) -> None:
        outbox.replay(tx, self.dead(tx), "ann", 30_000)

    def discard(self, tx: Tx) -> None:
        outbox.discard(tx, self.dead(tx))

    def sweep(self, tx: Tx) -> None:
        inbox.sweep(tx, 0, 20_000, 5)

    def check(self) -> None:
        totals = self.connection.execute("select pastes, bytes, pending, leased, dead_letters, inbox from totals")
        (counted,) = totals.fetchall()
        assert [counted] == self.connection.execute(RECOUNT).fetchall()
        self.most = tuple(map(max, self.most, counted))
        places = "select id, generation from outbox union all select id, generation from dead_letters"
        found = self.connection.execute(places).fetchall()
        assert len({job for job, _ in found}) == len(found), "a job is in one place"
        for job, generation in found:
            assert generation >= self.generations.get(job, 0), "a generation only grows"
            self.generations[job] = generation


@pytest.mark.parametrize("seed", range(8))
def test_after_any_sequence_of_transitions_the_totals_equal_a_recount(seed: int) -> None:
    world = World(seed)
    for _ in range(STEPS):
        world.step()
        world.check()
    assert all(world.most), "the walk went everywhere"


@pytest.mark.parametrize("seed", range(3))
def test_no_id_of_a_job_ever_comes_back_for_another(seed: int) -> None:
    world = World(seed)
    payloads: dict[int, str] = {}
    for _ in range(STEPS):
        world.step()
        rows = world.connection.execute("select id, payload from outbox union all select id, payload from dead_letters")
        for job, payload in rows.fetchall():
            assert payloads.setdefault(job, payload) == payload
    assert len(payloads) > 30


@pytest.mark.parametrize("seed", range(3))
def test_every_job_comes_to_an_end_when_its_effects_succeed(seed: int) -> None:
    world = World(seed)
    for _ in range(STEPS):
        world.step()
    tx = Tx(world.connection, world.now_ms + 10_000_000)
    for kind in KINDS:
        outbox.bury_exhausted(tx, kind, 1, 3, 1000)
        while claims := [*outbox.reclaim(tx, kind, "last", 1, 3), *outbox.claim(tx, kind, "last", 1, 100)]:
            outbox.ack(tx, "last", claims)
    assert tx.rows("select pending, leased from totals") == [(0, 0)]
