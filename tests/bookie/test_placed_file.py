"""The few files that a bookie has once: they go to a directory whose disk takes them, and the last version counts."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from bkspark.errors import StorageDamaged
from bookie_service.formats.index import LedgerHeader
from bookie_service.storage.index.ledger_headers import LedgerHeaders, LedgerHeadersWriter
from bookie_service.storage.index.manifest import IndexManifestWriter
from bookie_service.storage.io.files import LocalFiles
from bookie_service.storage.ledgers.limbo import Limbo
from bookie_service.storage.ledgers.tombstones import Tombstones
from tests.bookie.faulty_files import FaultyFiles

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
