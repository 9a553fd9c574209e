"""The dispatcher: runs the jobs of one kind, at least once, and settles them only while they are held.

A tick is: claim (one transaction), effects (network, outside any transaction), settle (one transaction: the inbox rows
of what succeeded, then the fenced ack, retry, bury, give back of each job). So effect comes before inbox and inbox
before ack, and a crash anywhere costs a repeat (G5, G7). It claims at most what it starts at once, so no claim waits in
memory while its lease runs down.

How an outcome is settled:

| outcome                                          | settlement                                                    |
|--------------------------------------------------|---------------------------------------------------------------|
| done, or seen in the inbox (the effect skipped)  | inbox row, ack                                                |
| not yet                                          | postpone, the attempt returned                                |
| throttled (429, SlowDown, our database is busy)  | the consumer pauses; give back                                |
| temporary, and the neutral probe fails too       | the breaker opens; give back                                  |
| temporary, and the probe succeeds                | the job's own: retry; bury when no attempt is left            |
| permanent, undecodable, row_is_live              | bury                                                          |
| cancelled by the drain                           | give back                                                     |

Attempts count at the claim, so a job that kills the process is buried too. Expired claims are tried one at a time, and
while one is, no other kind claims: the killer burns only its own attempts. A lease is never extended; effects are cut
below half of it. Retries are exponential with jitter over about an hour (`retry_span`).
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from pastebin_daemon import inbox, outbox
from pastebin_daemon.breaker import PAUSE_MAX_S, Breaker
from pastebin_daemon.clock import Clock
from pastebin_daemon.consumers import Buried, Consumer, Done, NotYet, Outcome
from pastebin_daemon.database import Database, Tx
from pastebin_daemon.errors import Busy, EffectError, Permanent, StorageFull, Temporary
from pastebin_daemon.ids import jitter
from pastebin_daemon.logs import get_logger
from pastebin_daemon.metrics import Metrics
from pastebin_daemon.outbox import Claim, Enqueued

__all__ = ["Dispatcher", "Limits", "Turns"]

log = get_logger()


@dataclass(frozen=True, slots=True)
class Limits:
    """The section `[outbox]`, in the units that the dispatcher computes in."""

    batch: int
    lease_ms: int
    effect_timeout_s: float
    attempts_max: int
    retry_span_ms: int

    def backoff_ms(self, attempts: int) -> int:
        """The wait after so many attempts: doubling, the sum over all of them being `retry_span`, half of it random."""
        gaps = max(1, 2 ** (self.attempts_max - 1) - 1)
        return jitter(self.retry_span_ms * 2 ** (attempts - 1) // gaps)


class Turns:
    """What the dispatchers of one process share: who may claim, so that a suspect job runs alone."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self._breakers: list[Breaker] = []

    def join(self, breaker: Breaker) -> None:
        self._breakers.append(breaker)

    def ready_kinds(self) -> list[str]:
        """A kind whose breaker is open runs nothing, so its expired claims hold nobody up."""
        return [breaker.consumer for breaker in self._breakers if breaker.may_claim()]


@dataclass(frozen=True, slots=True)
class _Plan:
    """What settles a batch; every job stands in exactly one list."""

    done: list[Claim]
    ack: list[Claim]
    retry: list[tuple[Claim, int, str]]
    give_back: list[tuple[Claim, str]]
    postpone: list[tuple[Claim, int, str]]
    bury: list[tuple[Claim, str, str]]


