"""What the supervisor is told, and what it hands over. Without a supervisor everything here does nothing.

Three small protocols, all of them environment variables and one socket:

- **Notification**, sd_notify(3). `$NOTIFY_SOCKET` names a datagram socket of AF_UNIX: a path, or an abstract name when
  it begins with `@`. One datagram holds lines of `KEY=value`: `READY=1` once the listeners are open, `STATUS=...` for
  people, `WATCHDOG=1` as a sign of life, `STOPPING=1` when the drain begins. The unit says `NotifyAccess=main`, so only
  the process that was started may speak.
- **Watchdog**, sd_watchdog_enabled(3). `$WATCHDOG_USEC` is the longest silence that is tolerated, and half of it is the
  interval that the manual recommends. `$WATCHDOG_PID`, when set, says whom it is meant for: a child that inherits the
  environment is not watched.
- **Socket activation**, sd_listen_fds(3). `$LISTEN_FDS` listening sockets begin at descriptor 3, and `$LISTEN_FDNAMES`
  holds their names in the same order, with colons between. They are ours only if `$LISTEN_PID` is our pid. The three
  variables are taken out of the environment, so that no child believes that they are for it.

A supervisor that has gone, a full queue or a wrong address is never a reason to stop serving pastes: `notify` answers
False, and that is all.
"""

import os
import socket
from collections.abc import Mapping, MutableMapping

from pastebin_daemon.errors import Misconfigured

__all__ = ["listen_sockets", "notify", "watchdog_interval_s"]

_FIRST_FD = 3  # SD_LISTEN_FDS_START
_SEND_TIMEOUT_S = (
    0.25  # the caller is the event loop; a supervisor that reads nothing for so long will not hear us anyway
)


def notify(*lines: str, environ: Mapping[str, str] = os.environ) -> bool:
    """Send `KEY=value` lines in one datagram. False when there is no supervisor or it can't be reached."""
    address = environ.get("NOTIFY_SOCKET", "")
    if address[:1] not in ("/", "@"):
        return False
    if address[0] == "@":
        address = "\0" + address[1:]
    # A line break inside a status would begin a new assignment.
    message = "\n".join(" ".join(line.splitlines()) for line in lines)
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.settimeout(_SEND_TIMEOUT_S)
            sender.connect(address)
            sender.send(message.encode("utf-8", "replace"))
    except OSError:
        return False
    return True


def watchdog_interval_s(environ: Mapping[str, str] = os.environ) -> float | None:
    """How often to send `WATCHDOG=1`: half of what is tolerated. None when nobody watches this process."""
    tolerated_us = _whole_number(environ.get("WATCHDOG_USEC"))
    if not tolerated_us:
        return None
    if "WATCHDOG_PID" in environ and _whole_number(environ["WATCHDOG_PID"]) != os.getpid():
        return None
    return tolerated_us / 2 / 1_000_000


def listen_sockets(environ: MutableMapping[str, str] = os.environ) -> dict[str, list[socket.socket]]:
    """The listening sockets handed over by the supervisor, by name, non-blocking and not inherited by children.

    Gives them once: the variables are gone afterwards. Raises Misconfigured for a descriptor that nobody can accept on.
    """
    pid, count = (_whole_number(environ.pop(name, None)) for name in ("LISTEN_PID", "LISTEN_FDS"))
    names = environ.pop("LISTEN_FDNAMES", "").split(":")
    if pid != os.getpid() or not count:
        return {}
    sockets: dict[str, list[socket.socket]] = {}
    for index in range(count):
        name = (names[index] if index < len(names) else "") or "unknown"
        sockets.setdefault(name, []).append(_adopt(_FIRST_FD + index, name))
    return sockets


def _adopt(fd: int, name: str) -> socket.socket:
    try:
        adopted = socket.socket(fileno=fd)
        listening = adopted.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    except OSError as error:
        raise Misconfigured(f"the supervisor passed descriptor {fd} ({name}), which is no socket: {error}") from error
    if not listening:
        raise Misconfigured(
            f"the supervisor passed descriptor {fd} ({name}), which doesn't listen; "
            "the socket unit needs ListenStream= and Accept=no"
        )
    adopted.set_inheritable(False)
    adopted.setblocking(False)
    return adopted


def _whole_number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isascii() and text.isdigit() and len(text) < 20 else None
