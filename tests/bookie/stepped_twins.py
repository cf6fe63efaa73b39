"""Twins on a simulated disk, the same after a crash, and records for a journal."""

from __future__ import annotations

import struct
from random import Random

from bookie_service.formats.journal import RecordKind
from bookie_service.storage.journal.journal import JournalOptions, Record
from bookie_service.storage.ledgers.base import StoreOptions
from bookie_service.storage.ledgers.storage_class import StorageClass
from bookie_service.storage.logs.log_appender import AppendOptions
from tests.crash.history import History
from tests.crash.images import Loss, crash_image
from tests.crash.simulated_files import SimulatedDisk, SimulatedFiles
from tests.crash.twins import BookieTwin, Setup

SMALL = JournalOptions(file_bytes_max=1 << 20, preallocate_bytes=4096, alignment_bytes=512, backups_max=0)


def new_disk(*paths: str) -> SimulatedDisk:
    disk = SimulatedDisk()
    for path in paths:
        SimulatedFiles(disk).make_directory(path)
    return disk


def cut(disk: SimulatedDisk) -> SimulatedFiles:
    """Return the files that are left after a power cut now."""
    return SimulatedFiles(crash_image(disk, Loss.LOST, Random(1)))


def record(number: int, size: int = 40) -> Record:
    content = struct.pack(">qqq", 5, number, -1) + bytes(size - 24)
    body = len(content).to_bytes(4, "big") + content
    return Record.of(RecordKind.ENTRIES, 1, body)


def twin_of(storage_class: StorageClass = StorageClass.SORTED, directories: int = 1) -> BookieTwin:
    store = StoreOptions(storage_class, cache_half_bytes=6144, append=AppendOptions(2600), open_files_max=4)
    setup = Setup(ledger_directories=directories, store=store)
    return BookieTwin(setup.new_disk(), setup, History())


def restarted(twin: BookieTwin) -> BookieTwin:
    return BookieTwin(crash_image(twin.disk, Loss.LOST, Random(1)), twin.setup, twin.history.after_crash())
