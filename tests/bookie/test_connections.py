"""Which peers may connect, and which connections make room: one peer must not lock all others out."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from bkspark.metadata.bookies import BookieRegistry
from bkspark.metadata.memory import MemoryStore, MemoryTree
from bkspark.metadata.registration import BookieAddress
from bkspark.metadata.uri import MetadataUri
from bkspark.wire import bookkeeper_protocol_pb2 as protocol
from bkspark.wire import v2
from bkspark.wire.status import Status
from bookie_service.cluster.peers import ClusterPeers
from bookie_service.engine.turns import ENDLESS, Accept, Turn, Turns
from bookie_service.network.closing import Closing
from bookie_service.network.connection import Connection
from bookie_service.network.connection_options import ConnectionOptions
from bookie_service.network.connections import FIRST_REQUEST_S, LOOKS, ConnectionLimits, Connections
from bookie_service.network.listener import Listener
from tests.bookie.serving import Peer, Serving, service_options
from tests.bookie.simulated_connections import SteppedLoop
from tests.bookie.v3_peer import PIGGYBACK, V3Peer
from tests.polling import wait_until

BOOKIE = "10.0.0.200"


class Bench:
    """Connections without sockets. Time passes only when a test says so."""

    def __init__(self, limits: ConnectionLimits) -> None:
        self.now = 0.0
        self.owed: set[Member] = set()
        """Those that wait for an answer."""
        self.connections = Connections(limits, lambda: {BOOKIE}, lambda: self.owed, self._fail)
        self.turns = Turns(lambda _, step: self.steps.append(step), lambda: self.now)
        self.steps: list[Callable[[], None]] = []
        """Steps for newcomers that are planned. Nothing is planned unless a client is noted."""

    def _fail(self, error: BaseException) -> None:
        raise error

    def connect(self, address: str = "10.0.0.1", *, sends: bool = False) -> Member | None:
        """Connect, as far as there is room; send a first request or not."""
        if self.connections.make_room(address, self.now):
            return None
        member = Member(self, address)
        self.connections.add(member, self.now)
        if sends:
            member.send()
        return member

    def connect_many(
        self, count: int, address: str = "10.0.0.1", *, sends: bool = False, pause_s: float = 0.0
    ) -> list[Member]:
        made = []
        for _ in range(count):
            self.now += pause_s
            made.append(self.connect(address, sends=sends))
        return [member for member in made if member is not None]

    def pass_time(self, seconds: float) -> None:
        for _ in range(int(seconds)):
            self.now += 1.0
            for _ in range(LOOKS):
                self.connections.watch(self.now)


class Member:
    """A connection of the bench."""

    def __init__(self, bench: Bench, address: str) -> None:
        self.address = address
        self.is_open = True
        self.is_stalled = False
        self.closing = Closing(self, bench.turns, lambda: bench.connections.note_spare(self))
        self._bench = bench
        self._active_at = bench.now

    def send(self) -> None:
        """Send a request."""
        self._active_at = self._bench.now
        self._bench.connections.note_request(self)

    def idle_s(self, now: float, *, is_owed: bool) -> float:
        if is_owed:
            self._active_at = now
        return now - self._active_at

    def close_if_stalled(self, now: float) -> None:
        self.closing.plan_while(lambda: "it is stalled" if self.is_stalled else "")

    def take_turn_now(self) -> None:
        """Nothing that it has sent waits."""

    def give_up(self, why: str) -> None:
        self.close()

    def close(self) -> None:
        self.is_open = False
        self.closing.end()
        self._bench.connections.discard(self)


def test_one_address_has_half_of_all_places_and_the_others_have_the_rest() -> None:
    bench = Bench(ConnectionLimits(100, reserved=0))
    assert len(bench.connect_many(200, "10.0.0.1", sends=True)) == 50
    assert len(bench.connect_many(200, "10.0.0.2", sends=True)) == 50
    assert bench.connect("10.0.0.3") is None


def test_silent_connections_of_an_address_make_room_for_others_of_it() -> None:
    """10,000 silent connections from a client's own address do not lock the client out."""
    bench = Bench(ConnectionLimits(100, reserved=0))
    silent = bench.connect_many(100, pause_s=0.01)
    assert [member.is_open for member in silent] == [False] * 50 + [True] * 50, "the oldest go first"
    honest = bench.connect(sends=True)
    assert honest is not None
    bench.connect_many(300, pause_s=0.01)
    assert honest.is_open


