"""Configuration: Apache's file and keys, as frozen options of the parts.

Units and defaults are Apache's, but for those that `configuration_docs` names. `journalFlushWhenQueueEmpty` is true by
default, which gives the lowest latency; with false, `journalMaxGroupWaitMSec` holds groups back as Apache's bookies do.

A key that Apache does not have is an error. A key that would protect data or access and is not served is an error too:
ignoring it would be worse than not starting. Other keys that are not served are accepted and named once.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from bkspark.errors import ConfigurationError
from bkspark.ids import check_bookie_id, parse_host_port
from bkspark.metadata.uri import MetadataUri
from bkspark.wire.framing import FRAME_BYTES_MAX
from bookie_service import properties
from bookie_service.bookie import BookieOptions
from bookie_service.collection import CompactionLevel
from bookie_service.collector import CollectionOptions
from bookie_service.configuration_keys import APACHE_KEYS, APACHE_PREFIXES, OWN_KEYS
from bookie_service.configuration_values import FALSE, Setting, Values, refused
from bookie_service.connection import ConnectionOptions
from bookie_service.disk_watch import DiskOptions
from bookie_service.disks import DiskLimits
from bookie_service.formats.entry_log import LOG_BYTES_MAX
from bookie_service.reads import ReadOptions
from bookie_service.replication.options import AuditOptions, AutoRecoveryOptions, RepairOptions
from bookie_service.service import ServiceOptions
from bookie_service.storage.file_index import PageOptions
from bookie_service.storage.flush_policy import SETTLE_NS, FlushLimits
from bookie_service.storage.journal import JournalOptions
from bookie_service.storage.key_values import KeyValueOptions
from bookie_service.storage.ledger_store import ReadAheadOptions, StoreOptions
from bookie_service.storage.log_appender import AppendOptions
from bookie_service.storage.storage_class import StorageClass

_MIB = 1024 * 1024
_PAGES_BYTES = 64 * _MIB
_DEFAULT_URI = "zk+hierarchical://localhost:2181/ledgers"
PROTECTING = {
    "bookieAuthProviderFactoryClass": "authentication",
    "authorizedRoles": "authorisation",
    "tlsProviderFactoryClass": "TLS",
    "zkEnableSecurity": "ZooKeeper access control",
    "permittedStartupUsers": "a check of the user",
}
"""Keys that would protect something and are not served: set, they are refused."""

HARMLESS = frozenset(
    {
        # Adds never queue for a thread: those that find no room stay with their connection, which is not read on.
        "maxPendingAddRequestsPerThread",
        # Every deleted ledger is read directly, too; a log is replaced in one transaction.
        "verifyMetadataOnGC",
        "useTransactionalCompaction",
        # What entry logs hold is not kept in memory, so it needs no cache on disk.
        "gcEntryLogMetadataCacheEnabled",
        "gcEntryLogMetadataCachePath",
        # One at a time.
        "gcOverreplicatedLedgerMaxConcurrentRequests",
        "journalAdaptiveGroupWrites",
    }
)
"""Keys whose every value is satisfied by what this bookie does anyway."""

EXPLAINED = {
    "dataIntegrityChecking": "a ledger of which something that was durable is lost goes into limbo, whatever is set; "
    "nothing is copied back from other bookies at the start, that is autorecovery's work",
    "dataIntegrityStampMissingCookies": "a directory whose cookie is missing is never stamped anew: the bookie does "
    "not start, and says what to do",
    "rereplicationEntryBatchSize": "copies are made in pieces of bytes, whatever number of entries that is: "
    "rereplicationInFlightMaxBytes",
}
"""Keys without effect of which it is worth knowing what happens instead."""

DANGEROUS = {
    "journalSyncData": "entries are acknowledged before they are on a disk: a power cut or a crash of the system takes "
    "those of the last journalPageCacheFlushIntervalMSec",
    "journalWriteData": "entries are acknowledged from memory: the end of the process, by whatever cause, takes those "
    "of the last flushInterval",
}
"""Keys that, set to false, give durability away: after an unclean stop every ledger is in limbo (`storage.limbo`)."""


@dataclass(frozen=True, slots=True)
class AddressOptions:
    """Where the bookie listens and how others find it; see `address`."""

    port: int
    bookie_id: str | None = None
    advertised_address: str | None = None
    listening_interface: str | None = None
    allow_loopback: bool = False
    use_host_name: bool = False
    use_short_host_name: bool = False


@dataclass(frozen=True, slots=True)
class Configuration:
    """Everything that one bookie process was told. `unused_keys`: accepted, and without effect here.

    `dangers`: a line for each thing that was asked for and costs acknowledged entries.
    """

    address: AddressOptions
    metadata_uri: MetadataUri
    session_timeout_s: float
    service: ServiceOptions
    auto_recovery: AutoRecoveryOptions
    runs_auto_recovery: bool
    unused_keys: tuple[str, ...]
    dangers: tuple[str, ...]


def load(path: Path | None, settings: Iterable[tuple[str, str]]) -> Configuration:
    """Return the configuration in a file, overridden by `settings`.

    Raises:
        ConfigurationError: the file cannot be read, a key is unknown, or a value is not usable; one line says all.
    """
    values: dict[str, str] = {}
    if path is not None:
        try:
            values |= properties.parse(path.read_text())
        except OSError as error:
            raise ConfigurationError(f"--config {str(path)!r} cannot be read: {error.strerror}") from None
        except ValueError as error:
            raise ConfigurationError(f"--config {str(path)!r}: {error}") from None
    values |= dict(settings)
    return configure(values)


def configure(values: Mapping[str, str]) -> Configuration:
    """Return the configuration that keys and values make. Raises ConfigurationError."""
    for key in values:
        _check_key(key)
    return _configured(Values(values), values)


def served_settings() -> dict[str, Setting]:
    """Return every key whose value has an effect, in the order in which they are read."""
    keys = Values({})
    _configured(keys, {})
    return {key: setting for key, setting in keys.asked.items() if key not in PROTECTING}


def _configured(keys: Values, values: Mapping[str, str]) -> Configuration:
    for key, what in PROTECTING.items():
        if keys.text(key) not in (None, "null", *FALSE):
            raise refused(key, values[key], f"this bookie has no {what} yet; remove the key to go without")
    try:
        configuration = Configuration(
            address=_address(keys),
            metadata_uri=_metadata_uri(keys),
            session_timeout_s=keys.number("zkTimeout", 10_000, least=1, most=3_600_000, unit="ms") / 1000,
            service=_service(keys),
            auto_recovery=_auto_recovery(keys),
            runs_auto_recovery=keys.flag("autoRecoveryDaemonEnabled", False),
            unused_keys=(),
            dangers=(),
        )
    except ValueError as error:
        raise ConfigurationError(str(error)) from None
    unused = sorted(key for key in values if key not in keys.asked and key not in HARMLESS and values[key].strip())
    dangers = [f"{key}=false is DANGEROUS: {what}" for key, what in DANGEROUS.items() if not keys.flag(key, True)]
    return replace(configuration, unused_keys=tuple(unused), dangers=tuple(dangers))


def _address(keys: Values) -> AddressOptions:
    port = keys.number("bookiePort", 3181, least=0, most=65535)
    if not keys.flag("allowEphemeralPorts", False) and port == 0:
        raise ConfigurationError("bookiePort=0: a port that changes at every start needs allowEphemeralPorts=true")
    return AddressOptions(
        port=port,
        bookie_id=keys.parsed("bookieId", check_bookie_id),
        advertised_address=keys.parsed("advertisedAddress", _checked_host),
        listening_interface=keys.text("listeningInterface"),
        allow_loopback=keys.flag("allowLoopback", False),
        use_host_name=keys.flag("useHostNameAsBookieID", False),
        use_short_host_name=keys.flag("useShortHostName", False),
    )


def _metadata_uri(keys: Values) -> MetadataUri:
    uri = keys.parsed("metadataServiceUri", MetadataUri.parse, default=f"made of zkServers, else {_DEFAULT_URI}")
    root = keys.parsed("zkLedgersRootPath", _checked_root, default="/ledgers") or "/ledgers"

    def of_servers(servers: str) -> MetadataUri:
        return MetadataUri.parse(f"zk://{servers.replace(',', ';')}{root}")

    return uri or keys.parsed("zkServers", of_servers) or MetadataUri.parse(_DEFAULT_URI)


def _checked_root(path: str) -> str:
    if not path.startswith("/") or {"", ".", ".."} & set(path.strip("/").split("/")):
        raise ValueError("it must be the path of a znode, such as /ledgers")
    return path


def _checked_host(host: str) -> str:
    try:
        parse_host_port(f"{host}:1")
    except ValueError:
        raise ValueError("it must be a host's name or address, without a port") from None
    return host


def _service(keys: Values) -> ServiceOptions:
    syncs = keys.flag("journalSyncData", True)
    page_cache_ms = keys.number("journalPageCacheFlushIntervalMSec", 1000, least=1, unit="ms, if journalSyncData=false")
    log_bytes_max = keys.number("logSizeLimit", 1024 * _MIB, least=_MIB, most=LOG_BYTES_MAX, unit="bytes")
    disks = _disks(keys, log_bytes_max)
    fetch_threads = keys.number("numReadWorkerThreads", 8, least=1, most=1024, unit="threads that wait for the disk")
    return ServiceOptions(
        journal_directories=keys.directories(
            "journalDirectories", keys.text("journalDirectory", default="/tmp/bk-txn") or "/tmp/bk-txn"
        ),
        ledger_directories=keys.directories("ledgerDirectories", "/tmp/bk-data"),
        connections_max=keys.number("maxConnections", 10_000, least=1, unit="connections"),
        fetch_threads=fetch_threads,
        local_reads=keys.flag("localReadsEnabled", True, "clients on this host read entry logs themselves"),
        received_bytes_max=keys.number(
            "receiveBuffersMaxBytes", 128 * _MIB, least=_MIB, unit="bytes received, not served yet; all connections"
        ),
        reply_bytes_max=keys.number(
            "replyBuffersMaxBytes", 256 * _MIB, least=_MIB, unit="bytes that peers have not taken; all connections"
        ),
        checkpoint_interval_s=keys.number("flushInterval", 10_000, least=1, unit="ms") / 1000,
        bookie=BookieOptions(
            adds_in_flight_max=keys.number("maxAddsInProgressLimit", 0, least=0, unit="adds, 0: no limit"),
            journals_entries=keys.flag("journalWriteData", True),
            reads=ReadOptions(
                in_flight_max=keys.number("maxReadsInProgressLimit", 0, least=0, unit="reads, 0: no limit"),
                waiting_max=fetch_threads
                * keys.number("maxPendingReadRequestsPerThread", 10_000, least=1, unit="reads that wait for the disk"),
                batch_bytes_max=keys.number("maxBatchReadSize", 5 * _MIB, least=1, most=64 * _MIB, unit="bytes"),
            ),
        ),
        connection=ConnectionOptions(
            frame_bytes_max=keys.number(
                "nettyMaxFrameSizeBytes", FRAME_BYTES_MAX, least=1024, most=64 * _MIB, unit="bytes"
            ),
            stalled_s_max=_stalled_s(keys),
            frame_s_max=keys.number("frameTimeoutMs", 60_000, least=1, unit="ms for one request to come") / 1000,
            no_delay=keys.flag("serverTcpNoDelay", True),
            keep_alive=keys.flag("serverSockKeepalive", True),
        ),
        flush=FlushLimits(
            bytes_max=keys.number("journalBufferedWritesThreshold", 512 * 1024, least=1, unit="bytes"),
            entries_max=keys.number("journalBufferedEntriesThreshold", 0, least=0, unit="entries, 0: no limit"),
            age_ns_max=keys.number("journalMaxGroupWaitMSec", 2, least=0, unit="ms") * 1_000_000,
            flush_when_idle=keys.flag("journalFlushWhenQueueEmpty", True),
            settle_ns=SETTLE_NS if syncs else page_cache_ms * 1_000_000,
        ),
        journal=JournalOptions(
            file_bytes_max=keys.number("journalMaxSizeMB", 2048, least=1, unit="MiB") * _MIB,
            preallocate_bytes=keys.number("journalPreAllocSizeMB", 16, least=0, most=2048, unit="MiB") * _MIB,
            alignment_bytes=_alignment(keys),
            backups_max=keys.number("journalMaxBackups", 5, least=0, unit="files"),
            reuse_files=keys.flag("journalReuseFiles", False),
            sync_groups=syncs,
            leaves_page_cache=keys.flag("journalRemoveFromPageCache", True),
        ),
        store=_store(keys, log_bytes_max, disks.limits),
        collection=_collection(keys),
        disks=disks,
    )


def _alignment(keys: Values) -> int:
    unit = "bytes, a multiple of 512; 0: the physical block size of each journal's disk"
    size = keys.number("journalAlignmentSize", 0, least=0, most=_MIB, unit=unit)
    if size % 512:
        raise refused("journalAlignmentSize", str(size), "it must be a multiple of 512")
    return size


def _disks(keys: Values, log_bytes_max: int) -> DiskOptions:
    full_share = keys.share("diskUsageThreshold", 0.95, unit="of a disk")

    def reserve(key: str, most: str) -> int | None:
        unit = f"bytes, 0: {most}, or a quarter of what diskUsageThreshold keeps free if that is less"
        return keys.number(key, 0, least=0, unit=unit) or None

    return DiskOptions(
        limits=DiskLimits(
            full_share=full_share,
            # Whoever lowers only the threshold means this one, too.
            warn_share=keys.share("diskUsageWarnThreshold", min(0.90, full_share), unit="of a disk"),
            low_share=keys.share("diskUsageLwmThreshold", full_share, unit="of a disk"),
            any_full=keys.flag("readOnlyModeOnAnyDiskFullEnabled", False),
            high_priority_bytes_min=reserve("minUsableSizeForHighPriorityWrites", "logSizeLimit"),
            new_index_bytes_min=reserve("minUsableSizeForIndexFileCreation", "100 MiB"),
            new_log_bytes_min=reserve("minUsableSizeForEntryLogCreation", "logSizeLimit"),
            log_bytes_max=log_bytes_max,
        ),
        interval_s=keys.number("diskCheckInterval", 10_000, least=1, unit="ms") / 1000,
        read_only_mode=keys.flag("readOnlyModeEnabled", True),
        is_forced_read_only=keys.flag("forceReadOnlyBookie", False),
    )


def _pages(keys: Values) -> PageOptions:
    page_bytes = keys.number("pageSize", 8192, least=64, most=_MIB, unit="bytes, a multiple of 8")
    pages_max = keys.number("pageLimit", -1, most=1 << 30, unit="pages, 0 or less: 64 MiB of them")
    return PageOptions(page_bytes, pages_max if pages_max > 0 else max(1, _PAGES_BYTES // page_bytes))


def _store(keys: Values, log_bytes_max: int, disks: DiskLimits) -> StoreOptions:
    default = StorageClass.SORTED
    storage_class = keys.parsed("ledgerStorageClass", StorageClass.parse, default=default.short_name) or default
    open_files = keys.number("openFileLimit", 20_000, least=16, unit="files")
    file_half = keys.number("skipListSizeLimit", 64 * _MIB, least=1, unit="bytes")
    db_half = keys.number("dbStorage_writeCacheMaxSizeMb", 128, least=2, unit="MiB, both halves") * _MIB // 2
    read_ahead_bytes = keys.number("dbStorage_readAheadCacheMaxSizeMb", 64, least=0, unit="MiB, 0: none") * _MIB
    return StoreOptions(
        storage_class=storage_class,
        cache_half_bytes=db_half if storage_class is StorageClass.DB else file_half,
        append=AppendOptions(
            log_bytes_max=log_bytes_max,
            # 0 means "at the end of a flush only" to Apache's bookies; it gets our default here.
            sync_bytes=keys.number("flushEntrylogBytes", 0, least=0, unit="bytes, 0: 2 MiB") or 2 * _MIB,
            log_per_ledger=keys.flag("entryLogPerLedgerEnabled", False),
            active_logs_max=keys.number("maximumNumberOfActiveEntryLogs", 500, least=1, unit="logs"),
            idle_s=keys.number("entrylogMapAccessExpiryTimeInSeconds", 300, least=1, unit="s"),
            reserves=keys.flag("entryLogFilePreallocationEnabled", True),
        ),
        open_files_max=open_files,
        pages=_pages(keys),
        disks=disks,
        read_ahead=ReadAheadOptions(
            cache_bytes=read_ahead_bytes,
            batch_entries=keys.number("dbStorage_readAheadCacheBatchSize", 100, least=1, unit="entries"),
            batch_bytes=keys.number(
                "dbStorage_readAheadCacheBatchBytesSize", -1, unit="bytes, 0 or less: a 16th of the cache"
            ),
        ),
        key_values=KeyValueOptions(
            cache_bytes=keys.number("dbStorage_rocksDB_blockCacheSize", 16 * _MIB, least=_MIB, unit="bytes"),
            write_buffer_bytes=keys.number("dbStorage_rocksDB_writeBufferSizeMB", 16, least=1, unit="MiB") * _MIB,
            open_files_max=open_files // 2,
            block_bytes=keys.number("dbStorage_rocksDB_blockSize", 65_536, least=1024, most=64 * _MIB, unit="bytes"),
            bloom_bits_per_key=keys.number(
                "dbStorage_rocksDB_bloomFilterBitsPerKey", 10, least=0, most=100, unit="bits, 0: no filter"
            ),
        ),
    )


def _stalled_s(keys: Values) -> float:
    """Return how long a peer may take none of its replies. A reply that is due is never dropped alone."""
    wait_ms = keys.number("waitTimeoutOnResponseBackpressureMs", -1, unit="ms, 0 or less: 60 s")
    if not keys.flag("closeChannelOnResponseTimeout", True):
        return math.inf
    return wait_ms / 1000 if wait_ms > 0 else ConnectionOptions().stalled_s_max


def _collection(keys: Values) -> CollectionOptions:
    return CollectionOptions(
        interval_s=keys.number("gcWaitTime", 600_000, least=1, unit="ms") / 1000,
        overreplicated_interval_s=keys.number("gcOverreplicatedLedgerWaitTime", 86_400_000, unit="ms, 0 or less: never")
        / 1000,
        minor=_compaction(keys, "minor", 0.2, 3600),
        major=_compaction(keys, "major", 0.8, 86_400),
        deleted_share_max=keys.share("gcDeletedShareMax", 0.2, unit="of the bookie's ledgers with entries"),
        # The older name counts where the newer one is not set.
        entries_per_s=keys.number(
            "compactionRateByEntries",
            keys.number("compactionRate", 1000, least=0, unit="entries/s, 0: no limit"),
            least=0,
            unit="entries/s, 0: no limit",
        ),
        bytes_per_s=keys.number("compactionRateByBytes", 1_000_000, least=0, unit="bytes/s, 0: no limit"),
        limit_by_bytes=keys.flag("isThrottleByBytes", False),
        metadata_ops_per_s=keys.number("gcMetadataOpRateLimit", 1000, least=1, unit="reads/s"),
        outstanding_max=keys.number("compactionMaxOutstandingRequests", 100_000, least=1, unit="entries"),
        compact_when_full=keys.flag("isForceGCAllowWhenNoSpace", False),
        force_without_interval=keys.flag("forceAllowCompaction", False),
    )


def _auto_recovery(keys: Values) -> AutoRecoveryOptions:
    return AutoRecoveryOptions(
        AuditOptions(
            lost_bookie_delay_s=keys.number("lostBookieRecoveryDelay", 0, least=0, unit="s"),
            bookie_check_interval_s=keys.number(
                "auditorPeriodicBookieCheckInterval", 86_400, unit="s, 0 or less: never"
            ),
            ledger_check_interval_s=keys.number("auditorPeriodicCheckInterval", 604_800, unit="s, 0 or less: never"),
            verified_share=keys.number(
                "auditorLedgerVerificationPercentage", 0, least=0, most=100, unit="% of a fragment's entries"
            )
            / 100,
        ),
        RepairOptions(
            bytes_per_s=keys.number("replicationRateByBytes", -1, unit="bytes/s, 0 or less: no limit"),
            copies_in_flight_bytes=keys.number(
                "rereplicationInFlightMaxBytes", 16 * 1024 * 1024, least=1024 * 1024, unit="bytes"
            ),
            grace_s=keys.number("openLedgerRereplicationGracePeriod", 30_000, least=0, unit="ms") / 1000,
            pause_s=keys.number("rwRereplicateBackoffMs", 5000, least=1, unit="ms") / 1000,
            failed_pause_max_s=keys.number("lockReleaseOfFailedLedgerGracePeriod", 300_000, least=1, unit="ms") / 1000,
            password=(keys.text("passwd", default="empty") or "").encode(),
        ),
    )


def _compaction(keys: Values, kind: str, threshold: float, interval_s: int) -> CompactionLevel:
    return CompactionLevel(
        keys.share(f"{kind}CompactionThreshold", threshold, least=-1, unit="of an entry log, 0 or less: never"),
        keys.number(f"{kind}CompactionInterval", interval_s, unit="s, 0 or less: never"),
        max(0, keys.number(f"{kind}CompactionMaxTimeMillis", -1, unit="ms, 0 or less: no limit")) / 1000,
    )


def _check_key(key: str) -> None:
    if key in APACHE_KEYS or key in OWN_KEYS or key.startswith(APACHE_PREFIXES):
        return
    by_lower = {known.lower(): known for known in APACHE_KEYS | OWN_KEYS}
    (nearest,) = difflib.get_close_matches(key.lower(), by_lower, n=1, cutoff=0)
    raise ConfigurationError(
        f"configuration key {key!r} does not exist; did you mean {by_lower[nearest]}? docs/configuration.md lists all"
    )
