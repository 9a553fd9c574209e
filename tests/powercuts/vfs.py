"""A VFS under the interpreter's own SQLite, in which every call of a file passes by a watcher.

It is SQLite's "unix" VFS with some of its methods exchanged: each asks the watcher first, which may answer with an
error in the place of the call, then makes the real call on a real file, and tells the watcher what was done. A sync is
told and not made: what a power cut leaves is computed from what the watcher heard. So the daemon, the `sqlite3` module
and SQLite itself are the ones of production, result codes included: an error that SQLite swallows (of a checkpoint
after a commit) is swallowed here too, which a VFS in Python's exceptions could not show.
"""

import ctypes
import os
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

__all__ = ["NAME", "Watcher", "watch"]

NAME = "watched"
OK = 0
_P, _I, _L = ctypes.c_void_p, ctypes.c_int, ctypes.c_int64


class Watcher(Protocol):
    def meet(self, call: str, file: str) -> int:
        """Before a call: 0, or the result code to answer with in its place."""

    def opened(self, file: str, created: bool) -> None: ...
    def may_write(self, file: str, offset: int, size: int) -> int:
        """0, or SQLITE_FULL where the disk has no room for it."""

    def wrote(self, file: str, offset: int, data: bytes) -> None: ...
    def truncated(self, file: str, size: int) -> None: ...
    def synced(self, file: str) -> None: ...
    def unlinked(self, file: str, synced: bool) -> None: ...


class _Vfs(ctypes.Structure):
    _fields_ = (
        ("iVersion", _I), ("szOsFile", _I), ("mxPathname", _I), ("pNext", _P), ("zName", ctypes.c_char_p),
        ("pAppData", _P),
        *((name, _P) for name in (
            "xOpen", "xDelete", "xAccess", "xFullPathname", "xDlOpen", "xDlError", "xDlSym", "xDlClose", "xRandomness",
            "xSleep", "xCurrentTime", "xGetLastError", "xCurrentTimeInt64", "xSetSystemCall", "xGetSystemCall",
            "xNextSystemCall",
        )),
    )  # fmt: skip


class _Methods(ctypes.Structure):
    _fields_ = (
        ("iVersion", _I),
        *((name, _P) for name in (
            "xClose", "xRead", "xWrite", "xTruncate", "xSync", "xFileSize", "xLock", "xUnlock", "xCheckReservedLock",
            "xFileControl", "xSectorSize", "xDeviceCharacteristics", "xShmMap", "xShmLock", "xShmBarrier", "xShmUnmap",
            "xFetch", "xUnfetch",
        )),
    )  # fmt: skip


_CALLS: dict[str, Any] = {
    "xOpen": ctypes.CFUNCTYPE(_I, _P, _P, _P, _I, _P),
    "xDelete": ctypes.CFUNCTYPE(_I, _P, _P, _I),
    "xAccess": ctypes.CFUNCTYPE(_I, _P, _P, _I, _P),
    "xClose": ctypes.CFUNCTYPE(_I, _P),
    "xRead": ctypes.CFUNCTYPE(_I, _P, _P, _I, _L),
    "xWrite": ctypes.CFUNCTYPE(_I, _P, _P, _I, _L),
    "xTruncate": ctypes.CFUNCTYPE(_I, _P, _L),
    "xSync": ctypes.CFUNCTYPE(_I, _P, _I),
    "xFileSize": ctypes.CFUNCTYPE(_I, _P, _P),
    "xLock": ctypes.CFUNCTYPE(_I, _P, _I),
    "xShmMap": ctypes.CFUNCTYPE(_I, _P, _I, _I, _I, _P),
    "xShmLock": ctypes.CFUNCTYPE(_I, _P, _I, _I, _I),
}
SHM_UNLOCK = 1