def test_silent_connections_of_many_addresses_make_room_as_well() -> None:
    bench = Bench(ConnectionLimits(100, reserved=0))
    for number in range(30):
        bench.connect_many(50, f"10.0.1.{number}", pause_s=0.01)
    honest = bench.connect("10.0.0.1", sends=True)
    assert honest is not None
    for number in range(30):
        bench.connect_many(50, f"10.0.2.{number}", pause_s=0.01)
    assert honest.is_open
    assert len(bench.connections) <= 100


def test_a_connection_that_was_just_accepted_is_read_before_it_may_have_to_go() -> None:
    bench = Bench(ConnectionLimits(2, 2, reserved=0))
    first, second = bench.connect_many(2)
    assert bench.connect() is None
    first.send()
    bench.now += FIRST_REQUEST_S
    assert bench.connect() is not None
    assert (first.is_open, second.is_open) == (True, False)


def test_a_connection_that_sends_nothing_is_closed_after_a_minute() -> None:
    bench = Bench(ConnectionLimits())
    silent, honest = bench.connect(), bench.connect(sends=True)
    assert silent is not None
    assert honest is not None
    bench.pass_time(59)
    assert silent.is_open
    bench.pass_time(2)
    assert (silent.is_open, honest.is_open) == (False, True)
    bench.pass_time(600)
    assert honest.is_open, "a connection that has sent a request stays, as long as there is room"


def test_long_idle_connection_makes_room_and_one_that_waits_for_a_reply_does_not() -> None:
    bench = Bench(ConnectionLimits(4, 4, reserved=0))
    idle, polling, busy, later = bench.connect_many(4, sends=True)
    bench.owed.add(polling)
    assert bench.connect(sends=True) is None, "no connection was idle for a minute"
    bench.pass_time(58)
    busy.send()
    bench.pass_time(4)
    later.send()
    assert bench.connect(sends=True) is not None
    assert [member.is_open for member in (idle, polling, busy, later)] == [False, True, True, True]
    assert bench.connect(sends=True) is None


def test_some_places_are_kept_for_the_bookies_of_the_cluster() -> None:
    bench = Bench(ConnectionLimits(100, 100, reserved=10))
    assert len(bench.connect_many(200, "10.0.0.1", sends=True)) == 90
    assert len(bench.connect_many(200, BOOKIE, sends=True)) == 10
    assert ConnectionLimits(50, reserved=100).for_clients == 45, "a tenth at most"


def test_nothing_is_kept_of_connections_that_are_gone() -> None:
    bench = Bench(ConnectionLimits(100))
    for member in bench.connect_many(40, sends=True) + bench.connect_many(10):
        member.close()
        member.close()
    bench.pass_time(70)
    connections = bench.connections
    assert len(connections) == 0
    assert not connections._by_address
    assert not connections._silent._of
    assert len(bench.connect_many(60)) == 50


def test_connection_makes_room_from_the_very_second_at_which_it_is_idle_for_long() -> None:
    bench = Bench(ConnectionLimits(all=2, per_address=2, idle_s=60.0))
    first, second = bench.connect_many(2, sends=True)
    bench.now = 59.0
    for _ in range(LOOKS):
        bench.connections.watch(bench.now)
    assert bench.connect("10.0.0.2") is None
    bench.now = 60.0
    for _ in range(LOOKS):
        bench.connections.watch(bench.now)
    assert bench.connect("10.0.0.2") is not None
    assert [first.is_open, second.is_open] == [False, True]