class Dispatcher:
    """One per kind. Turn it by `tick`; nothing else here has a loop."""

    def __init__(
        self, database: Database, consumer: Consumer, breaker: Breaker, turns: Turns, owner: str, clock: Clock,
        limits: Limits, metrics: Metrics, *, wake_at: int,
    ) -> None:  # fmt: skip
        """`wake_at`: so many newly due jobs end the wait for the next poll (1 for what should go at once)."""
        self.kind = consumer.kind
        self.breaker = breaker
        self.woken = asyncio.Event()
        self._database = database
        self._consumer = consumer
        self._turns = turns
        self._owner = owner
        self._clock = clock
        self._limits = limits
        self._batch = min(limits.batch, consumer.batch_max)
        self._metrics = metrics
        self._wake_at = min(wake_at, self._batch)
        self._newly_due = 0
        self._scope: asyncio.Timeout | None = None
        self._cut_at: float | None = None
        """Set by the drain: when, by the loop's clock, what is under way on the network is cut short."""
        turns.join(breaker)
        database.subscribe(Enqueued, self._enqueued)

    async def tick(self) -> bool:
        """Claim, run and settle one batch. Says whether to come again at once."""
        self.woken.clear()  # before the SELECT, or a wake-up is lost
        self._newly_due = 0
        if not await self._may_claim():
            return False
        try:
            async with self._turns.lock:
                if self._cut_at is not None:
                    return False  # the drain came while a suspect had the turn
                claims, seen, acked, buried = await self._database.write(self._claim, self._turns.ready_kinds())
                self._metrics.settled.labels(self.kind, "ack").inc(len(acked))
                self._metrics.settled.labels(self.kind, "bury").inc(len(buried))
                for job in sorted(buried):
                    log.error("job.buried", job=job, kind=self.kind, reason="attempts_exhausted")
                if claims and claims[0].reason == "expired":
                    await self._work(claims, seen)  # alone: no other kind claims meanwhile
                    return True
            await self._work(claims, seen)
        except (Busy, StorageFull) as error:
            log.warning("dispatch.failed", kind=self.kind, error=str(error))
            return False
        return self._batch in (len(claims), len(acked) + len(buried))

    def drain(self, within_s: float) -> None:
        """Claim nothing more, and give back what is not done `within_s` from now."""
        self._cut_at = asyncio.get_running_loop().time() + within_s
        self.woken.set()
        if self._scope is not None and not self._scope.expired():
            self._scope.reschedule(min(self._scope.when() or self._cut_at, self._cut_at))

    @asynccontextmanager
    async def _cuttable(self, limit_s: float | None) -> AsyncIterator[None]:
        """Around whatever goes over the network. Raises `TimeoutError` at the limit, or when the drain cuts it short."""
        try:
            async with asyncio.timeout(limit_s) as self._scope:
                if self._cut_at is not None:
                    self._scope.reschedule(min(self._scope.when() or self._cut_at, self._cut_at))
                yield
        finally:
            self._scope = None

    async def _may_claim(self) -> bool:
        if self._cut_at is not None:
            return False
        try:
            async with self._cuttable(None):
                return await self.breaker.turn()
        except TimeoutError:
            return False

    def _enqueued(self, event: Enqueued) -> None:
        if event.kind == self.kind and event.due_ms <= self._clock.now_ms():
            self._newly_due += event.count
            if self._newly_due >= self._wake_at:
                self.woken.set()

    def _claim(self, tx: Tx, ready: Sequence[str]) -> tuple[list[Claim], set[int], set[int], set[int]]:
        """A transaction: the claims, those of them whose effect the inbox has, and the jobs acked and buried since
        their last attempt had ended."""
        limits, number = self._limits, self._consumer.number
        acked, buried = outbox.bury_exhausted(tx, self.kind, number, limits.attempts_max, self._batch)
        expired = outbox.expired_kinds(tx, ready)
        if not expired:
            claims = outbox.claim(tx, self.kind, self._owner, limits.lease_ms, self._batch)
        elif expired[0] == self.kind:
            claims = outbox.reclaim(tx, self.kind, self._owner, limits.lease_ms, limits.attempts_max)
        else:
            claims = []
        seen = inbox.seen(tx, number, [claim.job for claim in claims]) if claims else set()
        return claims, seen, acked, buried

    async def _work(self, claims: Sequence[Claim], seen: set[int]) -> None:
        if not claims:
            return
        self._metrics.claims.labels(self.kind, claims[0].reason).inc(len(claims))
        for claim in claims:
            if claim.reason == "expired":
                log.warning("claim.reclaimed", job=claim.job, kind=claim.kind, generation=claim.generation)
        fresh = [claim for claim in claims if claim.job not in seen]
        outcomes = await self._effects(fresh) if fresh else {}
        plan = await self._judge(claims, seen, outcomes)
        try:
            moved = await self._database.write(self._settle, plan)
        except (Busy, StorageFull):
            self._metrics.inbox_failures.inc()  # the leases run out, and what was done is done again
            raise
        self._account(plan, moved, outcomes)

    async def _effects(self, claims: Sequence[Claim]) -> Mapping[int, Outcome | None]:
        """The outcome of each; None where the drain cut it short."""
        try:
            async with self._cuttable(self._limits.effect_timeout_s):
                return await self._consumer.run(claims)
        except TimeoutError:
            late = Temporary(f"the effect took longer than {self._limits.effect_timeout_s:g} s")
            return dict.fromkeys((claim.job for claim in claims), None if self._cut_at is not None else late)
        except Busy as error:  # our own database is, so neither the job nor the provider is to blame
            return dict.fromkeys((claim.job for claim in claims), Temporary(f"busy: {error}", throttled=True))

    async def _is_outage(self, failures: Sequence[Temporary]) -> bool:
        """Whether the surroundings are to blame. The drain asks nobody, and believes so: then nothing is lost by it."""
        if not failures:
            return False
        try:
            async with self._cuttable(None):
                return self._cut_at is not None or await self.breaker.doubt(failures[0])
        except TimeoutError:
            return True

    async def _judge(self, claims: Sequence[Claim], seen: set[int], outcomes: Mapping[int, Outcome | None]) -> _Plan:
        doubtful = [o for o in outcomes.values() if isinstance(o, Temporary) and not o.throttled]
        throttled = [o for o in outcomes.values() if isinstance(o, Temporary) and o.throttled]
        if throttled:
            waits = [o.retry_after_s for o in throttled if o.retry_after_s is not None]
            self.breaker.pause(max(waits) if waits else None)
        outage = await self._is_outage(doubtful)
        plan = _Plan([], [], [], [], [], [])
        for claim in claims:
            if claim.job in seen:
                plan.ack.append(claim)
                continue
            match outcomes[claim.job]:
                case Done():
                    plan.done.append(claim)
                    plan.ack.append(claim)
                case NotYet(due_ms, why):
                    plan.postpone.append((claim, due_ms, why))
                case Buried(reason, error):
                    plan.bury.append((claim, reason, error))
                case Permanent() as failure:
                    plan.bury.append((claim, "permanent", str(failure)))
                case Temporary() as failure if outage or failure.throttled:
                    plan.give_back.append((claim, str(failure)))
                case EffectError() as failure:
                    self._fail(plan, claim, failure)
                case None:
                    plan.give_back.append((claim, "the daemon was stopped"))
        return plan

    def _fail(self, plan: _Plan, claim: Claim, failure: EffectError) -> None:
        if claim.attempts >= self._limits.attempts_max:
            plan.bury.append((claim, "attempts_exhausted", str(failure)))
            return
        wait_ms = self._limits.backoff_ms(claim.attempts)
        if isinstance(failure, Temporary) and failure.retry_after_s is not None:
            wait_ms = max(wait_ms, int(min(failure.retry_after_s, PAUSE_MAX_S) * 1000))
        plan.retry.append((claim, self._clock.now_ms() + wait_ms, str(failure)))

    def _settle(self, tx: Tx, plan: _Plan) -> dict[str, set[int]]:
        """A transaction: what happened, and then what becomes of each job that is still held."""
        inbox.record(tx, self._consumer.number, [claim.job for claim in plan.done])
        owner = self._owner
        return {
            "ack": outbox.ack(tx, owner, plan.ack) if plan.ack else set(),
            "retry": outbox.retry(tx, owner, plan.retry) if plan.retry else set(),
            "give_back": outbox.give_back(tx, owner, plan.give_back) if plan.give_back else set(),
            "postpone": outbox.postpone(tx, owner, plan.postpone) if plan.postpone else set(),
            "bury": outbox.bury(tx, owner, plan.bury) if plan.bury else set(),
        }

    def _account(self, plan: _Plan, moved: Mapping[str, set[int]], outcomes: Mapping[int, Outcome | None]) -> None:
        """Say what was decided: metrics for all, a log line for what is worth an operator's minute."""
        settlements: dict[str, list[Claim]] = {
            "ack": plan.ack,
            "retry": [claim for claim, *_ in plan.retry],
            "give_back": [claim for claim, *_ in plan.give_back],
            "postpone": [claim for claim, *_ in plan.postpone],
            "bury": [claim for claim, *_ in plan.bury],
        }
        for transition, claims in settlements.items():
            if not claims:
                continue
            held = moved[transition]
            self._metrics.settled.labels(self.kind, transition).inc(len(held))
            for claim in claims:
                if claim.job not in held:
                    self._metrics.stale.labels(transition).inc()
                    log.warning("claim.lost", job=claim.job, generation=claim.generation, transition=transition)
        duplicates = len(plan.ack) - len(plan.done)
        if duplicates:
            self._metrics.inbox_duplicates.labels(self.kind).inc(duplicates)
        hows: Counter[str] = Counter(outcome.how for outcome in outcomes.values() if isinstance(outcome, Done))
        if hows["missing"]:
            self._metrics.object_missing.inc(hows["missing"])
        if plan.done:
            log.debug("jobs.done", kind=self.kind, count=len(plan.done), how=dict(hows))
        for claim, due_ms, error in plan.retry:
            log.warning(
                "job.retried", job=claim.job, kind=self.kind, attempts=claim.attempts, due_ms=due_ms, error=error
            )
        for claim, reason, error in plan.bury:
            log.error("job.buried", job=claim.job, kind=self.kind, reason=reason, error=error)
        if plan.give_back:
            log.info("jobs.given_back", kind=self.kind, count=len(plan.give_back), why=plan.give_back[0][1])
