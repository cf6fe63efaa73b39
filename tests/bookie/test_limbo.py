"""Limbo: a bookie that may have lost entries never says that it has not got one (B2, P29, docs/protocol.md §6.10)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bkspark.errors import MetadataError, StorageDamaged
from bkspark.wire import v2
from bkspark.wire.status import Status
from bookie_service.cluster.ledger_shares import HeldShare, LedgerShare
from bookie_service.cluster.limbo_check import LimboCheck, holds
from bookie_service.engine import rules
from bookie_service.engine.bookie_environment import BookieOptions
from bookie_service.formats import limbo as limbo_format
from bookie_service.formats.index import STORED_ENTRY_ID_MAX, LedgerHeader
from bookie_service.settings.service_options import ServiceOptions
from bookie_service.storage.index.index import EXTENT_ENTRIES, LedgerUpdate
from bookie_service.storage.index.per_ledger import PageOptions, PerLedgerIndex
from bookie_service.storage.io.files import LocalFiles
from bookie_service.storage.journal.journal import JournalOptions
from bookie_service.storage.ledgers.base import BaseLedgerStorage, StoreOptions
from bookie_service.storage.ledgers.factory import open_ledger_storage
from bookie_service.storage.ledgers.limbo import DirtyMarker, Limbo
from bookie_service.storage.ledgers.storage_class import StorageClass
from tests.bookie.counted_reads import ReadCountingFiles
from tests.bookie.faulty_files import FaultyFiles
from tests.bookie.ledger_stores import open_below
from tests.bookie.limbo_checks import (
    DELETED,
    LACKING,
    NOT_SETTLED,
    WHOLE,
    Shares,
    in_limbo_on_three_disks,
    looked_at,
    store_with,
)
from tests.bookie.serving import KEY, Serving, service_options, stored

RECOVERY = v2.RECOVERY_ADD | v2.HIGH_PRIORITY


@pytest.fixture
def options(tmp_path: Path) -> ServiceOptions:
    return service_options(tmp_path)


def unsafe(options: ServiceOptions, key: str) -> ServiceOptions:
    if key == "journalSyncData":
        return replace(options, journal=JournalOptions(sync_groups=False))
    return replace(options, bookie=BookieOptions(journals_entries=False))


def crash(options: ServiceOptions) -> None:
    """Add an entry to ledger 5, fence ledger 6, and end without a stop."""
    with Serving(options) as serving, serving.connect() as peer:
        assert peer.add(5, 0, [b"x"]) == [Status.EOK]
        peer.read(6, 0, v2.DO_FENCING)
        serving.abandon()


@pytest.mark.parametrize("key", ["journalWriteData", "journalSyncData"])
def test_p29_crash_with_an_incomplete_journal_puts_ledgers_in_limbo(options: ServiceOptions, key: str) -> None:
    """BP-46, case 2: no client gets the answer that an entry that only memory held never existed."""
    crash(unsafe(options, key))
    with Serving(options, suspects=[5, 8]) as serving, serving.connect() as peer:
        for ledger_id in (5, 6, 8):
            for entry_id in (1, v2.LAST_ENTRY):
                assert peer.read(ledger_id, entry_id).status == Status.EIO
                assert peer.batch_read(ledger_id, entry_id).status == Status.EIO
            assert peer.read(ledger_id, 7, v2.DO_FENCING).status == Status.EIO
        assert peer.read(9, 0).status == Status.ENOLEDGER
        assert peer.add(9, 0, [b"new"]) == [Status.EOK]
        assert peer.read(9, 1).status == Status.ENOENTRY


@pytest.mark.parametrize("key", ["journalWriteData", "journalSyncData"])
def test_p28_fence_that_the_journal_may_lack_still_bars_the_old_writer(options: ServiceOptions, key: str) -> None:
    """BP-46, case 1: 5 was written, 6 fenced, 8 is one that the metadata name and this bookie knows nothing of."""
    crash(unsafe(options, key))
    with Serving(options, suspects=[5, 6, 8]) as serving, serving.connect() as peer:
        for ledger_id in (5, 6, 8):
            assert peer.add(ledger_id, 1, [b"late"])[0] in (Status.EFENCED, Status.EIO)
            assert peer.add(ledger_id, 1, [b"rewritten"], RECOVERY) == [Status.EOK]


def test_ledger_in_limbo_serves_what_it_has_and_takes_recovery_adds_only(options: ServiceOptions) -> None:
    crash(unsafe(options, "journalWriteData"))
    with Serving(options, suspects=[5]) as serving, serving.connect() as peer:
        assert peer.add(5, 0, [b"late"]) == [Status.EIO]
        assert peer.add(5, 0, [b"again"], RECOVERY) == [Status.EOK]
        assert peer.read(5, 0).body == stored(5, 0, b"again")
        assert peer.read(5, v2.LAST_ENTRY).status == Status.EIO
        assert peer.read(5, 0, v2.DO_FENCING).body == stored(5, 0, b"again")
        assert peer.add(5, 1, [b"late"]) == [Status.EFENCED]


def test_limbo_outlives_restarts(options: ServiceOptions) -> None:
    crash(unsafe(options, "journalWriteData"))
    with Serving(options, suspects=[5]):
        pass
    with Serving(options) as serving, serving.connect() as peer:
        assert peer.read(5, 1).status == Status.EIO


@pytest.mark.parametrize("key", ["journalWriteData", "journalSyncData"])
def test_stop_in_order_leaves_no_doubt(options: ServiceOptions, key: str) -> None:
    with Serving(unsafe(options, key)) as serving, serving.connect() as peer:
        assert peer.add(5, 0, [b"x"]) == [Status.EOK]
    with Serving(options, suspects=[5]) as serving, serving.connect() as peer:
        assert peer.read(5, 0).body == stored(5, 0, b"x")
        assert peer.read(5, 1).status == Status.ENOENTRY


def test_crash_with_a_complete_journal_leaves_no_doubt(options: ServiceOptions) -> None:
    crash(options)
    with Serving(options, suspects=[5, 8]) as serving, serving.connect() as peer:
        assert peer.read(5, 1).status == Status.ENOENTRY
        assert peer.read(8, 0).status == Status.ENOLEDGER


def test_doubt_of_an_earlier_run_is_not_forgotten_by_a_crash_before_limbo_is_written(options: ServiceOptions) -> None:
    crash(unsafe(options, "journalWriteData"))
    with pytest.raises(MetadataError), Serving(options, suspects=MetadataError("away")):
        pass
    with Serving(options, suspects=[8]) as serving, serving.connect() as peer:
        assert peer.read(8, 0).status == Status.EIO


def test_x06_name_of_the_marker_is_durable_before_the_first_response(tmp_path: Path) -> None:
    files = FaultyFiles()
    with Serving(service_options(tmp_path), files) as serving, serving.connect() as peer:
        current = str(tmp_path / "ledgers" / "current")
        renamed = files.operations.index(("rename", f"{current}/DIRTY"))
        assert ("sync_directory", current) in files.operations[renamed:]
        assert peer.add(5, 0, [b"x"]) == [Status.EOK]


def test_marker_is_in_every_directory_while_the_bookie_serves(tmp_path: Path) -> None:
    directories = [str(tmp_path / name) for name in ("a", "b")]
    options = replace(service_options(tmp_path), ledger_directories=directories)
    markers = [Path(directory, "current", "DIRTY") for directory in directories]
    with Serving(options):
        assert [marker.read_bytes() for marker in markers] == [b"journal complete\n"] * 2
    assert not any(marker.exists() for marker in markers)


@pytest.mark.parametrize("content", [b"", b"journal compl", b"journal incomplete\n"])
def test_marker_that_does_not_say_complete_means_incomplete(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "DIRTY").write_bytes(content)
    assert DirtyMarker(LocalFiles(), [str(tmp_path)]).is_journal_incomplete()


def test_damaged_list_of_ledgers_in_limbo_refuses_the_start(tmp_path: Path) -> None:
    Limbo(LocalFiles(), [str(tmp_path)]).begin([1, 1 << 62])
    assert 1 << 62 in Limbo(LocalFiles(), [str(tmp_path)])
    data = (tmp_path / "limbo").read_bytes()
    for at in range(len(data)):
        damaged = bytearray(data)
        damaged[at] ^= 1
        (tmp_path / "limbo").write_bytes(damaged)
        with pytest.raises(StorageDamaged, match="the bytes fail their checksum"):
            Limbo(LocalFiles(), [str(tmp_path)])
    assert limbo_format.decode_limbo(limbo_format.encode_limbo(np.array([], np.int64)))[0].tolist() == []


def test_absence_in_limbo_is_never_certain() -> None:
    for is_known in (False, True):
        assert rules.absence_status(is_known=is_known, in_limbo=True) == Status.EUNKNOWNLEDGERSTATE
    assert rules.absence_status(is_known=True, in_limbo=False) == Status.ENOENTRY
    assert rules.absence_status(is_known=False, in_limbo=False) == Status.ENOLEDGER


# ---- the end of limbo ----


@pytest.mark.parametrize(
    ("held", "share", "expected"),
    [
        (range(10), HeldShare(0, 10, 0, 1, 1), True),
        (range(9), HeldShare(0, 10, 0, 1, 1), False),
        (range(1, 10), HeldShare(0, 10, 0, 1, 1), False),
        ([0, 1, 2, 4, 5], HeldShare(0, 6, 0, 1, 1), False),
        (range(1, 10, 3), HeldShare(0, 10, 1, 3, 1), True),
        (range(1, 5, 3), HeldShare(0, 10, 1, 3, 1), False),
        ([], HeldShare(5, 5, 0, 1, 1), True),
        ([], HeldShare(0, 1, 0, 1, 1), False),
        (range(140_000), HeldShare(0, 140_000, 0, 1, 1), True),
        ([*range(70_000), *range(70_001, 140_000)], HeldShare(0, 140_000, 0, 1, 1), False),
    ],
)
def test_share_is_held_when_every_entry_of_it_is(
    tmp_path: Path, held: Sequence[int], share: HeldShare, expected: bool
) -> None:
    store = store_with(tmp_path / "current", 5, held)
    assert holds(store.index, 5, share) == expected
    store.close()


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_share_is_what_round_robin_gives_a_bookie(size: int) -> None:
    for quorum in range(1, size + 1):
        for slot in range(size):
            for first, end in ((0, 100), (7, 7), (7, 8), (3, 60), (61, 59)):
                share = HeldShare(first, end, slot, size, quorum)
                ids = np.arange(first, max(first, end))
                expected = [n for n in ids.tolist() if slot in [(n + i) % size for i in range(quorum)]]
                assert ids[share.includes(ids)].tolist() == expected
                assert share.count == len(expected)


@pytest.mark.parametrize("is_whole", [False, True])
def test_share_of_a_sparse_ledger_costs_what_is_held(tmp_path: Path, is_whole: bool) -> None:
    """One add of entry 2**40 - 1: the check must not go through 2**40 ids."""
    files = ReadCountingFiles()
    index = PerLedgerIndex(files, [str(tmp_path)], PageOptions(), 4)
    ids = np.array([3, STORED_ENTRY_ID_MAX], np.int64)
    index.hold([LedgerUpdate(5, LedgerHeader(5, 1, False, KEY), ids, ids + 1)])
    index.sync()
    files.looks = 0
    share = HeldShare(STORED_ENTRY_ID_MAX if is_whole else 0, STORED_ENTRY_ID_MAX + 1, 0, 1, 1)
    assert holds(index, 5, share) == is_whole
    assert files.looks < 20
    index.close()


def test_a_check_of_a_million_entries_of_which_one_is_missing_reads_the_index_once(tmp_path: Path) -> None:
    """The index has 8 bytes for each entry; the check reads no entry log, and each position once, in large pieces."""
    files = ReadCountingFiles()
    index = PerLedgerIndex(files, [str(tmp_path)], PageOptions(), 4)
    ids = np.delete(np.arange(1_000_000), 617_283)
    index.hold([LedgerUpdate(5, LedgerHeader(5, 1, False, KEY), ids, ids + 1)])
    index.sync()
    for share, is_held in ((HeldShare(0, 1_000_000, 0, 1, 1), False), (HeldShare(700_000, 1_000_000, 0, 1, 1), True)):
        files.looks = files.bytes_read = 0
        view = index.view(4)
        assert holds(view, 5, share) == is_held
        view.close()
        assert files.bytes_read <= 8 * share.count + 2 * 64 * 1024
        assert files.looks <= 2 * (share.count // EXTENT_ENTRIES + 5)
    index.close()


@pytest.mark.parametrize("storage_class", list(StorageClass))
def test_a_look_at_a_ledger_in_limbo_costs_what_is_held_on_every_storage(
    tmp_path: Path, storage_class: StorageClass
) -> None:
    """Entry 2**40 - 1 is there and entry 0 is not: a look that went through ids would not end."""
    store = store_with(tmp_path / "current", 5, [STORED_ENTRY_ID_MAX], storage_class)
    store.limbo.begin([5])
    whole = LedgerShare((HeldShare(STORED_ENTRY_ID_MAX, STORED_ENTRY_ID_MAX + 1, 0, 1, 1),))
    lacking = LedgerShare(tuple(HeldShare(first, first + (1 << 37), 0, 1, 1) for first in range(0, 1 << 40, 1 << 37)))
    metadata_view = Shares({5: lacking})
    looked_at(store, metadata_view)
    assert (metadata_view.reported, store.limbo.ledger_ids.tolist()) == ([5], [5])
    metadata_view.answers[5] = whole
    looked_at(store, metadata_view)
    assert store.limbo.ledger_ids.tolist() == []
    store.close()


def test_ledgers_leave_limbo_when_deleted_or_closed_and_whole(tmp_path: Path) -> None:
    store = store_with(tmp_path / "current", 5, range(10))
    store.limbo.begin([4, 5, 6])
    looked_at(store, Shares({4: DELETED, 5: WHOLE, 6: NOT_SETTLED}))
    assert store.limbo.ledger_ids.tolist() == [6]
    store.limbo.begin([5])
    looked_at(store, Shares({5: LACKING, 6: DELETED}))
    assert store.limbo.ledger_ids.tolist() == [5]
    store.close()


def test_check_of_limbo_leaves_no_index_file_open(tmp_path: Path) -> None:
    store = store_with(tmp_path / "current", 5, range(10))
    store.limbo.begin([5])
    before = open_below(tmp_path)
    looked_at(store, Shares({5: LACKING}), looks=3)
    assert open_below(tmp_path) == before
    store.close()


def test_ledger_on_a_failing_disk_is_reported_and_delays_no_other(tmp_path: Path) -> None:
    bench, files = in_limbo_on_three_disks(tmp_path)
    assert bench.store.index.all_lost() == [4]
    metadata_view = Shares(dict.fromkeys((3, 4, 5), WHOLE))
    looked_at(bench.store, metadata_view)
    assert metadata_view.reported == [4]
    assert bench.store.limbo.ledger_ids.tolist() == [4]
    files.fault = None
    looked_at(bench.store, metadata_view)
    assert not len(bench.store.limbo)
    bench.store.close()


def test_nothing_leaves_limbo_while_the_metadata_store_is_away_and_it_is_asked_again(tmp_path: Path) -> None:
    store = store_with(tmp_path / "current", 5, range(10))
    store.limbo.begin([5])
    metadata_view = Shares({5: WHOLE})
    metadata_view.failures = 3

    async def flush() -> None:
        return None

    async def check() -> None:
        ledger = store.ledger(5)
        assert ledger is not None
        store.fence(ledger)
        taken = store.begin_flush()
        assert taken is not None
        store.write_flush(taken)
        store.end_flush(taken)
        checking = LimboCheck(store, metadata_view, 0.001, 1_000_000, flush)
        while len(store.limbo):
            await asyncio.sleep(0.001)
        checking.cancel()

    asyncio.run(asyncio.wait_for(check(), 120))
    assert metadata_view.failures == 0
    store.close()


def test_a4_what_is_lacking_is_reported_as_under_replicated_again_and_again(tmp_path: Path) -> None:
    """Also of an open ledger's fragments that get no more entries; not what is unknown yet, and not what is whole."""
    store = store_with(tmp_path / "current", 5, range(10))
    store.limbo.begin([4, 5, 6, 7])
    open_but_lacking = LedgerShare((HeldShare(0, 11, 0, 1, 1),), is_closed=False)
    metadata_view = Shares({4: LACKING, 5: WHOLE, 6: NOT_SETTLED, 7: open_but_lacking})
    looked_at(store, metadata_view, looks=2)
    assert metadata_view.reported == [4, 7, 4, 7]
    assert store.limbo.ledger_ids.tolist() == [4, 6, 7]
    store.close()