def test_connection_without_a_request_is_closed_from_the_very_second_on() -> None:
    bench = Bench(ConnectionLimits(idle_s=60.0))
    bench.now = 1000.0
    (silent,) = bench.connect_many(1)
    bench.connections.watch(1059.0)
    assert silent.is_open
    bench.connections.watch(1060.0)
    assert not silent.is_open


def test_connection_that_was_idle_before_its_last_request_is_not_the_first_to_make_room() -> None:
    bench = Bench(ConnectionLimits(all=2, per_address=2, idle_s=60.0))
    busy, idle = bench.connect_many(2, sends=True)
    bench.owed.add(idle)
    bench.pass_time(61)
    bench.owed.clear()
    bench.pass_time(2)
    busy.send()
    bench.pass_time(62)
    assert bench.connect("10.0.0.2") is not None
    assert [busy.is_open, idle.is_open] == [True, False]


@pytest.mark.parametrize(("places", "share"), [(1, 1), (2, 1), (3, 1), (4, 2), (5, 2)])
def test_share_of_one_address_is_half_of_all_places_and_at_least_one(places: int, share: int) -> None:
    assert ConnectionLimits(all=places).share == share


def test_connection_that_is_closed_for_its_stalled_peer_makes_no_room_afterwards() -> None:
    bench = Bench(ConnectionLimits(all=2, per_address=2, reserved=0, idle_s=60.0))
    stalled, other = bench.connect_many(2, sends=True)
    stalled.is_stalled = True
    bench.now = 61.0
    other.send()
    for _ in range(LOOKS):
        bench.connections.watch(bench.now)
    assert not stalled.is_open
    assert bench.connect(sends=True) is not None
    assert bench.connect(sends=True) is None


def test_connections_whose_closing_waits_make_room_before_others_are_refused() -> None:
    """Thousands may wait for their turns, and a client that connects meanwhile needs one place."""
    bench = Bench(ConnectionLimits(all=3, per_address=3, reserved=0, idle_s=60.0))
    stalled, active, again = bench.connect_many(3, sends=True)
    stalled.is_stalled = again.is_stalled = True
    bench.turns.note("a client that is served")
    bench.pass_time(1)
    assert stalled.is_open, "it waits for its turn"
    again.is_stalled = False
    assert bench.connect(sends=True) is not None
    assert [stalled.is_open, active.is_open, again.is_open] == [False, True, True]
    assert bench.connect(sends=True) is None, "a peer that goes on in time does not make room"


def test_connection_that_is_late_again_is_closed_although_it_went_on_once() -> None:
    bench = Bench(ConnectionLimits())
    (member,) = bench.connect_many(1, sends=True)
    for is_late in (False, True):
        member.is_stalled = True
        bench.turns.note("a client that is served")
        bench.pass_time(1)
        assert member.is_open
        member.is_stalled = is_late
        while bench.steps:
            bench.steps.pop(0)()
        assert member.is_open is not is_late


def test_address_with_its_share_makes_room_for_itself_from_its_own_connections_alone() -> None:
    bench = Bench(ConnectionLimits(all=100, per_address=1))
    (other,) = bench.connect_many(1, "10.0.0.2")
    bench.now += FIRST_REQUEST_S
    (mine,) = bench.connect_many(1, "10.0.0.1")
    assert bench.connect("10.0.0.1") is None
    bench.now += FIRST_REQUEST_S
    assert bench.connect("10.0.0.1") is not None
    assert [other.is_open, mine.is_open] == [True, False]


