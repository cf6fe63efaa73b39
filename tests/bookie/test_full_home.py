"""A bookie with an index in each ledger directory, a process that is killed while one of its disks really is full."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from bkspark.wire.status import Status
from bookie_service.settings.service_options import ServiceOptions
from bookie_service.storage.io.key_values import KeyValueOptions
from bookie_service.storage.journal.journal import JournalOptions
from bookie_service.storage.ledgers.base import StoreOptions
from bookie_service.storage.ledgers.storage_class import StorageClass
from bookie_service.storage.logs.log_appender import AppendOptions
from tests.bookie.served_process import ServedProcess
from tests.bookie.serving import Peer, service_options, stored
from tests.bookie.small_disks import mounted
from tests.disks import ROOMY, ROOMY_DISKS
from tests.polling import wait_until

DISK_BYTES = 32 << 20
LEDGERS = range(12, 18)
PAYLOADS = [bytes([i]) * 1000 for i in range(50)]


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[Path]:
    with mounted(tmp_path / "b", DISK_BYTES) as path:
        yield path


def options(directory: Path) -> ServiceOptions:
    store = StoreOptions(
        StorageClass.DB,
        append=AppendOptions(200_000),
        disks=ROOMY,
        key_values=KeyValueOptions(write_buffer_bytes=1 << 20),
    )
    return replace(
        service_options(directory),
        ledger_directories=[str(directory / name) for name in "abc"],
        disks=replace(ROOMY_DISKS, interval_s=0.05),
        checkpoint_interval_s=0.05,
        store=store,
        journal=JournalOptions(backups_max=0, file_bytes_max=400_000),
    )


class Writer:
    """Adds to ledgers, and what was acknowledged of each."""

    def __init__(self) -> None:
        self.ends = dict.fromkeys(LEDGERS, 0)

    def add(self, peer: Peer) -> set[int]:
        """Add some entries to each ledger; return the ledgers of which some were refused."""
        refused = set()
        for ledger_id, end in self.ends.items():
            statuses = peer.add(ledger_id, end, PAYLOADS)
            accepted = statuses.count(Status.EOK)
            assert statuses == [Status.EOK] * accepted + [Status.EREADONLY] * (len(PAYLOADS) - accepted)
            self.ends[ledger_id] += accepted
            if accepted < len(PAYLOADS):
                refused.add(ledger_id)
        return refused

    def check(self, peer: Peer) -> None:
        """Every acknowledged entry is there, byte for byte."""
        for ledger_id, end in self.ends.items():
            for entry_id in range(0, end, 7):
                reply = peer.read(ledger_id, entry_id)
                expected = stored(ledger_id, entry_id, PAYLOADS[entry_id % len(PAYLOADS)])
                assert (reply.status, reply.body) == (Status.EOK, expected)


def kept_files(directory: Path) -> list[str]:
    return [path.name for path in sorted(directory.glob("[ac]/current/positions.kept.*"))]


def fill(disk: Path) -> Path:
    """Write a file until not a byte more fits; unbuffered, so that closing it has nothing left to write."""
    ballast = disk / "ballast"
    with ballast.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4096))
    return ballast


@pytest.mark.long(reason="five real processes on a disk that really fills up")
def test_full_disk_of_one_directory_refuses_only_its_own_adds_and_loses_nothing_by_kills(
    tmp_path: Path, full_disk: Path
) -> None:
    writer = Writer()
    with ServedProcess(options(tmp_path)) as bookie, bookie.connect() as peer:
        assert writer.add(peer) == set()
        ballast = fill(full_disk)
        wait_until(lambda: writer.add(peer) == {13, 16}, "adds to the full directory to be refused")
        wait_until(lambda: kept_files(tmp_path) == ["positions.kept.1"], "a file with what the full store lacks")
        writer.check(peer)
        bookie.kill()
    for _ in range(2):
        with ServedProcess(options(tmp_path)) as bookie, bookie.connect() as peer:
            writer.check(peer)
            wait_until(lambda peer=peer: writer.add(peer) == {13, 16}, "adds to be refused after a kill")
            writer.check(peer)
            bookie.kill()
    ballast.unlink()
    with ServedProcess(options(tmp_path)) as bookie, bookie.connect() as peer:
        wait_until(lambda: writer.add(peer) == set(), "adds to the directory that has space again")
        wait_until(lambda: not kept_files(tmp_path), "the removal of the file")
        writer.check(peer)
    with ServedProcess(options(tmp_path)) as bookie, bookie.connect() as peer:
        writer.check(peer)
