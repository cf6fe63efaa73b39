"""The options of one bookie: those of all its parts, and the rules that concern several of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from bkspark.errors import ConfigurationError
from bkspark.ids import PORT_MAX
from bkspark.options import BYTES_MAX, YEARS_S, bounded, check
from bkspark.security.web import is_loopback
from bookie_service.engine.bookie_environment import BookieOptions
from bookie_service.engine.disk_watch import DiskOptions
from bookie_service.gc.collection_options import CollectionOptions
from bookie_service.network.authentication import ListenerAuthenticationOptions
from bookie_service.network.connection_options import ConnectionOptions
from bookie_service.network.connections import ConnectionLimits
from bookie_service.network.tls_handshakes import ListenerTlsOptions
from bookie_service.storage.journal.flush_policy import FlushLimits
from bookie_service.storage.journal.journal import JournalOptions
from bookie_service.storage.ledgers.base import StoreOptions


@dataclass(frozen=True, slots=True)
class AddressOptions:
    """Where the bookie listens, and how others find it; see `settings.address`.

    interface_as_given: `listening_interface` as the configuration has it, for messages: a variable that it names may
        hold a secret. None: the same.
    """

    port: int = bounded(3181, 0, PORT_MAX)
    bookie_id: str | None = None
    advertised_address: str | None = None
    """The name or IP address that clients connect to; None: the one that the bookie listens at."""
    listening_interface: str | None = None
    interface_as_given: str | None = None
    allow_loopback: bool = False
    """Whether the bookie may be registered under an address that only this host reaches."""
    use_host_name: bool = False
    """Whether the id has the host's name, instead of its address; `use_short_host_name`: without the domain."""
    use_short_host_name: bool = False

    def __post_init__(self) -> None:
        check(self)

    @property
    def is_local(self) -> bool:
        """Whether a loopback address is advertised, so that the bookie serves this host alone."""
        advertised = self.advertised_address
        return advertised is not None and self.listening_interface is None and is_loopback(advertised)


@dataclass(frozen=True, slots=True)
class ServiceOptions:
    """The options of one bookie. Directories are the configured ones, absolute.

    received_bytes_max, reply_bytes_max: limits of all connections together; see `memory_budget`.
    tls: None: a peer that asks for TLS is refused. authentication: None: every client is served.
    local_readers: ids of users whose clients may read entry logs themselves, in addition to this user and root.
    statistics: the times of requests are recorded. statistics_window_s: quantiles are those of the last such period.
    """

    journal_directories: Sequence[str]
    """In order: ledger n uses number n mod their count."""
    ledger_directories: Sequence[str]
    """In order, which is part of the bookie's cookie."""
    connections: ConnectionLimits = field(default_factory=ConnectionLimits)
    received_bytes_max: int = bounded(128 * 1024 * 1024, 1, BYTES_MAX, "bytes")
    reply_bytes_max: int = bounded(256 * 1024 * 1024, 1024 * 1024, BYTES_MAX, "bytes")
    checkpoint_interval_s: float = bounded(10.0, 0.001, YEARS_S, "seconds")
    """The time between two flushes of the write cache, unless it is full before."""
    fetch_threads: int = bounded(8, 1, 1024)
    """Threads that read entry logs from disk."""
    local_reads: bool = True
    """Whether clients on this host may read entry logs themselves."""
    local_readers: frozenset[int] = frozenset()
    statistics: bool = True
    statistics_window_s: float = bounded(60.0, 0.001, YEARS_S, "seconds")
    bookie: BookieOptions = field(default_factory=BookieOptions)
    connection: ConnectionOptions = field(default_factory=ConnectionOptions)
    flush: FlushLimits = field(default_factory=FlushLimits)
    journal: JournalOptions = field(default_factory=JournalOptions)
    store: StoreOptions = field(default_factory=StoreOptions)
    collection: CollectionOptions = field(default_factory=CollectionOptions)
    disks: DiskOptions = field(default_factory=DiskOptions)
    tls: ListenerTlsOptions | None = None
    authentication: ListenerAuthenticationOptions | None = None

    def __post_init__(self) -> None:
        check(self)
        frame_bytes, half_bytes = self.connection.frame_bytes_max, self.store.cache_half_bytes
        if half_bytes < 2 * frame_bytes:
            raise ConfigurationError(
                f"{self.store.storage_class.cache_half_setting} {half_bytes} is less than twice nettyMaxFrameSizeBytes "
                f"{frame_bytes}: an entry of that size would never fit"
            )
        if self.received_bytes_max < 2 * frame_bytes:
            raise ConfigurationError(
                f"receiveBuffersMaxBytes {self.received_bytes_max} is less than twice nettyMaxFrameSizeBytes "
                f"{frame_bytes}: frames of that size would rarely fit"
            )
