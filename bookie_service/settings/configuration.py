"""Configuration: Apache's file and keys, as frozen options of the parts.

Units and defaults are Apache's, but for those that `docs` names. `journalFlushWhenQueueEmpty` is true by
default, which gives the lowest latency; with false, `journalMaxGroupWaitMSec` holds groups back as Apache's bookies do.

Apache's files start this bookie. A value that Apache's bookies accept is accepted too, or raised or lowered to one that
this bookie can work with, with one line that says so. Keys that are not served are accepted and named once, and so are
unknown keys, except for two kinds: a name that nearly equals that of another key is a mistake, and a key that would
protect data or access must not be ignored. A key of Apache's that protects something and is not served is an error,
too.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from bkspark.errors import ConfigurationError
from bkspark.ids import check_bookie_id, parse_host_port
from bkspark.metadata.uri import MetadataUri
from bkspark.wire.framing import FRAME_BYTES_MAX
from bookie_service.engine.bookie import BookieOptions
from bookie_service.engine.disk_watch import DiskOptions
from bookie_service.engine.reads import ReadOptions
from bookie_service.engine.shares import ShareLimits
from bookie_service.formats.entry_log import LOG_BYTES_MAX
from bookie_service.formats.index import POSITION_BYTES
from bookie_service.gc.garbage_collector import CollectionOptions
from bookie_service.gc.gc_policy import CompactionLevel
from bookie_service.network.connection import ConnectionOptions
from bookie_service.network.connections import ConnectionLimits
from bookie_service.replication.options import AuditOptions, AutoRecoveryOptions, RepairOptions
from bookie_service.settings.file import read
from bookie_service.settings.keys import APACHE_KEYS, APACHE_PREFIXES, OWN_KEYS
from bookie_service.settings.service_options import ServiceOptions
from bookie_service.settings.users import group_id, user_ids
from bookie_service.settings.values import FALSE, MOST, NULL, TRUE, Setting, Values, refused
from bookie_service.storage.disks import DiskLimits
from bookie_service.storage.index.per_ledger import PageOptions
from bookie_service.storage.io.key_values import KeyValueOptions
from bookie_service.storage.journal.flush_policy import MARKER_DELAY_NS, FlushLimits
from bookie_service.storage.journal.journal import JournalOptions
from bookie_service.storage.ledgers.base import ReadAheadOptions, StoreOptions
from bookie_service.storage.ledgers.storage_class import StorageClass
from bookie_service.storage.logs.log_appender import AppendOptions

OPEN_FILES, OPEN_FILES_MIN = 20_000, 16
FLUSH_MS = 10_000
COMPACTED_SHARE_MAX = 0.99
"""Apache's bookies also accept 1: a log is replaced as soon as one of its entries is deleted."""

_MIB = 1024 * 1024
_PAGES_BYTES = 64 * _MIB
_DEFAULT_SERVERS, _DEFAULT_ROOT = "zk+hierarchical://localhost:2181", "/ledgers"
PROTECTING = {
    "bookieAuthProviderFactoryClass": "authentication",
    "authorizedRoles": "authorisation",
    "tlsProviderFactoryClass": "TLS",
    "zkEnableSecurity": "ZooKeeper access control",
    "disableServerSocketBind": "way to be reached but its port",
}
"""Keys that would protect something and are not served: they are refused when set."""

_PROTECTING_NAME = re.compile("(?i)(.*[._-])?(tls|ssl|sasl|auth|acl|kerberos|security)")
"""Prefixes of keys that may protect something: unknown ones are refused and not ignored."""

_OF_PULSARS_BROKER = frozenset(
    {
        "authenticationProviders",
        "authorizationProvider",
        "saslJaasBrokerSectionName",
        "saslJaasServerSectionName",
        "sslFactoryPlugin",
        "sslFactoryPluginParams",
        "tlsCiphers",
        "tlsProtocols",
    }
)
"""Pulsar's standalone.conf is one file for a broker and its bookie. These say how the broker protects itself. Its
`authenticationEnabled`, `authorizationEnabled` and `tlsEnabled` say whether it does: these are refused when set."""

