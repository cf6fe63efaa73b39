"""`--rebuild-index` and `--convert-index` change only directories that belong together: those of one bookie, each at
its place. While a disk fails, they change only what needs nothing of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from bkspark.errors import ConfigurationError
from bkspark.metadata import cookies
from bkspark.metadata.cookies import Cookie
from bkspark.wire.status import Status
from bookie_service.admin import conversion, rebuild
from bookie_service.admin.check import locked
from bookie_service.admin.conversion import Conversion
from bookie_service.admin.stopped_bookie import check_stamps
from bookie_service.settings.configuration import Configuration, configure
from bookie_service.settings.service_options import ServiceOptions
from bookie_service.storage import layout
from bookie_service.storage.ledgers.base import StoreOptions
from bookie_service.storage.ledgers.storage_class import StorageClass
from tests.bookie.faulty_files import GoneFiles
from tests.bookie.folders import contents
from tests.bookie.moved_files import at
from tests.bookie.serving import Serving, service_options, stopped_in, stored

PAYLOADS = [b"payload %d" % i for i in range(30)]
ID, OTHER_ID = "127.0.0.1:3181", "127.0.0.2:3181"
Command = Callable[[Configuration], int]
commands = pytest.mark.parametrize(
    "run",
    [
        pytest.param(lambda configuration: rebuild.run(configuration, ["all"], True), id="rebuild"),
        pytest.param(lambda configuration: conversion.run(configuration, True), id="convert"),
    ],
)


def filled(directory: Path, storage_class: StorageClass = StorageClass.SORTED) -> ServiceOptions:
    """Return the options of a stopped bookie with ledgers 5, 6 and 7 in the directories a, b and c, all stamped."""
    options = service_options(
        directory,
        store=StoreOptions(storage_class),
        ledger_directories=[str(directory / name) for name in "abc"],
    )
    with Serving(options) as serving, serving.connect() as peer:
        for ledger_id in (5, 6, 7):
            assert set(peer.add(ledger_id, 0, PAYLOADS)) == {Status.EOK}
    for each in (*options.journal_directories, *options.ledger_directories):
        stamp(each, cookie_of(options))
    return options


def cookie_of(options: ServiceOptions, bookie_id: str = ID) -> Cookie:
    return Cookie(bookie_id, tuple(options.journal_directories), tuple(options.ledger_directories), "a cluster")


def stamp(directory: str, cookie: Cookie) -> None:
    Path(layout.cookie_path(directory)).write_bytes(cookies.encode(cookie))
    Path(layout.place_path(directory)).write_bytes(layout.encode_place(directory))


def configured(options: ServiceOptions, storage_class: StorageClass, **keys: str) -> Configuration:
    return configure(
        {
            "journalDirectories": ",".join(options.journal_directories),
            "ledgerDirectories": ",".join(options.ledger_directories),
            "ledgerStorageClass": storage_class.short_name,
            **keys,
        }
    )


def with_class(options: ServiceOptions, storage_class: StorageClass) -> ServiceOptions:
    return replace(options, store=replace(options.store, storage_class=storage_class))


def assert_serves(options: ServiceOptions, ledger_ids: tuple[int, ...] = (5, 6, 7)) -> None:
    with Serving(options, suspects=[5, 6, 7]) as serving, serving.connect() as peer:
        for ledger_id in ledger_ids:
            assert peer.read(ledger_id, 3).body == stored(ledger_id, 3, PAYLOADS[3])


# ---- directories of another bookie ----


@commands
def test_directory_of_another_bookie_is_refused_and_nothing_is_changed(
    tmp_path: Path, run: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    """B10: the disk of another host is mounted here, at the same path. An index over both would mix two bookies."""
    options = filled(tmp_path)
    foreign = options.ledger_directories[1]
    stamp(foreign, cookie_of(options, OTHER_ID))
    before = contents(tmp_path)
    for storage_class in (StorageClass.SORTED, StorageClass.DB):
        assert run(configured(options, storage_class)) == 2
        said = capsys.readouterr().err
        assert f"directory {foreign} belongs to another bookie or cluster" in said
        assert OTHER_ID in said
    assert contents(tmp_path) == before


@commands
def test_directories_of_a_bookie_with_another_configured_id_are_refused(
    tmp_path: Path, run: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    options = filled(tmp_path)
    before = contents(tmp_path)
    assert run(configured(options, StorageClass.SORTED, bookieId="bookie-2")) == 2
    assert f"bookie id {ID} instead of bookie-2" in capsys.readouterr().err
    assert contents(tmp_path) == before
    assert run(configured(options, StorageClass.SORTED, bookieId=ID)) == 0


@commands
def test_directory_without_a_cookie_beside_others_that_have_one_is_refused(
    tmp_path: Path, run: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    """It may be a disk that is not mounted: a rebuild would find no entries there."""
    options = filled(tmp_path)
    Path(layout.cookie_path(options.ledger_directories[2])).unlink()
    assert run(configured(options, StorageClass.SORTED)) == 2
    assert f"directory {options.ledger_directories[2]} has no cookie VERSION" in capsys.readouterr().err


@commands
def test_damaged_cookie_is_refused(tmp_path: Path, run: Command, capsys: pytest.CaptureFixture[str]) -> None:
    options = filled(tmp_path)
    path = Path(layout.cookie_path(options.journal_directories[0]))
    path.write_bytes(b"\xff" * 40)
    assert run(configured(options, StorageClass.SORTED)) == 2
    assert f"the cookie in {path} cannot be read" in capsys.readouterr().err


@commands
def test_directories_that_were_swapped_are_refused(
    tmp_path: Path, run: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where an index file is depends on the number of its directory."""
    options = filled(tmp_path)
    swapped = replace(options, ledger_directories=options.ledger_directories[::-1])
    assert run(configured(swapped, StorageClass.SORTED)) == 2
    assert f"ledger directories {','.join(options.ledger_directories)} instead of" in capsys.readouterr().err
    place = Path(layout.place_path(options.ledger_directories[0]))
    place.write_bytes(layout.encode_place(options.ledger_directories[1]))
    assert run(configured(options, StorageClass.SORTED)) == 2
    assert f"holds what belongs at {options.ledger_directories[1]}" in capsys.readouterr().err


