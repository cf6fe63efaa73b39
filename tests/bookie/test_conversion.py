"""`bkspark bookie --convert-index`: the index of a stopped bookie changes its kind, and nothing of a ledger is lost."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from bkspark.cli import __main__ as cli
from bkspark.errors import ConfigurationError, StorageDamaged
from bkspark.wire import v2
from bkspark.wire.status import Status
from bookie_service.admin import conversion
from bookie_service.admin.check import BookieCheck
from bookie_service.admin.conversion import Conversion, ConversionReport
from bookie_service.formats import index as index_format
from bookie_service.settings.configuration import configure
from bookie_service.settings.service_options import ServiceOptions
from bookie_service.storage import layout
from bookie_service.storage.index.manifest import IndexManifestWriter
from bookie_service.storage.io.files import LocalFiles, ReadOnlyFiles
from bookie_service.storage.journal.journal import JournalOptions
from bookie_service.storage.ledgers.base import StoreOptions
from bookie_service.storage.ledgers.limbo import DirtyMarker, Limbo
from bookie_service.storage.ledgers.storage_class import StorageClass
from bookie_service.storage.logs.log_appender import AppendOptions
from tests.bookie.folders import contents, cut, flip
from tests.bookie.serving import Serving, service_options, stopped_in, stored
from tests.crash.audit import audit
from tests.crash.doubts import stopped_bookie
from tests.crash.history import History
from tests.crash.images import Loss, crash_image, images_of_crashes
from tests.crash.simulated_files import SimulatedDisk, SimulatedFiles
from tests.crash.split_stores import put, split_setup
from tests.crash.twins import BookieTwin, Setup

PAYLOADS = [b"payload %d" % i for i in range(30)]
SPARSE_ID = 1_000_000
KINDS = [(StorageClass.SORTED, StorageClass.DB), (StorageClass.DB, StorageClass.INTERLEAVED)]
kinds = pytest.mark.parametrize(("old", "new"), KINDS, ids=["to the store", "to files"])


def filled(directory: Path, storage_class: StorageClass, ledger_directories: int = 2) -> ServiceOptions:
    """Return the options of a bookie that stopped in order: ledger 5 has entries and a far one, 6 is fenced, of 8 it
    knows a fence only."""
    options = service_options(
        directory,
        store=StoreOptions(storage_class),
        ledger_directories=[str(directory / f"ledgers{number}") for number in range(ledger_directories)],
    )
    with Serving(options) as serving, serving.connect() as peer:
        for ledger_id in (5, 6):
            assert set(peer.add(ledger_id, 0, PAYLOADS)) == {Status.EOK}
        assert peer.add(5, SPARSE_ID, [b"far"], v2.RECOVERY_ADD) == [Status.EOK]
        peer.read(6, 0, v2.DO_FENCING)
        peer.read(8, 0, v2.DO_FENCING)
    return options


def converted(options: ServiceOptions, new: StorageClass) -> ConversionReport:
    return Conversion(stopped_in(with_class(options, new)), lambda line: None).run()


def with_class(options: ServiceOptions, storage_class: StorageClass) -> ServiceOptions:
    return replace(options, store=replace(options.store, storage_class=storage_class))


def keys_of(options: ServiceOptions, storage_class: StorageClass) -> dict[str, str]:
    """Return the keys that configure the bookie with a storage class."""
    return {
        "journalDirectories": ",".join(options.journal_directories),
        "ledgerDirectories": ",".join(options.ledger_directories),
        "ledgerStorageClass": storage_class.short_name,
    }


def damaged_places(options: ServiceOptions) -> set[str]:
    """Return the files that `--check` finds damaged: the cookies, which this bookie does not have."""
    found = BookieCheck(ReadOnlyFiles(), options.journal_directories, options.ledger_directories).run()
    return {Path(each.path).name for each in found.damage}


def assert_whole(options: ServiceOptions) -> None:
    """Everything is served as before, and what is not held is denied with certainty."""
    with Serving(options) as serving, serving.connect() as peer:
        for ledger_id in (5, 6):
            for entry_id, payload in enumerate(PAYLOADS):
                assert peer.read(ledger_id, entry_id).body == stored(ledger_id, entry_id, payload)
        assert peer.read(5, SPARSE_ID).status == Status.EOK
        assert peer.read(5, 30).status == Status.ENOENTRY
        assert peer.add(6, 30, [b"late"]) == [Status.EFENCED]
        assert peer.add(8, 0, [b"late"]) == [Status.EFENCED]
        assert peer.add(5, 30, [b"x"], v2.RECOVERY_ADD, key=b"a key of another one") == [Status.EUA]
        assert peer.add(7, 0, [b"a new ledger"]) == [Status.EOK]


@kinds
@pytest.mark.parametrize("ledger_directories", [1, 3])
def test_converted_index_serves_entries_fences_and_keys_as_before(
    tmp_path: Path, old: StorageClass, new: StorageClass, ledger_directories: int
) -> None:
    options = filled(tmp_path, old, ledger_directories)
    before = damaged_places(options)
    report = converted(options, new)
    assert report == ConversionReport(new.short_name, is_converted=True, ledgers=3, entries=61)
    assert_whole(with_class(options, new))
    assert damaged_places(options) == before


@kinds
def test_index_that_is_converted_back_serves_everything(tmp_path: Path, old: StorageClass, new: StorageClass) -> None:
    options = filled(tmp_path, old)
    for storage_class in (new, old, new, old):
        assert converted(options, storage_class).entries == 61
    assert_whole(options)


def test_ledgers_stay_in_limbo_while_their_index_is_converted(tmp_path: Path) -> None:
    options = filled(tmp_path, StorageClass.SORTED)
    ledgers = [layout.current(each) for each in options.ledger_directories]
    Limbo(LocalFiles(), ledgers).begin([5])
    converted(options, StorageClass.DB)
    with Serving(with_class(options, StorageClass.DB), suspects=[5]) as serving, serving.connect() as peer:
        assert peer.read(5, 0).status == Status.EOK
        assert peer.read(5, 30).status == Status.EIO


@pytest.mark.parametrize("storage_class", list(StorageClass))
def test_index_that_is_already_of_the_wanted_kind_is_left_alone(tmp_path: Path, storage_class: StorageClass) -> None:
    options = filled(tmp_path, storage_class)
    assert not converted(options, storage_class).is_converted
    assert_whole(options)


def test_lost_or_cut_index_file_refuses_the_conversion_and_changes_nothing(tmp_path: Path) -> None:
    """A ledger whose file is lost would be one that the new index never had: its entries would be denied."""
    options = filled(tmp_path, StorageClass.SORTED, 1)
    current = layout.current(options.ledger_directories[0])
    path = Path(current, *index_format.relative_path(5))
    data = path.read_bytes()
    for size in (None, 100):
        path.unlink() if size is None else cut(path, size)
        before = contents(tmp_path)
        with pytest.raises(StorageDamaged, match="ledger 5 is missing or too short: run --rebuild-index"):
            converted(options, StorageClass.DB)
        assert contents(tmp_path) == before
        path.write_bytes(data)
    assert converted(options, StorageClass.DB).entries == 61


def test_damaged_store_refuses_the_conversion_and_changes_nothing(tmp_path: Path) -> None:
    options = filled(tmp_path, StorageClass.DB, 1)
    for table in Path(layout.current(options.ledger_directories[0]), "positions").glob("*.sst"):
        flip(table, 40)
    before = contents(tmp_path)
    with pytest.raises(StorageDamaged):
        converted(options, StorageClass.SORTED)
    assert contents(tmp_path) == before


def test_header_that_turns_out_unreadable_undoes_the_conversion(tmp_path: Path) -> None:
    options = filled(tmp_path, StorageClass.SORTED, 1)
    path = Path(layout.current(options.ledger_directories[0]), *index_format.relative_path(6))
    for at in index_format.LAYOUT.slots_at:
        flip(path, at + 12)
    before = contents(tmp_path)
    with pytest.raises(StorageDamaged):
        converted(options, StorageClass.DB)
    assert contents(tmp_path) == before


def test_empty_records_beside_a_store_do_not_count(tmp_path: Path) -> None:
    """A bookie with index files that lost all ledgers leaves them, and DbLedgerStorage starts on them."""
    options = filled(tmp_path, StorageClass.DB, 1)
    current = layout.current(options.ledger_directories[0])
    IndexManifestWriter(LocalFiles(), [current]).note({})
    assert converted(options, StorageClass.SORTED).entries == 61
    assert_whole(with_class(options, StorageClass.SORTED))


def test_bookie_that_was_killed_is_not_converted(tmp_path: Path) -> None:
    """Its journal may have entries and fences that the index lacks."""
    options = filled(tmp_path, StorageClass.SORTED)
    ledgers = [layout.current(each) for each in options.ledger_directories]
    DirtyMarker(LocalFiles(), ledgers).set(journal_is_complete=True)
    with pytest.raises(ConfigurationError, match="did not stop in order"):
        converted(options, StorageClass.DB)


def test_two_indexes_without_a_conversion_are_refused(tmp_path: Path) -> None:
    options = filled(tmp_path, StorageClass.SORTED, 1)
    Path(layout.current(options.ledger_directories[0]), "positions").mkdir()
    for storage_class in StorageClass:
        with pytest.raises(ConfigurationError, match="unknown which of them counts"):
            converted(options, storage_class)


def test_command_converts_and_says_what_it_did(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    options = filled(tmp_path, StorageClass.SORTED)
    with Serving(options):
        assert run_command(options, StorageClass.DB) == 1
        assert "did not stop in order" in capfd.readouterr().err
    assert run_command(options, StorageClass.DB, "--json") == 0
    assert json.loads(capfd.readouterr().out) == {
        "storage_class": "DbLedgerStorage",
        "is_converted": True,
        "was_interrupted": False,
        "ledgers": 3,
        "entries": 61,
        "notes": [],
    }
    assert run_command(options, StorageClass.DB) == 0
    assert capfd.readouterr().out == "nothing to convert: DbLedgerStorage reads the index as it is\n"
    assert run_command(options, StorageClass.INTERLEAVED) == 0
    assert "3 ledgers with 61 entries" in capfd.readouterr().out
    assert_whole(options)


def run_command(options: ServiceOptions, storage_class: StorageClass, *words: str) -> int:
    return conversion.run(configure(keys_of(options, storage_class)), "--json" in words)


def test_shell_verbs_of_apache_convert_the_configured_bookie(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    options = filled(tmp_path, StorageClass.SORTED)
    file = tmp_path / "bk_server.conf"
    file.write_text("".join(f"{key}={value}\n" for key, value in keys_of(options, StorageClass.SORTED).items()))
    assert cli.main(["shell", "-conf", str(file), "convert-to-db-storage"]) == 0
    assert "3 ledgers with 61 entries" in capfd.readouterr().out
    assert_whole(with_class(options, StorageClass.DB))
    assert cli.main(["shell", "-conf", str(file), "convert-to-interleaved-storage"]) == 0
    assert_whole(options)


@pytest.mark.parametrize("storage_class", list(StorageClass))
def test_no_bookie_starts_on_a_conversion_that_was_interrupted(tmp_path: Path, storage_class: StorageClass) -> None:
    options = filled(tmp_path, StorageClass.SORTED)
    # Earlier builds made the file in a ledger directory.
    for directory in (options.journal_directories[0], options.ledger_directories[0]):
        Path(layout.current(directory), "conversion").write_text("DbLedgerStorage\n")
        with (
            pytest.raises(ConfigurationError, match="--convert-index` again"),
            Serving(with_class(options, storage_class)),
        ):
            pass
        assert converted(options, storage_class).was_interrupted
    assert_whole(with_class(options, storage_class))


def test_bookie_that_ran_beside_an_interrupted_conversion_of_an_earlier_build_and_was_killed_is_not_converted(
    tmp_path: Path,
) -> None:
    """It started without the first disk, which had the only file that says so."""
    options = filled(tmp_path, StorageClass.SORTED)
    ledgers = [layout.current(each) for each in options.ledger_directories]
    Path(ledgers[0], "conversion").write_text("DbLedgerStorage\n")
    DirtyMarker(LocalFiles(), ledgers[1:]).set(journal_is_complete=True)
    with pytest.raises(ConfigurationError, match="did not stop in order"):
        converted(options, StorageClass.DB)


# ---- crashes ----

SETUP = Setup(
    store=StoreOptions(cache_half_bytes=60_000, append=AppendOptions(1500)),
    journal=JournalOptions(file_bytes_max=2000, preallocate_bytes=1024, backups_max=9),
)


def setup_of(storage_class: StorageClass) -> Setup:
    return replace(SETUP, store=replace(SETUP.store, storage_class=storage_class))


def convert_on(disk: SimulatedDisk, new: StorageClass) -> ConversionReport:
    return Conversion(stopped_bookie(disk, setup_of(new)), lambda line: None).run()


def stopped(storage_class: StorageClass) -> tuple[SimulatedDisk, History]:
    """Return the disk of a bookie that stopped in order, and what it promised."""
    twin = BookieTwin(setup_of(storage_class).new_disk(), setup_of(storage_class), History())
    for ledger_id in (7, 9):
        twin.add(ledger_id, [(entry_id, b"x" * 100) for entry_id in range(4)])
    twin.fence(9)
    twin.fence(11)
    twin.stop()
    return twin.disk, twin.history.after_crash()


@kinds
@pytest.mark.parametrize("goes_back", [False, True])
def test_crash_at_any_moment_of_a_conversion_loses_nothing(
    old: StorageClass, new: StorageClass, goes_back: bool
) -> None:
    """Until the command was run again, a bookie starts with no class, or with the one whose index is whole."""
    disk, history = stopped(old)
    started = refused = 0
    for name, image in images_of_crashes(disk, lambda: convert_on(disk, new)):
        for storage_class in (old, new):
            try:
                twin = BookieTwin(
                    crash_image(image, Loss.KEPT, Random(0)), setup_of(storage_class), history.after_crash()
                )
            except ConfigurationError:
                refused += 1
                continue
            started += 1
            audit(twin, history.after_crash())
        last = old if goes_back else new
        convert_on(image, last)
        twin = BookieTwin(image, setup_of(last), history.after_crash())
        audit(twin, history.after_crash())
        left = [path for path in image.visible_files() if "rebuilt" in path or path.endswith("conversion")]
        assert not [path for path in left if not path.endswith(".new")], name
        assert not twin.is_in_doubt, name
    assert started
    assert refused > 50


@pytest.mark.parametrize("has_record", [False, True])
def test_stores_are_removed_only_if_a_record_says_that_index_files_count(has_record: bool) -> None:
    """The store of the first directory may be lost."""
    setup = split_setup(2)
    twin = BookieTwin(setup.new_disk(), setup, History())
    put(twin, 0)
    twin.stop()
    disk, files = twin.disk, SimulatedFiles(twin.disk)
    files.rename("/ledgers0/current/positions", "/ledgers0/current/lost")
    if has_record:
        IndexManifestWriter(files, twin.setup.current_ledger_paths).note({})
    setup = replace(twin.setup, store=replace(twin.setup.store, storage_class=StorageClass.SORTED))
    assert not Conversion(stopped_bookie(disk, setup), lambda line: None).run().is_converted
    assert files.is_directory("/ledgers1/current/positions") != has_record
