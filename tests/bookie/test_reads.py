"""Reads that need the disk, for which the event loop never waits, and their limits."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from bkspark.wire import v2
from bkspark.wire.status import Status
from bookie_service.engine.bookie_environment import BookieOptions
from bookie_service.engine.reads import ReadOptions, Reads, View
from bookie_service.engine.single_reads import SingleReads
from bookie_service.engine.turns import ENDLESS
from bookie_service.metrics.requests import READ_ENTRY, ROWS_MAX, RequestTimes
from bookie_service.network.response_encoders import V2_RESPONSES
from bookie_service.network.v2_batch_read import BatchRead
from bookie_service.storage.disks import FileSystemSpace
from bookie_service.storage.index.per_ledger import PageOptions
from bookie_service.storage.io.byte_source import CachedSource, Fetched, FileRange, NotCached
from bookie_service.storage.io.files import File, LocalFiles
from bookie_service.storage.journal.journal import JournalOptions
from bookie_service.storage.ledgers.base import StoreOptions
from bookie_service.storage.ledgers.opening import Storage, open_storage
from tests.bookie.cold_files import ColdFiles, ColdIndex
from tests.bookie.collecting import intended_copy
from tests.bookie.ledger_stores import flush
from tests.bookie.serving import Peer, Serving, service_options, split, stored
from tests.crash.twins import AtOnce
from tests.disks import ROOMY

PAYLOADS = [os.urandom(random.Random(i).randrange(400)) for i in range(300)]


@contextmanager
def cold_serving(directory: Path, **limits: int) -> Iterator[tuple[Serving, ColdFiles]]:
    """Serve ledgers 5 and 6, whose entries lie in an entry log that is not cached."""
    options = service_options(directory, bookie=BookieOptions(reads=ReadOptions(**limits)))
    with Serving(options) as serving, serving.connect() as peer:
        for ledger_id in (5, 6):
            peer.add(ledger_id, 0, PAYLOADS)
    files = ColdFiles()
    with Serving(options, files) as serving:
        yield serving, files
        files.disk.set()


def ask(peer: Peer, ledger_id: int, entry_ids: list[int]) -> None:
    peer.send(v2.encode_reads(ledger_id, np.array(entry_ids)))


def test_reads_from_the_disk_return_what_reads_from_memory_do(tmp_path: Path) -> None:
    choice = random.Random(7)
    with cold_serving(tmp_path, replies_bytes_max=2000) as (serving, files), serving.connect() as peer:
        for _ in range(50):
            entry_ids = [choice.randrange(-1, 310) for _ in range(choice.randrange(1, 20))]
            if choice.random() < 0.5:
                entry_ids = list(range(max(0, entry_ids[0]), max(0, entry_ids[0]) + len(entry_ids)))
            ask(peer, 5, entry_ids)
            for reply in peer.replies(len(entry_ids)):
                entry_id = 299 if reply.entry_id == -1 else reply.entry_id
                if entry_id < 300:
                    assert reply.body == stored(5, entry_id, PAYLOADS[entry_id])
                else:
                    assert reply.status == Status.ENOENTRY
            first, count = choice.randrange(300), choice.randrange(1, 40)
            expected = [stored(6, first + i, payload) for i, payload in enumerate(PAYLOADS[first : first + count])]
            entries = split(peer.batch_read(6, first, count).body)
            # Fewer than asked for is not an error, but one is always there.
            assert entries
            assert entries == expected[: len(entries)]
        assert files.fetched > 50


def test_read_that_waits_for_the_disk_delays_nothing_else(tmp_path: Path) -> None:
    with cold_serving(tmp_path) as (serving, files), serving.connect() as peer:
        files.disk.clear()
        ask(peer, 5, [3])
        peer.send(v2.encode_batch_read(6, 0, 11, 2, 1 << 20))
        # The same connection goes on, adds and reads from memory alike.
        assert set(peer.add(7, 0, [b"x"] * 100)) == {Status.EOK}
        assert peer.read(7, 99).body == stored(7, 99, b"x")
        files.disk.set()
        replies = {reply.opcode: reply for reply in peer.replies(2)}
        assert replies[v2.READ].body == stored(5, 3, PAYLOADS[3])
        assert replies[v2.BATCH_READ].request_id == 11
        assert len(split(replies[v2.BATCH_READ].body)) == 2


def test_reads_beyond_those_that_may_wait_for_the_disk_are_too_many_requests(tmp_path: Path) -> None:
    with cold_serving(tmp_path, waiting_max=10) as (serving, files), serving.connect() as peer:
        files.disk.clear()
        ask(peer, 5, list(range(10)))
        ask(peer, 6, [0])
        peer.send(v2.encode_batch_read(6, 4, 12, 2, 1 << 20))
        refused = peer.replies(2)
        assert {(reply.opcode, reply.status) for reply in refused} == {
            (v2.READ, Status.ETOOMANYREQUESTS),
            (v2.BATCH_READ, Status.ETOOMANYREQUESTS),
        }
        files.disk.set()
        assert [reply.status for reply in peer.replies(10)] == [Status.EOK] * 10
        assert peer.read(6, 0).status == Status.EOK


def test_reads_beyond_the_limit_in_flight_wait_and_are_answered(tmp_path: Path) -> None:
    with cold_serving(tmp_path, in_flight_max=4) as (serving, files), serving.connect() as peer:
        files.disk.clear()
        for entry_id in range(40):
            ask(peer, 5, [entry_id])
            peer.send(v2.encode_batch_read(6, entry_id, entry_id, 1, 1 << 20))
        files.disk.set()
        assert {reply.status for reply in peer.replies(80)} == {Status.EOK}


def test_unreadable_log_is_an_io_error_never_a_negative(tmp_path: Path) -> None:
    with cold_serving(tmp_path) as (serving, files), serving.connect() as peer:
        files.disk.clear()
        ask(peer, 5, [3])
        for path in tmp_path.glob("ledgers/current/*.log"):
            path.unlink()
        files.disk.set()
        # The file was open already, or it was not: what lies there is served or said to be unreadable.
        assert peer.reply().status in (Status.EOK, Status.EIO)
        assert peer.read(6, 3).status == Status.EIO


def test_connection_that_closes_while_its_read_waits_does_no_harm(tmp_path: Path) -> None:
    with cold_serving(tmp_path, in_flight_max=1) as (serving, files), serving.connect() as peer:
        files.disk.clear()
        with serving.connect() as leaving:
            ask(leaving, 5, list(range(300)))
        files.disk.set()
        assert peer.read(5, 3).body == stored(5, 3, PAYLOADS[3])


# ---- what happens between asking for bytes and having them ----


class Waiting:
    """A `fetch` that keeps what is asked for."""

    def __init__(self) -> None:
        self.asked: list[tuple[FileRange, Callable[[Fetched], None]]] = []

    def __call__(self, place: FileRange, on_fetched: Callable[[Fetched], None]) -> None:
        self.asked.append((place, on_fetched))

    def deliver(self) -> FileRange:
        """Read what was asked for first, and hand it over."""
        place, on_fetched = self.asked.pop(0)
        file = LocalFiles().open(place.path)
        data = file.read(place.size, place.offset)
        file.close()
        on_fetched(Fetched(place, data))
        return place


class Taker:
    """A client that takes everything, or nothing for a time."""

    is_open = True

    def __init__(self) -> None:
        self.is_taking = True
        self.sent = b""
        self.callbacks: list[Callable[[], None]] = []

    def send(self, parts: object) -> None:
        self.sent += b"".join(parts)

    def when_taking(self, callback: Callable[[], None]) -> None:
        self.callbacks.append(callback)


def no_space() -> FileSystemSpace:
    raise AssertionError("nothing asks for it")


def flushed_storage(directory: Path, files: LocalFiles) -> Storage:
    """Return storage with entries 0 to 9 of ledgers 1 and 2 in one rotated log."""
    storage = open_storage(files, [str(directory / "j")], [str(directory / "l")], StoreOptions(), JournalOptions())
    store = storage.store
    for ledger_id in (1, 2):
        ledger = store.create_ledger(ledger_id, bytes(20))
        items = [b"\0\0\0\0" + stored(ledger_id, entry_id, b"x" * 50) for entry_id in range(10)]
        items = [(len(item) - 4).to_bytes(4, "big") + item[4:] for item in items]
        octets = np.frombuffer(b"".join(items), np.uint8)
        sizes = np.array([len(item) for item in items])
        store.insert(ledger, np.arange(10), store.active.place(octets, np.cumsum(sizes) - sizes, sizes))
    flush(store)
    store.seal_logs()
    return storage


def test_entry_that_a_compaction_moves_while_its_read_waits_is_read_where_it_is_now(tmp_path: Path) -> None:
    """No torn view: positions are looked up again, and a log's number is never reused."""
    files = ColdFiles()
    files.is_cold = False
    storage = flushed_storage(tmp_path, files)
    files.is_cold = True
    waiting, client = Waiting(), Taker()
    reads = Reads(View(storage.store, no_space, ReadOptions()), waiting, AtOnce(), lambda: None)
    assert reads.answer(BatchRead(client, 2, 0, 9, 0, 1 << 20), ENDLESS)
    files.is_cold = False
    (log_id,) = storage.store.logs.rotated()
    storage.store.prepare_drop([1], fenced=[], now_s=0)
    storage.store.drop([1])
    intent = intended_copy(storage.compactor, log_id)
    storage.compactor.finish(intent, lambda entries, size: None)
    files.is_cold = True
    old = waiting.asked[0][0]
    storage.store.forget_log(log_id)
    waiting.deliver()
    assert not client.sent, "the old place is not used any more"
    assert waiting.asked[0][0].path != old.path
    storage.compactor.remove(log_id)
    waiting.deliver()
    assert split(client.sent[36:]) == [stored(2, entry_id, b"x" * 50) for entry_id in range(10)]
    storage.store.close()


