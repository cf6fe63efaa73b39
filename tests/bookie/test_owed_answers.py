"""Which connections are owed an answer: they are not idle, however long a disk takes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from bkspark.wire import bookkeeper_protocol_pb2 as protocol
from bkspark.wire import v2, v3
from bkspark.wire.status import Status
from bookie_service.network.connections import ConnectionLimits
from bookie_service.storage.journal.journal_thread import INLINE_BYTES_MAX
from tests.bookie.cold_files import ColdFiles
from tests.bookie.deferred_adds import BYPASSING
from tests.bookie.serving import KEY, Serving, adds, service_options, stored
from tests.bookie.simulated_connections import ServedBookie, SimulatedSocket
from tests.bookie.stalling_files import StallingFiles
from tests.bookie.v3_peer import RECOVERY, add_frames, request
from tests.crash.twins import lac_packet
from tests.polling import wait_until

LIMITS = ConnectionLimits(2, 2, reserved=0, idle_s=2.0)
REQUESTS = {
    "add": adds(5, 1, [b"one"]),
    "adds": adds(5, 1, [b"one", b"two", b"three"]),
    "recovery add": add_frames(5, 1, [b"one"], 1, flag=RECOVERY),
    "deferred add": add_frames(5, 1, [b"one"], 1, writeFlags=v3.DEFERRED_SYNC),
    "read that fences": v2.encode_reads(5, np.array([0]), v2.DO_FENCING, KEY),
    "force": v3.encode_message(request(protocol.FORCE_LEDGER, 1, ledgerId=5)),
    "explicit LAC": v3.encode_message(
        request(protocol.WRITE_LAC, 1, ledgerId=5, lac=0, masterKey=KEY, body=lac_packet(5, 0))
    ),
}


def has_room(serving: Serving) -> bool:
    """Return whether the bookie accepts one more client and answers it."""
    with serving.connect() as newcomer:
        try:
            newcomer.send(v2.encode_reads(99, np.array([0])))
            return newcomer.frame() is not None
        except ConnectionError:
            return False


def make_room_beside(serving: Serving) -> None:
    """Let a client take the last place, be idle, and make room for another one."""
    with serving.connect() as idle:
        assert idle.read(99, 0).status == Status.ENOLEDGER
        wait_until(lambda: has_room(serving), "a connection to make room")


@contextmanager
def answering_again(release: Callable[[], None]) -> Iterator[None]:
    """Let the disk answer again at the end, so that the bookie can stop."""
    try:
        yield
    finally:
        release()


def test_connection_whose_add_waits_for_a_stalled_journal_makes_no_room(tmp_path: Path) -> None:
    files = StallingFiles()
    with Serving(service_options(tmp_path, connections=LIMITS), files) as serving, serving.connect() as adding:
        with answering_again(files.release):
            files.stall("/journal")
            # The event loop would sync a smaller one itself.
            adding.send(adds(5, 0, [bytes(INLINE_BYTES_MAX)]))
            wait_until(lambda: files.holding, "the sync of the add")
            make_room_beside(serving)
        assert adding.reply().status == Status.EOK


def test_connection_whose_read_waits_for_a_stalled_disk_makes_no_room(tmp_path: Path) -> None:
    options = service_options(tmp_path, connections=LIMITS)
    with Serving(options) as serving, serving.connect() as writer:
        assert writer.add(5, 0, [b"one"]) == [Status.EOK]
    files = ColdFiles()
    with Serving(options, files) as serving, serving.connect() as reading:
        with answering_again(files.disk.set):
            files.disk.clear()
            reading.send(v2.encode_reads(5, np.array([0])))
            make_room_beside(serving)
        assert reading.reply().body == stored(5, 0, b"one")


def served_with_ledger() -> tuple[ServedBookie, SimulatedSocket]:
    """Return a bookie with entry 0 of ledger 5, and a new connection."""
    served = ServedBookie()
    writer = served.connect()
    writer.received += adds(5, 0, [b"x"])
    served.turns_until(lambda: bool(writer.sent), 20)
    return served, served.connect()


@pytest.mark.parametrize("name", REQUESTS)
def test_client_that_waits_for_a_journal_is_owed_an_answer_until_it_has_it(name: str) -> None:
    served, connected = served_with_ledger()
    other = served.connections[served.connect()]
    connection = served.connections[connected]
    assert served.bookie.owed() == set()
    connected.received += REQUESTS[name]
    served.loop.turn()
    served.loop.turn()
    assert not connected.sent
    assert served.bookie.owed() == {connection}
    assert (served.bookie.owes(connection), served.bookie.owes(other)) == (True, False)
    served.turns_until(lambda: bool(connected.sent), 20)
    assert served.bookie.owed() == set()


def test_force_that_waits_for_a_flush_is_owed_an_answer_before_and_while_it_runs() -> None:
    served, connected = served_with_ledger()
    forcing, late = served.connect(), served.connect()
    connected.received += add_frames(5, 1, [b"one"], 1, **BYPASSING)
    served.turns_until(lambda: bool(connected.sent), 20)
    forcing.received += REQUESTS["force"]
    served.turns_until(lambda: served.bookie.owed() == {served.connections[forcing]}, 20)
    del connected.sent[:]
    connected.received += add_frames(5, 2, [b"two"], 1, **BYPASSING)
    served.turns_until(lambda: bool(connected.sent), 20)
    late.received += REQUESTS["force"]
    served.turns_until(lambda: served.connections[late] in served.bookie.owed(), 20)
    assert served.bookie.owed() == {served.connections[forcing], served.connections[late]}
    assert served.twin.checkpoints.step()
    served.turns_until(lambda: bool(forcing.sent), 20)
    assert served.bookie.owed() == {served.connections[late]}
    assert served.twin.checkpoints.step()
    served.turns_until(lambda: bool(late.sent), 20)
    assert served.bookie.owed() == set()


def test_connection_is_no_longer_idle_when_a_request_came_after_it_was_looked_at() -> None:
    """The owed are counted once in a round of looks: a request of a moment ago is not among them."""
    served, connected = served_with_ledger()
    connection = served.connections[connected]
    began = served.loop.now
    assert connection.idle_s(began + 70.0, is_owed=False) == 70.0
    connected.received += REQUESTS["add"]
    served.loop.turn()
    served.loop.turn()
    assert served.bookie.owes(connection)
    assert connection.idle_s(began + 71.0, is_owed=False) == 0.0
