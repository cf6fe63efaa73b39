"""`bkspark bookie --rebuild-index`: entries whose index is lost come back from the entry logs; none is denied."""

from __future__ import annotations

import json
import os
import shutil
import struct
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random

import numpy as np
import pytest

from bkspark.cli import __main__ as cli
from bkspark.wire import v2
from bkspark.wire.flags import RECOVERY_ADD
from bkspark.wire.status import Status
from bookie_service.admin import rebuild
from bookie_service.admin.rebuild import ALL, Rebuild, RebuildReport
from bookie_service.formats import index as index_format
from bookie_service.formats.index import LAYOUT, LedgerHeader
from bookie_service.settings.configuration import configure
from bookie_service.settings.service_options import ServiceOptions
from bookie_service.storage import layout
from bookie_service.storage.io.files import LocalFiles
from bookie_service.storage.journal.journal import JournalOptions
from bookie_service.storage.ledgers.base import StoreOptions
from bookie_service.storage.ledgers.limbo import Limbo
from bookie_service.storage.ledgers.storage_class import StorageClass
from bookie_service.storage.ledgers.tombstones import Tombstones
from bookie_service.storage.logs.log_appender import AppendOptions
from tests.bookie.folders import cut, flip
from tests.bookie.serving import KEY, Serving, service_options, stopped_in, stored
from tests.crash.audit import audit
from tests.crash.doubts import stopped_bookie
from tests.crash.history import History
from tests.crash.images import Loss, crash_image, images_of_crashes
from tests.crash.metadata_view import DoubtfulMetadataView
from tests.crash.simulated_files import SimulatedDisk, SimulatedFiles
from tests.crash.twins import BookieTwin, Setup
from tests.ledger.other_user import OTHER_UID

RECOVERY = v2.RECOVERY_ADD | v2.HIGH_PRIORITY
PAYLOADS = [b"payload %d" % i for i in range(30)]


def filled(directory: Path, storage_class: StorageClass = StorageClass.SORTED, **changes: object) -> ServiceOptions:
    """Return the options of a bookie that holds ledgers 5 and 6, of which 6 is fenced, and stopped in order."""
    options = service_options(directory, store=StoreOptions(storage_class), **changes)
    with Serving(options) as serving, serving.connect() as peer:
        for ledger_id in (5, 6):
            assert set(peer.add(ledger_id, 0, PAYLOADS)) == {Status.EOK}
        peer.read(6, 0, v2.DO_FENCING)
    return options


def current(options: ServiceOptions, number: int = 0) -> Path:
    return Path(layout.current(options.ledger_directories[number]))


def index_of(options: ServiceOptions, ledger_id: int) -> Path:
    number = ledger_id % len(options.ledger_directories)
    return Path(current(options, number), *index_format.relative_path(ledger_id))


def rebuilt(options: ServiceOptions, wanted: frozenset[int] | str | None = None) -> RebuildReport:
    return Rebuild(stopped_in(options), lambda line: None).run(wanted)


def settings(options: ServiceOptions) -> list[str]:
    return [
        *("--set", f"journalDirectories={','.join(options.journal_directories)}"),
        *("--set", f"ledgerDirectories={','.join(options.ledger_directories)}"),
        *("--set", f"ledgerStorageClass={options.store.storage_class.short_name}"),
    ]


def assert_served(options: ServiceOptions, ledger_id: int, payloads: Sequence[bytes] = PAYLOADS) -> None:
    """All entries are read, and of the next one nothing certain is answered."""
    with Serving(options, suspects=[5, 6]) as serving, serving.connect() as peer:
        for entry_id, payload in enumerate(payloads):
            assert peer.read(ledger_id, entry_id).body == stored(ledger_id, entry_id, payload)
        assert peer.read(ledger_id, len(payloads)).status == Status.EIO
        assert peer.add(ledger_id, len(payloads), [b"late"])[0] in (Status.EIO, Status.EFENCED)


# ---- index files ----