def test_peer_that_takes_nothing_holds_no_fetched_bytes(tmp_path: Path) -> None:
    files = ColdFiles()
    files.is_cold = False
    storage = flushed_storage(tmp_path, files)
    files.is_cold = True
    waiting, client = Waiting(), Taker()
    reads = Reads(View(storage.store, no_space, ReadOptions()), waiting, AtOnce(), lambda: None)
    assert reads.answer(SingleReads(client, V2_RESPONSES, np.array([1, 1]), np.array([4, 5])), ENDLESS)
    client.is_taking = False
    waiting.deliver()
    assert (client.sent, len(client.callbacks), waiting.asked) == (b"", 1, [])
    client.is_taking = True
    client.callbacks.pop()()
    waiting.deliver()
    assert client.sent.count(b"x" * 50) == 2
    storage.store.close()


def test_index_pages_that_are_not_cached_are_read_by_fetch_threads(tmp_path: Path) -> None:
    store = StoreOptions(pages=PageOptions(64), disks=ROOMY)
    with Serving(service_options(tmp_path, store=store)) as serving, serving.connect() as peer:
        for ledger_id in (5, 6):
            peer.add(ledger_id, 0, PAYLOADS)
    files = ColdIndex(64)
    with Serving(service_options(tmp_path, store=store), files) as serving, serving.connect() as peer:
        ask(peer, 5, list(range(0, 300, 3)))
        for reply in peer.replies(100):
            assert reply.body == stored(5, reply.entry_id, PAYLOADS[reply.entry_id])
        entries = split(peer.batch_read(6, 0, 300).body)
        assert entries == [stored(6, entry_id, payload) for entry_id, payload in enumerate(PAYLOADS[: len(entries)])]
        assert len({*files.fetched}) == 2
    assert serving.failure is None


