"""Texts that people write, read into values: durations, sizes, addresses, base URLs.

Used for the configuration and for what a request says (`expires_in`). Strict on purpose: no white space, nothing
negative, nothing unbounded, so that a slip is refused and never becomes another value. Every function raises
ValueError with a predicate that ends in what to write ("is not a duration; write ..."), to be put after the name of the
thing. The text never repeats the value: the caller knows whether it may be shown.
"""

import re
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Network, ip_address, ip_network
from typing import Literal

__all__ = [
    "Listen", "TrustedProxies", "base_url", "duration_text", "lifetime", "listen", "seconds", "size", "size_text",
    "trusted_proxies", "whole_seconds",
]  # fmt: skip

_DURATION = re.compile(r"([0-9]{1,40})(ms|s|m|h|d)?")
_DURATION_MS = {"d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1000, "ms": 1}
_CENTURY_MS = 36_500 * 86_400_000
_SIZE = re.compile(r"([0-9]{1,40})(KiB|MiB|GiB|TiB)?")
_SIZE_BYTES = {"TiB": 1 << 40, "GiB": 1 << 30, "MiB": 1 << 20, "KiB": 1 << 10}
_SIZE_MAX = 1 << 50
_LABEL = r"[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?"
_NAME = re.compile(rf"(?=.{{1,253}}$){_LABEL}(\.{_LABEL})*")
_HOST_PORT = re.compile(r"(\[[^\[\]]+\]|[^\[\]:]+):([0-9]{1,5})")
_BASE_URL = re.compile(
    r"(https?)://(\[[0-9a-f:.]+\]|[^\[\]/:]+)(?::([0-9]{1,5}))?((?:/[a-z0-9._~-]+)*)/?", re.IGNORECASE
)
_UNIX_PATH_BYTES_MAX = 107  # sun_path, less its NUL


def _milliseconds(value: object) -> int:
    match = _DURATION.fullmatch(value) if isinstance(value, str) else None
    if match:
        ms = int(match[1]) * _DURATION_MS[match[2] or "s"]
    elif isinstance(value, int) and not isinstance(value, bool):
        ms = value * 1000
    else:
        raise ValueError(
            "is not a duration; write whole seconds, or a whole number with its unit, "
            'such as "500ms", "30s", "10m", "25h", "8d"'
        )
    if ms < 0:
        raise ValueError('is negative; write 0 or more, such as "30s"')
    if ms > _CENTURY_MS:
        raise ValueError('is too long; write at most "36500d" (100 years)')
    return ms


def seconds(value: object) -> float:
    """A duration in seconds, from an int of seconds or a text such as "30s" or "500ms"; 0 to 100 years."""
    return _milliseconds(value) / 1000


def whole_seconds(value: object) -> int:
    whole, rest = divmod(_milliseconds(value), 1000)
    if rest:
        raise ValueError('is not a whole number of seconds; write one such as "30s"')
    return whole


def lifetime(value: object) -> int | None:
    """How long a paste lives: whole seconds from 1 up, or None for the text "never". What is allowed is not asked."""
    if value == "never":
        return None
    whole = whole_seconds(value)
    if whole == 0:
        raise ValueError('is no time at all; write "1s" or more')
    return whole


def duration_text(value_s: float) -> str:
    """The shortest spelling that `seconds` reads back: 691200 is "8d"."""
    ms = round(value_s * 1000)
    unit = next((unit for unit, in_ms in _DURATION_MS.items() if ms % in_ms == 0), "ms") if ms else "s"
    return f"{ms // _DURATION_MS[unit]}{unit}"


def size(value: object) -> int:
    """A size in bytes, from an int of bytes or a text such as "64KiB"; 0 to 1024 TiB."""
    match = _SIZE.fullmatch(value) if isinstance(value, str) else None
    if match:
        count = int(match[1]) * _SIZE_BYTES.get(match[2], 1)
    elif isinstance(value, int) and not isinstance(value, bool):
        count = value
    else:
        raise ValueError('is not a size; write bytes, or a whole number with its unit, such as "64KiB", "1MiB", "2GiB"')
    if count < 0:
        raise ValueError('is negative; write 0 or more, such as "1MiB"')
    if count > _SIZE_MAX:
        raise ValueError('is too large; write at most "1024TiB"')
    return count


def size_text(value: int) -> str:
    """The shortest spelling that `size` reads back."""
    unit = next((unit for unit, in_bytes in _SIZE_BYTES.items() if value and value % in_bytes == 0), "")
    return f"{value // _SIZE_BYTES.get(unit, 1)}{unit}"


@dataclass(frozen=True, slots=True)
class Listen:
    """Where a listener is. `host` (IPv6 without brackets) and `port` are tcp's, `path` is unix's; port 0: any."""

    kind: Literal["tcp", "unix", "systemd"]
    host: str = ""
    port: int = 0
    path: str = ""

    def __str__(self) -> str:
        if self.kind == "tcp":
            return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"
        return f"unix:{self.path}" if self.kind == "unix" else "systemd"


def listen(value: object) -> Listen:
    """Read "host:port", "[v6]:port", "unix:/absolute/path" or "systemd"."""
    if isinstance(value, Listen):
        return value
    if value == "systemd":
        return Listen("systemd")
    if isinstance(value, str) and value.startswith("unix:"):
        path = value.removeprefix("unix:")
        if not path.startswith("/") or "\0" in path or path.endswith("/"):
            raise ValueError('is not the absolute path of a socket; write one such as "unix:/run/pastebin/http.sock"')
        if len(path.encode("utf-8", "surrogateescape")) > _UNIX_PATH_BYTES_MAX:
            raise ValueError(f"is too long for a unix socket; write a path of at most {_UNIX_PATH_BYTES_MAX} bytes")
        return Listen("unix", path=path)
    match = _HOST_PORT.fullmatch(value) if isinstance(value, str) else None
    if not match:
        raise ValueError(
            "is not an address to listen on; "
            'write one such as "127.0.0.1:8080", "[::1]:8080", "unix:/run/pastebin/http.sock", or "systemd"'
        )
    return Listen("tcp", _host(match[1]).strip("[]"), _port(match[2]))


def base_url(value: object) -> str:
    """An http(s) URL of scheme, host, optional port and path, without the trailing slash and the default port."""
    if not isinstance(value, str) or not value.lower().startswith(("http://", "https://")):
        raise ValueError('is not an http or https URL; write one such as "https://paste.example.org"')
    if "@" in value:
        raise ValueError("holds a user name or a password; write the URL without them")
    if "?" in value or "#" in value:
        raise ValueError("has a query or a fragment; write the URL without them")
    match = _BASE_URL.fullmatch(value)
    if not match or {".", ".."} & set(match[4].split("/")):
        raise ValueError(
            'is not a plain URL; write scheme, host and at most a path, such as "https://example.org/paste"'
        )
    scheme, host, path = match[1].lower(), _host(match[2]).lower(), match[4]
    port = _port(match[3]) if match[3] else 0
    if match[3] and port == 0:
        raise ValueError("has port 0, which nobody can connect to; write the real port, or none")
    return f"{scheme}://{host}{f':{port}' if port not in (0, 443 if scheme == 'https' else 80) else ''}{path}"


def _host(text: str) -> str:
    try:
        if text.startswith("["):
            if ip_address(text[1:-1]).version == 6:
                return text
        elif text.replace(".", "").isdigit():
            return str(IPv4Address(text))
        elif _NAME.fullmatch(text):
            return text
    except ValueError:
        pass
    raise ValueError('has no valid host; write an ASCII name, an IPv4 address, or an IPv6 address in brackets: "[::1]"')


def _port(text: str) -> int:
    if int(text) > 65_535:
        raise ValueError("has a port over 65535; write one from 1 to 65535")
    return int(text)


@dataclass(frozen=True, slots=True)
class TrustedProxies:
    """Whose X-Forwarded-For is believed: peers in `networks`, and with `unix` every peer of a unix socket."""

    networks: tuple[IPv4Network | IPv6Network, ...]
    unix: bool


def trusted_proxies(value: object) -> TrustedProxies:
    if isinstance(value, TrustedProxies):
        return value
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise ValueError('is not a list of texts; write one such as ["127.0.0.0/8", "::1", "unix"]')
    return TrustedProxies(tuple(_network(item) for item in value if item != "unix"), "unix" in value)


def _network(text: str) -> IPv4Network | IPv6Network:
    try:
        loose = ip_network(text, strict=False)
    except ValueError:
        raise ValueError(
            'has an item that is no address, network or "unix"; write items such as "10.0.0.0/8", "::1", "unix"'
        ) from None
    if "/" in text and ip_address(text.split("/")[0]) != loose.network_address:
        raise ValueError(f'has a network with bits set beyond its mask; write "{loose}" in its place')
    return loose
