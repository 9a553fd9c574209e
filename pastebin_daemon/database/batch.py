"""Calls of one transaction function that run as one.

A group commit makes one sync of many transactions, but each of them is still a handful of statements, and beside a busy
loop every statement is a handoff of the interpreter's lock between two threads: dearer than the statement itself. So a
function that many callers ask for at once can name one that takes all their calls in statements over whole sets:

    def _find_all(tx: Tx, calls: Sequence[tuple[str]]) -> list[Paste | None]: ...

    @batched_by(_find_all)
    def find(tx: Tx, paste_id: str) -> Paste | None:
        return only(_find_all(tx, [(paste_id,)]))

The batch is an optimisation and nothing else: it must do what the calls would do one after the other. Its result has, for
each call, what it returns, or the exception that it raises, which then has changed nothing. A batch that can't tell
raises: then the group is undone, and its calls run one by one.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from pastebin_daemon.database.lane import Member
from pastebin_daemon.database.transaction import Tx

__all__ = ["BATCH_MAX", "Batch", "batched_by", "batches", "only"]

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")
Batch = Callable[[Tx, Sequence[Any]], Sequence[Any]]

BATCH_MAX = 64
"""Calls in one batch: a few milliseconds of the writer, after which it looks at its time again."""

_BATCHES: dict[Callable[..., Any], Batch] = {}


def batched_by(batch: Batch) -> Callable[[F], F]:
    """The function's calls that wait together run as `batch(tx, [(argument, ...), ...])`."""

    def mark(function: F) -> F:
        _BATCHES[function] = batch
        return function

    return mark


def only(results: Sequence[T | Exception]) -> T:
    """The result of a batch of one call, raised when it is an exception."""
    (result,) = results
    if isinstance(result, Exception):
        raise result
    return result


def batches(members: Iterable[Member]) -> list[tuple[Batch | None, list[Member]]]:
    """The members in the order in which they came, those of one batched function together at the place of the first.

    Callers that wait at the same time have no order among themselves. A batch of None has one member.
    """
    found: list[tuple[Batch | None, list[Member]]] = []
    open_: dict[Batch, list[Member]] = {}
    for member in members:
        batch = _BATCHES.get(member.function)
        if batch is None:
            found.append((None, [member]))
            continue
        waiting = open_.get(batch)
        if waiting is None or len(waiting) == BATCH_MAX:
            waiting = open_[batch] = []
            found.append((batch, waiting))
        waiting.append(member)
    return [(batch if len(some) > 1 else None, some) for batch, some in found]
