"""The few files that a bookie has once: they go to a directory whose disk takes them, and the last version counts."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from crc32c import crc32c

from bkspark.errors import StorageDamaged
from bookie_service.formats.index import LedgerHeader
from bookie_service.storage.index.ledger_headers import LedgerHeaders, LedgerHeadersWriter
from bookie_service.storage.index.manifest import IndexManifestWriter
from bookie_service.storage.io.file_places import FilePlaces
from bookie_service.storage.io.files import LocalFiles
from bookie_service.storage.ledgers.limbo import Limbo
from bookie_service.storage.ledgers.tombstones import Tombstones
from tests.bookie.faulty_files import FaultyFiles, GoneFiles

NAMES = ("limbo", "fencedDeleted", "indexFiles")
HEADERS = "ledgerHeaders"


@pytest.fixture
def directories(tmp_path: Path) -> list[str]:
    for name in "abc":
        (tmp_path / name).mkdir()
    return [str(tmp_path / name) for name in "abc"]


def refusing(*names: str) -> Callable[[str, str], bool]:
    return lambda operation, path: operation != "read" and any(f"/{name}/" in path for name in names)


def note(files: LocalFiles, directories: list[str], name: str, ledger_id: int) -> None:
    """Have a ledger noted in one of the files."""
    if name == "limbo":
        Limbo(files, directories).begin([ledger_id])
    elif name == "fencedDeleted":
        Tombstones(files, directories).remember([ledger_id], 0)
    elif name == HEADERS:
        known = IndexManifestWriter(files, directories)
        LedgerHeadersWriter(files, directories, known).write([LedgerHeader(ledger_id, 0, True, bytes(20))])
    else:
        IndexManifestWriter(files, directories).note({ledger_id: 9000})


def noted(directories: list[str], name: str) -> list[int]:
    if name == "limbo":
        return Limbo(LocalFiles(), directories).ledger_ids.tolist()
    if name == "fencedDeleted":
        tombstones = Tombstones(LocalFiles(), directories)
        return [each for each in range(10) if each in tombstones]
    known = IndexManifestWriter(LocalFiles(), directories)
    if name == HEADERS:
        headers = LedgerHeaders(LocalFiles(), directories, known.headers)
        assert not headers.damage
        return headers.ledger_ids().tolist()
    return known.all()[0].tolist()


@pytest.mark.parametrize("name", [*NAMES, HEADERS])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.EROFS])
def test_last_version_counts_wherever_its_disk_was_writable(directories: list[str], name: str, code: int) -> None:
    files = FaultyFiles()
    files.code = code
    note(files, directories, name, 1)
    for ledger_id, bad in ((2, "a"), (3, "ab"), (4, "bc"), (5, "a"), (6, "")):
        files.fault = refusing(*bad)
        note(files, directories, name, ledger_id)
        assert noted(directories, name) == [*range(1, ledger_id + 1)]
    files.fault = refusing(*"abc")
    with pytest.raises(OSError, match=name) as refused:
        note(files, directories, name, 7)
    assert refused.value.errno == code
    assert noted(directories, name) == [*range(1, 7)]


def test_damaged_file_is_not_taken_for_an_older_one_that_remained(directories: list[str]) -> None:
    """What the older one says is not true any more: ledgers that moved, were dropped, or left limbo."""
    files = FaultyFiles()
    for name in NAMES:
        note(files, directories, name, 1)
        files.fault = refusing("a")
        note(files, directories, name, 2)
        files.fault = None
        path = Path(directories[1], name)
        data = bytearray(path.read_bytes())
        data[9] ^= 1
        path.write_bytes(data)
    with pytest.raises(StorageDamaged, match="fail their checksum"):
        Limbo(LocalFiles(), directories)
    assert Tombstones(LocalFiles(), directories).notice
    known = IndexManifestWriter(LocalFiles(), directories)
    assert not known.is_complete
    known.note({3: 9000})
    assert np.array_equal(IndexManifestWriter(LocalFiles(), directories).all()[0], [3])


def test_file_whose_replacement_failed_at_its_end_is_replaced_again(directories: list[str]) -> None:
    """Its name may lead to the attempt already, which is no longer than it is: a record would follow a hole."""
    files = FaultyFiles()
    known = IndexManifestWriter(files, directories[:1])
    known.note({1: 9000})
    known.note_headers(1, 100)
    files.fault = lambda operation, path: operation == "sync_directory"
    with pytest.raises(OSError, match="Input/output"):
        known.forget_headers()
    files.fault = None
    known.note({2: 9000})
    again = IndexManifestWriter(LocalFiles(), directories[:1])
    assert (again.is_complete, again.damaged_at, again.all()[0].tolist()) == (True, None, [1, 2])


def test_damaged_list_is_written_again_though_no_row_of_it_changes(directories: list[str]) -> None:
    note(LocalFiles(), directories, "indexFiles", 1)
    path = Path(directories[0], "indexFiles")
    path.write_bytes(path.read_bytes() + b"torn")
    assert not IndexManifestWriter(LocalFiles(), directories).is_complete
    note(LocalFiles(), directories, "indexFiles", 1)
    again = IndexManifestWriter(LocalFiles(), directories)
    assert (again.is_complete, again.all()[0].tolist()) == (True, [1])


def test_older_version_of_the_headers_is_a_loss_however_long_it_is(directories: list[str]) -> None:
    """Fences that came later are missing in it."""
    files = FaultyFiles()
    headers = LedgerHeadersWriter(files, directories, IndexManifestWriter(files, directories))
    headers.write([LedgerHeader(each, 0, False, bytes(20)) for each in range(9)])
    files.fault = refusing("a")
    for each in range(8):
        headers.remove(each)
    headers.write([LedgerHeader(8, 0, True, bytes(20))])
    files.fault = None
    Path(directories[1], HEADERS).unlink()
    known = IndexManifestWriter(LocalFiles(), directories)
    again = LedgerHeaders(LocalFiles(), directories, known.headers)
    assert again.damage == f"{directories[0]}/{HEADERS}: a later version of it is missing"


# ---- the record of where the files are ----


def opened(files: LocalFiles, directories: list[str]) -> tuple[Limbo, Tombstones, IndexManifestWriter]:
    """Open three of the files as a start does."""
    places = FilePlaces(files, str(Path(directories[0]).parent))
    found = (
        Limbo(files, directories, places),
        Tombstones(files, directories, places),
        IndexManifestWriter(files, directories, places=places),
    )
    places.settle()
    return found


def gone(*names: str) -> Callable[[str, str], bool]:
    return lambda operation, path: any(f"/{name}/" in f"{path}/" for name in names)


def test_start_reads_the_last_version_without_a_disk_that_does_not_have_it(directories: list[str]) -> None:
    files = GoneFiles()
    limbo, tombstones, manifest = opened(files, directories)
    limbo.begin([1])
    tombstones.remember([2], 0)
    manifest.note({3: 9000})
    files.fault = refusing("a")
    limbo.begin([4])
    for bad, message in (("c", ""), ("a", "fencedDeleted"), ("b", "limbo")):
        files.fault = gone(bad)
        if message:
            with pytest.raises(StorageDamaged, match=f"/{bad}/{message} cannot be read .*cannot serve without"):
                opened(files, directories)
            continue
        limbo, tombstones, manifest = opened(files, directories)
        assert limbo.ledger_ids.tolist() == [1, 4]
        assert 2 in tombstones
        assert manifest.all()[0].tolist() == [3]


def test_version_that_was_written_without_a_disk_counts_when_it_is_back(directories: list[str]) -> None:
    """The disk may have a version that was written, and not recorded, before a crash."""
    files = GoneFiles()
    opened(files, directories)[0].begin([1])
    unrecorded = Limbo(files, directories[1:])
    for attempt in (5, 6, 8):
        unrecorded.begin([1, attempt])
    files.fault = gone("b")
    limbo = opened(files, directories)[0]
    assert limbo.ledger_ids.tolist() == [1]
    limbo.begin([7])
    files.fault = None
    assert opened(files, directories)[0].ledger_ids.tolist() == [1, 7]


def test_without_a_record_every_disk_is_needed_once(directories: list[str]) -> None:
    files = GoneFiles()
    Limbo(files, directories).begin([1])
    files.fault = gone("c")
    with pytest.raises(StorageDamaged, match="unknown whether a version of it in another ledger directory is the last"):
        opened(files, directories)
    files.fault = None
    opened(files, directories)
    files.fault = gone("c")
    assert opened(files, directories)[0].ledger_ids.tolist() == [1]


@pytest.mark.parametrize("name", NAMES)
def test_file_that_was_deleted_is_missed(directories: list[str], name: str) -> None:
    files = FaultyFiles()
    note(files, directories, name, 1)
    opened(files, directories)
    files.fault = refusing("a")
    limbo, tombstones, manifest = opened(files, directories)
    limbo.begin([2])
    tombstones.remember([2], 0)
    manifest.note({2: 9000})
    files.fault = None
    Path(directories[1], name).unlink()
    limbo, tombstones, manifest = opened(files, directories)
    missed = {"limbo": limbo.is_lost, "fencedDeleted": tombstones.notice is not None, "indexFiles": manifest.is_lost}
    assert [each for each, is_lost in missed.items() if is_lost] == [name], "an older version does not count"
    limbo.begin([3])
    tombstones.remember([3], 0)
    manifest.note({3: 9000})
    limbo, tombstones, manifest = opened(files, directories)
    assert not any((limbo.is_lost, tombstones.notice, manifest.is_lost))


def test_older_version_on_a_later_disk_is_not_taken_for_the_recorded_one_that_is_gone(directories: list[str]) -> None:
    files = FaultyFiles()
    limbo, *_ = opened(files, directories)
    for refuses, ledger_id in (("a", 1), ("b", 2)):
        files.fault = lambda operation, path, refuses=refuses: (
            operation != "read" and f"/{refuses}/" in path and path.endswith("limbo")
        )
        limbo.begin([ledger_id])
    assert [(Path(each) / "limbo").exists() for each in directories] == [True, True, False]
    files.fault = None
    assert not opened(files, directories)[0].is_lost
    (Path(directories[0]) / "limbo").unlink()
    assert opened(files, directories)[0].is_lost


@pytest.mark.parametrize("damage", [b"", b"filePlaces 1\nlimbo 0\ncrc 00000000\n", bytes(100)])
def test_damaged_record_is_written_again(directories: list[str], damage: bytes) -> None:
    files = GoneFiles()
    opened(files, directories)[0].begin([1])
    record = Path(directories[0]).parent / "filePlaces"
    whole = record.read_bytes()
    assert whole.startswith(b"filePlaces 1\nlimbo 0\ncrc ")
    record.write_bytes(damage)
    assert opened(files, directories)[0].ledger_ids.tolist() == [1]
    assert record.read_bytes() == whole


def test_record_of_a_later_version_refuses(directories: list[str]) -> None:
    head = "filePlaces 2\n"
    record = Path(directories[0]).parent / "filePlaces"
    record.write_text(f"{head}crc {crc32c(head.encode()):08x}\n")
    with pytest.raises(StorageDamaged, match="filePlaces: version 2"):
        opened(LocalFiles(), directories)


def test_file_is_not_accepted_where_the_record_cannot_say_so(directories: list[str]) -> None:
    files = GoneFiles()
    limbo = opened(files, directories)[0]
    files.fault = lambda operation, path: "filePlaces" in path
    with pytest.raises(OSError, match="filePlaces"):
        limbo.begin([1])
    assert limbo.ledger_ids.tolist() == []
    files.fault = None
    limbo.begin([2])
    assert opened(files, directories)[0].ledger_ids.tolist() == [2]


@pytest.mark.parametrize("change", ["note", "forget"])
def test_place_is_recorded_again_after_a_record_whose_writing_failed_at_its_end(
    directories: list[str], change: str
) -> None:
    """The file has its new name then: it is unknown which record a start would find."""
    files = FaultyFiles()
    places = FilePlaces(files, directories[0])
    places.note("limbo", 1)
    places.settle()
    files.fault = lambda operation, path: operation == "sync_directory"
    with pytest.raises(OSError, match="Input/output"):
        places.note("limbo", 2)
    files.fault = None
    if change == "note":
        places.note("limbo", 1)
    else:
        places.forget("other")
    assert FilePlaces(LocalFiles(), directories[0]).place("limbo") == 1