def test_addresses_of_bookies_are_those_that_their_registrations_name() -> None:
    uri = MetadataUri.parse("zk://h/ledgers")
    store = MemoryStore()

    async def look() -> tuple[frozenset[str], frozenset[str]]:
        tree = MemoryTree(store, store.session().session_id, 10.0)
        registry = BookieRegistry(tree, uri)
        await registry.initialize_cluster()
        await registry.register("a", BookieAddress("127.0.0.1", 1))
        await registry.register("b", BookieAddress("10.1.2.3", 1), read_only=True)
        await registry.register("c", BookieAddress("no-such-host.invalid", 1))
        peers = ClusterPeers(registry, interval_s=1000.0)
        before = peers.addresses
        await peers.refresh()
        peers.start()
        await peers.stop()
        return before, peers.addresses

    assert asyncio.run(look()) == (frozenset(), {"127.0.0.1", "10.1.2.3"})


def is_served(serving: Serving) -> bool:
    with contextlib.suppress(ConnectionError), Peer(serving.port) as client:
        client.send(v2.encode_reads(5, np.array([0])))
        return client.frame() is not None
    return False


def test_a_client_gets_through_a_thousand_silent_connections(tmp_path: Path) -> None:
    """Over sockets, with a limit of 200: one peer that takes every connection locks no other peer out."""
    with Serving(service_options(tmp_path, connections=ConnectionLimits(200))) as serving:
        silent = [socket.create_connection(("127.0.0.1", serving.port)) for _ in range(1000)]
        try:
            wait_until(lambda: is_served(serving), "the silent ones to be older than a first request takes")
            assert all(is_served(serving) for _ in range(20))
        finally:
            for each in silent:
                each.close()


@pytest.mark.parametrize("half", [b"", b"\0\0\0"])
def test_a_connection_without_a_whole_request_is_closed_in_time(tmp_path: Path, half: bytes) -> None:
    limits = ConnectionLimits(idle_s=0.3)
    with Serving(service_options(tmp_path, connections=limits)) as serving, Peer(serving.port) as honest:
        assert honest.read(5, 0).status == Status.ENOLEDGER
        with socket.create_connection(("127.0.0.1", serving.port), timeout=60) as silent:
            silent.sendall(half)
            assert silent.recv(1) == b""
        honest.send(v2.encode_reads(5, np.array([0])))
        assert honest.reply().status == Status.ENOLEDGER


def test_a_connection_with_a_long_poll_counts_as_busy(tmp_path: Path) -> None:
    limits = ConnectionLimits(2, 2, idle_s=0.2)
    with Serving(service_options(tmp_path, connections=limits)) as serving, Peer(serving.port) as writer:
        assert writer.add(5, 0, [b"x"]) == [Status.EOK]
        with V3Peer(serving.port) as follower:
            follower.ask(protocol.READ_ENTRY, ledgerId=5, entryId=-1, previousLAC=5, timeOut=1500, flag=PIGGYBACK)
            wait_until(lambda: is_served(serving), "the writer, which is idle, to make room")
            assert follower.answer().status == 0


def test_connection_that_closed_when_it_was_idle_makes_no_room() -> None:
    bench = Bench(ConnectionLimits(10, 2, reserved=0, idle_s=10))
    first, second = bench.connect_many(2, sends=True)
    bench.pass_time(12)
    first.close()
    second.send()
    assert bench.connect(sends=True) is not None
    assert bench.connect() is None, "both places of the address are taken"
    assert len(bench.connections) == 2


# ---- accepting ----


class Listening:
    """A listening socket whose `accept` raises these errors, one after the other, and then has no peer.

    Instead of error 0 it returns a peer.
    """

    def __init__(self, *codes: int) -> None:
        self._codes = list(codes)
        self.is_open = True

    def fileno(self) -> int:
        return 7 if self.is_open else -1

    def setblocking(self, flag: bool) -> None:
        """It never blocks."""

    def listen(self, backlog: int) -> None:
        """It listens already."""

    def accept(self) -> tuple[socket.socket, tuple[str, int]]:
        code = self._codes.pop(0) if self._codes else errno.EAGAIN
        if not code:
            return socket.socket(), ("10.0.0.1", 1)
        raise OSError(code, os.strerror(code))

    def close(self) -> None:
        self.is_open = False