_NEARLY, _ALIKE = 0.92, 0.8
"""Similarity of an unknown key to a known one, as difflib measures it: from the first value on it counts as a mistake,
from the second on the known key is named."""

HARMLESS = frozenset(
    {
        # Adds never queue for a thread: adds without room stay with their connection, which is not read further.
        "maxPendingAddRequestsPerThread",
        # Every deleted ledger is read directly, too; a log is replaced in one transaction.
        "verifyMetadataOnGC",
        "useTransactionalCompaction",
        # Entry logs are not cached in memory, so they need no cache on disk.
        "gcEntryLogMetadataCacheEnabled",
        "gcEntryLogMetadataCachePath",
        # One at a time.
        "gcOverreplicatedLedgerMaxConcurrentRequests",
        "journalAdaptiveGroupWrites",
    }
)
"""Keys of which this bookie satisfies every value anyway."""

EXPLAINED = {
    "dataIntegrityChecking": "a ledger of which something that was durable is lost goes into limbo, whatever is set; "
    "nothing is copied back from other bookies at the start, that is autorecovery's work",
    "dataIntegrityStampMissingCookies": "a directory whose cookie is missing is never stamped again: the bookie does "
    "not start, and says what to do",
    "rereplicationEntryBatchSize": "copies are made in pieces of bytes, whatever number of entries that is: "
    "rereplicationInFlightMaxBytes",
}
"""Keys without effect, with what happens instead."""

DANGEROUS = {
    "journalSyncData": "entries are acknowledged before they are on a disk: a power cut or a crash of the system takes "
    "those of the last journalPageCacheFlushIntervalMSec",
    "journalWriteData": "entries are acknowledged from memory: the end of the process, by whatever cause, takes those "
    "of the last flushInterval",
}
"""Keys that give up durability when set to false: after an unclean stop every ledger is in limbo (`ledgers.limbo`)."""


@dataclass(frozen=True, slots=True)
class AddressOptions:
    """Where the bookie listens and its advertised address; see `address`."""

    port: int
    bookie_id: str | None = None
    advertised_address: str | None = None
    listening_interface: str | None = None
    allow_loopback: bool = False
    use_host_name: bool = False
    use_short_host_name: bool = False


@dataclass(frozen=True, slots=True)
class Configuration:
    """The whole configuration of one bookie process. `unused_keys`: accepted keys without effect here.

    `notes`: a line for each value that is not used as given.
    `dangers`: a line for each setting that can lose acknowledged entries.
    `permitted_users`: names of users who may run the bookie; empty: any user may.
    `file_group`: the group that may read the bookie's files; None: its user alone may.
    """

    address: AddressOptions
    metadata_uri: MetadataUri
    session_timeout_s: float
    service: ServiceOptions
    auto_recovery: AutoRecoveryOptions
    runs_auto_recovery: bool
    unused_keys: tuple[str, ...]
    notes: tuple[str, ...]
    dangers: tuple[str, ...]
    permitted_users: tuple[str, ...] = ()
    file_group: int | None = None


def load(path: Path | None, settings: Iterable[tuple[str, str]]) -> Configuration:
    """Return the configuration in a file, overridden by `settings`.

    Raises:
        ConfigurationError: the file cannot be read, a key is unknown, or a value is not usable; the message is one
        line.
    """
    values, notes = ({}, []) if path is None else read(path)
    return configure(values | dict(settings), notes)


def configure(values: Mapping[str, str], notes: Sequence[str] = ()) -> Configuration:
    """Return the configuration for keys and values. Raises ConfigurationError.

    Args:
        notes: lines about values that were left out.
    """
    keys = Values(values)
    keys.notes += notes
    keys.notes += [note for key, value in values.items() if (note := _check_key(key, value.strip()))]
    return _configured(keys, values)


def served_settings() -> dict[str, Setting]:
    """Return every key whose value has an effect, in the order in which they are read."""
    keys = Values({})
    _configured(keys, {})
    return {key: setting for key, setting in keys.asked.items() if key not in PROTECTING}