def test_ledger_whose_index_cannot_be_read_is_reported_and_in_nobodys_way(tmp_path: Path) -> None:
    store = store_with(tmp_path / "current", 5, range(10))
    path = tmp_path / "current" / "0" / "4" / "4.idx"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(bytes(20_000))
    store.limbo.begin([4, 5])
    metadata_view = Shares({4: WHOLE, 5: WHOLE})
    looked_at(store, metadata_view)
    assert metadata_view.reported == [4]
    assert store.limbo.ledger_ids.tolist() == [4]
    store.close()


def test_x2_ledger_that_leaves_limbo_is_fenced_for_its_fence_may_be_lost(tmp_path: Path) -> None:
    """A writer that wakes up late could otherwise have an entry acknowledged that a recovery never saw."""
    options = service_options(tmp_path)
    with Serving(options) as serving, serving.connect() as peer:
        assert peer.add(5, 0, [b"x"]) == [Status.EOK]
        peer.read(5, 0, v2.DO_FENCING)
    (tmp_path / "ledgers" / "current" / "0" / "5" / "5.idx").unlink()
    with Serving(options) as serving, serving.connect() as peer:
        assert peer.add(5, 0, [b"x"], RECOVERY) == [Status.EOK]
    store = open_ledger_storage(LocalFiles(), [str(tmp_path / "ledgers" / "current")], StoreOptions())
    assert isinstance(store, BaseLedgerStorage)
    store.limbo.begin([9])
    looked_at(store, Shares({5: LedgerShare((HeldShare(0, 1, 0, 1, 1),)), 9: LedgerShare(())}))
    assert len(store.limbo) == 0
    store.close()
    with Serving(options) as serving, serving.connect() as peer:
        assert peer.add(5, 1, [b"late"]) == [Status.EFENCED]
        assert peer.add(9, 0, [b"late"]) == [Status.EFENCED], "nothing of it is here, and its writer may not know"
        assert peer.read(5, 1).status == Status.ENOENTRY