def accepting(
    listening: Listening,
    test: Callable[[SteppedLoop, Listener, list[BaseException]], None],
    take_turn: Callable[[Accept, Callable[[], None]], object] = lambda accept, _: accept(ENDLESS),
) -> None:
    """Run a test with a listener on a loop that the test steps. Without `take_turn` it accepts at once."""
    loop, failures = SteppedLoop(), list[BaseException]()

    async def run() -> None:
        listener = Listener(listening, lambda peer, _: peer.close(), failures.append, take_turn)  # type: ignore[arg-type]
        listener._loop = loop  # type: ignore[assignment]
        listener.start()
        test(loop, listener, failures)

    asyncio.run(run())


def test_listener_watches_its_socket_again_after_its_turn_to_accept() -> None:
    """A socket with waiting peers is always ready: the loop would poll without a pause until its turn comes."""
    turns = list[Accept]()

    def later(accept: Accept, wait: Callable[[], None]) -> None:
        turns.append(accept)
        wait()

    def of_one() -> Turn:
        return Turn(lambda: 0.0, 1, 1.0)

    def test(loop: SteppedLoop, listener: Listener, _failures: list[BaseException]) -> None:
        assert not poll(loop)
        (accept,) = turns
        assert accept(of_one()), "another peer waits"
        assert accept(of_one())
        assert not poll(loop)
        assert len(turns) == 1, "it is not watched while peers wait"
        assert not accept(of_one())
        assert not poll(loop)
        assert len(turns) == 2
        listener.close()
        assert not turns.pop()(ENDLESS)
        assert not poll(loop), "it is closed"

    accepting(Listening(0, 0, errno.EAGAIN), test, later)


def poll(loop: SteppedLoop) -> bool:
    """Let the loop report peers that wait; return whether it watches the socket."""
    for callback, arguments in list(loop._readers.values()):
        callback(*arguments)
    return bool(loop._readers)


@pytest.mark.parametrize("code", [errno.ECONNABORTED, errno.EINTR])
def test_peer_that_leaves_before_it_is_accepted_ends_nothing(code: int) -> None:
    def test(loop: SteppedLoop, listener: Listener, failures: list[BaseException]) -> None:
        assert poll(loop)
        assert poll(loop)
        assert failures == []

    accepting(Listening(code), test)


@pytest.mark.parametrize("is_closed", [False, True])
def test_listener_without_descriptors_pauses_and_stays_closed_once_it_is(is_closed: bool) -> None:
    def test(loop: SteppedLoop, listener: Listener, failures: list[BaseException]) -> None:
        poll(loop)
        assert not poll(loop)
        if is_closed:
            listener.close()
            listener.close()
        loop.now = 2.0
        loop.turn()
        assert poll(loop) is not is_closed
        assert failures == []

    accepting(Listening(errno.EMFILE), test)


def test_error_of_the_listening_socket_itself_is_reported() -> None:
    def test(loop: SteppedLoop, listener: Listener, failures: list[BaseException]) -> None:
        poll(loop)
        assert not poll(loop)
        assert len(failures) == 1

    accepting(Listening(errno.EINVAL), test)


@pytest.mark.parametrize("option", [True, False])
def test_accepted_sockets_have_the_options_of_the_port(tmp_path: Path, option: bool) -> None:
    options = service_options(tmp_path, connection=ConnectionOptions(no_delay=option, keep_alive=option))
    with Serving(options) as serving, serving.connect() as peer:
        assert peer.read(1, 0).status == Status.ENOLEDGER
        (member,) = serving.call(lambda: list(serving.service.connections.all()))
        assert isinstance(member, Connection)
        values = [
            member._socket.getsockopt(level, name)
            for level, name in ((socket.IPPROTO_TCP, socket.TCP_NODELAY), (socket.SOL_SOCKET, socket.SO_KEEPALIVE))
        ]
        assert [bool(value) for value in values] == [option] * 2