@pytest.mark.parametrize("size", [None, 0, 100, LAYOUT.positions_at, LAYOUT.position_at(3)])
@pytest.mark.parametrize("was_started", [False, True])
def test_entries_of_a_lost_or_cut_index_file_come_back(tmp_path: Path, size: int | None, was_started: bool) -> None:
    options = filled(tmp_path)
    path = index_of(options, 5)
    path.unlink() if size is None else cut(path, size)
    if was_started:
        with Serving(options) as serving, serving.connect() as peer:
            assert peer.read(5, 29).status == Status.EIO
    report = rebuilt(options)
    assert (report.ledgers, report.entries, report.damaged_entries, report.everything) == (1, 30, 0, False)
    assert Limbo(LocalFiles(), [str(current(options))]).ledger_ids.tolist() == [5]
    assert_served(options, 5)
    with Serving(options) as serving, serving.connect() as peer:
        assert peer.read(6, 30).status == Status.ENOENTRY, "the other ledger is not in doubt"


@pytest.mark.parametrize("version", [2, 3])
def test_header_of_the_old_file_is_kept_where_it_is_readable(tmp_path: Path, version: int) -> None:
    options = filled(tmp_path)
    path = index_of(options, 6)
    header = LedgerHeader(6, 4, True, KEY, b"")
    at = index_format.LAYOUTS[version].slots_at[1]
    path.write_bytes(
        index_format.encode_slot(header, version).ljust(at, b"\0") + index_format.encode_slot(header, version)
    )
    assert rebuilt(options).unknown_keys == 0
    with Serving(options) as serving, serving.connect() as peer:
        assert peer.add(6, 30, [b"late"]) == [Status.EFENCED]
        assert peer.add(6, 30, [b"x"], RECOVERY, key=b"a key of another one") == [Status.EUA]
        assert peer.add(6, 30, [b"recovered"], RECOVERY) == [Status.EOK]
    assert path.read_bytes()[4:8] == b"\0\0\0\3"


def test_key_fence_and_explicit_lac_of_a_lost_file_come_from_the_journals_that_are_left(tmp_path: Path) -> None:
    twin = BookieTwin(SETUP.new_disk(), SETUP, History())
    twin.add(7, [(entry_id, b"x" * 50) for entry_id in range(4)])
    twin.write_lac(7, 2)
    twin.write_lac(7, 1)
    twin.fence(7)
    twin.checkpoint()
    twin.stop()
    lose(twin.disk, 7)
    rebuild_on(twin.disk)
    again = BookieTwin(twin.disk, SETUP, twin.history.after_crash())
    audit(again, again.history, errors_allowed=True)
    known = again.header(7)
    assert known is not None
    assert known.fenced
    assert known.master_key == twin.history.ledger(7).master_key
    assert index_format.decode_lac(known.explicit_lac) == (7, 2)


def test_ledger_that_was_fenced_and_dropped_stays_fenced_when_its_entries_come_back(tmp_path: Path) -> None:
    """§5.4: what was fenced takes no ordinary add. The journals that had the fence may be gone."""
    options = filled(tmp_path)
    Tombstones(LocalFiles(), [str(current(options))]).remember([5], int(time.time()))
    index_of(options, 5).unlink()
    rebuilt(options, frozenset([5]))
    with Serving(options) as serving, serving.connect() as peer:
        assert peer.add(5, 30, [b"late"]) == [Status.EFENCED]


def test_key_that_is_lost_is_the_next_one_given(tmp_path: Path) -> None:
    """As Apache's tools leave it: an unknown key, not a wrong one."""
    options = filled(tmp_path, journal=JournalOptions(backups_max=0))
    with Serving(options):
        pass
    index_of(options, 5).unlink()
    assert rebuilt(options).unknown_keys == 1
    with Serving(options) as serving, serving.connect() as peer:
        assert peer.add(5, 30, [b"recovered"], RECOVERY) == [Status.EOK]
        assert peer.add(5, 31, [b"x"], RECOVERY, key=b"a key of another one") == [Status.EUA]


def test_unreadable_header_names_the_command_that_makes_it_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    options = filled(tmp_path)
    for slot_at in LAYOUT.slots_at:
        flip(index_of(options, 5), slot_at + 20)
    with Serving(options) as serving, serving.connect() as peer:
        assert peer.read(5, 0).status == Status.EIO
    assert "`bkspark bookie --rebuild-index 5`" in caplog.text
    assert rebuilt(options).ledgers == 1
    assert_served(options, 5)


