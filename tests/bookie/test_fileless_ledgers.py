"""Ledgers without entries take a row of one file, not a file each, and their fences hold as those of all others do.

Any client may fence a ledger id that the bookie never had, or send an explicit LAC of it; 40,000 such requests of 44
bytes became 335 MB in index files.
"""

from __future__ import annotations

import errno
import multiprocessing
import resource
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from random import Random

import numpy as np
import pytest
from crc32c import crc32c

from bkspark.errors import ConfigurationError, StorageDamaged
from bkspark.wire import bookkeeper_protocol_pb2 as protocol
from bkspark.wire import v2
from bkspark.wire.status import Status
from bkspark.wire.v3 import StatusCode
from bookie_service.admin.check import BookieCheck
from bookie_service.formats import index_files, ledger_headers
from bookie_service.formats.index import LAYOUT, UNKNOWN_KEY, LedgerHeader, encode_head, merged, relative_path
from bookie_service.settings.service_options import ServiceOptions
from bookie_service.storage.index.ledger_headers import LedgerHeaders, LedgerHeadersWriter
from bookie_service.storage.index.manifest import IndexManifestWriter
from bookie_service.storage.io.files import LocalFiles, ReadOnlyFiles
from bookie_service.storage.ledgers.base import StoreOptions
from bookie_service.storage.ledgers.factory import check_written_by
from bookie_service.storage.ledgers.limbo import Limbo
from bookie_service.storage.ledgers.storage_class import StorageClass
from tests.bookie.collecting import Bench
from tests.bookie.faulty_files import FaultyFiles
from tests.bookie.folders import cut, flip
from tests.bookie.served_process import ServedProcess
from tests.bookie.serving import KEY, Peer, Serving, service_options, stored
from tests.bookie.v3_peer import V3Peer
from tests.crash.twins import lac_packet
from tests.floods.requests import REQUESTS, UNKNOWN

FENCES = 2000
MANY = 100_000
FENCE_BYTES_MAX = 64
MEMORY_BYTES_MAX = 48 * 1024 * 1024
"""16,384 ledgers stay in memory as objects, however many there are; the others take 46 bytes each."""
LAC_BYTES_MAX = 96
RECOVERY = v2.RECOVERY_ADD | v2.HIGH_PRIORITY
FILE_STORAGES = (StorageClass.SORTED, StorageClass.INTERLEAVED)
HELD = 5
SOME = (UNKNOWN, UNKNOWN + 777, UNKNOWN + FENCES - 1)


def current(options: ServiceOptions) -> Path:
    return Path(options.ledger_directories[0]) / "current"


def headers_file(options: ServiceOptions) -> Path:
    return current(options) / ledger_headers.FILE_NAME


def disk_bytes(directory: Path) -> int:
    """Return the disk space of everything in a directory, as `du` does."""
    return sum(path.stat().st_blocks * 512 for path in directory.rglob("*"))


