"""A disk that tells what was written from what is there after a power cut.

`Recorder` hears every call of the files and keeps one log of them, and between them what the daemon said (`Note`): one
order for all files, since the power goes for all at once. `Player` turns the log up to any place into what is durable
and what is only written, and draws images from it:

- what a completed sync of a file covers is there; a sync that failed leaves each write before it there or lost for ever,
  whatever later syncs say (the kernel marks such pages as clean);
- each write since is kept, lost, torn at a sector's boundary or garbled, each by itself, as disks reorder; never beyond
  its own bytes, which is what SQLite asks of a disk (SQLITE_IOCAP_POWERSAFE_OVERWRITE);
- an entry of the directory, made or removed, is as at any moment since the directory was synced, each name by itself.
  SQLite syncs the directory with the first sync of a journal or log that it made, and so does the recorder.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

__all__ = [
    "SECTOR",
    "Call",
    "Entry",
    "Linked",
    "Note",
    "Player",
    "Recorder",
    "SyncFailed",
    "Synced",
    "Truncated",
    "Wrote",
]

SECTOR = 512
FULL = 13


@dataclass(frozen=True, slots=True)
class Wrote:
    inode: int
    offset: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Truncated:
    inode: int
    size: int


@dataclass(frozen=True, slots=True)
class Synced:
    """`directory`: and the directory with it. Inode 0 for the directory alone."""

    inode: int
    directory: bool


@dataclass(frozen=True, slots=True)
class SyncFailed:
    inode: int


@dataclass(frozen=True, slots=True)
class Linked:
    """The name stands for the inode from here on; None: it is gone."""

    name: str
    inode: int | None


@dataclass(frozen=True, slots=True)
class Note:
    """What the daemon did or said at this moment."""

    fact: object


Entry = Wrote | Truncated | Synced | SyncFailed | Linked | Note


@dataclass(frozen=True, slots=True)
class Call:
    """A call that may fail: its kind ("write"), its file's kind ("metadata", "bodies log"), and where it came."""

    kind: str
    file: str
    chapter: str


def kind_of(name: str) -> str:
    base = "metadata" if name.startswith("pastebin") else "bodies"
    end = name.rpartition("-")[2]
    return f"{base} {end}" if end in ("wal", "journal") else base


class Recorder:
    """A `Watcher`. `fail` is asked at each call and says the result code to answer with, or 0."""

    def __init__(self, fail: Callable[[Call], int] = lambda call: 0, *, lies: bool = False) -> None:
        self.log: list[Entry] = []
        self.chapter = ""
        self.fail = fail
        self.is_well: Callable[[], bool] = lambda: True
        """Whether what was to fail has failed, and nothing more will."""
        self.quiet = False
        """The test itself looks into the database: nothing fails."""
        self.room: Callable[[int], bool] | None = None
        """Whether so many bytes more may be taken of the disk; None: always."""
        self.sizes: dict[str, int] = {}
        self._lies = lies
        self._inodes: dict[str, int] = {}
        self._fresh: set[str] = set()
        self._count = 0

    def note(self, fact: object) -> None:
        self.log.append(Note(fact))

    def meet(self, call: str, file: str) -> int:
        if self.quiet:
            return 0
        error = self.fail(Call(call, kind_of(file), self.chapter))
        if error and call == "sync":
            self.log.append(SyncFailed(self._inodes[file]))
        return error

    def opened(self, file: str, created: bool) -> None:
        if created or file not in self._inodes:
            self._count += 1
            self._inodes[file] = self._count
            self.sizes[file] = 0
            self._fresh.add(file)
            self.log.append(Linked(file, self._count))

    def may_write(self, file: str, offset: int, size: int) -> int:
        more = offset + size - self.sizes[file]
        return FULL if more > 0 and self.room is not None and not self.quiet and not self.room(more) else 0

    def wrote(self, file: str, offset: int, data: bytes) -> None:
        self.sizes[file] = max(self.sizes[file], offset + len(data))
        self.log.append(Wrote(self._inodes[file], offset, data))

    def truncated(self, file: str, size: int) -> None:
        self.sizes[file] = min(self.sizes[file], size)
        self.log.append(Truncated(self._inodes[file], size))

    def synced(self, file: str) -> None:
        if not self._lies:
            directory = file in self._fresh and file.endswith(("-wal", "-journal"))
            self._fresh.discard(file)
            self.log.append(Synced(self._inodes[file], directory))

    def unlinked(self, file: str, synced: bool) -> None:
        del self._inodes[file], self.sizes[file]
        self.log.append(Linked(file, None))
        if synced and not self._lies:
            self.log.append(Synced(0, True))

    def renamed(self, file: str, to: str) -> None:
        self._inodes[to], self.sizes[to] = self._inodes.pop(file), self.sizes.pop(file)
        self.log += [Linked(file, None), Linked(to, self._inodes[to])]

    def directory_synced(self) -> None:
        self.log.append(Synced(0, True))


