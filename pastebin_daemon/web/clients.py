"""Who is asking, and how often they may create.

An `X-Forwarded-For` is believed only from a trusted proxy, and then its right-most address that is no trusted proxy:
what stands further left was written by the client. IPv6 clients count by /64, which is what one customer is given.
"""

from collections import OrderedDict
from functools import lru_cache
from ipaddress import IPv6Address, ip_address

from pastebin_daemon.clock import Clock
from pastebin_daemon.errors import RateLimited
from pastebin_daemon.quantities import TrustedProxies
from pastebin_daemon.web.routing import Request

__all__ = ["Clients", "CreateLimit"]

CLIENTS_MAX = 50_000
"""Clients remembered; the one seen longest ago is forgotten first, that is: with a full bucket (G14)."""

ADDRESS_CHARS = 64
"""More than any address has (an IPv6 with an IPv4 in it and the name of an interface); what is cut to it is none."""
CACHED = 1024
"""Parsing one costs 10 microseconds and more, and a few proxies or clients ask for most."""


class Clients:
    """Tells clients apart: by address, by IPv6 /64, or as "unix" for a peer on a unix socket that names nobody."""

    def __init__(self, trusted: TrustedProxies) -> None:
        self._trusted = trusted
        self._known = lru_cache(CACHED)(self._look)

    def of(self, request: Request) -> str:
        peer, is_trusted = self._known((request.remote or "")[:ADDRESS_CHARS]) or ("unix", self._trusted.unix)
        if is_trusted and "X-Forwarded-For" in request.headers:
            hops = ",".join(request.headers.getall("X-Forwarded-For")).split(",")
            for hop in reversed(hops):
                known = self._known(hop.strip()[:ADDRESS_CHARS])
                if known is None:
                    break
                peer, is_trusted = known
                if not is_trusted:
                    break
        return peer

    def _look(self, text: str) -> tuple[str, bool] | None:
        """The client with this address, and whether it is a trusted proxy; None for what is no address."""
        try:
            address = ip_address(text)
        except ValueError:
            return None
        if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
            address = address.ipv4_mapped
        is_trusted = any(address in network for network in self._trusted.networks)
        if isinstance(address, IPv6Address):
            return f"{IPv6Address(int(address) >> 64 << 64)}/64", is_trusted
        return str(address), is_trusted


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