def resident_bytes() -> int:
    """Return the memory that this process has in use."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def index_file(options: ServiceOptions, ledger_id: int) -> Path:
    return current(options).joinpath(*relative_path(ledger_id))


def flood(peer: Peer, name: str, count: int) -> None:
    requests = REQUESTS[name](count)
    peer.send(requests)
    for _ in range(count):
        assert peer.frame() is not None


def refuses_ordinary_adds(peer: Peer, *ledger_ids: int) -> bool:
    return all(peer.add(ledger_id, 9, [b"late"]) == [Status.EFENCED] for ledger_id in ledger_ids)


@pytest.fixture(params=FILE_STORAGES, ids=lambda storage: storage.short_name)
def options(tmp_path: Path, request: pytest.FixtureRequest) -> ServiceOptions:
    return service_options(tmp_path, store=StoreOptions(request.param))


@pytest.fixture
def fenced(tmp_path: Path) -> ServiceOptions:
    """Return the options of a bookie that has a ledger with an entry, and 50 fenced ones without, and that stopped."""
    options = service_options(tmp_path)
    with Serving(options) as serving, serving.connect() as peer:
        assert peer.add(HELD, 0, [b"held"]) == [Status.EOK]
        flood(peer, "V2 fences of unknown ledgers", 50)
    return options


# ---- cost ----


def test_fence_of_an_unknown_ledger_costs_few_bytes_and_survives_a_kill(options: ServiceOptions) -> None:
    with ServedProcess(options) as serving, serving.connect() as peer:
        flood(peer, "V2 fences of unknown ledgers", 1)
    before = disk_bytes(current(options))
    with ServedProcess(options) as serving, serving.connect() as peer:
        flood(peer, "V2 fences of unknown ledgers", FENCES)
        # Stops in order, so that all of it is in the ledger directory.
    assert disk_bytes(current(options)) - before < FENCE_BYTES_MAX * FENCES
    assert not list(current(options).rglob("*.idx"))
    with ServedProcess(options) as serving, serving.connect() as peer:
        assert refuses_ordinary_adds(peer, *SOME)
        assert peer.read(SOME[1], 0).status == Status.ENOENTRY
        assert peer.read(UNKNOWN + FENCES, 0).status == Status.ENOLEDGER
        flood(peer, "V2 fences of unknown ledgers", FENCES + 100)
        serving.kill()
    with ServedProcess(options) as serving, serving.connect() as peer:
        assert refuses_ordinary_adds(peer, *SOME, UNKNOWN + FENCES, UNKNOWN + FENCES + 99)


def fence_many(directory: Path) -> tuple[int, set[Path]]:
    """Fence ledgers that a new store never had. Return by how many bytes the process grew, and the new files."""
    bench = Bench(directory)
    bench.put(HELD, range(1))
    bench.flush()
    names = set(directory.rglob("*"))
    memory_before = resident_bytes()
    for first in range(UNKNOWN, UNKNOWN + MANY, 10_000):
        for ledger_id in range(first, first + 10_000):
            bench.store.fence(bench.store.create_ledger(ledger_id, KEY))
        bench.flush()
    return resident_bytes() - memory_before, set(directory.rglob("*")) - names


def test_hundred_thousand_fences_of_missing_ledgers_cost_one_file_and_bounded_memory(tmp_path: Path) -> None:
    # In a process of its own: what other tests left in this one would decide by how much it grows.
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
        grown_bytes, new_files = process.submit(fence_many, tmp_path).result()
    assert grown_bytes < MEMORY_BYTES_MAX
    (path,) = new_files
    assert path.name == ledger_headers.FILE_NAME
    assert path.stat().st_size < 32 * MANY
    bench = Bench(tmp_path)
    for ledger_id in (UNKNOWN, UNKNOWN + MANY // 2, UNKNOWN + MANY - 1):
        ledger = bench.store.ledger(ledger_id)
        assert ledger is not None
        assert ledger.fenced
        assert ledger.master_key == KEY
    assert bench.store.ledger(UNKNOWN + MANY) is None
    bench.drop(*range(UNKNOWN, UNKNOWN + MANY))
    bench.reopen()
    assert bench.store.index.ledger_ids().tolist() == [HELD]
    assert path.stat().st_size < 100
    assert index_files.version((tmp_path / "ledgers0" / index_files.FILE_NAME).read_bytes()) == 2


def test_explicit_lac_of_an_unknown_ledger_costs_few_bytes(options: ServiceOptions) -> None:
    count = 2000
    with Serving(options) as serving, serving.connect() as peer:
        peer.send(REQUESTS["V3 explicit LACs of unknown ledgers"](count))
        for _ in range(count):
            assert peer.frame() is not None
    assert headers_file(options).stat().st_size < LAC_BYTES_MAX * count
    assert not list(current(options).rglob("*.idx"))
    header = LedgerHeaders(ReadOnlyFiles(), [str(current(options))], None).header(UNKNOWN + 7)
    assert header is not None
    assert header.master_key == KEY
    assert header.explicit_lac[:16] == (UNKNOWN + 7).to_bytes(8, "big") + bytes(8)


def test_fences_of_unknown_ledgers_cost_a_key_value_store_a_small_row_each(tmp_path: Path) -> None:
    options = service_options(tmp_path, store=StoreOptions(StorageClass.DB))
    with Serving(options) as serving, serving.connect() as peer:
        flood(peer, "V2 fences of unknown ledgers", 2000)
    assert not headers_file(options).exists()
    assert disk_bytes(current(options)) < 4096 * 2000, "an index file each would be 8 KiB and its directory"


# ---- a first entry, and the end ----


def test_first_entry_makes_an_index_file_and_keeps_the_fence(options: ServiceOptions) -> None:
    with Serving(options) as serving, serving.connect() as peer:
        peer.read(HELD, -1, v2.DO_FENCING)
        peer.read(HELD + 1, -1, v2.DO_FENCING)
    assert LedgerHeaders(ReadOnlyFiles(), [str(current(options))], None).ledger_ids().tolist() == [HELD, HELD + 1]
    with Serving(options) as serving, serving.connect() as peer:
        assert refuses_ordinary_adds(peer, HELD)
        assert peer.add(HELD, 0, [b"recovered"], RECOVERY) == [Status.EOK]
        assert refuses_ordinary_adds(peer, HELD)
    assert index_file(options, HELD).exists()
    assert LedgerHeaders(ReadOnlyFiles(), [str(current(options))], None).ledger_ids().tolist() == [HELD + 1]
    with Serving(options) as serving, serving.connect() as peer:
        assert refuses_ordinary_adds(peer, HELD, HELD + 1)
        assert peer.read(HELD, 0).body == stored(HELD, 0, b"recovered")
        assert peer.read(HELD, 1).status == Status.ENOENTRY


def test_ledger_that_an_earlier_version_gave_an_index_file_keeps_it(fenced: ServiceOptions) -> None:
    """An earlier version made a file of 8 KiB for a fence, and no file of headers."""
    path = index_file(fenced, 6)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(encode_head(LedgerHeader(6, 3, True, KEY)))
    IndexManifestWriter(LocalFiles(), [str(current(fenced))]).note({6: LAYOUT.positions_at})
    for _ in range(2):
        with Serving(fenced) as serving, serving.connect() as peer:
            assert refuses_ordinary_adds(peer, 6, UNKNOWN)
            peer.read(6, -1, v2.DO_FENCING)
    assert path.stat().st_size == LAYOUT.positions_at


def test_fence_and_lac_hold_when_a_file_without_them_lies_beside_the_row(fenced: ServiceOptions) -> None:
    """A disk that hides the file of a ledger for a while lets its fence go to the row; the file comes back later."""
    path = index_file(fenced, UNKNOWN)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(encode_head(LedgerHeader(UNKNOWN, 7, False, KEY)))
    with Serving(fenced) as serving, serving.connect() as peer:
        assert refuses_ordinary_adds(peer, UNKNOWN)
        assert peer.add(UNKNOWN, 0, [b"recovered"], RECOVERY) == [Status.EOK]
    with Serving(fenced) as serving, serving.connect() as peer:
        assert refuses_ordinary_adds(peer, UNKNOWN)
        assert peer.read(UNKNOWN, 0).body == stored(UNKNOWN, 0, b"recovered")


def test_merged_headers_keep_the_fence_the_key_and_the_higher_lac() -> None:
    def packet(lac: int) -> bytes:
        return (5).to_bytes(8, "big") + lac.to_bytes(8, "big") + b"digest"

    first = LedgerHeader(5, 4, True, UNKNOWN_KEY, packet(9))
    second = LedgerHeader(5, 6, False, KEY, packet(3))
    for one, other in ((first, second), (second, first)):
        assert merged(one, other) == LedgerHeader(5, 6, True, KEY, packet(9))
    assert merged(LedgerHeader(5, 0, False, KEY), second) == LedgerHeader(5, 6, False, KEY, packet(3))


def test_collected_ledger_takes_its_row_with_it_and_stays_fenced(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    for ledger_id in (7, 8):
        bench.store.fence(bench.store.create_ledger(ledger_id, KEY))
        bench.cluster.existing.add(ledger_id)
    bench.flush()
    bench.delete(7)
    assert bench.collect().dropped_ledgers == 1
    for _ in range(2):
        assert bench.store.index.ledger_ids().tolist() == [8]
        assert not bench.store.index.has(7)
        assert 7 in bench.store.tombstones
        kept = bench.store.ledger(8)
        assert kept is not None
        assert kept.fenced
        bench.reopen()


# ---- damage ----


@pytest.mark.parametrize("damage", ["removed", "emptied", "head", "row", "cut"])
def test_lost_headers_put_every_ledger_in_doubt(
    damage: str, fenced: ServiceOptions, caplog: pytest.LogCaptureFixture
) -> None:
    """It is unknown which fences were there: no ordinary add is taken, and no certain "no" is given (B2)."""
    path = headers_file(fenced)
    if damage == "removed":
        path.unlink()
    elif damage in ("emptied", "cut"):
        cut(path, 0 if damage == "emptied" else -1)
    else:
        flip(path, 9 if damage == "head" else 900)
    report = BookieCheck(ReadOnlyFiles(), fenced.journal_directories, fenced.ledger_directories).run()
    assert [each.path for each in report.damage if each.path.endswith(ledger_headers.FILE_NAME)] == [str(path)]
    suspects = [UNKNOWN + number for number in range(50)]
    for _ in range(2):
        with Serving(fenced, suspects=suspects) as serving, serving.connect() as peer:
            for ledger_id in (UNKNOWN, UNKNOWN + 49, HELD):
                assert peer.add(ledger_id, 1, [b"late"])[0] in (Status.EIO, Status.EFENCED)
                assert peer.read(ledger_id, 1).status == Status.EIO
            assert peer.read(HELD, 0).body == stored(HELD, 0, b"held")
    assert f"{path}" in caplog.text
    assert set(suspects) < set(Limbo(LocalFiles(), [str(current(fenced))]).ledger_ids.tolist())


@pytest.mark.parametrize("at", [9, 20, 70], ids=["head", "its row", "the row before the last one"])
def test_explicit_lac_whose_row_is_damaged_is_unknown_and_not_denied(tmp_path: Path, at: int) -> None:
    """Nothing else of such a ledger is on the disk. With "no entry" from this bookie, a reader's LAC could fall."""
    options = service_options(tmp_path)
    with Serving(options) as serving, V3Peer(serving.port) as peer:
        for ledger_id in (UNKNOWN, UNKNOWN + 1):
            write = {"ledgerId": ledger_id, "lac": 3, "masterKey": KEY, "body": lac_packet(ledger_id, 3)}
            assert peer.call(protocol.WRITE_LAC, **write).status == StatusCode.EOK
    assert headers_file(options).stat().st_size > 100
    flip(headers_file(options), at)
    for _ in range(2):
        with Serving(options, suspects=[UNKNOWN, UNKNOWN + 1]) as serving, V3Peer(serving.port) as peer:
            for ledger_id in (UNKNOWN, UNKNOWN + 1):
                assert peer.call(protocol.READ_LAC, ledgerId=ledger_id).status == StatusCode.EUNKNOWNLEDGERSTATE
            assert peer.call(protocol.READ_LAC, ledgerId=UNKNOWN + 2).status == StatusCode.ENOENTRY


