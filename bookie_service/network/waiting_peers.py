"""Connections whose peer owes a step before it is trusted, and limits for their number.

If there are too many, the connection whose peer has owed its step for longest is closed. An honest peer delivers at
once, so it is served while others begin and leave.
"""

from __future__ import annotations

from typing import Protocol


class WaitingPeer(Protocol):
    """The part of a connection that the limits use."""

    @property
    def address(self) -> str:
        """The address of the peer's machine."""

    def make_room(self, why: str) -> None:
        """Close the connection and log the reason, soon."""


class WaitingPeers:
    """Connections whose peers owe one kind of step. For one event loop."""

    def __init__(self, what: str, all_max: tuple[str, int], per_address_max: tuple[str, int]) -> None:
        """`what`: the step, for messages. all_max, per_address_max: the name of a limit's key, and its value."""
        self._what = what
        self._all_max = all_max
        self._per_address_max = per_address_max
        self._all: dict[WaitingPeer, None] = {}
        """All connections, in order of arrival."""
        self._of_address: dict[str, dict[WaitingPeer, None]] = {}
        """Those of each address, in order of arrival. An address without one has no entry."""

    def __len__(self) -> int:
        return len(self._all)

    def add(self, peer: WaitingPeer) -> None:
        """Count a connection from now on; close others if there are too many."""
        mine = self._of_address.get(peer.address, {})
        key, most = self._per_address_max
        if len(mine) >= most:
            self._give_up(mine, f"its address has {len(mine)} unfinished {self._what}s ({key})")
        else:
            key, most = self._all_max
            if len(self._all) >= most:
                self._give_up(self._all, f"there are {len(self._all)} unfinished {self._what}s ({key})")
        self._all[peer] = None
        self._of_address.setdefault(peer.address, {})[peer] = None

    def discard(self, peer: WaitingPeer) -> None:
        """Stop counting a connection."""
        if peer in self._all:
            del self._all[peer]
            of_address = self._of_address[peer.address]
            del of_address[peer]
            if not of_address:
                del self._of_address[peer.address]

    def _give_up(self, peers: dict[WaitingPeer, None], why: str) -> None:
        oldest = next(iter(peers))
        self.discard(oldest)
        oldest.make_room(f"its {self._what} is the oldest unfinished one, and {why}")
