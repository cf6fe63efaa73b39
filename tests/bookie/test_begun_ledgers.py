"""Fences and explicit LACs of ledgers that the bookie has never seen: few of one address are unanswered at a time, and
they wait for records of other requests."""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np

from bkspark.wire import v2
from bkspark.wire.status import EOK, Status
from bookie_service.engine.bookie import Bookie
from bookie_service.engine.bookie_environment import BookieOptions
from bookie_service.engine.new_ledgers import BEGUN_LEDGERS
from bookie_service.engine.turns import Turns
from tests.bookie.changing import KEY, Client, add, entry
from tests.bookie.stepped_twins import twin_of
from tests.crash.twins import AtHand, BookieTwin, add_frame, lac_packet

FENCES = 10
FIRST = 100
"""The first of many ledgers that no bookie has."""


class Bench:
    """A bookie on a simulated disk whose connections take turns."""

    def __init__(self, options: BookieOptions | None = None) -> None:
        options = options or BookieOptions()
        self.twin = twin_of()
        self.turns = Turns(lambda seconds, callback: self.twin.loop.call_soon(callback), lambda: 0.0)
        threads = [journal.thread for journal in self.twin.journals]
        bookie = Bookie(self.twin.store, threads, self.twin.checkpoints, self.twin.disks, AtHand(), options, self.turns)
        self.twin.bookie = self.twin.checkpoints.bookie = bookie
        for journal in self.twin.journals:
            journal.bookie = bookie
        bookie.look_at_disks()

    def requests(self, address: str, first: int = FIRST) -> Requests:
        """Return a connection that has sent fences, of which the bookie has taken those that it takes at once."""
        client = Requests(self, address, first)
        with self.twin.loop.serving():
            client.go_on()
        return client


class Requests(Client):
    """A connection from an address with fences of the ledgers from `first` on."""

    def __init__(self, bench: Bench, address: Hashable, first: int) -> None:
        super().__init__()
        self._address = address
        self._bench = bench
        ids = np.array([v2.LAST_ENTRY])
        frames = [v2.encode_reads(first + number, ids, v2.DO_FENCING, KEY) for number in range(FENCES)]
        self._octets, self._requests = bench.twin.received(self, b"".join(frames))

    @property
    def address(self) -> Hashable:
        return self._address

    @property
    def connection(self) -> Hashable:
        return self

    def resume(self) -> None:
        self.resumed += 1
        self._bench.turns.go_on(self, lambda turn: self.go_on())

    def go_on(self) -> None:
        self._requests.serve(self._octets)


def known(twin: BookieTwin) -> int:
    """Return how many of the ledgers the bookie has."""
    return sum(twin.store.known_header(FIRST + number) is not None for number in range(4 * FENCES))


def test_fences_beyond_those_that_an_address_may_have_unanswered_wait_and_are_answered_in_turn() -> None:
    bench = Bench()
    client = bench.requests("a")
    limit = BEGUN_LEDGERS.per_address
    assert (known(bench.twin), client.resumed) == (limit, 0)
    other = bench.requests("b", FIRST + FENCES)
    assert known(bench.twin) == 2 * limit, "another address has room of its own"
    bench.twin.settle()
    assert client.statuses == other.statuses == [Status.ENOENTRY] * FENCES


def test_connections_of_an_address_take_turns_and_none_is_resumed_in_vain() -> None:
    """To resume all of them each time would cost the bookie more than the fences."""
    bench = Bench()
    clients = [bench.requests("a", FIRST + number * FENCES) for number in range(3)]
    while not all(client.statuses for client in clients):
        assert max(len(client.statuses) for client in clients) < FENCES
        bench.twin.journals[0].step()
    bench.twin.settle()
    assert [client.statuses for client in clients] == [[Status.ENOENTRY] * FENCES] * 3
    assert sum(client.resumed for client in clients) <= 3 * FENCES


def test_connection_that_is_closed_while_it_waits_stops_no_other() -> None:
    bench = Bench()
    clients = [bench.requests("a", FIRST + number * FENCES) for number in range(3)]
    clients[1].is_open = False
    bench.twin.settle()
    assert [len(client.statuses) for client in clients] == [FENCES, 0, FENCES]


def test_requests_for_a_known_ledger_wait_for_no_fence_of_an_unknown_one() -> None:
    """An honest client may have the address of a flood: the loopback, or that of a network with NAT."""
    bench = Bench()
    assert add(bench.twin, (4, 0)) == [EOK]
    flood = bench.requests("a")
    known_before = known(bench.twin)
    client = bench.requests("a", 4)
    assert (known(bench.twin), flood.resumed) == (known_before, 0)
    bench.twin.journals[0].step()
    assert client.statuses[:1] == [EOK], "the first of its fences is of ledger 4, and fenced it"


def test_explicit_lacs_of_unknown_ledgers_wait_for_the_same_places() -> None:
    bench = Bench()
    limit, answers = BEGUN_LEDGERS.per_address, []
    client = bench.requests("a")

    def write_lac(ledger_id: int) -> int | None:
        def answer(status: Status) -> tuple[bytes]:
            answers.append(status)
            return (b"",)

        with bench.twin.loop.serving():
            return bench.twin.bookie.write_lac(client, ledger_id, KEY, lac_packet(ledger_id, 5), answer)

    assert write_lac(FIRST) is None, "a fence has begun it"
    assert write_lac(FIRST + FENCES) == 0
    assert known(bench.twin) == limit


def test_refused_fence_takes_no_place() -> None:
    bench = Bench()
    assert add(bench.twin, (4, 0)) == [EOK]
    client = Client()
    for _ in range(2 * BEGUN_LEDGERS.per_address):
        bench.twin.serve(client, v2.encode_reads(4, np.array([0]), v2.DO_FENCING, b"x" * 20))
    assert client.statuses == [Status.EUA] * 2 * BEGUN_LEDGERS.per_address
    bench.requests(client.address)
    assert known(bench.twin) == BEGUN_LEDGERS.per_address


def test_fence_that_is_refused_for_the_rate_of_its_address_takes_no_place() -> None:
    """Otherwise the address could begin no ledger any more when it has been refused a few times."""
    bench = Bench(BookieOptions(new_ledgers_per_s=1, new_ledgers_burst=1))
    client, refused = Client(), 2 * BEGUN_LEDGERS.per_address
    for number in range(1 + refused):
        octets, requests = bench.twin.received(
            client, v2.encode_reads(FIRST + number, np.array([v2.LAST_ENTRY]), v2.DO_FENCING, KEY)
        )
        assert requests.serve(octets)
    assert client.statuses == [Status.ETOOMANYREQUESTS] * refused
    bench.twin.settle()
    assert client.statuses[refused:] == [Status.ENOENTRY]


def test_fences_of_unknown_ledgers_share_the_sync_of_an_add() -> None:
    """A sync of their own would cost the bookie more than all else that a flood of them asks for."""
    bench = Bench()
    syncs: list[str] = []
    bench.twin.disk.before_operation = lambda operation, path: (
        syncs.append(path) if operation == "sync_data" and path.startswith("/journal") else None
    )
    client = bench.requests("a")
    bench.twin.loop.turn()
    assert (syncs, client.statuses) == ([], [])
    writer = Client()
    bench.twin.serve(writer, add_frame(KEY, entry(4, 0)))
    bench.twin.loop.turn()
    assert (len(syncs), writer.statuses) == (1, [EOK])
    assert client.statuses == [Status.ENOENTRY] * BEGUN_LEDGERS.per_address