def test_p21_deleted_ledger_that_leaves_limbo_is_fenced_because_its_writer_may_not_know(tmp_path: Path) -> None:
    """#4462: its fence may be lost, and a late add would be acknowledged and then dropped."""
    options = service_options(tmp_path)
    with Serving(options) as serving, serving.connect() as peer:
        assert [peer.add(ledger_id, 0, [b"x"]) for ledger_id in (5, 6)] == [[Status.EOK]] * 2
    damaged = tmp_path / "ledgers" / "current" / "0" / "6" / "6.idx"
    damaged.write_bytes(bytes(20_000))
    store = open_ledger_storage(LocalFiles(), [str(tmp_path / "ledgers" / "current")], StoreOptions())
    assert isinstance(store, BaseLedgerStorage)
    store.limbo.begin([5, 6, 9])
    looked_at(store, Shares(dict.fromkeys((5, 6, 9), DELETED)))
    assert len(store.limbo) == 0
    store.close()
    with Serving(options) as serving, serving.connect() as peer:
        assert peer.add(5, 1, [b"late"]) == [Status.EFENCED]
        assert peer.add(6, 1, [b"late"]) == [Status.EFENCED], "its index is unreadable"
        assert peer.add(9, 0, [b"late"]) == [Status.EFENCED], "nothing of it is here"


