"""How many handshakes of one address may be begun and not completed: each costs a signature, whatever becomes of it.

An address may have a number of unfinished handshakes, and a handshake may take some time; so one address can leave that
number unfinished in each such time. A peer that comes again at once, when its connection was closed to make room for
another, could have many more begun. So further ones wait until time has passed, or until a handshake of the address was
completed. The newest begins first: a peer that means to complete it has not waited for long. As many may wait as may be
unfinished: beyond that, the oldest makes room, because it holds the place of a connection and would begin last. It is
closed when time has passed, and not when another one comes: peers that come again at once would otherwise be accepted
and closed all the time, and this costs more than the places that they hold for a while. Only beyond `HELD_TIMES` as
many, the oldest is closed at once. If another connection needs a place, those that wait make room (`connections`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from bkspark.buckets import Bucket
from bookie_service.network.waiting_peers import WaitingPeer

_KEY = "maxTlsHandshakesPerAddress"
"""The configuration key of a budget's size."""
Clock = Callable[[], float]
HELD_TIMES = 8
"""At most this many times the size of an address' budget wait."""
_REMEMBERED_MIN = 1000
"""With more addresses than this, those whose budget is whole are forgotten."""


class BudgetedPeer(WaitingPeer, Protocol):
    """The part of a connection that the budget uses."""

    def call_later(self, seconds: float, callback: Callable[[], None]) -> object:
        """Call back after this time, even if the connection is closed by then."""


class _Address:
    """The budget of one address."""

    def __init__(self, bucket: Bucket) -> None:
        self.bucket = bucket
        self.waiting: dict[BudgetedPeer, Callable[[], None]] = {}
        """What begins the handshakes that wait, in order of arrival."""
        self.is_timed = False
        """Whether `_go_on` will be called for it."""


class HandshakeBudget:
    """Begins handshakes, by address. For one event loop."""

    def __init__(self, most: int, seconds: float) -> None:
        """An address may begin `most` handshakes at once that it does not complete, and as many in each `seconds`.

        As many others may wait, and for a while `HELD_TIMES` as many.
        """
        self._most, self._pause_s = most, seconds / most
        """How many at once, and how long one more takes to be allowed. Constant."""
        self._addresses: dict[str, _Address] = {}
        """Addresses whose budget may not be whole, or whose handshakes wait."""

    def begin(self, peer: BudgetedPeer, begin: Callable[[], None], clock: Clock) -> None:
        """Call `begin()`, now or later, unless the peer is discarded before. `clock` returns seconds."""
        now = clock()
        if len(self._addresses) > _REMEMBERED_MIN:
            self._forget_whole(now)
        of_address = self._addresses.get(peer.address)
        if of_address is None:
            of_address = self._addresses[peer.address] = _Address(Bucket(1 / self._pause_s, self._most, now))
        of_address.waiting[peer] = begin
        self._go_on(of_address, clock)
        self._close_beyond(of_address.waiting, HELD_TIMES * self._most)

    def _close_beyond(self, waiting: dict[BudgetedPeer, Callable[[], None]], most: int) -> None:
        """Close the handshake that has waited longest if more than `most` wait."""
        if len(waiting) > most:
            oldest = next(iter(waiting))
            del waiting[oldest]
            oldest.make_room(
                "its TLS handshake has waited longest for the budget of its address, "
                f"and {len(waiting)} others wait ({_KEY})"
            )

    def why_held(self, peer: BudgetedPeer) -> str:
        """Return why a handshake waits that has not begun, as an addition to another reason; "": it does not wait."""
        of_address = self._addresses.get(peer.address)
        if of_address is None or peer not in of_address.waiting:
            return ""
        return f"; its TLS handshake waited for the budget of its address, which others used up ({_KEY})"

    def give_back(self, peer: BudgetedPeer, clock: Clock) -> None:
        """Do not count a handshake that was begun, because it is complete, or has cost nothing yet."""
        of_address = self._addresses.get(peer.address)
        if of_address is not None:
            of_address.bucket.take(-1)
            self._go_on(of_address, clock)

    def discard(self, peer: BudgetedPeer) -> None:
        """Forget a handshake that waits."""
        of_address = self._addresses.get(peer.address)
        if of_address is not None:
            of_address.waiting.pop(peer, None)

    def _go_on(self, of_address: _Address, clock: Clock) -> None:
        bucket, waiting = of_address.bucket, of_address.waiting
        while waiting and bucket.has_room(clock()):
            bucket.take(1)
            _, begin = waiting.popitem()
            begin()
        if waiting and not of_address.is_timed:
            of_address.is_timed = True
            next(iter(waiting)).call_later(self._pause_s, lambda: self._go_on_later(of_address, clock))

    def _go_on_later(self, of_address: _Address, clock: Clock) -> None:
        of_address.is_timed = False
        self._close_beyond(of_address.waiting, self._most)
        self._go_on(of_address, clock)

    def _forget_whole(self, now: float) -> None:
        whole = [address for address, each in self._addresses.items() if not each.waiting and each.bucket.is_full(now)]
        for address in whole:
            del self._addresses[address]
