"""Connections of a bookie without sockets and without time: real connections, turns, requests and storage.

An event loop that a test steps, sockets that are two buffers, and the bookie of the crash campaigns, whose journal is
made durable at the end of each turn of the loop. So a test can say after how many turns a request is answered, and how
much is done in one turn.
"""

from __future__ import annotations

import errno
import os
import socket
from collections import deque
from collections.abc import Callable, Hashable
from typing import Any, TypeVar

from bkspark.wire.framing import scan_frames
from bookie_service.engine.authorization import Authorization
from bookie_service.engine.bookie import Bookie
from bookie_service.engine.bookie_environment import ENTRY_LISTS, BookieOptions
from bookie_service.engine.entry_lists import EntryLists
from bookie_service.engine.turns import Turn, TurnLimits, Turns
from bookie_service.metrics.requests import RequestTimes
from bookie_service.network.authentication import ListenerAuthentication
from bookie_service.network.connection import Connection, ConnectionParts
from bookie_service.network.connection_options import ConnectionOptions
from bookie_service.network.connections import ConnectionLimits, Connections
from bookie_service.network.memory_budget import MemoryBudget
from bookie_service.network.tls_handshakes import ListenerTls
from bookie_service.storage.journal.journal import JournalOptions
from bookie_service.storage.ledgers.base import StoreOptions
from bookie_service.storage.ledgers.interface import LedgerStorage
from tests.crash.history import History
from tests.crash.twins import AtHand, BookieTwin, Setup

_MIB = 1 << 20
_TURN_S = 0.0005


class Timer:
    """Something that will be called, unless it is cancelled."""

    def __init__(self, when: float, callback: Callable[..., None], arguments: tuple[Any, ...]) -> None:
        self.when = when
        self.call = (callback, arguments)
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True


class SteppedLoop:
    """What connections need of an event loop. Time passes only when a test says so."""

    def __init__(self) -> None:
        self.now = 0.0
        self.look_s = 0.0
        """How much time passes with each look at the clock."""
        self.turn_began = 0.0
        self._ready: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()
        self._readers: dict[SimulatedSocket, tuple[Callable[..., None], tuple[Any, ...]]] = {}
        self._writers: dict[SimulatedSocket, tuple[Callable[..., None], tuple[Any, ...]]] = {}
        self._timers: list[Timer] = []

    def time(self) -> float:
        self.now += self.look_s
        return self.now

    def call_soon(self, callback: Callable[..., None], *arguments: Any) -> None:
        self._ready.append((callback, arguments))

    def call_later(self, delay: float, callback: Callable[..., None], *arguments: Any) -> Timer:
        timer = Timer(self.now + delay, callback, arguments)
        self._timers.append(timer)
        return timer

    def add_reader(self, file: SimulatedSocket, callback: Callable[..., None], *arguments: Any) -> None:
        self._readers[file] = (callback, arguments)

    def remove_reader(self, file: SimulatedSocket) -> None:
        self._readers.pop(file, None)

    def add_writer(self, file: SimulatedSocket, callback: Callable[..., None], *arguments: Any) -> None:
        self._writers[file] = (callback, arguments)

    def remove_writer(self, file: SimulatedSocket) -> None:
        self._writers.pop(file, None)

    def turn(self) -> None:
        """Do what asyncio does in one turn: who was ready, then sockets and timers that have become so."""
        self.turn_began = self.now
        for file, call in self._readers.items():
            if file.received:
                self._ready.append(call)
        for file, call in self._writers.items():
            if file.takes > 0:
                self._ready.append(call)
        due = [timer for timer in self._timers if timer.when <= self.now]
        self._timers = [timer for timer in self._timers if timer.when > self.now and not timer.is_cancelled]
        self._ready.extend(timer.call for timer in due if not timer.is_cancelled)
        for _ in range(len(self._ready)):
            callback, arguments = self._ready.popleft()
            callback(*arguments)

    @property
    def is_idle(self) -> bool:
        return not self._ready


AnySocket = TypeVar("AnySocket", bound="SimulatedSocket")


