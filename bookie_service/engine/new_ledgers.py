"""Limits how many ledgers that this bookie has never seen one address may begin.

Such a ledger costs a row, and with entries an index file, until garbage collection finds that it does not exist. A
client can name any id, so only a rate limits what one address can cost. An honest client begins many ledgers when it
starts, and few afterwards: `burst` allows the first, `per_s` the second.

A fence or explicit LAC of such a ledger costs the bookie more time than its client, and a sync if it comes alone. So an
address may have few of them unanswered (`BEGUN_LEDGERS`), and they wait for records of other requests
(`FlushLimits.patience_ns`). Requests that would begin more wait for a place (`BegunLedgers`), and with them what their
connections sent after them. Requests for known ledgers need no place.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Hashable
from dataclasses import dataclass

from bkspark.buckets import Bucket
from bkspark.options import COUNT_MAX
from bookie_service.engine.bookie_environment import BookieClient
from bookie_service.engine.shares import Peer, ShareLimits, Shares
from bookie_service.engine.turns import Turns

logger = logging.getLogger(__name__)

ADDRESSES_MAX = 1024
"""Addresses that are remembered. Beyond it those with all their room are forgotten, then the one that came first."""
BEGUN_LEDGERS = ShareLimits(all=COUNT_MAX, per_address=2, per_connection=2)
"""Unknown ledgers whose fence or explicit LAC is not durable yet. Two in two milliseconds are some 700 a second. That
is more than an address may begin for long, and the p99 of adds and reads of other clients is about twice the quiet one
beside it (benchmarks/laboratory.md). There is no limit for all addresses together: a client waits only for those of its
own."""
_LOOK_S = 1.0
"""How often addresses with all their room are looked for: a look takes time for each address."""


@dataclass(slots=True)
class _Address:
    bucket: Bucket
    """Room for new ledgers."""
    is_refused: bool = False
    """Whether the last new ledger was refused: a refusal is logged once."""


class NewLedgers:
    """Counts new ledgers by address. `per_s` 0: no limit."""

    def __init__(self, per_s: int, burst: int, clock: Callable[[], float]) -> None:
        """`clock` returns seconds and never goes back."""
        self._per_s = per_s
        self._burst = burst
        """How many an idle address may begin at once; later ones come at `per_s`."""
        self._clock = clock
        self._by_address: dict[Hashable, _Address] = {}
        """Addresses that began ledgers recently, at most ADDRESSES_MAX, in the order in which they came."""
        self._looked_s = -math.inf
        """When addresses with all their room were forgotten last."""

    def __len__(self) -> int:
        """Return how many addresses are remembered."""
        return len(self._by_address)

    def take(self, peer: Peer) -> bool:
        """Return whether the peer's address may begin one more ledger now. If so, the ledger is counted."""
        if not self._per_s:
            return True
        now = self._clock()
        address = self._by_address.get(peer.address)
        if address is None:
            if len(self._by_address) >= ADDRESSES_MAX:
                self._make_room(now)
            bucket = Bucket(self._per_s, self._burst, now)
            address = self._by_address[peer.address] = _Address(bucket)
        if address.bucket.has_room(now):
            address.bucket.take(1.0)
            address.is_refused = False
            return True
        if not address.is_refused:
            address.is_refused = True
            logger.warning(
                "%s begins more than %d ledgers a second that this bookie has never seen, after %d at once: more are "
                "refused with ETOOMANYREQUESTS. If they are wanted, raise maxNewLedgersPerSecondPerAddress or "
                "newLedgersBurstPerAddress",
                peer.address,
                self._per_s,
                self._burst,
            )
        return False

    def _make_room(self, now: float) -> None:
        if now - self._looked_s >= _LOOK_S:
            self._looked_s = now
            self._by_address = {key: each for key, each in self._by_address.items() if not each.bucket.is_full(now)}
        if len(self._by_address) >= ADDRESSES_MAX:
            # A peer with this many addresses, such as those of an IPv6 network, has room enough without this one.
            del self._by_address[next(iter(self._by_address))]


class BegunLedgers:
    """The places of unknown ledgers that fences and explicit LACs begin, and the clients that wait for one.

    While clients of an address wait, some of its places are taken, or one of them was resumed and has its turn. One has
    its turn at a time, because it may take all places that are free.
    """

    def __init__(self, turns: Turns, limits: ShareLimits = BEGUN_LEDGERS) -> None:
        self._turns = turns
        self._places = Shares(limits)
        self._waiting: dict[Hashable, dict[BookieClient, None]] = {}
        """The clients that wait, by address, in the order in which they came. An address without them has no entry."""
        self._resuming: set[Hashable] = set()
        """The addresses of which one client was resumed and has its turn."""

    def take(self, client: BookieClient) -> bool:
        """Take a place; False: there is none now, and `client.resume` is called when one may be free."""
        if self._places.take(client):
            return True
        self._waiting.setdefault(client.address, {})[client] = None
        return False

    def give(self, client: BookieClient) -> None:
        """Return a place that was taken for a client, and let the next one of its address try again."""
        self._places.give(client)
        if client.address not in self._resuming:
            self._resume_next(client.address)

    def _resume_next(self, address: Hashable) -> None:
        """Resume the first client that waits at an address, if there is a place.

        It may be closed, or its request may be refused. So after its turn the next one is resumed if a place is left.
        """
        self._resuming.discard(address)
        waiting = self._waiting.get(address)
        if not waiting:
            return
        client = next(iter(waiting))
        if not self._places.has_place(client):
            return
        del waiting[client]
        if not waiting:
            del self._waiting[address]
        self._resuming.add(address)
        client.resume()
        self._turns.go_on(client.connection, lambda turn: self._resume_next(address))