def _library() -> ctypes.CDLL:
    """The SQLite that the interpreter's `sqlite3` module has loaded."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        if "libsqlite3" in line:
            return ctypes.CDLL(line.split()[-1])
    raise AssertionError(f"sqlite3 {sqlite3.sqlite_version} is built into the interpreter: no VFS can be put under it")


def _name(path: int) -> str:
    return Path(os.fsdecode(ctypes.string_at(path))).name


class _Watched:
    """Registered once a process, and never taken away: SQLite keeps pointers into it."""

    def __init__(self) -> None:
        self.watcher: Watcher | None = None
        self.bug: BaseException | None = None
        self._files: dict[int, str] = {}
        self._methods: dict[int, _Methods] = {}
        library = _library()
        library.sqlite3_vfs_find.restype = ctypes.POINTER(_Vfs)
        self._base = library.sqlite3_vfs_find(b"unix").contents
        self._vfs = _Vfs.from_buffer_copy(self._base)
        self._vfs.zName, self._vfs.pNext = NAME.encode(), None
        for name, hook in (("xOpen", self._open), ("xDelete", self._delete), ("xAccess", self._access)):
            self._put(self._vfs, name, hook, OK if name == "xAccess" else sqlite3.SQLITE_IOERR)
        assert library.sqlite3_vfs_register(ctypes.byref(self._vfs), 0) == OK

    def _put(self, struct: Any, name: str, hook: Callable[..., int], failed: int = sqlite3.SQLITE_IOERR) -> None:
        """Exchange a method for a hook, which gets the original as its first argument."""
        original = _CALLS[name](getattr(struct, name))

        def call(*args: Any) -> int:
            try:
                return hook(original, *args)
            except BaseException as bug:  # noqa: BLE001  no exception crosses C: `watch` raises it
                self.bug = self.bug or bug
                return failed

        callback = _CALLS[name](call)
        setattr(struct, name, ctypes.cast(callback, _P))
        _KEPT.append((original, callback))

    def _heard(self) -> Watcher:
        assert self.watcher is not None, "a file outlived its watcher"
        return self.watcher

    def _open(self, original: Any, vfs: int, path: int, file: int, flags: int, out: int) -> int:
        name = _name(path)  # the pointer goes on, and no copy: SQLite keeps it
        if error := self._heard().meet("open", name):
            ctypes.c_void_p.from_address(file).value = None  # no methods: SQLite does not close it
            return error
        created = not os.path.exists(ctypes.string_at(path))
        result = int(original(vfs, path, file, flags, out))
        if result == OK:
            self._files[file] = name
            slot = ctypes.c_void_p.from_address(file)
            assert slot.value is not None
            slot.value = ctypes.addressof(self._hooked(slot.value))
            self._heard().opened(name, created)
        return result

    def _hooked(self, address: int) -> _Methods:
        if address not in self._methods:
            methods = _Methods.from_buffer_copy(_Methods.from_address(address))
            methods.iVersion = 2  # without mmap
            for name, hook in (
                ("xClose", self._close), ("xRead", self._read), ("xWrite", self._write), ("xTruncate", self._truncate),
                ("xSync", self._sync), ("xFileSize", self._size), ("xLock", self._lock), ("xShmMap", self._shm_map),
                ("xShmLock", self._shm_lock),
            ):  # fmt: skip
                if getattr(methods, name) is not None:  # a journal has no shared memory
                    self._put(methods, name, hook)
            self._methods[address] = methods
        return self._methods[address]

    def _delete(self, original: Any, vfs: int, path: int, sync: int) -> int:
        name = _name(path)
        if error := self._heard().meet("delete", name):
            return error
        result = int(original(vfs, path, 0))
        if result == OK:
            self._heard().unlinked(name, bool(sync & 1))
        return result

    def _access(self, original: Any, vfs: int, path: int, flags: int, out: int) -> int:
        return self._heard().meet("access", _name(path)) or original(vfs, path, flags, out)

    def _close(self, original: Any, file: int) -> int:
        error = self._heard().meet("close", self._files.pop(file))
        return int(original(file)) or error  # closed all the same

    def _read(self, original: Any, file: int, into: int, size: int, offset: int) -> int:
        return self._heard().meet("read", self._files[file]) or original(file, into, size, offset)

    def _write(self, original: Any, file: int, data: int, size: int, offset: int) -> int:
        name, heard = self._files[file], self._heard()
        error = heard.meet("write", name) or heard.may_write(name, offset, size)
        if error:
            return error
        result = int(original(file, data, size, offset))
        if result == OK:
            heard.wrote(name, offset, ctypes.string_at(data, size))
        return result

    def _truncate(self, original: Any, file: int, size: int) -> int:
        name = self._files[file]
        if error := self._heard().meet("truncate", name):
            return error
        result = int(original(file, size))
        if result == OK:
            self._heard().truncated(name, size)
        return result

    def _sync(self, _original: Any, file: int, flags: int) -> int:
        name = self._files[file]
        if error := self._heard().meet("sync", name):
            return error
        self._heard().synced(name)
        return OK

    def _size(self, original: Any, file: int, out: int) -> int:
        return self._heard().meet("size", self._files[file]) or original(file, out)

    def _lock(self, original: Any, file: int, level: int) -> int:
        return self._heard().meet("lock", self._files[file]) or original(file, level)

    def _shm_map(self, original: Any, file: int, page: int, size: int, extend: int, out: int) -> int:
        if error := self._heard().meet("shm map", self._files[file]):
            ctypes.c_void_p.from_address(out).value = None
            return error
        return int(original(file, page, size, extend, out))

    def _shm_lock(self, original: Any, file: int, offset: int, count: int, flags: int) -> int:
        error = 0 if flags & SHM_UNLOCK else self._heard().meet("shm lock", self._files[file])
        return error or original(file, offset, count, flags)


_KEPT: list[object] = []
"""The callbacks, which ctypes would free otherwise."""
_watched: _Watched | None = None


class watch:
    """While it is open, the files of connections with `?vfs=watched` are heard by the watcher."""

    def __init__(self, watcher: Watcher) -> None:
        self._watcher = watcher

    def __enter__(self) -> None:
        global _watched
        _watched = _watched or _Watched()
        assert _watched.watcher is None
        _watched.watcher = self._watcher

    def __exit__(self, *_: object) -> None:
        assert _watched is not None
        _watched.watcher = None
        bug, _watched.bug = _watched.bug, None
        if bug is not None:
            raise bug
