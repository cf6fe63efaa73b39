"""Which key fills which field of which options.

A row has the key's name, its unit, and what happens to numbers out of bounds. Default and bounds are those of the
field, expressed in the key's unit, so the options state each of them once. Keys that do not fill one field alone are
read in `configuration`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, TypeVar

from bkspark.options import MIB, bounds_of, default_of
from bookie_service.engine.bookie_environment import BookieOptions
from bookie_service.engine.disk_watch import DiskOptions
from bookie_service.engine.reads import ReadOptions
from bookie_service.gc.collection_options import CollectionOptions
from bookie_service.network.authentication import ListenerAuthenticationOptions
from bookie_service.network.connection_options import ConnectionOptions
from bookie_service.network.connections import ConnectionLimits
from bookie_service.network.tls_handshakes import ListenerTlsOptions
from bookie_service.replication.options import AuditOptions, RepairOptions
from bookie_service.settings.http_options import HttpLimits, HttpOptions
from bookie_service.settings.service_options import AddressOptions, ServiceOptions
from bookie_service.settings.values import Values
from bookie_service.storage.disks import DiskLimits
from bookie_service.storage.io.key_values import KeyValueOptions
from bookie_service.storage.journal.flush_policy import FlushLimits
from bookie_service.storage.journal.journal import JournalOptions
from bookie_service.storage.ledgers.read_ahead import ReadAheadOptions
from bookie_service.storage.logs.log_appender import AppendOptions

_MS_IN_S = Fraction(1, 1000)
_MS_IN_NS = 1_000_000

_Options = TypeVar("_Options")


@dataclass(frozen=True, slots=True)
class Row:
    """A key that fills one field: a flag, or a whole number.

    unit: the text of the page; see `Values.number`.
    per: one unit of the key, expressed in the unit of the field.
    least: the lowest number, if it is not that of the field.
    or_less: -1 and 0 mean the field's 0.
    raises, lowers: see `Values.number`.
    """

    field: str
    key: str
    unit: str = ""
    per: Fraction | int = 1
    least: int | None = None
    or_less: bool = False
    raises: bool = True
    lowers: bool = True

    def read(self, keys: Values, options: type, least: int | None = None) -> Any:
        """Return the value of the field. `least`: the lowest number, if another key determines it."""
        default, bounds = default_of(options, self.field), bounds_of(options, self.field)
        if bounds is None:
            return keys.flag(self.key, default, self.unit)
        own = -1 if self.or_less else math.ceil(round(bounds.least / self.per, 6))
        number = keys.number(
            self.key,
            round(default / self.per),
            least=next(it for it in (least, self.least, own) if it is not None),
            most=math.floor(round(bounds.most / self.per, 6)),
            unit=self.unit,
            raises=self.raises,
            lowers=self.lowers,
        )
        value = (max(0, number) if self.or_less else number) * self.per
        return int(value) if bounds.is_whole else float(value)


TABLE: Mapping[type, Sequence[Row]] = {
    AddressOptions: (
        Row("port", "bookiePort", raises=False, lowers=False),
        Row("allow_loopback", "allowLoopback"),
        Row("use_host_name", "useHostNameAsBookieID"),
        Row("use_short_host_name", "useShortHostName"),
    ),
    ServiceOptions: (
        Row("fetch_threads", "numReadWorkerThreads", "threads that wait for the disk; ledger directories share them"),
        Row("local_reads", "localReadsEnabled", "clients on this host read entry logs themselves"),
        Row("statistics", "enableStatistics", "the times of requests are recorded"),
        Row(
            "statistics_window_s",
            "prometheusStatsLatencyRolloverSeconds",
            "s over which quantiles are computed",
            least=1,
        ),
        Row(
            "received_bytes_max",
            "receiveBuffersMaxBytes",
            "bytes that are received and not served yet, of all connections",
        ),
        Row("reply_bytes_max", "replyBuffersMaxBytes", "bytes of replies that peers have not read, of all connections"),
    ),
    HttpOptions: (
        Row("serves_api", "httpServerEnabled", "the administration API, with the metrics"),
        Row("port", "httpServerPort", raises=False, lowers=False),
        Row("metrics_port", "prometheusStatsHttpPort", raises=False, lowers=False),
    ),
    HttpLimits: (
        Row("connections", "httpServerMaxConnections", "connections"),
        Row("head_bytes", "httpServerMaxHeadBytes", "bytes of a request's head"),
        Row("body_bytes", "httpServerMaxBodyBytes", "bytes of a request's body"),
        Row(
            "idle_s",
            "httpServerIdleTimeoutMs",
            "ms for the receipt of a request, and for the sending of a response",
            _MS_IN_S,
        ),
        Row("handshake_s", "httpServerTlsHandshakeTimeoutMs", "ms for a TLS handshake", _MS_IN_S),
        Row("handshakes", "httpServerMaxTlsHandshakes", "unfinished TLS handshakes"),
    ),
    BookieOptions: (
        Row("adds_in_flight_max", "maxAddsInProgressLimit", "adds, 0 or less: no limit", or_less=True),
        Row("journals_entries", "journalWriteData"),
        Row("long_poll_s_max", "longPollTimeoutMaxMs", "ms that a read waits", _MS_IN_S),
        Row(
            "new_ledgers_per_s",
            "maxNewLedgersPerSecondPerAddress",
            "ledgers per second that are new to this bookie, from one address, 0: no limit",
        ),
        Row("new_ledgers_burst", "newLedgersBurstPerAddress", "such ledgers that one address may begin at once"),
    ),
    ReadOptions: (
        Row("in_flight_max", "maxReadsInProgressLimit", "reads, 0 or less: no limit", or_less=True),
        Row("batch_bytes_max", "maxBatchReadSize", "bytes"),
    ),
    ConnectionOptions: (
        Row("frame_bytes_max", "nettyMaxFrameSizeBytes", "bytes"),
        Row("frame_s_max", "frameTimeoutMs", "ms for the receipt of one request", _MS_IN_S),
        Row("no_delay", "serverTcpNoDelay"),
        Row("keep_alive", "serverSockKeepalive"),
    ),
    ConnectionLimits: (
        Row("all", "maxConnections", "connections", raises=False, lowers=False),
        Row(
            "per_address",
            "maxConnectionsPerAddress",
            "connections, 0: half of maxConnections",
            raises=False,
            lowers=False,
        ),
        Row(
            "reserved",
            "connectionsReservedForBookies",
            "connections for the cluster's bookies, at most a tenth of maxConnections",
        ),
        Row("idle_s", "connectionIdleTimeoutMs", "ms until the first request is received", _MS_IN_S),
    ),
    ListenerTlsOptions: (
        Row("required", "tlsRequired", "serve only TLS"),
        Row("handshake_s", "tlsHandshakeTimeoutMs", "ms for a TLS handshake", _MS_IN_S),
        Row("handshakes_max", "maxTlsHandshakes", "unfinished TLS handshakes of all peers"),
        Row(
            "handshakes_per_address_max",
            "maxTlsHandshakesPerAddress",
            "of one address: unfinished TLS handshakes; those that wait (for a while 8 times as many); and those that "
            "are begun in 10 s, or in tlsHandshakeTimeoutMs if that is shorter, and not completed",
        ),
    ),
    ListenerAuthenticationOptions: (
        Row("required", "authenticationRequired", "close connections whose clients do not authenticate first"),
        Row("timeout_s", "authenticationTimeoutMs", "ms for authentication", _MS_IN_S),
        Row("waiting_max", "maxUnauthenticatedConnections", "connections that are not authenticated yet"),
        Row(
            "waiting_per_address_max",
            "maxUnauthenticatedConnectionsPerAddress",
            "connections that are not authenticated yet",
        ),
    ),
    FlushLimits: (
        Row("bytes_max", "journalBufferedWritesThreshold", "bytes"),
        Row("entries_max", "journalBufferedEntriesThreshold", "entries, 0 or less: no limit", or_less=True),
        Row("age_ns_max", "journalMaxGroupWaitMSec", "ms, 0 or less: no wait", _MS_IN_NS, or_less=True),
        Row("flush_when_idle", "journalFlushWhenQueueEmpty"),
    ),
    JournalOptions: (
        Row("file_bytes_max", "journalMaxSizeMB", "MiB", MIB),
        Row("preallocate_bytes", "journalPreAllocSizeMB", "MiB", MIB, raises=False),
        Row(
            "alignment_bytes",
            "journalAlignmentSize",
            "bytes, a multiple of 512, raised to whole physical blocks; 0: the physical block of each journal's disk",
            raises=False,
        ),
        Row("backups_max", "journalMaxBackups", "files"),
        Row("reuse_files", "journalReuseFiles"),
        Row("sync_groups", "journalSyncData"),
        Row("leaves_page_cache", "journalRemoveFromPageCache"),
    ),
    DiskOptions: (
        Row("interval_s", "diskCheckInterval", "ms", _MS_IN_S, raises=False),
        Row("read_only_mode", "readOnlyModeEnabled"),
        Row("is_forced_read_only", "forceReadOnlyBookie"),
    ),
    DiskLimits: (Row("any_full", "readOnlyModeOnAnyDiskFullEnabled"),),
    AppendOptions: (
        Row("log_bytes_max", "logSizeLimit", "bytes", least=MIB, lowers=False),
        Row("log_per_ledger", "entryLogPerLedgerEnabled"),
        Row("active_logs_max", "maximumNumberOfActiveEntryLogs", "logs"),
        Row("idle_s", "entrylogMapAccessExpiryTimeInSeconds", "s", least=1),
        Row("reserves", "entryLogFilePreallocationEnabled"),
    ),
    ReadAheadOptions: (
        Row("cache_bytes", "dbStorage_readAheadCacheMaxSizeMb", "MiB, 0: none", MIB),
        Row("batch_entries", "dbStorage_readAheadCacheBatchSize", "entries"),
        Row(
            "batch_bytes",
            "dbStorage_readAheadCacheBatchBytesSize",
            "bytes, 0 or less: a 16th of the cache",
        ),
    ),
    KeyValueOptions: (
        Row("cache_bytes", "dbStorage_rocksDB_blockCacheSize", "bytes", least=MIB),
        Row("write_buffer_bytes", "dbStorage_rocksDB_writeBufferSizeMB", "MiB", MIB),
        Row("block_bytes", "dbStorage_rocksDB_blockSize", "bytes"),
        Row("bloom_bits_per_key", "dbStorage_rocksDB_bloomFilterBitsPerKey", "bits, 0: no filter"),
    ),
    CollectionOptions: (
        Row("interval_s", "gcWaitTime", "ms", _MS_IN_S, raises=False),
        Row(
            "overreplicated_interval_s",
            "gcOverreplicatedLedgerWaitTime",
            "ms, 0 or less: never",
            _MS_IN_S,
            or_less=True,
        ),
        Row("bytes_per_s", "compactionRateByBytes", "bytes/s, 0 or less: no limit", or_less=True),
        Row("limit_by_bytes", "isThrottleByBytes"),
        Row("metadata_ops_per_s", "gcMetadataOpRateLimit", "reads/s", raises=False),
        Row("outstanding_max", "compactionMaxOutstandingRequests", "entries"),
        Row("compact_when_full", "isForceGCAllowWhenNoSpace"),
        Row("force_without_interval", "forceAllowCompaction"),
    ),
    AuditOptions: (
        Row("lost_bookie_delay_s", "lostBookieRecoveryDelay", "s"),
        Row("bookie_check_interval_s", "auditorPeriodicBookieCheckInterval", "s, 0 or less: never"),
        Row("ledger_check_interval_s", "auditorPeriodicCheckInterval", "s, 0 or less: never"),
        Row("verified_share", "auditorLedgerVerificationPercentage", "% of a fragment's entries", Fraction(1, 100)),
    ),
    RepairOptions: (
        Row("bytes_per_s", "replicationRateByBytes", "bytes/s, 0 or less: no limit"),
        Row(
            "copies_in_flight_bytes",
            "rereplicationInFlightMaxBytes",
            "bytes",
            least=MIB,
            raises=False,
            lowers=False,
        ),
        Row("grace_s", "openLedgerRereplicationGracePeriod", "ms", _MS_IN_S),
        Row("pause_s", "rwRereplicateBackoffMs", "ms", _MS_IN_S),
        Row("failed_pause_max_s", "lockReleaseOfFailedLedgerGracePeriod", "ms", _MS_IN_S),
    ),
}
"""The rows of each options class."""


def fill(keys: Values, options: type[_Options], **known: Any) -> _Options:
    """Return options with the fields that their rows fill, and those in `known`."""
    rows = (row for row in TABLE[options] if row.field not in known)
    return options(**known, **{row.field: row.read(keys, options) for row in rows})


def value_of(keys: Values, options: type, field: str, *, least: int | None = None) -> Any:
    """Return the value of one field. `least`: the lowest number, if another key determines it."""
    (row,) = (row for row in TABLE[options] if row.field == field)
    return row.read(keys, options, least)
