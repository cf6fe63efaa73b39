"""Apache's ledger storages: what each promises beyond what all promise (issue 4, point 2)."""

from __future__ import annotations

from pathlib import Path

import pytest

from bkspark.errors import ConfigurationError
from bookie_service.configuration import configure
from bookie_service.formats.entry_log import parse_file_name
from bookie_service.storage.files import LocalFiles
from bookie_service.storage.ledger_storage import LedgerStorage
from bookie_service.storage.ledger_store import StoreOptions
from bookie_service.storage.log_scan import LogScan
from bookie_service.storage.opening import open_ledger_storage
from bookie_service.storage.storage_class import StorageClass
from tests.bookie.test_ledger_store import flush, item, put, read

ARRIVALS = [(7, 0), (5, 0), (7, 1), (6, 3), (5, 1), (7, 2), (5, 2)]


def open_store(directory: Path, storage_class: StorageClass) -> LedgerStorage:
    return open_ledger_storage(
        LocalFiles(), [str(directory)], StoreOptions(storage_class, cache_half_bytes=8192, open_files_max=8)
    )


def logged(directory: Path) -> list[tuple[int, int]]:
    """Return (ledger, entry) of everything in the entry logs, in the order in which it lies there."""
    found = []
    for path in sorted(directory.glob("*.log")):
        file = LocalFiles().open(str(path))
        for window in LogScan(file, parse_file_name(path.name) or 0):
            found += list(zip(window.ledger_ids.tolist(), window.entry_ids.tolist()))
        file.close()
    return found


def arrive(store: LedgerStorage) -> None:
    for ledger_id, entry_id in ARRIVALS:
        put(store, ledger_id, {entry_id: item(ledger_id, entry_id, 40)})


def check_contents(store: LedgerStorage) -> None:
    for ledger_id in (5, 7):
        assert read(store, ledger_id, 0) == b"".join(item(ledger_id, entry_id, 40) for entry_id in range(3))
    assert read(store, 6, 3) == item(6, 3, 40)


@pytest.mark.parametrize(
    ("storage_class", "order"),
    [(StorageClass.SORTED, sorted(ARRIVALS)), (StorageClass.INTERLEAVED, ARRIVALS)],
)
def test_entries_lie_in_the_log_in_the_order_of_their_storage(
    tmp_path: Path, storage_class: StorageClass, order: list[tuple[int, int]]
) -> None:
    store = open_store(tmp_path, storage_class)
    arrive(store)
    flush(store)
    check_contents(store)
    store.close()
    assert logged(tmp_path) == order


@pytest.mark.parametrize("second", [StorageClass.SORTED, StorageClass.INTERLEAVED])
def test_sorted_and_interleaved_storage_open_what_the_other_wrote(tmp_path: Path, second: StorageClass) -> None:
    first = {StorageClass.SORTED: StorageClass.INTERLEAVED, StorageClass.INTERLEAVED: StorageClass.SORTED}[second]
    store = open_store(tmp_path, first)
    arrive(store)
    flush(store)
    store.close()
    store = open_store(tmp_path, second)
    check_contents(store)
    put(store, 5, {3: item(5, 3, 40)})
    flush(store)
    assert read(store, 5, 3) == item(5, 3, 40)
    store.close()


@pytest.mark.parametrize("storage_class", list(StorageClass))
def test_a_storage_has_apaches_short_and_full_name(storage_class: StorageClass) -> None:
    assert storage_class.value.startswith("org.apache.bookkeeper.bookie.")
    for name in (storage_class.value, storage_class.short_name):
        assert configure({"ledgerStorageClass": name}).service.store.storage_class is storage_class


def test_a_storage_that_does_not_exist_is_named_with_those_that_do() -> None:
    with pytest.raises(ConfigurationError, match=r"ledgerStorageClass=FastStorage: .* SortedLedgerStorage"):
        configure({"ledgerStorageClass": "FastStorage"})
