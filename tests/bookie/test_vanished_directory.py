"""A ledger directory that vanishes while the bookie serves, as when systemd unmounts a disk that was unplugged."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bkspark.wire.status import Status
from bookie_service.metrics.families import Value
from bookie_service.operation.bookie_metrics import BookieMetrics
from bookie_service.operation.stored_counts import StoredCounts
from bookie_service.settings.service_options import ServiceOptions
from bookie_service.storage import layout
from bookie_service.storage.io.closed_directories import OpenDirectories
from bookie_service.storage.io.files import is_disk_failure
from bookie_service.storage.io.key_values import KeyValueOptions
from bookie_service.storage.journal.journal import JournalOptions
from bookie_service.storage.ledgers.base import StoreOptions
from bookie_service.storage.ledgers.storage_class import StorageClass
from bookie_service.storage.logs.log_appender import AppendOptions
from tests.bookie.serving import Serving, service_options, stored
from tests.bookie.three_directories import LEDGERS, PAYLOADS, make_only_store, read_all, settle, write_all, write_more
from tests.disks import ROOMY, ROOMY_DISKS
from tests.polling import wait_until

DOUBTFUL = (Status.EIO, Status.EUNKNOWNLEDGERSTATE)


def options(directory: Path, storage_class: StorageClass) -> ServiceOptions:
    """Return the options of a bookie with ledger directories a to c, small logs, and quick checkpoints."""
    return replace(
        service_options(directory),
        ledger_directories=[str(directory / name) for name in "abc"],
        disks=replace(ROOMY_DISKS, interval_s=0.05),
        checkpoint_interval_s=0.05,
        store=StoreOptions(storage_class, append=AppendOptions(50_000), disks=ROOMY),
        journal=JournalOptions(backups_max=0, file_bytes_max=400_000),
    )


def files_of(directory: Path) -> OpenDirectories:
    return OpenDirectories((), ledger_directories=[layout.current(str(directory / name)) for name in "abc"])


@pytest.mark.parametrize(
    ("storage_class", "name"),
    [
        *((StorageClass.SORTED, name) for name in "abc"),
        (StorageClass.INTERLEAVED, "b"),
        *((StorageClass.DB, name) for name in "bc"),
    ],
    ids=lambda value: getattr(value, "name", value),
)
def test_directory_that_vanishes_takes_with_it_what_lay_there_and_nothing_else(
    tmp_path: Path, storage_class: StorageClass, name: str
) -> None:
    """B9: the bookie ended, because "No such file or directory" did not count as a disk that fails.

    The only store of `DbLedgerStorage` is in the first directory.
    """
    for each in "abc":
        layout_path = Path(layout.current(str(tmp_path / each)))
        layout_path.mkdir(parents=True)
    if storage_class is StorageClass.DB:
        make_only_store(tmp_path)
    chosen = options(tmp_path, storage_class)
    with Serving(chosen, files_of(tmp_path)) as serving, serving.connect() as peer:
        write_all(peer, 0)
        settle(serving)
        os.rename(tmp_path / name, tmp_path / "unplugged")
        refused = write_more(peer, name)
        for ledger_id in range(100, 106):
            assert peer.add(ledger_id, 0, [b"a new ledger"]) == [Status.EOK]
        settle(serving)
        for ledger_id in LEDGERS:
            for entry_id in range(80):
                reply = peer.read(ledger_id, entry_id)
                if reply.status == Status.EOK:
                    assert reply.body == stored(ledger_id, entry_id, PAYLOADS[entry_id % 40])
                else:
                    assert reply.status in DOUBTFUL
                    assert "abc"[ledger_id % 3] == name
                    assert entry_id < 40 or ledger_id in refused, "what came later lies on other disks"
        for ledger_id in range(100, 106):
            assert peer.read(ledger_id, 0).body == stored(ledger_id, 0, b"a new ledger")
    assert serving.failure is None
    assert not (tmp_path / name).exists(), "nothing is made where the disk is not"
    os.rename(tmp_path / "unplugged", tmp_path / name)
    with Serving(chosen, files_of(tmp_path)) as serving, serving.connect() as peer:
        read_all(peer, 40)
        for ledger_id in range(100, 106):
            assert peer.read(ledger_id, 0).body == stored(ledger_id, 0, b"a new ledger")


def index_figures(serving: Serving) -> dict[str, float]:
    """Return what the metrics say of the disks of the index."""

    def figures() -> dict[str, float]:
        metrics = BookieMetrics(serving.service, StoredCounts(lambda: (0, 0)), lambda: True, 0.0)
        families = {family.name.removeprefix("bkspark_bookie_index_"): family.samples for family in metrics.entries()}
        return {name: each.value for name in ("failed", "full") for each in families[name] if isinstance(each, Value)}

    return serving.call(figures)


@pytest.mark.parametrize("name", ["a", "b"])
def test_key_value_store_that_vanishes_takes_its_ledgers_with_it_and_nothing_else(tmp_path: Path, name: str) -> None:
    """RocksDB says "No such file or directory" then, which otherwise means damage."""
    for each in "abc":
        Path(layout.current(str(tmp_path / each))).mkdir(parents=True)
    chosen = options(tmp_path, StorageClass.DB)
    others = [each for each in LEDGERS if "abc"[each % 3] != name]
    concerned = sorted(set(LEDGERS).difference(others))
    with Serving(chosen, files_of(tmp_path)) as serving, serving.connect() as peer:
        write_all(peer, 0)
        settle(serving)
        os.rename(tmp_path / name, tmp_path / "unplugged")
        wait_until(lambda: set(peer.add(concerned[0], 40, PAYLOADS)) == {Status.EIO}, "adds to be refused")
        for ledger_id in others:
            assert set(peer.add(ledger_id, 40, PAYLOADS)) == {Status.EOK}
        settle(serving)
        assert index_figures(serving) == {"failed": 1, "full": 0}
        for ledger_id, entry_id in ((concerned[0], 0), (concerned[1], 0), (concerned[1], 40), (90 + concerned[0], 0)):
            assert peer.read(ledger_id, entry_id).status == Status.EIO
    assert serving.failure is None
    assert not (tmp_path / name).exists(), "nothing is made where the disk is not"
    os.rename(tmp_path / "unplugged", tmp_path / name)
    with Serving(chosen, files_of(tmp_path)) as serving, serving.connect() as peer:
        assert serving.service.storage.store.limbo.ledger_ids.tolist() == concerned[:1], "what was not durable there"
        read_all(peer, 40, concerned[1:])
        read_all(peer, 40, others)


CALLS: dict[str, Callable[[OpenDirectories, str], Any]] = {
    "create": lambda files, path: files.create(path),
    "create_directory": lambda files, path: files.create_directory(path),
    "exists": lambda files, path: files.exists(path),
    "file_size": lambda files, path: files.file_size(path),
    "is_directory": lambda files, path: files.is_directory(path),
    "make_directory": lambda files, path: files.make_directory(path),
    "names": lambda files, path: files.names(os.path.dirname(path)),
    "open": lambda files, path: files.open(path),
    "open_file_system": lambda files, path: files.open_file_system(os.path.dirname(path)),
    "read_all": lambda files, path: files.read_all(path),
    "remove": lambda files, path: files.remove(path),
    "remove_directory": lambda files, path: files.remove_directory(path),
    "rename": lambda files, path: files.rename(path, path + "2"),
    "replace": lambda files, path: files.replace(path, b"x"),
    "space": lambda files, path: files.space(os.path.dirname(path)),
    "sync_directory": lambda files, path: files.sync_directory(os.path.dirname(path)),
}


AT_A_START: dict[str, Callable[[OpenDirectories, str], Any]] = {
    "block_bytes": lambda files, path: files.block_bytes(os.path.dirname(path)),
    "lock": lambda files, path: files.lock(os.path.dirname(path)),
    "open_key_values": lambda files, path: files.open_key_values(path, KeyValueOptions()),
    "other_owner": lambda files, path: files.other_owner(os.path.dirname(path)),
    "protect": lambda files, path: files.protect(os.path.dirname(path)),
}
"""Calls at the start or by a command, when all directories were looked at."""


@pytest.mark.parametrize("name", CALLS)
def test_call_below_a_vanished_directory_fails_as_on_a_disk_that_is_gone(tmp_path: Path, name: str) -> None:
    """B2: a file that is not found there may exist."""
    files = files_of(tmp_path)
    (tmp_path / "a" / "current").mkdir(parents=True)
    for each in "bc":
        with pytest.raises(OSError, match="ledger directory") as raised:
            CALLS[name](files, str(tmp_path / each / "current" / "x"))
        assert is_disk_failure(raised.value)
    assert not (tmp_path / "b").exists()
    assert not files.exists(str(tmp_path / "a" / "current" / "x"))
    with pytest.raises(FileNotFoundError):
        files.open(str(tmp_path / "a" / "current" / "x"))
    with pytest.raises(FileNotFoundError):
        files.open(str(tmp_path / "other"))


@pytest.mark.parametrize("name", [*CALLS, *AT_A_START])
def test_call_below_a_closed_directory_fails_though_its_disk_works_again(tmp_path: Path, name: str) -> None:
    """The bookie could neither lock it nor check whose it is: another process may have it by now."""
    closed = tmp_path / "a"
    (closed / "current").mkdir(parents=True)
    files = OpenDirectories([str(closed)], ledger_directories=[layout.current(str(closed))])
    with pytest.raises(OSError, match="could not be read at the start"):
        {**CALLS, **AT_A_START}[name](files, str(closed / "current" / "x"))
    assert os.listdir(closed / "current") == []


def test_every_call_that_takes_a_path_is_among_them() -> None:
    taking_a_path = {
        name
        for name, method in inspect.getmembers(OpenDirectories, inspect.isfunction)
        if not name.startswith("_") and {"path", "directory", "old"} & inspect.signature(method).parameters.keys()
    }
    # The last one asks nothing of a disk.
    assert taking_a_path - CALLS.keys() == {*AT_A_START, "is_closed"}