class SimulatedSocket:
    """The bookie's end of a connection: what the peer sent and is not read, and what it was sent."""

    def __init__(self) -> None:
        self.received = bytearray()
        self.sent = bytearray()
        self.takes = 1 << 40
        """How many bytes the peer still takes."""
        self.is_closed = False

    def fileno(self) -> SimulatedSocket:
        """Return what `SteppedLoop` watches: there is no descriptor."""
        return self

    def setblocking(self, flag: bool) -> None:
        """There is nothing to wait for."""

    def setsockopt(self, *_: int) -> None:
        """There is nothing to set."""

    def getpeername(self) -> tuple[str, int]:
        return ("10.0.0.1", 1)

    def recv(self, size: int, flags: int = 0) -> bytes:
        if not self.received:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        found = bytes(self.received[:size])
        if not flags & socket.MSG_PEEK:
            del self.received[:size]
        return found

    def recv_into(self, buffer: memoryview, size: int = 0, flags: int = 0) -> int:
        found = self.recv(size or len(buffer), flags)
        buffer[: len(found)] = found
        return len(found)

    def send(self, data: bytes | memoryview) -> int:
        size = min(len(data), self.takes)
        if not size:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        self.sent += memoryview(data)[:size]
        self.takes -= size
        return size

    def sendmsg(self, parts: list[bytes | memoryview]) -> int:
        return self.send(b"".join(parts))

    def close(self) -> None:
        self.is_closed = True


class CountingTurns(Turns):
    """Turns that note how much was done in each, in requests."""

    def __init__(self, loop: SteppedLoop, limits: TurnLimits) -> None:
        super().__init__(
            lambda seconds, callback: loop.call_later(seconds, callback) if seconds else loop.call_soon(callback),
            loop.time,
            limits,
            lambda: loop.turn_began,
        )
        self._begun: list[CountedTurn] = []
        self._loop = loop
        self._limits = limits

    def begin(self, owner: Hashable) -> Turn:
        """Return a short turn: others are about."""
        limits = self._limits
        turn = CountedTurn(self._loop.time, limits.requests, self._loop.time() + limits.seconds, limits.frames)
        self._begun.append(turn)
        return turn

    def most_spent(self) -> float:
        """Return the most that one turn did since this was asked last."""
        begun, self._begun = self._begun, []
        return max((turn.spent for turn in begun), default=0.0)


class CountedTurn(Turn):
    """A turn that adds up what it spends."""

    __slots__ = ("spent",)

    def __init__(self, clock: Callable[[], float], requests: int, end: float, frames: int) -> None:
        super().__init__(clock, requests, end, frames)
        self.spent = 0.0

    def spend(self, requests: float = 1) -> None:
        self.spent += requests
        super().spend(requests)


class WatchedStore:
    """A store that counts how often anything of it is asked for or called."""

    def __init__(self, store: LedgerStorage) -> None:
        self._store = store
        self.uses = 0

    def __getattr__(self, name: str) -> Any:
        self.uses += 1
        found = getattr(self._store, name)
        if not callable(found):
            return found

        def counted(*arguments: Any, **named: Any) -> Any:
            self.uses += 1
            return found(*arguments, **named)

        return counted