def _configured(keys: Values, values: Mapping[str, str]) -> Configuration:
    for key, what in PROTECTING.items():
        if (keys.text(key) or NULL).lower() not in (NULL, *FALSE):
            raise refused(key, values[key], f"this bookie has no {what} yet; remove the key to go without")
    try:
        configuration = Configuration(
            address=_address(keys),
            metadata_uri=_metadata_uri(keys),
            session_timeout_s=keys.number("zkTimeout", 10_000, least=500, most=3_600_000, unit="ms") / 1000,
            service=_service(keys),
            auto_recovery=_auto_recovery(keys),
            runs_auto_recovery=keys.flag("autoRecoveryDaemonEnabled", False),
            unused_keys=(),
            notes=(),
            dangers=(),
            permitted_users=tuple(name for name in keys.names("permittedStartupUsers") if name != NULL),
            file_group=keys.parsed("permittedFileGroup", group_id, default="none but the bookie's user"),
        )
    except ValueError as error:
        raise ConfigurationError(str(error)) from None
    unused = sorted(key for key in values if key not in keys.asked and key not in HARMLESS and values[key].strip())
    dangers = [f"{key}=false is DANGEROUS: {what}" for key, what in DANGEROUS.items() if not keys.flag(key, True)]
    return replace(configuration, unused_keys=tuple(unused), notes=tuple(keys.notes), dangers=tuple(dangers))


def _address(keys: Values) -> AddressOptions:
    port = keys.number("bookiePort", 3181, least=0, most=65535, raises=False, lowers=False)
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
    default = f"made of zkServers, else {_DEFAULT_SERVERS}{_DEFAULT_ROOT}"
    uri = keys.parsed("metadataServiceUri", MetadataUri.parse, default=default)
    root = keys.parsed("zkLedgersRootPath", _checked_root, default=_DEFAULT_ROOT) or _DEFAULT_ROOT

    def of_servers(servers: str) -> MetadataUri:
        return MetadataUri.parse(f"zk://{servers.replace(',', ';')}{root}")

    return uri or keys.parsed("zkServers", of_servers) or MetadataUri.parse(f"{_DEFAULT_SERVERS}{root}")


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


def _user_ids(names: str) -> frozenset[int]:
    return user_ids(name.strip() for name in names.split(",") if name.strip())