@commands
def test_directories_of_one_bookie_are_accepted(tmp_path: Path, run: Command) -> None:
    options = filled(tmp_path)
    assert run(configured(options, StorageClass.SORTED)) == 0
    assert_serves(options)


# ---- a disk that fails meanwhile ----


def interrupted(options: ServiceOptions, new: StorageClass, operation: str, path: str) -> None:
    """Convert until the disk of directory b fails at an operation on a path that contains `path`."""
    files = GoneFiles()
    files.fault = lambda done, where: done == operation and "/b/" in f"{where}/" and path in where
    bookie = replace(stopped_in(with_class(options, new)), files=files)
    with pytest.raises(OSError):
        Conversion(bookie, lambda line: None).run()


@pytest.mark.parametrize(
    ("old", "new", "operation", "path"),
    [
        pytest.param(StorageClass.SORTED, StorageClass.DB, "open", ".idx", id="to the store"),
        pytest.param(StorageClass.DB, StorageClass.SORTED, "create", ".idx", id="to files"),
    ],
)
def test_conversion_that_a_bad_disk_interrupted_is_undone_while_the_disk_is_gone(
    tmp_path: Path, old: StorageClass, new: StorageClass, operation: str, path: str
) -> None:
    """docs/operations.md: if the disk of one of several ledger directories fails, the bookie continues with the others.

    The marker of the conversion must not keep it from that: the index of the other disks is whole.
    """
    options = filled(tmp_path, old)
    interrupted(options, new, operation, path)
    files = GoneFiles()
    files.fault = at("b", "names", "open", "stat", "create", "remove", "rename", "write", "read", "sync_directory")
    bookie = replace(stopped_in(options), files=files)
    check_stamps(files, options.journal_directories, options.ledger_directories)
    directories = [*options.journal_directories, *options.ledger_directories]
    with locked(files, directories, "convert", options.ledger_directories):
        report = Conversion(bookie, lambda line: None).run()
    assert report.was_interrupted
    assert [str(tmp_path / "b") in note for note in report.notes] == ([True] if old is StorageClass.DB else [])
    with Serving(options, files) as serving, serving.connect() as peer:
        for ledger_id in (5, 6):
            assert peer.read(ledger_id, 3).body == stored(ledger_id, 3, PAYLOADS[3])


@pytest.mark.parametrize("storage_class", [StorageClass.SORTED, StorageClass.INTERLEAVED])
def test_no_bookie_starts_without_the_first_disk_while_a_conversion_is_unfinished_whose_store_has_its_name(
    tmp_path: Path, storage_class: StorageClass
) -> None:
    """It would acknowledge entries whose index files the end of the conversion removes, because the store counts."""
    options = filled(tmp_path)
    files = GoneFiles()
    files.fault = lambda operation, path: operation == "remove" and path.endswith("/conversion")
    with pytest.raises(OSError):
        Conversion(replace(stopped_in(with_class(options, StorageClass.DB)), files=files), lambda line: None).run()
    files.fault = at("a", "names", "open", "stat", "create", "remove", "rename", "write", "read", "sync_directory")
    with (
        pytest.raises(ConfigurationError, match="conversion of the index was interrupted"),
        Serving(with_class(options, storage_class), files),
    ):
        pass
    files.fault = None
    assert Conversion(stopped_in(with_class(options, StorageClass.DB)), lambda line: None).run().was_interrupted
    assert_serves(with_class(options, StorageClass.DB))


@pytest.mark.parametrize("new", [StorageClass.DB, StorageClass.SORTED])
def test_conversion_of_an_index_whose_disk_is_gone_is_refused(tmp_path: Path, new: StorageClass) -> None:
    """Only the removal of what does not count leaves a bad disk out. A new index without its files would lose them."""
    old = StorageClass.SORTED if new is StorageClass.DB else StorageClass.DB
    options = filled(tmp_path, old)
    files = GoneFiles()
    files.fault = at("b", "names", "open", "stat", "create", "remove", "rename", "write", "read", "sync_directory")
    with pytest.raises(OSError):
        Conversion(replace(stopped_in(with_class(options, new)), files=files), lambda line: None).run()
    assert not Conversion(stopped_in(options), lambda line: None).run().entries
    assert_serves(options)


def test_journal_whose_disk_is_gone_ends_the_command(tmp_path: Path) -> None:
    options = filled(tmp_path)
    files = GoneFiles()
    files.fault = lambda operation, path: path.startswith(options.journal_directories[0])
    with pytest.raises(OSError):
        check_stamps(files, options.journal_directories, options.ledger_directories)
    with (
        pytest.raises(OSError),
        locked(files, [*options.journal_directories, *options.ledger_directories], "x", options.ledger_directories),
    ):
        pass


def test_directory_that_another_process_holds_is_refused_while_another_disk_is_gone(tmp_path: Path) -> None:
    options = filled(tmp_path)
    files = GoneFiles()
    files.fault = at("b", "open", "stat")
    with (
        locked(files, options.ledger_directories, "convert", options.ledger_directories),
        pytest.raises(ConfigurationError, match="in use by another process"),
        locked(files, options.ledger_directories, "convert", options.ledger_directories),
    ):
        pass
