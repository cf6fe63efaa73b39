"""The options of one bookie: those of all its parts, and their joint rules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from bookie_service.engine.bookie import BookieOptions
from bookie_service.engine.disk_watch import DiskOptions
from bookie_service.gc.garbage_collector import CollectionOptions
from bookie_service.network.connection import ConnectionOptions
from bookie_service.network.connections import ConnectionLimits
from bookie_service.storage.journal.flush_policy import FlushLimits
from bookie_service.storage.journal.journal import JournalOptions
from bookie_service.storage.ledgers.base import StoreOptions


@dataclass(frozen=True, slots=True)
class ServiceOptions:
    """The options of one bookie. Directories are the configured ones, absolute.

    received_bytes_max, reply_bytes_max: limits of all connections together, see `memory_budget`.
    local_readers: ids of users whose clients read entry logs themselves, besides this one's and root.
    """

    journal_directories: Sequence[str]
    ledger_directories: Sequence[str]
    connections: ConnectionLimits = field(default_factory=ConnectionLimits)
    received_bytes_max: int = 128 * 1024 * 1024
    reply_bytes_max: int = 256 * 1024 * 1024
    checkpoint_interval_s: float = 10.0
    fetch_threads: int = 8
    local_reads: bool = True
    local_readers: frozenset[int] = frozenset()
    bookie: BookieOptions = field(default_factory=BookieOptions)
    connection: ConnectionOptions = field(default_factory=ConnectionOptions)
    flush: FlushLimits = field(default_factory=FlushLimits)
    journal: JournalOptions = field(default_factory=JournalOptions)
    store: StoreOptions = field(default_factory=StoreOptions)
    collection: CollectionOptions = field(default_factory=CollectionOptions)
    disks: DiskOptions = field(default_factory=DiskOptions)

    def __post_init__(self) -> None:
        frame_bytes, half_bytes = self.connection.frame_bytes_max, self.store.cache_half_bytes
        if half_bytes < 2 * frame_bytes:
            raise ValueError(
                f"{self.store.storage_class.cache_half_setting} {half_bytes} is less than twice nettyMaxFrameSizeBytes "
                f"{frame_bytes}: an entry of that size would never fit"
            )
        if self.received_bytes_max < 2 * frame_bytes:
            raise ValueError(
                f"receiveBuffersMaxBytes {self.received_bytes_max} is less than twice nettyMaxFrameSizeBytes "
                f"{frame_bytes}: frames of that size would hardly get through"
            )
