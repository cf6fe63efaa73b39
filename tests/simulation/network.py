"""The way between clients and bookies: connections that delay, lose, repeat, are cut and reset.

A connection keeps its order, as TCP does: once a message is lost no later one arrives, until either side notices. A new
connection knows nothing of the order of the old one, whose messages may still be on their way. In a schedule with
`datagrams` each message is lost by itself, which is harsher. A request that is repeated is answered twice.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.simulation.bookies import ModelBookie
from tests.simulation.history import History
from tests.simulation.world import EXPONENTIAL, MILLISECOND, UNIFORM, Node, World, place

UP, DOWN = 0, 1
_LOST_AT_ONCE_NS = MILLISECOND // 2


class Network:
    """Where connections get their delays and faults from."""

    def __init__(self, world: World, history: History, bookies: dict[str, ModelBookie], salt: int) -> None:
        self.world = world
        self.history = history
        self.bookies = bookies
        self.delay_mean = MILLISECOND
        # Links slower than the others by a factor: (client, bookie, direction).
        self.slow: dict[tuple[str, str, int], float] = {}
        self.cut: set[tuple[str, str, int]] = set()
        self.loss = 0.0
        self.repeats = 0.0
        self.datagrams = False
        self.probe: Callable[[str, str, str], None] = lambda what, client, bookie: None
        # (client, bookie) whose messages were lost or late.
        self.disturbed: set[tuple[str, str]] = set()
        self._salt = salt
        self._connections: list[Connection] = []

    def connect(self, client: Node, bookie: str, on_lost: Callable[[Connection], None]) -> Connection:
        """Open a connection, which is lost soon if the bookie is down or cut off."""
        salt = self._salt + 7919 * len(self._connections)
        connection = Connection(self, client, self.bookies[bookie], salt, on_lost)
        self._connections.append(connection)
        if not self.bookies[bookie].node.is_up:
            connection.lose()
        return connection

    def open_to(self, bookie: str) -> list[Connection]:
        """Return the connections to a bookie that their clients still use."""
        return [it for it in self._connections if it.bookie.name == bookie and not it.is_lost]


class Connection:
    """One client's connection to one bookie."""

    __slots__ = (
        "_clogged_until",
        "_count",
        "_last",
        "_life",
        "_network",
        "_on_lost",
        "_salt",
        "_wedged",
        "bookie",
        "client",
        "is_lost",
        "means",
    )

    def __init__(
        self, network: Network, client: Node, bookie: ModelBookie, salt: int, on_lost: Callable[[Connection], None]
    ) -> None:
        self.client = client
        self.bookie = bookie
        self.is_lost = False
        self._network = network
        self._on_lost = on_lost
        self._salt = salt
        self._count = 0
        self._clogged_until = 0
        self._life = bookie.node.life
        self._last = [0, 0]
        self._wedged = False
        slow, mean = network.slow, network.delay_mean
        self.means = (
            mean * slow.get((client.name, bookie.name, UP), 1.0),
            mean * slow.get((client.name, bookie.name, DOWN), 1.0),
        )

    def send(self, request: Callable[..., tuple[Any, int]], *arguments: Any, reply: Callable[..., None]) -> None:
        """Carry a request; `request(*arguments)` at the bookie returns (answer, when it leaves), `reply(answer)`
        hears it."""
        if self.is_lost:
            return
        world = self._network.world
        if self._wedged and (self.client.name, self.bookie.name, UP) not in self._network.cut:
            # The peer knows nothing of what was lost on the way, and resets.
            self.lose()
            return
        arrival = self._arrival(UP, world.now)
        if arrival < 0:
            return
        world.at(arrival, self.bookie.node, self._arrive, request, arguments, reply)
        if self._network.repeats and UNIFORM[place(self._salt ^ 0x2C1B, self._count)] < self._network.repeats:
            self._network.history.count_fault("repeated")
            again = arrival + int(50 * EXPONENTIAL[place(self._salt ^ 0x77, self._count)] * MILLISECOND)
            world.at(again, self.bookie.node, self._arrive, request, arguments, reply)

    def _arrival(self, direction: int, departure: int) -> int:
        """Return when a message arrives; -1 when it is lost."""
        network = self._network
        self._count += 1
        where = place(self._salt, self._count)
        if (self._wedged and not network.datagrams) or (network.loss and UNIFORM[where ^ 2] < network.loss):
            if not self._wedged:
                network.history.count_fault("lost")
                network.disturbed.add((self.client.name, self.bookie.name))
            self._wedged = not network.datagrams
            return -1
        arrival = max(self._last[direction], departure + int(EXPONENTIAL[where] * self.means[direction]))
        self._last[direction] = arrival
        return arrival

    def _is_cut(self, direction: int) -> bool:
        network = self._network
        if network.cut and (self.client.name, self.bookie.name, direction) in network.cut:
            network.history.count_fault("cut")
            network.disturbed.add((self.client.name, self.bookie.name))
            self._wedged = not network.datagrams
            return True
        return False

    def _arrive(
        self, request: Callable[..., tuple[Any, int]], arguments: tuple[Any, ...], reply: Callable[..., None]
    ) -> None:
        if not self.bookie.node.is_up or self._is_cut(UP):
            return
        if self._network.world.now < self._clogged_until:
            until = self._clogged_until
            self._network.world.at(until, self.bookie.node, self._arrive, request, arguments, reply)
            return
        answer, leaves = request(*arguments)
        arrival = self._arrival(DOWN, leaves)
        if arrival >= 0:
            node = self.bookie.node
            self._network.world.at(arrival, self.client, self._hear, node.life, leaves, reply, answer)

    def _hear(self, life: int, leaves: int, reply: Callable[..., None], answer: Any) -> None:
        died = self.bookie.node.deaths.get(life)
        if (died is not None and died < leaves) or self.is_lost or self._is_cut(DOWN):
            return
        reply(answer)

    def lose(self) -> None:
        """The client learns, a moment later, that the connection is gone; what was sent may still arrive."""
        self._network.disturbed.add((self.client.name, self.bookie.name))
        if not self._wedged and (self.client.name, self.bookie.name, DOWN) in self._network.cut:
            # The reset does not arrive: the client waits for its time-out.
            self._network.history.count_fault("cut")
            self._wedged = True
            return
        self._network.world.at(self._network.world.now + _LOST_AT_ONCE_NS, self.client, self._tell_lost)

    def _tell_lost(self) -> None:
        if not self.is_lost:
            self.is_lost = True
            self._on_lost(self)

    def clog(self, until: int) -> None:
        """Let nothing that is sent from now on, or is on its way, arrive before a time."""
        self._last[UP] = max(self._last[UP], until)
        self._clogged_until = until
        self._network.disturbed.add((self.client.name, self.bookie.name))

    def close(self) -> None:
        """Forget the connection."""
        self.is_lost = True