def test_records_in_the_journal_of_a_ledger_whose_header_is_lost_are_kept(fenced: ServiceOptions) -> None:
    with Serving(fenced) as serving, serving.connect() as peer:
        assert peer.add(UNKNOWN, 0, [b"recovered"], RECOVERY) == [Status.EOK]
        serving.abandon()
    headers_file(fenced).unlink()
    with Serving(fenced) as serving, serving.connect() as peer:
        assert peer.read(UNKNOWN, 0).body == stored(UNKNOWN, 0, b"recovered")
        assert peer.add(UNKNOWN, 1, [b"late"])[0] in (Status.EIO, Status.EFENCED)


def test_record_that_a_crash_tore_is_not_a_loss(fenced: ServiceOptions) -> None:
    path = headers_file(fenced)
    path.write_bytes(path.read_bytes() + bytes(30))
    with Serving(fenced) as serving, serving.connect() as peer:
        assert refuses_ordinary_adds(peer, UNKNOWN, UNKNOWN + 49)
        assert peer.read(HELD, 1).status == Status.ENOENTRY
        peer.read(UNKNOWN + 50, -1, v2.DO_FENCING)
    with Serving(fenced) as serving, serving.connect() as peer:
        assert refuses_ordinary_adds(peer, UNKNOWN, UNKNOWN + 50)
        assert peer.read(HELD, 1).status == Status.ENOENTRY