def _service(keys: Values) -> ServiceOptions:
    syncs = keys.flag("journalSyncData", True)
    page_cache_ms = keys.number("journalPageCacheFlushIntervalMSec", 1000, least=1, unit="ms, if journalSyncData=false")
    log_bytes_max = keys.number("logSizeLimit", 1024 * _MIB, least=_MIB, most=LOG_BYTES_MAX, unit="bytes", lowers=False)
    frame_bytes = keys.number("nettyMaxFrameSizeBytes", FRAME_BYTES_MAX, least=1024, most=64 * _MIB, unit="bytes")
    disks = _disks(keys, log_bytes_max)
    fetch_threads = keys.number("numReadWorkerThreads", 8, least=1, most=1024, unit="threads that wait for the disk")
    return ServiceOptions(
        journal_directories=keys.directories(
            "journalDirectories", keys.text("journalDirectory", default="/tmp/bk-txn") or "/tmp/bk-txn"
        ),
        ledger_directories=keys.directories("ledgerDirectories", "/tmp/bk-data"),
        connections=_connections(keys),
        fetch_threads=fetch_threads,
        local_reads=keys.flag("localReadsEnabled", True, "clients on this host read entry logs themselves"),
        local_readers=keys.parsed("permittedLocalReadUsers", _user_ids, default="the bookie's own and root")
        or frozenset(),
        received_bytes_max=keys.number(
            "receiveBuffersMaxBytes",
            128 * _MIB,
            # Otherwise frames of the largest size would hardly get through.
            least=2 * frame_bytes,
            unit="bytes received, not served yet; all connections",
        ),
        reply_bytes_max=keys.number(
            "replyBuffersMaxBytes", 256 * _MIB, least=_MIB, unit="bytes that peers have not taken; all connections"
        ),
        checkpoint_interval_s=_flush_interval_s(keys),
        bookie=BookieOptions(
            adds_in_flight_max=max(
                0, keys.number("maxAddsInProgressLimit", 0, least=-1, unit="adds, 0 or less: no limit")
            ),
            journals_entries=keys.flag("journalWriteData", True),
            long_polls=_shares(keys, "maxLongPolls", 10_000, "reads that wait for a LAC"),
            long_poll_s_max=keys.number("longPollTimeoutMaxMs", 300_000, least=1, unit="ms that a read waits") / 1000,
            entry_lists=_shares(keys, "maxEntryLists", 4096, "lists of entries that wait to be made, one by one"),
            reads=ReadOptions(
                in_flight_max=max(
                    0, keys.number("maxReadsInProgressLimit", 0, least=-1, unit="reads, 0 or less: no limit")
                ),
                waiting_max=fetch_threads * _pending_reads(keys),
                batch_bytes_max=keys.number("maxBatchReadSize", 5 * _MIB, least=1, most=64 * _MIB, unit="bytes"),
            ),
        ),
        connection=ConnectionOptions(
            frame_bytes_max=frame_bytes,
            stalled_s_max=_stalled_s(keys),
            frame_s_max=keys.number("frameTimeoutMs", 60_000, least=1, unit="ms for one request to come") / 1000,
            no_delay=keys.flag("serverTcpNoDelay", True),
            keep_alive=keys.flag("serverSockKeepalive", True),
        ),
        flush=FlushLimits(
            bytes_max=keys.number("journalBufferedWritesThreshold", 512 * 1024, least=1, unit="bytes"),
            entries_max=max(
                0, keys.number("journalBufferedEntriesThreshold", 0, least=-1, unit="entries, 0 or less: no limit")
            ),
            age_ns_max=max(0, keys.number("journalMaxGroupWaitMSec", 2, least=-1, unit="ms, 0 or less: no wait"))
            * 1_000_000,
            flush_when_idle=keys.flag("journalFlushWhenQueueEmpty", True),
            marker_delay_ns=MARKER_DELAY_NS if syncs else page_cache_ms * 1_000_000,
        ),
        journal=JournalOptions(
            file_bytes_max=keys.number("journalMaxSizeMB", 2048, least=1, unit="MiB") * _MIB,
            preallocate_bytes=keys.number("journalPreAllocSizeMB", 16, least=0, most=2048, unit="MiB", raises=False)
            * _MIB,
            alignment_bytes=_alignment(keys),
            backups_max=keys.number("journalMaxBackups", 5, least=0, unit="files"),
            reuse_files=keys.flag("journalReuseFiles", False),
            sync_groups=syncs,
            leaves_page_cache=keys.flag("journalRemoveFromPageCache", True),
        ),
        store=_store(keys, log_bytes_max, 2 * frame_bytes, disks.limits),
        collection=_collection(keys),
        disks=disks,
    )


def _connections(keys: Values) -> ConnectionLimits:
    connections = keys.number("maxConnections", 10_000, least=1, unit="connections", raises=False, lowers=False)
    return ConnectionLimits(
        connections,
        keys.number(
            "maxConnectionsPerAddress",
            0,
            least=0,
            unit="connections, 0: half of maxConnections",
            raises=False,
            lowers=False,
        ),
        keys.number(
            "connectionsReservedForBookies",
            100,
            least=0,
            unit="connections for the cluster's bookies, of maxConnections a tenth at most",
        ),
        keys.number("connectionIdleTimeoutMs", 60_000, least=1, unit="ms for the first request to come") / 1000,
    )


def _shares(keys: Values, key: str, default: int, what: str) -> ShareLimits:
    places = keys.number(key, default, least=1, unit=what)
    unit = f"{what.split()[0]}, 0: half of {key}; one connection may have half of that"
    return ShareLimits.of(places, keys.number(f"{key}PerAddress", 0, least=0, unit=unit))


