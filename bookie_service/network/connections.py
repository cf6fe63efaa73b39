"""Which connections a bookie has, and which one is closed when there are too many.

All connections together have `limits.all` places. One address may have a share of them (`shares` explains why a
half). Some places are reserved for the bookies of the cluster, because autorecovery must work when clients have taken
all other places. Without authentication a bookie is recognised by its address in the cluster's registrations; any
client from that address counts as a bookie.

A connection that has not sent a whole request within `idle_s` is closed. When a place is needed, the oldest connection
without a request is closed first, because clients send their first request as soon as they are connected
(`FIRST_REQUEST_S`). The next candidate is the connection whose `Closing` has waited for longest: it is closed soon
anyway, or its TLS handshake waits for the budget of its address. The last candidate is the connection that has been
idle for longest, for at least `idle_s`: it has no unanswered request, however long a disk takes, and no reply that its
peer has not taken. If there is no such connection, the new one is refused.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Collection, Hashable
from dataclasses import dataclass
from typing import Protocol

from bkspark.options import COUNT_MAX, YEARS_S, bounded, check
from bookie_service.network.closing import Closing

FIRST_REQUEST_S = 0.2
"""Every connection has this time for its first request, even if its place is needed: it is accepted before it is
read."""
LOOKS = 10
"""This many calls of `watch` check all connections, so that no call takes long."""


class Member(Protocol):
    """The part of a connection that this module uses."""

    @property
    def address(self) -> str:
        """The address of the peer's machine."""

    @property
    def closing(self) -> Closing:
        """How the connection is closed when it must make room, or its peer is late."""

    def idle_s(self, now: float, *, is_owed: bool) -> float:
        """Return for how long nothing arrived and the connection was not busy; 0 while it is busy.

        `is_owed`: the bookie has not answered all that it took from the connection.
        """

    def close_if_stalled(self, now: float) -> None:
        """Close the connection, soon, if its peer has made it wait too long."""

    def give_up(self, why: str) -> None:
        """Close the connection and log the reason."""

    def close(self) -> None:
        """Close the connection."""


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """How many connections there may be.

    per_address: connections of one address; 0: half of `all`.
    reserved: places for the bookies of the cluster, at most a tenth of `all`.
    idle_s: how long a connection may stay open without a request.
    """

    all: int = bounded(10_000, 1, COUNT_MAX)
    per_address: int = bounded(0, 0, COUNT_MAX)
    reserved: int = bounded(100, 0, COUNT_MAX)
    idle_s: float = bounded(60.0, 0.001, YEARS_S, "seconds")

    def __post_init__(self) -> None:
        check(self)

    @property
    def share(self) -> int:
        """How many connections one address may have."""
        return min(self.all, self.per_address or max(1, self.all // 2))

    @property
    def for_clients(self) -> int:
        """How many connections there may be before only bookies of the cluster get more."""
        return self.all - min(self.reserved, self.all // 10)


class _Group:
    """Connections in order of arrival: of all addresses, and of each address."""

    def __init__(self) -> None:
        self._all: dict[Member, None] = {}
        """All connections of the group."""
        self._of: dict[str, dict[Member, None]] = {}
        """Those of each address. An address without one has no entry."""

    def add(self, member: Member) -> None:
        if member not in self._all:
            self._all[member] = None
            self._of.setdefault(member.address, {})[member] = None

    def discard(self, member: Member) -> None:
        if member in self._all:
            del self._all[member]
            of_address = self._of[member.address]
            del of_address[member]
            if not of_address:
                del self._of[member.address]

    def __contains__(self, member: Member) -> bool:
        return member in self._all

    def first(self, address: str | None = None) -> Member | None:
        """Return the connection that came first, from this address or from any; None: there is none."""
        group = self._all if address is None else self._of.get(address, {})
        return next(iter(group), None)


class Connections:
    """All connections of a bookie. For the event loop."""

    def __init__(
        self,
        limits: ConnectionLimits,
        bookies: Callable[[], Collection[str]],
        owed: Callable[[], Collection[Hashable]],
        on_failure: Callable[[BaseException], None],
    ) -> None:
        """`bookies()` returns the addresses of the bookies of the cluster, `owed()` the connections that are owed an
        answer.

        `on_failure` receives the first error that no peer caused.
        """
        self._limits = limits
        self._share, self._for_clients = limits.share, limits.for_clients
        """These two of the limits, which each new connection needs. Constant."""
        self._bookies = bookies
        self._find_owed = owed
        self._on_failure = on_failure
        self._opened: dict[Member, float] = {}
        """When each open connection was accepted, in this order."""
        self._by_address: Counter[str] = Counter()
        """How many connections each address has. An address without one has no entry."""
        self._silent = _Group()
        """Connections that have sent no request yet."""
        self._spare = _Group()
        """Connections whose `closing` waits, or has waited."""
        self._idle = _Group()
        """Connections that were idle for `idle_s` at the last check."""
        self._to_look_at: deque[Member] = deque()
        """Connections that `watch` checks before it begins with all of them again."""
        self._owed: Collection[Hashable] = ()
        """Those that were owed an answer when `watch` began with all of them."""

    def __len__(self) -> int:
        return len(self._opened)

    def all(self) -> list[Member]:
        """Return all connections."""
        return list(self._opened)

    def add(self, member: Member, now: float) -> None:
        """Add a new connection, which has sent no request yet."""
        self._opened[member] = now
        self._by_address[member.address] += 1
        self._silent.add(member)

    def note_request(self, member: Member) -> None:
        """Record that a connection has sent its first request."""
        self._silent.discard(member)

    def note_spare(self, member: Member) -> None:
        """Record that a connection can make room, because its `closing` waits."""
        if member in self._opened:
            self._spare.add(member)

    def discard(self, member: Member) -> None:
        """Remove a closed connection."""
        if self._opened.pop(member, None) is None:
            return
        for group in (self._silent, self._spare, self._idle):
            group.discard(member)
        self._by_address[member.address] -= 1
        if not self._by_address[member.address]:
            del self._by_address[member.address]

    def fail(self, error: BaseException) -> None:
        """End the service after an error that no peer caused: it may have left state half changed."""
        self._on_failure(error)

    def make_room(self, address: str, now: float) -> str:
        """Make room for a connection from an address; return "", or why there is no room.

        May close another connection, as the head of this module says.
        """
        if self._by_address[address] >= self._share and not self._close_one(address, now):
            return f"its address has {self._share} already (maxConnectionsPerAddress)"
        if len(self._opened) < self._for_clients:
            return ""
        places = self._limits.all if address in self._bookies() else self._for_clients
        if len(self._opened) >= places and not self._close_one(None, now):
            return f"there are {places} already (maxConnections)"
        return ""

    def _close_one(self, address: str | None, now: float) -> bool:
        """Close the connection that has to make room, from this address or from any; False: there is none."""
        member = self._silent.first(address)
        if member is not None and now - self._opened[member] >= FIRST_REQUEST_S:
            member.give_up("it has sent no request, and another connection needs its place (maxConnections)")
            return True
        while (member := self._spare.first(address)) is not None:
            self._spare.discard(member)
            if member.closing.take():
                return True
        while (member := self._idle.first(address)) is not None:
            self._idle.discard(member)
            # It was not owed an answer when it was idle. If it is now, a request has come, and it is idle no more.
            if member.idle_s(now, is_owed=False) >= self._limits.idle_s:
                why = f"it was idle for {self._limits.idle_s:g} s, and another one needs its place (maxConnections)"
                member.give_up(why)
                return True
        return False

    def watch(self, now: float) -> None:
        """Check some connections: all of them in `LOOKS` calls."""
        if not self._to_look_at:
            self._to_look_at.extend(self._opened)
            self._owed = self._find_owed()
        for _ in range(-(-len(self._opened) // LOOKS)):
            if not self._to_look_at:
                break
            member = self._to_look_at.popleft()
            if member in self._opened:
                self._look_at(member, now)

    def _look_at(self, member: Member, now: float) -> None:
        """Close a connection, in a turn of its own, if its time is over; note whether it is idle."""
        if member in self._silent and now - self._opened[member] >= self._limits.idle_s:
            member.closing.plan_while(lambda: self._why_silent(member))
        else:
            member.close_if_stalled(now)
        if member in self._opened:
            is_idle = member.idle_s(now, is_owed=member in self._owed) >= self._limits.idle_s
            (self._idle.add if is_idle else self._idle.discard)(member)

    def _why_silent(self, member: Member) -> str:
        if member not in self._silent:
            return ""
        return f"it has sent no request in {self._limits.idle_s:g} s (connectionIdleTimeoutMs)"