def test_changing_bytes_are_those_of_now_and_not_those_that_were_fetched(tmp_path: Path) -> None:
    files = ColdIndex(64)
    path = str(tmp_path / "1.idx")
    LocalFiles().replace(path, b"old" * 100)
    source = CachedSource(4096)
    source.begin()
    file = files.open(path)
    with pytest.raises(NotCached) as miss:
        source.changing_bytes_at(file, 30, 60)
    fetched = Fetched(miss.value.place, b"old" * 10)
    file.write([b"new" * 100], 0)
    files.fetched.append(path)
    source.begin(fetched)
    assert bytes(source.changing_bytes_at(file, 30, 60)) == b"new" * 10
    assert bytes(source.changing_bytes_at(file, 30, 290)) == (b"new" * 100)[290:]
    assert bytes(source.changing_bytes_at(file, 30, 400)) == b""
    file.close()


def test_changing_bytes_are_read_after_fetching_if_the_file_system_cannot_tell_what_is_cached(
    tmp_path: Path,
) -> None:
    class Mute(File):
        def read_cached(self, buffer: memoryview, offset: int) -> int:
            return 0

    path = str(tmp_path / "1.idx")
    LocalFiles().replace(path, b"now" * 100)
    file = Mute(LocalFiles().open(path).descriptor, path)
    source = CachedSource(4096)
    source.begin(Fetched(FileRange(path, 60, 30), error=OSError("it had moved")))
    assert bytes(source.changing_bytes_at(file, 30, 60)) == b"now" * 10
    file.close()