def _alignment(keys: Values) -> int:
    unit = "bytes, a multiple of 512; 0: the physical block size of each journal's disk"
    size = keys.number("journalAlignmentSize", 0, least=0, most=_MIB, unit=unit, raises=False)
    if size % 512:
        raise refused("journalAlignmentSize", str(size), "it must be a multiple of 512")
    return size


def _disks(keys: Values, log_bytes_max: int) -> DiskOptions:
    full_share = keys.share("diskUsageThreshold", 0.95, unit="of a disk")

    def reserve(key: str, most: str) -> int | None:
        unit = f"bytes, 0 or less: {most}, or a quarter of what diskUsageThreshold keeps free if that is less"
        number = keys.number(key, 0, least=-1, unit=unit)
        return number if number > 0 else None

    return DiskOptions(
        limits=DiskLimits(
            full_share=full_share,
            # An operator who lowers only the threshold means this one, too.
            warn_share=keys.share("diskUsageWarnThreshold", min(0.90, full_share), unit="of a disk", raises=True),
            low_share=keys.share("diskUsageLwmThreshold", full_share, unit="of a disk", raises=True),
            any_full=keys.flag("readOnlyModeOnAnyDiskFullEnabled", False),
            high_priority_bytes_min=reserve("minUsableSizeForHighPriorityWrites", "logSizeLimit"),
            new_index_bytes_min=reserve("minUsableSizeForIndexFileCreation", "100 MiB"),
            new_log_bytes_min=reserve("minUsableSizeForEntryLogCreation", "logSizeLimit"),
            log_bytes_max=log_bytes_max,
        ),
        interval_s=keys.number("diskCheckInterval", 10_000, least=1, unit="ms", raises=False) / 1000,
        read_only_mode=keys.flag("readOnlyModeEnabled", True),
        is_forced_read_only=keys.flag("forceReadOnlyBookie", False),
    )