def test_lost_file_names_the_command(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    options = filled(tmp_path)
    index_of(options, 5).unlink()
    with Serving(options) as serving, serving.connect() as peer:
        assert peer.read(5, 0).status == Status.EIO
    assert "`bkspark bookie --rebuild-index 5`" in caplog.text


def test_index_files_in_several_directories_and_logs_per_ledger_are_rebuilt(tmp_path: Path) -> None:
    options = replace(
        service_options(tmp_path, store=StoreOptions(append=AppendOptions(log_per_ledger=True))),
        ledger_directories=[str(tmp_path / f"ledgers{i}") for i in range(3)],
    )
    with Serving(options) as serving, serving.connect() as peer:
        for ledger_id in range(5, 11):
            peer.add(ledger_id, 0, PAYLOADS)
    for ledger_id in (5, 6, 7):
        index_of(options, ledger_id).unlink()
    assert rebuilt(options).entries == 3 * len(PAYLOADS)
    for ledger_id in (5, 6, 7):
        assert_served(options, ledger_id)


def test_all_finds_ledgers_that_no_list_of_index_files_names_any_more(tmp_path: Path) -> None:
    options = filled(tmp_path)
    (current(options) / "indexFiles").unlink()
    index_of(options, 5).unlink()
    nothing = rebuilt(options)
    assert nothing.ledgers == 0
    assert any("indexFiles is missing or damaged" in note for note in nothing.notes)
    report = rebuilt(options, ALL)
    assert (report.ledgers, report.entries, report.everything) == (2, 60, True)
    with Serving(options, suspects=[5, 6, 8]) as serving, serving.connect() as peer:
        assert peer.read(5, 29).body == stored(5, 29, PAYLOADS[29])
        assert peer.add(6, 30, [b"late"]) == [Status.EFENCED]
        assert peer.read(8, 0).status == Status.EIO, "a ledger that only the metadata know may have been here"


def test_damaged_entry_is_left_out_and_later_entries_come_back(tmp_path: Path) -> None:
    options = filled(tmp_path)
    index_of(options, 5).unlink()
    log = next(path for path in current(options).glob("*.log") if stored(5, 7, PAYLOADS[7]) in path.read_bytes())
    flip(log, log.read_bytes().index(stored(5, 7, PAYLOADS[7])) + 40)
    report = rebuilt(options)
    assert (report.entries, report.damaged_entries) == (29, 1)
    with Serving(options) as serving, serving.connect() as peer:
        assert peer.read(5, 7).status == Status.EIO
        assert peer.read(5, 29).body == stored(5, 29, PAYLOADS[29])


def test_named_ledger_without_a_trace_is_reported(tmp_path: Path) -> None:
    options = filled(tmp_path)
    report = rebuilt(options, frozenset({5, 99}))
    assert (report.ledgers, report.entries) == (1, 30)
    assert report.notes == ["ledger 99: there is no trace of it in entry logs, journals or index"]
    assert not index_of(options, 99).exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may write to directories of another user")
def test_rebuild_by_another_user_than_the_bookies_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The bookie could not read what root makes."""
    options = filled(tmp_path)
    index_of(options, 5).unlink()
    os.chown(current(options), OTHER_UID, OTHER_UID)
    values = dict(setting.split("=", 1) for setting in settings(options)[1::2])
    assert rebuild.run(configure(values), ["5"], True) == 2
    said = capsys.readouterr().err
    assert f"{current(options)} belongs to user " in said
    assert "run --rebuild-index as this user" in said
    assert not index_of(options, 5).exists()
    os.chown(current(options), 0, 0)
    assert rebuild.run(configure(values), ["5"], True) == 0
    assert index_of(options, 5).exists()


def test_copy_that_the_old_index_names_counts_and_otherwise_the_last_one(tmp_path: Path) -> None:
    twin = BookieTwin(SETUP.new_disk(), SETUP, History())
    for version in (b"first", b"second", b"third"):
        twin.add(7, [(entry_id, version) for entry_id in range(4)], RECOVERY_ADD)
        twin.checkpoint()
    twin.stop()
    files = SimulatedFiles(twin.disk)
    path = index_path(7)
    positions = np.frombuffer(files.read_all(path)[LAYOUT.positions_at :], ">i8").astype(np.int64)
    # As if entry 1 had been moved by hand to its first copy; entry 2 leads nowhere; entry 3 is unknown.
    first = positions & 0xFFFFFFFF | 1 << 32
    file = files.open(path)
    changed = np.array([positions[0], _position_of(files, b"first", 1), first[2] + 1, 0])
    file.write([changed.astype(">i8").tobytes()], LAYOUT.positions_at)
    file.sync_data()
    rebuild_on(twin.disk, frozenset({7}))
    again = BookieTwin(twin.disk, SETUP, twin.history.after_crash())
    found = [again.read(7, entry_id)[2][24:-4] for entry_id in range(4)]
    assert found == [b"third", b"first", b"third", b"third"]


def _position_of(files: SimulatedFiles, payload: bytes, entry_id: int) -> int:
    """Return the position of a copy in entry log 1."""
    content = files.read_all("/ledgers0/current/1.log")
    front = struct.pack(">qqq", 7, entry_id, -1) + payload
    return 1 << 32 | content.index(front)


# ---- RocksDB ----


def break_store(path: Path) -> None:
    for table in path.glob("*.sst"):
        table.write_bytes(b"garbage")


@pytest.mark.parametrize("damage", [shutil.rmtree, break_store])
def test_index_of_a_lost_key_value_store_comes_back_and_everything_is_in_doubt(
    tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    options = filled(tmp_path, StorageClass.DB)
    damage(current(options) / "positions")
    report = rebuilt(options)
    assert (report.ledgers, report.entries, report.everything) == (2, 60, True)
    for ledger_id in (5, 6):
        assert_served(options, ledger_id)
    with Serving(options) as serving, serving.connect() as peer:
        assert peer.add(6, 30, [b"late"]) == [Status.EFENCED]
        assert peer.add(5, 30, [b"recovered"], RECOVERY) == [Status.EOK]
    with Serving(options) as serving, serving.connect() as peer:
        assert peer.read(5, 30).body == stored(5, 30, b"recovered")


def test_key_value_store_that_is_whole_gets_what_it_lacks(tmp_path: Path) -> None:
    options = filled(tmp_path, StorageClass.DB)
    Limbo(LocalFiles(), [str(current(options))]).begin([5])
    report = rebuilt(options)
    assert (report.ledgers, report.entries, report.everything) == (1, 30, False)
    assert_served(options, 5)


# ---- the command ----


def test_command_prints_what_it_did_and_refuses_while_the_bookie_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    options = filled(tmp_path)
    index_of(options, 5).unlink()
    values = dict(setting.split("=", 1) for setting in settings(options)[1::2])
    locks = [LocalFiles().lock(path) for path in (*options.journal_directories, *options.ledger_directories)]
    assert rebuild.run(configure(values), [], True) == 1
    assert "is in use by another process: stop that bookie" in capsys.readouterr().err
    for lock in locks:
        lock.release()
    assert rebuild.run(configure(values), ["5", "x"], True) == 2
    assert "--rebuild-index 5 x: name ledger ids, or all alone, or nothing" in capsys.readouterr().err
    assert rebuild.run(configure(values), [], True) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["ledgers"], report["entries"], report["unknown_keys"]) == (1, 30, 0)
    assert rebuild.run(configure(values), ["5"], False) == 0
    assert "1 ledgers with 30 entries rebuilt" in capsys.readouterr().out
    became: list[Sequence[str]] = []
    monkeypatch.setattr("bkspark.cli.bookie.exec_replacing_process", became.append)
    cli.main(["bookie", *settings(options), "--rebuild-index", "5", "6"])
    assert list(became[0][-3:]) == ["--rebuild-index", "5", "6"]


# ---- crashes ----

SETUP = Setup(
    store=StoreOptions(cache_half_bytes=60_000, append=AppendOptions(1500)),
    journal=JournalOptions(file_bytes_max=2000, preallocate_bytes=1024, backups_max=9),
)


def index_path(ledger_id: int) -> str:
    return os.path.join("/ledgers0/current", *index_format.relative_path(ledger_id))


def lose(disk: SimulatedDisk, ledger_id: int) -> None:
    files = SimulatedFiles(disk)
    files.remove(index_path(ledger_id))
    files.sync_directory(os.path.dirname(index_path(ledger_id)))


def rebuild_on(disk: SimulatedDisk, wanted: frozenset[int] | str | None = None, setup: Setup = SETUP) -> RebuildReport:
    return Rebuild(stopped_bookie(disk, setup), lambda line: None).run(wanted)


def damaged(setup: Setup) -> tuple[SimulatedDisk, History]:
    """Return the disk of a stopped bookie that lost the index of ledger 7, or all of it, and what it promised."""
    twin = BookieTwin(setup.new_disk(), setup, History())
    for first in (0, 4):
        twin.add(7, [(entry_id, b"x" * 100) for entry_id in range(first, first + 4)])
        twin.add(9, [(entry_id, b"y" * 100) for entry_id in range(first, first + 4)])
        twin.checkpoint()
    twin.fence(9)
    twin.stop()
    disk = twin.disk
    if setup.store.storage_class is StorageClass.DB:
        files = SimulatedFiles(disk)
        files.remove("/ledgers0/current/positions/positions")
        files.remove_directory("/ledgers0/current/positions")
        files.sync_directory("/ledgers0/current")
    else:
        lose(disk, 7)
    return disk, twin.history.after_crash()


def test_crash_at_any_moment_of_a_rebuild_denies_nothing_and_another_rebuild_finds_everything() -> None:
    disk, history = damaged(SETUP)
    count = 0
    for name, image in images_of_crashes(disk, lambda: rebuild_on(disk)):
        again = crash_image(image, Loss.KEPT, Random(0))
        twin = BookieTwin(again, SETUP, history.after_crash())
        for entry_id in range(9):
            assert twin.read(7, entry_id)[0] in (Status.EOK, Status.EIO), f"{name}: entry {entry_id}"
        rebuild_on(image)
        twin = BookieTwin(image, SETUP, history.after_crash())
        assert [twin.read(7, entry_id)[0] for entry_id in range(9)] == [Status.EOK] * 8 + [Status.EIO], name
        audit(twin, history.after_crash(), errors_allowed=True)
        assert not [path for path in image.visible_files() if path.endswith(".rebuilt")], name
        count += 1
    assert count > 50


def test_crash_at_any_moment_of_the_rebuild_of_a_whole_store_loses_nothing() -> None:
    setup = replace(SETUP, store=replace(SETUP.store, storage_class=StorageClass.DB))
    disk, history = damaged(setup)
    for name, image in images_of_crashes(disk, lambda: rebuild_on(disk, setup=setup)):
        rebuild_on(image, setup=setup)
        twin = BookieTwin(image, setup, history.after_crash())
        for ledger_id in (7, 9):
            assert [twin.read(ledger_id, entry_id)[0] for entry_id in range(8)] == [Status.EOK] * 8, name
        assert twin.is_in_doubt, name


def test_compaction_that_a_crash_interrupted_and_a_rebuild_lose_nothing_together() -> None:
    """The intent is there, the index moves at the next start: the rebuilt positions may lead to either log."""
    twin = BookieTwin(SETUP.new_disk(), SETUP, History())
    twin.add(7, [(entry_id, b"x" * 100) for entry_id in range(4)])
    twin.checkpoint()
    twin.store.seal_logs()
    log_id, *_ = twin.store.logs.rotated()
    images: list[SimulatedDisk] = []
    twin.disk.before_operation = lambda operation, path: images.append(crash_image(twin.disk, Loss.KEPT, Random(0)))
    twin.compact(log_id)
    history = twin.history.after_crash()
    for image in images:
        lose(image, 7)
        rebuild_on(image)
        again = BookieTwin(image, SETUP, history)
        assert [again.read(7, entry_id)[0] for entry_id in range(4)] == [Status.EOK] * 4
        again.collect(DoubtfulMetadataView({7}))
        assert [again.read(7, entry_id)[0] for entry_id in range(4)] == [Status.EOK] * 4


def test_index_is_lost_garbage_is_collected_and_everything_comes_back() -> None:
    """The order in which it was lost for good: limbo, garbage collection, then the remedy."""
    twin = BookieTwin(SETUP.new_disk(), SETUP, History())
    twin.add(7, [(entry_id, b"x" * 100) for entry_id in range(8)])
    twin.add(9, [(entry_id, b"y" * 900) for entry_id in range(8)])
    twin.checkpoint()
    twin.stop()
    for size in (None, LAYOUT.position_at(3)):
        disk = crash_image(twin.disk, Loss.KEPT, Random(0))
        if size is None:
            lose(disk, 7)
        else:
            SimulatedFiles(disk).open(index_path(7)).truncate(size)
        history = twin.history.after_crash()
        again = BookieTwin(disk, SETUP, history)
        again.collect(DoubtfulMetadataView({7}))
        again.stop()
        rebuild_on(disk)
        again = BookieTwin(disk, SETUP, history)
        assert [again.read(7, entry_id)[0] for entry_id in range(8)] == [Status.EOK] * 8
        assert again.store.limbo.ledger_ids.tolist() == [7]
