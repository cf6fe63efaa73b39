"""Fences and explicit LACs of ledgers that the bookie has never seen: few of one address are unanswered at a time, and
they wait for records of other requests."""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np

from bkspark.wire import v2
from bkspark.wire.status import EOK, Status
from bookie_service.engine.new_ledgers import BEGUN_LEDGERS
from tests.bookie.changing import KEY, Client, add, entry
from tests.bookie.stepped_twins import twin_of
from tests.crash.twins import BookieTwin, add_frame, lac_packet

FENCES = 10
FIRST = 100
"""The first of many ledgers that no bookie has."""


class Requests(Client):
    """A connection from an address with fences of ledgers FIRST, FIRST + 1, ..., which a bookie takes when it can."""

    def __init__(self, twin: BookieTwin, address: Hashable, first: int = FIRST) -> None:
        super().__init__()
        self._address = address
        self.resumed = 0
        ids = np.array([v2.LAST_ENTRY])
        frames = [v2.encode_reads(first + number, ids, v2.DO_FENCING, KEY) for number in range(FENCES)]
        self._octets, self._requests = twin.received(self, b"".join(frames))
        self._loop = twin.loop

    @property
    def address(self) -> Hashable:
        return self._address

    def resume(self) -> None:
        self.resumed += 1
        self._loop.call_soon(self.go_on)

    def go_on(self) -> None:
        self._requests.serve(self._octets)


def known(twin: BookieTwin) -> int:
    """Return how many of the ledgers the bookie has."""
    return sum(twin.store.known_header(FIRST + number) is not None for number in range(4 * FENCES))


def test_fences_beyond_those_that_an_address_may_have_unanswered_wait_and_are_answered_in_turn() -> None:
    twin = twin_of()
    client, other = Requests(twin, "a"), Requests(twin, "b", FIRST + FENCES)
    limit = BEGUN_LEDGERS.per_address
    with twin.loop.serving():
        client.go_on()
    assert (known(twin), client.resumed) == (limit, 0)
    with twin.loop.serving():
        other.go_on()
    assert known(twin) == 2 * limit, "another address has room of its own"
    twin.settle()
    assert client.statuses == other.statuses == [Status.ENOENTRY] * FENCES
    assert client.resumed >= FENCES // limit - 1


def test_connections_of_an_address_take_turns() -> None:
    """If the first one went on first each time, it would take all the room that there is, and the other none."""
    twin = twin_of()
    clients = [Requests(twin, "a", FIRST + number * FENCES) for number in range(3)]
    for client in clients:
        with twin.loop.serving():
            client.go_on()
    while not all(client.statuses for client in clients):
        assert max(len(client.statuses) for client in clients) < FENCES
        twin.journals[0].step()
    twin.settle()
    assert [client.statuses for client in clients] == [[Status.ENOENTRY] * FENCES] * 3


def test_explicit_lacs_of_unknown_ledgers_wait_for_the_same_room() -> None:
    twin = twin_of()
    client = Requests(twin, "a")
    limit, answers = BEGUN_LEDGERS.per_address, []

    def write_lac(ledger_id: int) -> int | None:
        def answer(status: Status) -> tuple[bytes]:
            answers.append(status)
            return (b"",)

        with twin.loop.serving():
            return twin.bookie.write_lac(client, ledger_id, KEY, lac_packet(ledger_id, 5), answer)

    assert [write_lac(FIRST + number) for number in range(limit + 1)] == [None] * limit + [0]
    with twin.loop.serving():
        client.go_on()
    assert known(twin) == limit, "a fence waits, too"


def test_refused_fence_takes_no_room() -> None:
    twin = twin_of()
    assert add(twin, (4, 0)) == [EOK]
    client = Client()
    for _ in range(2 * BEGUN_LEDGERS.per_address):
        twin.serve(client, v2.encode_reads(4, np.array([0]), v2.DO_FENCING, b"x" * 20))
    assert client.statuses == [Status.EUA] * 2 * BEGUN_LEDGERS.per_address
    requests = Requests(twin, client.address)
    with twin.loop.serving():
        requests.go_on()
    assert known(twin) == BEGUN_LEDGERS.per_address


def test_fences_of_unknown_ledgers_share_the_sync_of_an_add() -> None:
    """A sync of their own would cost the bookie more than all else that a flood of them asks for."""
    twin = twin_of()
    syncs: list[str] = []
    twin.disk.before_operation = lambda operation, path: (
        syncs.append(path) if operation == "sync_data" and path.startswith("/journal") else None
    )
    client = Requests(twin, "a")
    with twin.loop.serving():
        client.go_on()
    twin.loop.turn()
    assert (syncs, client.statuses) == ([], [])
    writer = Client()
    twin.serve(writer, add_frame(KEY, entry(4, 0)))
    twin.loop.turn()
    assert (len(syncs), writer.statuses) == (1, [EOK])
    assert client.statuses == [Status.ENOENTRY] * BEGUN_LEDGERS.per_address