def test_earlier_version_refuses_the_directories_while_a_header_is_there(fenced: ServiceOptions) -> None:
    """It would take adds to fenced ledgers. Version 2 is what it reads."""
    manifest = current(fenced) / index_files.FILE_NAME
    assert index_files.version(manifest.read_bytes()) == 3
    known = IndexManifestWriter(LocalFiles(), [str(current(fenced))])
    headers = LedgerHeadersWriter(LocalFiles(), [str(current(fenced))], known)
    headers.write([], headers.ledger_ids().tolist())
    for _ in range(2):
        with Serving(fenced) as serving, serving.connect() as peer:
            assert peer.read(HELD, 1).status == Status.ENOENTRY
        assert index_files.version(manifest.read_bytes()) == 2
    with Serving(fenced) as serving, serving.connect() as peer:
        peer.read(UNKNOWN, -1, v2.DO_FENCING)
    assert index_files.version(manifest.read_bytes()) == 3


def test_headers_of_a_later_version_refuse_the_start(fenced: ServiceOptions) -> None:
    head = b"BKSH\0\0\0\2" + bytes(8)
    headers_file(fenced).write_bytes(head + crc32c(head).to_bytes(4, "big"))
    with pytest.raises(StorageDamaged, match=r"ledgerHeaders.*: version 2"), Serving(fenced):
        pass