@dataclass(slots=True)
class _Inode:
    durable: bytearray = field(default_factory=bytearray)
    pending: list[Wrote | Truncated] = field(default_factory=list)


class Player:
    """`at` is a place in the log: everything before it has happened."""

    def __init__(self, log: Sequence[Entry], seed: object) -> None:
        self.at = 0
        self._log = log
        self._chance = random.Random(f"syncs of {seed}")
        self._inodes: dict[int, _Inode] = {}
        self._names: dict[str, int | None] = {}
        self._moves: list[Linked] = []

    def play(self, until: int) -> None:
        assert until >= self.at
        while self.at < until:
            self._step(self._log[self.at])
            self.at += 1

    def _step(self, entry: Entry) -> None:
        match entry:
            case Wrote() | Truncated():
                self._inodes[entry.inode].pending.append(entry)
            case Linked():
                if entry.inode is not None:
                    self._inodes.setdefault(entry.inode, _Inode())
                self._moves.append(entry)
            case Synced():
                if entry.inode:
                    self._settle(self._inodes[entry.inode], lambda op: op)
                if entry.directory:
                    self._names |= {move.name: move.inode for move in self._moves}
                    self._moves.clear()
            case SyncFailed():
                self._settle(self._inodes[entry.inode], lambda op: op if self._chance.random() < 0.5 else None)
            case Note():
                pass

    @staticmethod
    def _settle(inode: _Inode, fate: Callable[[Wrote | Truncated], Wrote | Truncated | None]) -> None:
        for op in inode.pending:
            kept = fate(op)
            if kept is not None:
                _apply(inode.durable, kept)
        inode.pending.clear()

    def pending(self) -> int:
        return sum(len(inode.pending) for inode in self._inodes.values()) + len(self._moves)

    def image(self, into: Path, outcome: int, chance: random.Random) -> str:
        """Write what is there when the power comes back, and say how it was drawn: outcome 0 loses all that was not
        synced, 1 keeps all of it, 2 keeps what came first; the others draw for each write."""
        names, fates = self._names, _Fates(outcome, self.pending(), chance)
        for name in sorted({move.name for move in self._moves}):
            for move in self._moves:
                if move.name == name:
                    if not fates.keeps():
                        break  # a name is as at one moment: later moves of it are not there either
                    names = names | {name: move.inode}
        for name, number in names.items():
            if number is not None:
                content = bytearray(self._inodes[number].durable)
                for op in self._inodes[number].pending:
                    fates.meet(content, op)
                (into / name).write_bytes(content)
        return fates.drawn


class _Fates:
    def __init__(self, outcome: int, count: int, chance: random.Random) -> None:
        self.drawn = ("all lost", "all kept", "the first kept", "each by itself")[min(outcome, 3)]
        self._chance = chance
        self._left = {0: 0, 1: count, 2: chance.randint(0, count)}.get(outcome)
        self._kept, self._garbled = chance.choice((0.1, 0.5, 0.9)), chance.choice((0.0, 0.1, 0.4))

    def keeps(self) -> bool:
        if self._left is None:
            return self._chance.random() < self._kept
        self._left -= 1
        return self._left >= 0

    def meet(self, content: bytearray, op: Wrote | Truncated) -> None:
        if self._left is not None or isinstance(op, Truncated):
            if self.keeps():
                _apply(content, op)
            return
        draw = self._chance.random()
        if draw < self._kept * (1 - self._garbled):
            _apply(content, op)
        elif draw > 1 - self._garbled:
            first = op.offset
            while first < op.offset + len(op.data):
                end = min((first // SECTOR + 1) * SECTOR, op.offset + len(op.data))
                piece = op.data[first - op.offset : end - op.offset]
                match self._chance.randrange(4):
                    case 0:
                        _apply(content, Wrote(op.inode, first, self._chance.randbytes(len(piece))))
                    case 1:
                        _apply(content, Wrote(op.inode, first, bytes(len(piece))))
                    case 2:
                        _apply(content, Wrote(op.inode, first, piece))
                first = end


def _apply(content: bytearray, op: Wrote | Truncated) -> None:
    if isinstance(op, Truncated):
        if op.size < len(content):
            del content[op.size :]
        else:
            content.extend(bytes(op.size - len(content)))
        return
    if op.offset > len(content):
        content.extend(bytes(op.offset - len(content)))
    content[op.offset : op.offset + len(op.data)] = op.data
