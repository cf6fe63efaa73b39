"""Limits wrong tokens: an address that sent too many is refused for a while, also with a right one. PURE.

The clock is an argument. Memory is bounded: the address that failed longest ago is forgotten first.
"""

from __future__ import annotations

import ipaddress
from collections import OrderedDict
from collections.abc import Callable

FAILURES_MAX = 10
WINDOW_S = 60.0
ADDRESSES_MAX = 10_000


class FailedAttempts:
    """Counts wrong tokens by network: an IPv4 address, or the first 64 bits of an IPv6 address."""

    def __init__(self, clock: Callable[[], float], failures_max: int = FAILURES_MAX) -> None:
        self._clock = clock
        self._failures_max = failures_max
        """After this number of wrong tokens a network must wait."""
        self._counts: OrderedDict[str, tuple[int, float]] = OrderedDict()
        """Wrong tokens of each network and until when they count, oldest first; at most ADDRESSES_MAX."""

    def wait_s(self, address: str) -> float:
        """Return how many seconds an address is refused from now on; 0 if it may try."""
        count, ends_at = self._counts.get(_network(address), (0, 0.0))
        return max(0.0, ends_at - self._clock()) if count >= self._failures_max else 0.0

    def failed(self, address: str) -> None:
        """Count a wrong token."""
        network, now = _network(address), self._clock()
        count, ends_at = self._counts.pop(network, (0, 0.0))
        if now >= ends_at:
            count, ends_at = 0, now + WINDOW_S
        self._counts[network] = count + 1, ends_at
        while len(self._counts) > ADDRESSES_MAX:
            self._counts.popitem(last=False)


def _network(address: str) -> str:
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if found.version == 4 or found.ipv4_mapped is not None:
        return str(getattr(found, "ipv4_mapped", None) or found)
    return str(ipaddress.ip_network((int(found), 64), strict=False))