def test_key_value_storage_refuses_directories_that_have_headers_alone(tmp_path: Path) -> None:
    directories = [str(tmp_path)]
    headers = LedgerHeadersWriter(LocalFiles(), directories, IndexManifestWriter(LocalFiles(), directories))
    headers.write([LedgerHeader(5, 0, True, KEY)])
    with pytest.raises(ConfigurationError, match="DbLedgerStorage does not read"):
        check_written_by(LocalFiles(), [str(tmp_path)], StorageClass.DB)


# ---- the file itself ----


def headers_writer(directories: list[str]) -> LedgerHeadersWriter:
    """Return a writer that rewrites its file often."""
    known = IndexManifestWriter(LocalFiles(), directories)
    return LedgerHeadersWriter(LocalFiles(), directories, known, rows_beside=30)


def test_headers_are_what_a_dictionary_would_have(tmp_path: Path) -> None:
    random, directories = Random(1), [str(tmp_path)]
    model: dict[int, LedgerHeader] = {}
    headers = headers_writer(directories)
    for step in range(300):
        changed = [
            LedgerHeader(
                each, 0, random.random() < 0.5, random.randbytes(20), random.choice((b"", random.randbytes(30)))
            )
            for each in random.sample(range(50), random.randrange(6))
        ]
        dropped = random.sample(range(50), random.randrange(6))
        removed = random.sample(range(50), random.randrange(3))
        for ledger_id in removed:
            headers.remove(ledger_id)
        headers.write(changed, dropped)
        for ledger_id in (*dropped, *removed):
            model.pop(ledger_id, None)
        model |= {header.ledger_id: header for header in changed}
        if step % 40 == 39:
            headers = headers_writer(directories)
            assert not headers.damage
        assert [headers.header(each) for each in range(50)] == [model.get(each) for each in range(50)]
        assert headers.ledger_ids().tolist() == sorted(model)
        assert len(headers) == len(model)
    assert headers_size(tmp_path) < 20_000, "rows that do not count any more are left out"