def test_bytes_lent_by_the_page_cache_are_those_of_the_file(tmp_path: Path) -> None:
    content = os.urandom(100_000)
    path = tmp_path / "log"
    path.write_bytes(content)
    file = LocalFiles().open(str(path))
    source = CachedSource(4096)
    choice = random.Random(3)
    for _ in range(100):
        source.begin()
        offset, size = choice.randrange(110_000), choice.randrange(1, 9000)
        try:
            assert bytes(source.bytes_at(file, size, offset)) == content[offset : offset + size]
        except NotCached as miss:
            source.begin(Fetched(miss.place, file.read(miss.place.size, miss.place.offset)))
            assert bytes(source.bytes_at(file, size, offset)) == content[offset : offset + size]
    file.close()


def test_times_of_reads_are_counted_without_a_scrape(tmp_path: Path) -> None:
    """What waits to be counted is bounded: a bookie that is never scraped must not grow."""
    storage = flushed_storage(tmp_path, ColdFiles())
    times = RequestTimes(lambda: 1)
    reads = Reads(View(storage.store, no_space, ReadOptions()), Waiting(), AtOnce(), lambda: None, times)
    for _ in range(2000):
        assert reads.answer(SingleReads(Taker(), V2_RESPONSES, np.array([9]), np.array([0])), ENDLESS)
        assert len(times.reads.rows) < ROWS_MAX
    assert times.failed.count(READ_ENTRY) > 1000, "there is no ledger 9"
    storage.store.close()


def test_reads_of_entries_far_apart_are_found_and_counted(tmp_path: Path) -> None:
    files = ColdFiles()
    files.is_cold = False
    storage = flushed_storage(tmp_path, files)
    times = RequestTimes(lambda: 1)
    view = View(storage.store, no_space, ReadOptions())
    reads = Reads(view, Waiting(), AtOnce(), lambda: None, times)
    assert reads.answer(SingleReads(Taker(), V2_RESPONSES, np.array([1] * 4), np.array([1, 4, 7, 99])), ENDLESS)
    times.fold()
    assert (times.succeeded.count(READ_ENTRY), times.failed.count(READ_ENTRY)) == (3, 1)
    assert view.entries_read == 3
    storage.store.close()
