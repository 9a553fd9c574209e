"""Who is asking, and how often they may create.

An `X-Forwarded-For` is believed only from a trusted proxy, and then its right-most address that is no trusted proxy:
what stands further left was written by the client. IPv6 clients count by /64, which is what one customer is given.
"""

from collections import OrderedDict
from ipaddress import IPv6Address, ip_address

from pastebin_daemon.clock import Clock
from pastebin_daemon.errors import RateLimited
from pastebin_daemon.quantities import TrustedProxies
from pastebin_daemon.web.routing import Request

__all__ = ["CreateLimit", "client_of"]

CLIENTS_MAX = 50_000
"""Clients remembered; the one seen longest ago is forgotten first, that is: with a full bucket (G14)."""


def client_of(request: Request, trusted: TrustedProxies) -> str:
    """An address, an IPv6 /64, or "unix" for a peer on a unix socket that names nobody."""
    peer = request.remote or ""
    if not _is_address(peer):
        peer = "unix"  # whatever path its end of the socket has
    if _is_trusted(peer, trusted):
        hops = ",".join(request.headers.getall("X-Forwarded-For", [])).split(",")
        for hop in reversed(hops):
            address = hop.strip()
            if not _is_address(address):
                break
            peer = address
            if not _is_trusted(address, trusted):
                break
    return _group(peer)


def _is_trusted(peer: str, trusted: TrustedProxies) -> bool:
    if peer == "unix":
        return trusted.unix
    address = ip_address(peer)
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return any(address in network for network in trusted.networks)


def _is_address(text: str) -> bool:
    try:
        ip_address(text)
    except ValueError:
        return False
    return True


def _group(peer: str) -> str:
    if not _is_address(peer):
        return peer
    address = ip_address(peer)
    if isinstance(address, IPv6Address):
        if address.ipv4_mapped is not None:
            return str(address.ipv4_mapped)
        return f"{IPv6Address(int(address) >> 64 << 64)}/64"
    return str(address)


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