def test_header_of_a_ledger_that_also_has_a_recorded_file_is_dropped_at_a_start(tmp_path: Path) -> None:
    headers = headers_writer([str(tmp_path)])
    headers.write([LedgerHeader(each, 0, True, KEY) for each in (1, 2, 3)])
    headers.settle(np.array([2, 7]))
    assert (headers.ledger_ids().tolist(), headers.header(2)) == ([1, 3], None)
    assert headers_writer([str(tmp_path)]).ledger_ids().tolist() == [1, 3]


def test_shorter_file_of_a_later_generation_is_not_a_loss_though_a_crash_came_before_its_record(tmp_path: Path) -> None:
    directories = [str(tmp_path)]
    headers = headers_writer(directories)
    headers.write([LedgerHeader(each, 0, True, KEY) for each in range(40)])
    recorded = (tmp_path / index_files.FILE_NAME).read_bytes()
    length = headers_size(tmp_path)
    for each in range(39):
        headers.remove(each)
        headers.write([])
    assert headers_size(tmp_path) < length
    (tmp_path / index_files.FILE_NAME).write_bytes(recorded)
    again = headers_writer(directories)
    assert (again.damage, again.ledger_ids().tolist()) == ("", [39])


class Meddling(LocalFiles):
    """Does something in the middle of the first write."""

    def __init__(self, act: Callable[[], object]) -> None:
        self._act: Callable[[], object] | None = act

    def replace(self, path: str, data: bytes) -> None:
        act, self._act = self._act, None
        if act is not None:
            act()
        super().replace(path, data)


def test_ledger_that_is_removed_while_rows_are_written_stays_removed(tmp_path: Path) -> None:
    """The event loop removes ledgers, and a checkpoint's thread writes."""
    directories = [str(tmp_path)]
    files = LocalFiles()
    LedgerHeadersWriter(files, directories, IndexManifestWriter(files, directories)).write(
        [LedgerHeader(each, 0, True, KEY) for each in (1, 2, 3)]
    )
    # Not noted, as after a crash, so that the next write replaces the file.
    (tmp_path / index_files.FILE_NAME).unlink()
    meddling = Meddling(lambda: headers.remove(2))
    headers = LedgerHeadersWriter(meddling, directories, IndexManifestWriter(files, directories))
    headers.write([LedgerHeader(4, 0, True, KEY)])
    assert headers.ledger_ids().tolist() == [1, 3, 4]
    assert headers.header(2) is None
    headers.write([])
    again = LedgerHeadersWriter(files, directories, IndexManifestWriter(files, directories))
    assert again.ledger_ids().tolist() == [1, 3, 4]


def test_headers_that_find_no_space_are_written_by_the_next_flush(tmp_path: Path) -> None:
    files = FaultyFiles()
    files.code = errno.ENOSPC
    bench = Bench(tmp_path, files)
    bench.put(HELD, range(1))
    bench.store.fence(bench.store.create_ledger(7, KEY))
    bench.flush()
    bench.store.fence(bench.store.create_ledger(8, KEY))
    flush = bench.store.begin_flush()
    assert flush is not None
    files.fault = lambda operation, path: operation == "write" and path.endswith(ledger_headers.FILE_NAME)
    with pytest.raises(OSError, match=ledger_headers.FILE_NAME):
        bench.store.write_flush(flush)
    assert not bench.store.index.is_clean
    files.fault = None
    bench.store.write_flush(flush)
    bench.store.end_flush(flush)
    assert bench.store.index.is_clean
    bench.reopen()
    assert bench.store.index.ledger_ids().tolist() == [HELD, 7, 8]


def headers_size(directory: Path) -> int:
    return (directory / ledger_headers.FILE_NAME).stat().st_size


def test_no_header_shows_its_master_key(tmp_path: Path) -> None:
    rows = ledger_headers.rows_of([LedgerHeader(5, 0, True, b"s3cret-master-key-20")], [])
    assert "cret" not in repr(rows)