def test_ledger_whose_index_file_is_lost_goes_into_limbo_beside_another_one(tmp_path: Path) -> None:
    options = service_options(tmp_path)
    with Serving(options) as serving, serving.connect() as peer:
        assert peer.add(5, 0, [b"x"]) == [Status.EOK]
    current = tmp_path / "ledgers" / "current"
    (current / "0" / "5" / "5.idx").unlink()
    store = open_ledger_storage(LocalFiles(), [str(current)], StoreOptions())
    store.limbo.begin([9])
    store.ledger(5)
    assert store.limbo.ledger_ids.tolist() == [5, 9]
    store.close()


def test_lost_index_files_are_in_limbo_from_the_start_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    options = service_options(tmp_path)
    with Serving(options) as serving, serving.connect() as peer:
        for ledger_id in range(30):
            assert peer.add(ledger_id, 0, [b"x"]) == [Status.EOK]
    for path in (tmp_path / "ledgers" / "current").rglob("*.idx"):
        path.unlink()
    store = open_ledger_storage(LocalFiles(), [str(tmp_path / "ledgers" / "current")], StoreOptions())
    metadata_view = Shares(dict.fromkeys(range(30), NOT_SETTLED))

    async def flush() -> None:
        return None

    async def check() -> None:
        checking = LimboCheck(store, metadata_view, 3600, 1_000_000, flush)
        # The ledgers are in limbo before this is logged.
        while "20 more ledgers are in limbo" not in caplog.text:
            await asyncio.sleep(0.001)
        checking.cancel()

    asyncio.run(asyncio.wait_for(check(), 120))
    assert len(store.limbo) == 30
    named = [message for message in caplog.messages if "is in limbo: " in message]
    assert len(named) == 10
    store.close()


def test_ledgers_that_are_in_limbo_already_are_not_reported_again_as_lost(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = store_with(tmp_path / "current", 5, range(10))
    for path in (tmp_path / "current").rglob("*.idx"):
        path.unlink()

    async def flush() -> None:
        return None

    async def find() -> None:
        checking = LimboCheck(store, Shares({}), 3600, 1_000_000, flush)
        checking.cancel()
        for _ in range(2):
            await checking._find_lost()

    asyncio.run(asyncio.wait_for(find(), 120))
    assert store.limbo.ledger_ids.tolist() == [5]
    assert caplog.text.count("ledger 5 is in limbo: ") == 1
    store.close()
