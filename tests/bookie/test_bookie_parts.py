"""What the bookie hands on to its parts: limits, keys, and which directories are full."""

from __future__ import annotations

import struct
from random import Random

import numpy as np

from bkspark.wire import v2
from bkspark.wire.status import Status
from bookie_service.engine.bookie import Bookie
from bookie_service.engine.bookie_environment import BookieOptions
from bookie_service.formats.index import UNKNOWN_KEY
from bookie_service.storage.disks import FileSystemSpace
from bookie_service.storage.ledgers.opening import open_storage
from tests.bookie.changing import KEY, Client, add, entry
from tests.bookie.flushes import logs_with_a_map
from tests.bookie.polls import Client as PollingClient
from tests.bookie.polls import Poll
from tests.bookie.stepped_twins import restarted, twin_of
from tests.crash.images import Loss, crash_image
from tests.crash.simulated_files import SimulatedFiles
from tests.crash.twins import AtHand, AtOnce, BookieTwin, add_frame


def with_options(twin: BookieTwin, options: BookieOptions) -> None:
    """Let another bookie use the storage of the twin."""
    threads = [journal.thread for journal in twin.journals]
    twin.bookie = Bookie(twin.store, threads, twin.checkpoints, twin.disks, AtHand(), options, AtOnce())
    twin.checkpoints.bookie = twin.bookie
    for journal in twin.journals:
        journal.bookie = twin.bookie
    twin.bookie.look_at_disks()


def test_one_address_begins_as_many_ledgers_at_once_as_its_burst() -> None:
    twin = twin_of()
    with_options(twin, BookieOptions(new_ledgers_per_s=2, new_ledgers_burst=5))
    client = Client()
    for ledger_id in range(10, 20):
        twin.serve(client, v2.encode_reads(ledger_id, np.array([v2.LAST_ENTRY]), v2.DO_FENCING, KEY))
        twin.settle()
    assert client.statuses.count(Status.ETOOMANYREQUESTS) == 5
    assert [twin.store.ledger(ledger_id) is not None for ledger_id in range(10, 20)] == [True] * 5 + [False] * 5


def replayed(twin: BookieTwin) -> int:
    """Return how many records a start would replay now."""
    setup = twin.setup
    files = SimulatedFiles(crash_image(twin.disk, Loss.KEPT, Random(1)))
    return open_storage(files, setup.journal_paths, setup.ledger_paths, setup.store, setup.journal).replayed


def test_key_of_a_ledger_is_journaled_with_its_first_adds_alone() -> None:
    twin = twin_of()
    held = [(4, entry_id) for entry_id in range(40)]
    assert add(twin, *held[:20]) == [Status.EOK] * 20
    before = replayed(twin)
    assert add(twin, *held[20:]) == [Status.EOK] * 20
    assert (before, replayed(twin)) == (2, 3)


def test_key_that_was_lost_is_that_of_the_next_adds_and_durable() -> None:
    twin = twin_of()
    twin.store.create_ledger(4, UNKNOWN_KEY)
    assert add(twin, (4, 0), (4, 1)) == [Status.EOK] * 2
    assert add(twin, (4, 2), (4, 3), key=b"x" * 20) == [Status.EUA] * 2
    again = restarted(twin)
    assert add(again, (4, 2), (4, 3), key=b"x" * 20) == [Status.EUA] * 2
    assert add(again, (4, 2), (4, 3)) == [Status.EOK] * 2
    assert again.read(4, 1)[2] == entry(4, 1)


def test_ledger_whose_key_was_lost_does_not_count_as_one_that_begins() -> None:
    """A repair of many such ledgers would be refused for its rate."""
    twin = twin_of()
    with_options(twin, BookieOptions(new_ledgers_per_s=1, new_ledgers_burst=1))
    twin.store.create_ledger(4, UNKNOWN_KEY)
    client = Client()
    for ledger_id in (5, 6, 4):
        twin.serve(client, add_frame(KEY, entry(ledger_id, 0)))
        twin.settle()
    assert client.statuses == [Status.EOK, Status.ETOOMANYREQUESTS, Status.EOK]


def test_log_in_a_directory_that_became_full_is_complete_after_the_next_flush() -> None:
    twin = twin_of(directories=2)
    assert add(twin, (4, 0), (5, 0)) == [Status.EOK] * 2
    twin.checkpoint()
    assert logs_with_a_map(twin) == []
    twin.disk.spaces["/ledgers0"] = FileSystemSpace(1, 1 << 40, 1 << 30)
    twin.bookie.look_at_disks()
    assert add(twin, (4, 1), (5, 1)) == [Status.EOK] * 2
    twin.checkpoint()
    (log_id,) = logs_with_a_map(twin)
    assert str(twin.store.logs.path(log_id)).startswith("/ledgers0/")
    assert [twin.read(ledger_id, 1)[2] for ledger_id in (4, 5)] == [entry(4, 1), entry(5, 1)]


def test_start_says_which_directory_cannot_be_read() -> None:
    twin = twin_of(directories=2)
    assert add(twin, (4, 0)) == [Status.EOK]
    twin.checkpoint()
    disk = crash_image(twin.disk, Loss.KEPT, Random(1))
    broken = OSError(5, "Input/output error", "/ledgers1/current")
    disk.fault = lambda asked, path: broken if asked == "names" and path == "/ledgers1/current" else None
    again = BookieTwin(disk, twin.setup, twin.history.after_crash())
    assert [each for each in again.notices if each.startswith("/ledgers1/current cannot be read")]
    assert again.read(4, 0)[2] == entry(4, 0)


def test_bookie_without_metrics_records_no_times() -> None:
    twin = twin_of()
    assert not twin.bookie.times.is_on
    assert add(twin, *((4, entry_id) for entry_id in range(5))) == [Status.EOK] * 5
    assert add(twin, (4, 5)) == [Status.EOK]
    twin.bookie.times.fold()
    assert twin.bookie.times.journal_adds[0].count(0) == 0


def test_client_whose_long_poll_waits_is_owed_an_answer() -> None:
    twin = twin_of()
    assert add(twin, (4, 0)) == [Status.EOK]
    client, other = PollingClient(), PollingClient()
    assert not twin.bookie.owes(client)
    assert twin.bookie.long_polls.wait(Poll(client, 4, 0), 60.0)
    assert (twin.bookie.owes(client), twin.bookie.owes(other)) == (True, False)
    twin.bookie.forget(client)
    assert not twin.bookie.owes(client)


def test_entries_that_end_before_their_lac_are_refused_among_others_whose_lacs_are_checked() -> None:
    """Apache's storages read the LAC of each entry, and answer EBADREQ if the entry ends before."""
    twin = twin_of()
    client = Client()

    def frame(entry_id: int, size: int, lac: int) -> bytes:
        return add_frame(KEY, (struct.pack(">qqqq", 4, entry_id, lac, 0) + b"payload")[:size])

    whole = [frame(0, 39, -1), frame(1, 39, 0), frame(2, 39, 2)]
    short = [frame(3 + number, size, 1 << 60) for number, size in enumerate((16, 23))]
    twin.serve(client, b"".join([*whole, *short, frame(5, 24, 4), frame(6, 24, 6)]))
    twin.settle()
    stored = [entry_id for entry_id in range(7) if twin.read(4, entry_id)[0] == Status.EOK]
    assert sorted(client.statuses) == [Status.EOK] * 3 + [Status.EBADREQ] * 4
    assert stored == [0, 1, 5]