class ServedBookie:
    """A bookie and its connections; `turn` is one turn of its event loop."""

    def __init__(
        self,
        limits: TurnLimits | None = None,
        options: BookieOptions | None = None,
        cache_half_bytes: int = 16 * _MIB,
        authorization: Callable[[SteppedLoop], Authorization] | None = None,
        tls: ListenerTls | None = None,
        authentication: ListenerAuthentication | None = None,
        times: RequestTimes | None = None,
    ) -> None:
        """`authorization(loop)` returns that of the bookie. If something is demanded, the store counts its uses."""
        self.loop = SteppedLoop()
        self._tls, self._authentication = tls, authentication
        is_open = authorization is None and tls is None and authentication is None
        self.authorization = None if authorization is None else authorization(self.loop)
        # Tests make thousands of these, each with a disk in memory: 16 MiB of zeros ahead would be most of the work.
        journal = JournalOptions(preallocate_bytes=1 << 16)
        setup = Setup(store=StoreOptions(cache_half_bytes=cache_half_bytes), journal=journal)
        twin = BookieTwin(setup.new_disk(), setup, History())
        self.twin = twin
        self.turns = CountingTurns(self.loop, limits or TurnLimits())
        self.store = WatchedStore(twin.store)
        self.bookie = Bookie(
            twin.store if is_open else self.store,  # type: ignore[arg-type]
            [journal.thread for journal in twin.journals],
            twin.checkpoints,
            twin.disks,
            AtHand(),
            options or BookieOptions(),
            self.turns,
            times,
            authorization=self.authorization,
        )
        # By the clock, how long lists pause would depend on the machine.
        self.bookie.entry_lists = EntryLists(ENTRY_LISTS, AtHand().run, self.loop.time, self.authorization)
        self.bookie.look_at_disks()
        for journal in twin.journals:
            journal.bookie = self.bookie
        twin.checkpoints.bookie = self.bookie
        self.memory_budget = MemoryBudget(self.loop, 128 * _MIB, 256 * _MIB)  # type: ignore[arg-type]
        self.failures: list[BaseException] = []
        self.connections: dict[SimulatedSocket, Connection] = {}

    def connect(
        self, address: str = "10.0.0.1", options: ConnectionOptions | None = None, *, is_trusted: bool = False
    ) -> SimulatedSocket:
        """Return the bookie's end of a new connection; `is_trusted`: nothing is demanded of its peer."""
        return self.connect_over(SimulatedSocket(), address, options, is_trusted=is_trusted)

    def connect_over(
        self,
        connected: AnySocket,
        address: str = "10.0.0.1",
        options: ConnectionOptions | None = None,
        *,
        is_trusted: bool = False,
    ) -> AnySocket:
        """As `connect`, with this socket as the bookie's end, which is returned."""
        parts = ConnectionParts(
            self.bookie,
            self.memory_budget,
            self.turns,
            options or ConnectionOptions(),
            self,
            *((None, None, None) if is_trusted else (self._tls, self._authentication, self.authorization)),
        )
        self.connections[connected] = Connection(connected, address, parts)  # type: ignore[arg-type]
        return connected

    def note_request(self, member: Connection) -> None:
        """Its first request has come."""

    def note_spare(self, member: Connection) -> None:
        """It can make room."""

    def discard(self, member: Connection) -> None:
        """It is closed."""

    def fail(self, error: BaseException) -> None:
        self.failures.append(error)

    def turn(self) -> None:
        """Let the event loop have a turn; what was journaled in it is durable afterwards."""
        self.loop.now += _TURN_S
        self.loop.turn()
        for journal in self.twin.journals:
            journal.step()

    def turns_until(self, holds: Callable[[], bool], turns_max: int = 10_000) -> int:
        """Return after how many turns a condition holds."""
        for count in range(turns_max):
            if holds():
                return count
            self.turn()
        raise AssertionError(f"it does not hold after {turns_max} turns")


class LimitedBookie(ServedBookie):
    """A bookie whose connections are limited and watched."""

    def __init__(self, limits: ConnectionLimits | None = None, tls: ListenerTls | None = None) -> None:
        super().__init__(tls=tls)
        self.members = Connections(limits or ConnectionLimits(), list, list, self.fail)

    def accept(self, address: str) -> SimulatedSocket | None:
        """Return the bookie's end of a new connection; None: there is no room."""
        if self.members.make_room(address, self.loop.now):
            return None
        peer = self.connect(address)
        self.members.add(self.connections[peer], self.loop.now)
        return peer

    def note_request(self, member: Connection) -> None:
        self.members.note_request(member)

    def note_spare(self, member: Connection) -> None:
        self.members.note_spare(member)

    def discard(self, member: Connection) -> None:
        self.members.discard(member)


def replies(peer: SimulatedSocket) -> int:
    """Return how many whole frames were sent to a peer."""
    return len(scan_frames(bytes(peer.sent), len(peer.sent)))
