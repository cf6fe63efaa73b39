"""Shares of a limited number of places: how many one connection, and one address, may take.

Without authentication only the address distinguishes peers. Many honest clients can share an address (the loopback of a
test machine, a network with NAT). So one address may take half of all places: a flood from it leaves the other half to
other addresses, and honest clients at one address still have thousands. One connection may take half of what its
address may, so a flood on one connection leaves room for other clients at the same address. `ShareLimits.of` makes such
limits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Protocol

from bkspark.options import COUNT_MAX, check, required


class Peer(Protocol):
    """The part of a connection that shares use."""

    @property
    def address(self) -> Hashable:
        """The address of the peer's machine."""


@dataclass(frozen=True, slots=True)
class ShareLimits:
    """How many all peers together may have, each address (`per_address`), and each connection
    (`per_connection`)."""

    all: int = required(1, COUNT_MAX)
    per_address: int = required(1, COUNT_MAX)
    per_connection: int = required(1, COUNT_MAX)

    def __post_init__(self) -> None:
        check(self)

    @classmethod
    def of(cls, places: int, per_address: int = 0) -> ShareLimits:
        """Return the limits for this many places. `per_address` 0: half of them."""
        for_address = min(places, per_address or max(1, places // 2))
        return cls(places, for_address, max(1, for_address // 2))


class Shares:
    """Counts the places that each connection and address has."""

    def __init__(self, limits: ShareLimits) -> None:
        self._limits = limits
        self._by_address: Counter[Hashable] = Counter()
        """Places of each address that has any."""
        self._by_connection: Counter[Peer] = Counter()
        """Places of each connection that has any."""
        self._count = 0
        """Places taken in all: the sum of `_by_address`, and of `_by_connection`."""

    def __len__(self) -> int:
        return self._count

    def has_place(self, peer: Peer) -> bool:
        """Return False if the connection, its address, or all together have reached their limit."""
        return (
            self._count < self._limits.all
            and self._by_address[peer.address] < self._limits.per_address
            and self._by_connection[peer] < self._limits.per_connection
        )

    def take(self, peer: Peer) -> bool:
        """Take a place for a connection; False: there is none for it."""
        if not self.has_place(peer):
            return False
        self._count += 1
        self._by_address[peer.address] += 1
        self._by_connection[peer] += 1
        return True

    def give(self, peer: Peer) -> None:
        """Return a place that was taken for a connection."""
        assert self._by_connection[peer] > 0
        self._count -= 1
        self._by_address[peer.address] -= 1
        self._by_connection[peer] -= 1
        if not self._by_address[peer.address]:
            del self._by_address[peer.address]
        if not self._by_connection[peer]:
            del self._by_connection[peer]