def _pages(keys: Values) -> PageOptions:
    page_bytes = keys.number("pageSize", 8192, least=64, most=_MIB, unit="bytes, a multiple of 8")
    if page_bytes % POSITION_BYTES:
        given, page_bytes = page_bytes, -(-page_bytes // POSITION_BYTES) * POSITION_BYTES
        keys.note(
            "pageSize", str(given), f"an index page of this bookie holds whole positions, so it uses {page_bytes}"
        )
    pages_max = keys.number("pageLimit", -1, least=-1, most=1 << 30, unit="pages, 0 or less: 64 MiB of them")
    return PageOptions(page_bytes, pages_max if pages_max > 0 else max(1, _PAGES_BYTES // page_bytes))


def _storage_class(keys: Values) -> StorageClass:
    default = StorageClass.SORTED
    name = keys.text("ledgerStorageClass", default=default.short_name) or ""
    nearest = StorageClass.nearest(name)
    if nearest is not None and nearest.value != name:
        keys.note("ledgerStorageClass", name, f"this bookie has no such class, and uses {nearest.short_name}")
    chosen = nearest or keys.parsed("ledgerStorageClass", StorageClass.parse, default=default.short_name) or default
    # The older key; Apache's bookies read it first.
    is_sorted = keys.flag(
        "sortedLedgerStorageEnabled", True, "false: InterleavedLedgerStorage in place of the sorted one"
    )
    return StorageClass.INTERLEAVED if chosen is default and not is_sorted else chosen


def _open_files(keys: Values) -> int:
    # Pulsar's file has 0, as Apache's DbLedgerStorage opens no index files.
    number = keys.number("openFileLimit", OPEN_FILES, least=-1, unit=f"files, 0 or less: {OPEN_FILES}")
    if 0 < number < OPEN_FILES_MIN:
        keys.note("openFileLimit", str(number), f"this bookie cannot do with less than {OPEN_FILES_MIN}, which it uses")
    return max(number, OPEN_FILES_MIN) if number > 0 else OPEN_FILES


def _store(keys: Values, log_bytes_max: int, half_bytes_min: int, disks: DiskLimits) -> StoreOptions:
    """Return the options of the storage; half of its write cache holds `half_bytes_min`, two of the largest adds."""
    storage_class = _storage_class(keys)
    open_files = _open_files(keys)
    file_half = keys.number("skipListSizeLimit", 64 * _MIB, least=half_bytes_min, unit="bytes")
    db_mib_min = -(-2 * half_bytes_min // _MIB)
    db_mib = keys.number("dbStorage_writeCacheMaxSizeMb", 128, least=db_mib_min, unit="MiB, both halves")
    db_half = db_mib * _MIB // 2
    read_ahead_bytes = keys.number("dbStorage_readAheadCacheMaxSizeMb", 64, least=0, unit="MiB, 0: none") * _MIB
    return StoreOptions(
        storage_class=storage_class,
        cache_half_bytes=db_half if storage_class is StorageClass.DB else file_half,
        append=AppendOptions(
            log_bytes_max=log_bytes_max,
            # 0 means "at the end of a flush only" to Apache's bookies; it gets our default here.
            sync_bytes=max(0, keys.number("flushEntrylogBytes", 0, least=-1, unit="bytes, 0 or less: 2 MiB"))
            or 2 * _MIB,
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
                "dbStorage_readAheadCacheBatchBytesSize", -1, least=-1, unit="bytes, 0 or less: a 16th of the cache"
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


def _flush_interval_s(keys: Values) -> float:
    # Apache's default storage flushes when a log is full, whatever this says.
    number = keys.number("flushInterval", FLUSH_MS, least=-1, unit=f"ms, 0 or less: {FLUSH_MS}")
    return (number if number > 0 else FLUSH_MS) / 1000


def _pending_reads(keys: Values) -> int:
    unit = "reads that wait for the disk, 0 or less: no limit"
    number = keys.number("maxPendingReadRequestsPerThread", 10_000, least=-1, unit=unit)
    return number if number > 0 else MOST["reads"]


def _stalled_s(keys: Values) -> float:
    """Return how long a peer may take no replies. A due reply is never dropped alone."""
    wait_ms = keys.number("waitTimeoutOnResponseBackpressureMs", -1, least=-1, unit="ms, 0 or less: 60 s")
    if not keys.flag("closeChannelOnResponseTimeout", True):
        return math.inf
    return wait_ms / 1000 if wait_ms > 0 else ConnectionOptions().stalled_s_max


def _collection(keys: Values) -> CollectionOptions:
    return CollectionOptions(
        interval_s=keys.number("gcWaitTime", 600_000, least=1, unit="ms", raises=False) / 1000,
        overreplicated_interval_s=keys.number(
            "gcOverreplicatedLedgerWaitTime", 86_400_000, least=-1, unit="ms, 0 or less: never"
        )
        / 1000,
        minor=_compaction(keys, "minor", 0.2, 3600),
        major=_compaction(keys, "major", 0.8, 86_400),
        deleted_share_max=keys.share("gcDeletedShareMax", 0.2, unit="of the bookie's ledgers with entries"),
        # The older name counts where the newer one is not set. Apache's bookies never look at the rate that
        # isThrottleByBytes does not choose, so it may be -1 there.
        entries_per_s=max(
            0,
            keys.number(
                "compactionRateByEntries",
                keys.number("compactionRate", 1000, least=-1, unit="entries/s, 0 or less: no limit"),
                least=-1,
                unit="entries/s, 0 or less: no limit",
            ),
        ),
        bytes_per_s=max(
            0, keys.number("compactionRateByBytes", 1_000_000, least=-1, unit="bytes/s, 0 or less: no limit")
        ),
        limit_by_bytes=keys.flag("isThrottleByBytes", False),
        metadata_ops_per_s=keys.number("gcMetadataOpRateLimit", 1000, least=1, unit="reads/s", raises=False),
        outstanding_max=keys.number("compactionMaxOutstandingRequests", 100_000, least=1, unit="entries"),
        compact_when_full=keys.flag("isForceGCAllowWhenNoSpace", False),
        force_without_interval=keys.flag("forceAllowCompaction", False),
    )


def _auto_recovery(keys: Values) -> AutoRecoveryOptions:
    return AutoRecoveryOptions(
        AuditOptions(
            lost_bookie_delay_s=keys.number("lostBookieRecoveryDelay", 0, least=0, unit="s"),
            bookie_check_interval_s=keys.number(
                "auditorPeriodicBookieCheckInterval", 86_400, least=-1, unit="s, 0 or less: never"
            ),
            ledger_check_interval_s=keys.number(
                "auditorPeriodicCheckInterval", 604_800, least=-1, unit="s, 0 or less: never"
            ),
            verified_share=keys.number(
                "auditorLedgerVerificationPercentage", 0, least=0, most=100, unit="% of a fragment's entries"
            )
            / 100,
        ),
        RepairOptions(
            bytes_per_s=keys.number("replicationRateByBytes", -1, least=-1, unit="bytes/s, 0 or less: no limit"),
            copies_in_flight_bytes=keys.number(
                "rereplicationInFlightMaxBytes", 16 * _MIB, least=_MIB, unit="bytes", raises=False, lowers=False
            ),
            grace_s=keys.number("openLedgerRereplicationGracePeriod", 30_000, least=0, unit="ms") / 1000,
            pause_s=keys.number("rwRereplicateBackoffMs", 5000, least=1, unit="ms") / 1000,
            failed_pause_max_s=keys.number("lockReleaseOfFailedLedgerGracePeriod", 300_000, least=1, unit="ms") / 1000,
            password=(keys.text("passwd", default="empty") or "").encode(),
        ),
    )


def _compaction(keys: Values, kind: str, threshold: float, interval_s: int) -> CompactionLevel:
    key, unit = f"{kind}CompactionThreshold", "of an entry log, 0 or less: never"
    share = keys.share(key, threshold, least=-1, unit=unit, raises=True)
    if share > COMPACTED_SHARE_MAX:
        keys.note(key, f"{share:g}", f"a log is worth replacing below {COMPACTED_SHARE_MAX:g}, which this bookie uses")
        share = COMPACTED_SHARE_MAX
    return CompactionLevel(
        share,
        keys.number(f"{kind}CompactionInterval", interval_s, least=-1, unit="s, 0 or less: never"),
        max(0, keys.number(f"{kind}CompactionMaxTimeMillis", -1, least=-1, unit="ms, 0 or less: no limit")) / 1000,
    )


def _check_key(key: str, value: str) -> str | None:
    """Refuse an unknown key that must not be ignored: a likely mistake, or a key that may protect something.

    Returns:
        A line about an ignored unknown key that is similar to a known one.
    """
    if key in APACHE_KEYS or key in OWN_KEYS or key in _OF_PULSARS_BROKER or key.startswith(APACHE_PREFIXES):
        return None
    by_lower = {known.lower(): known for known in APACHE_KEYS | OWN_KEYS}
    alike = difflib.get_close_matches(key.lower(), by_lower, n=1, cutoff=_ALIKE)
    hint = f"; did you mean {by_lower[alike[0]]}?" if alike else ":"
    is_mistake = alike and difflib.SequenceMatcher(None, alike[0], key.lower()).ratio() >= _NEARLY
    if not key.strip() or (is_mistake and value):
        raise ConfigurationError(f"configuration key {key!r} does not exist{hint} docs/configuration.md lists all")
    if _PROTECTING_NAME.match(key) and not _is_off(value):
        raise ConfigurationError(
            f"configuration key {key!r} does not exist, and by its name it may protect something: remove it, or set "
            "it to false, to go without. docs/configuration.md lists all keys"
        )
    return f"configuration key {key!r} is unknown, and without effect{hint[:-1]}?" if alike and value else None


def _is_off(value: str) -> bool:
    """Whether a value turns nothing on: it is empty, null or false, or a number that only says how long or how many."""
    return value.lower() in ("", NULL, *FALSE) or (value.isdecimal() and value not in TRUE)
