"""Who is asking, and how often they may create.

An `X-Forwarded-For` is believed only from a trusted proxy, and then its right-most address that is no trusted proxy:
what stands further left was written by the client. IPv6 clients count by /64, which is what one customer is given.
"""

from collections import OrderedDict
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, ip_address

from pastebin_daemon.clock import Clock
from pastebin_daemon.errors import RateLimited
from pastebin_daemon.quantities import TrustedProxies
from pastebin_daemon.web.routing import Request

__all__ = ["CreateLimit", "client_of"]

CLIENTS_MAX = 50_000
"""Clients remembered; the one seen longest ago is forgotten first, that is: with a full bucket (G14)."""

ADDRESS_CHARS = 64
"""More than any address has (an IPv6 with an IPv4 in it and the name of an interface)."""
CACHED = 1024
"""Parsing one costs 10 microseconds and more, and a few proxies or clients ask for most."""

Address = IPv4Address | IPv6Address


def client_of(request: Request, trusted: TrustedProxies) -> str:
    """An address, an IPv6 /64, or "unix" for a peer on a unix socket that names nobody."""
    peer = _address(request.remote or "")  # none on a unix socket, whatever path its other end has
    if _is_trusted(peer, trusted):
        hops = ",".join(request.headers.getall("X-Forwarded-For", [])).split(",")
        for hop in reversed(hops):
            address = _address(hop.strip())
            if address is None:
                break
            peer = address
            if not _is_trusted(address, trusted):
                break
    return _group(peer)


def _address(text: str) -> Address | None:
    return _parsed(text) if len(text) <= ADDRESS_CHARS else None


@lru_cache(CACHED)
def _parsed(text: str) -> Address | None:
    try:
        address = ip_address(text)
    except ValueError:
        return None
    return (isinstance(address, IPv6Address) and address.ipv4_mapped) or address


@lru_cache(CACHED)
def _is_trusted(peer: Address | None, trusted: TrustedProxies) -> bool:
    return trusted.unix if peer is None else any(peer in network for network in trusted.networks)


@lru_cache(CACHED)
def _group(peer: Address | None) -> str:
    if peer is None:
        return "unix"
    return f"{IPv6Address(int(peer) >> 64 << 64)}/64" if isinstance(peer, IPv6Address) else str(peer)


class CreateLimit:
    """A token bucket for each client: a minute's worth at once, filled up evenly. 0 a minute: no limit."""

    def __init__(self, per_minute: int, clock: Clock) -> None:
        self._per_minute = per_minute
        self._clock = clock
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()  # client: (tokens, when that was)

    def take(self, client: str) -> None:
        """Count one create. Raises `RateLimited`."""
        if not self._per_minute:
            return
        now = self._clock.monotonic()
        rate = self._per_minute / 60
        tokens, when = self._buckets.pop(client, (float(self._per_minute), now))
        tokens = min(float(self._per_minute), tokens + (now - when) * rate)
        if tokens < 1:
            self._buckets[client] = (tokens, now)
            wait_s = int((1 - tokens) / rate) + 1
            raise RateLimited(
                f"at most {self._per_minute} pastes a minute from one address; wait {wait_s} s", retry_after_s=wait_s
            )
        self._buckets[client] = (tokens - 1, now)
        if len(self._buckets) > CLIENTS_MAX:
            self._buckets.popitem(last=False)
