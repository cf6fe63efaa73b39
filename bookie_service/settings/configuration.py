"""Configuration: Apache's file and keys, as frozen options of the parts.

Units and defaults are Apache's, except for those that `docs` names. `journalFlushWhenQueueEmpty` is true by default,
which gives the lowest latency. If it is false, `journalMaxGroupWaitMSec` delays groups as Apache's bookies do. If it is
true, only adds of a recovery wait for each other, for `journalMaxGroupWaitMSec`, but not longer than 2 ms.

Apache's files start this bookie. A value that Apache's bookies accept is accepted, or raised or lowered to a value that
this bookie can work with, with a line that says so. Keys that are not served, and unknown keys, are accepted and named
once. There are three exceptions, which are errors: a name that nearly equals that of another key is a mistake; an
unknown key that would protect data or access must not be ignored; and a key of Apache's that protects something is not
ignored either if it is not served.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from bkspark.configuration_files import read
from bkspark.errors import ConfigurationError
from bkspark.ids import check_bookie_id, parse_host_port
from bkspark.metadata.uri import MetadataUri
from bkspark.metadata.zookeeper_options import ZooKeeperOptions
from bkspark.options import MIB, YEARS_S, default_of
from bookie_service.engine.bookie_environment import BookieOptions
from bookie_service.engine.disk_watch import DiskOptions
from bookie_service.engine.reads import ReadOptions
from bookie_service.engine.shares import ShareLimits
from bookie_service.formats.index import POSITION_BYTES
from bookie_service.gc.collection_options import CollectionOptions
from bookie_service.gc.gc_policy import CompactionLevel
from bookie_service.network.connection_options import ConnectionOptions
from bookie_service.network.connections import ConnectionLimits
from bookie_service.replication.options import AuditOptions, AutoRecoveryOptions, RepairOptions
from bookie_service.settings.authentication import (
    client_authentication,
    listener_authentication,
    note_missing_client,
)
from bookie_service.settings.http_options import EVERYWHERE, THIS_HOST, HttpLimits, HttpOptions
from bookie_service.settings.keys import APACHE_KEYS, APACHE_PREFIXES, OWN_KEYS
from bookie_service.settings.service_options import AddressOptions, ServiceOptions
from bookie_service.settings.table import fill, value_of
from bookie_service.settings.tls import client_tls, http_tls, listener_tls
from bookie_service.settings.users import group_id, user_ids
from bookie_service.settings.values import FALSE, MOST, NULL, SECRET_WORDS, TRUE, Setting, Values, refused
from bookie_service.settings.zookeeper import session_options
from bookie_service.storage.disks import DiskLimits
from bookie_service.storage.index.per_ledger import PageOptions
from bookie_service.storage.io.key_values import KeyValueOptions
from bookie_service.storage.journal.flush_policy import FlushLimits
from bookie_service.storage.journal.journal import JournalOptions
from bookie_service.storage.ledgers.base import StoreOptions
from bookie_service.storage.ledgers.read_ahead import ReadAheadOptions
from bookie_service.storage.ledgers.storage_class import StorageClass
from bookie_service.storage.logs.log_appender import AppendOptions

OPEN_FILES_MIN = 16
SYNC_BYTES_MIN = 64 * 1024
"""A sync costs about as much as writing this many bytes."""
OnRead = Callable[[Mapping[str, str]], None]
LOG_LEVELS = ("debug", "info", "warning", "error")
LOG_FORMATS = ("text", "json")
COMPACTED_SHARE_MAX = 0.99
"""Apache's bookies also accept 1: a log is replaced as soon as one of its entries is deleted."""

_JOURNAL_DIRECTORY, _LEDGER_DIRECTORY = "/tmp/bk-txn", "/tmp/bk-data"
_PROMETHEUS = "PrometheusMetricsProvider"
_HOST_UNSET = f"{THIS_HOST}; with access control {EVERYWHERE}, unless advertisedAddress is a loopback address"
_DEFAULT_SERVERS, _DEFAULT_ROOT = "zk+hierarchical://localhost:2181", "/ledgers"
PROTECTING = {
    "disableServerSocketBind": "listener other than its port",
}
"""Keys that would protect something and are not served: they are refused when set."""

_PROTECTING_NAME = re.compile("(?i)(.*[._-])?(tls|ssl|sasl|auth|acl|kerberos|security)")
"""Names of keys that may protect something. Unknown keys with such names are refused, and not ignored."""

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
"""How similar an unknown key is to a known one, as difflib measures it. From the first value on it counts as a mistake;
from the second on the known key is named."""

HARMLESS = frozenset(
    {
        # Adds never wait for a thread. Adds without room stay with their connection, which is not read further.
        "maxPendingAddRequestsPerThread",
        # Every deleted ledger is also read directly. A log is replaced in one transaction.
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
"""Keys for which this bookie does what every value asks for."""

EXPLAINED = {
    "dataIntegrityChecking": "a ledger that has lost durable entries goes into limbo, whatever the value is; nothing "
    "is copied back from other bookies at the start, because autorecovery does that",
    "dataIntegrityStampMissingCookies": "a directory whose cookie is missing never gets a new one: the bookie does "
    "not start, and says what to do",
    "rereplicationEntryBatchSize": "the amount that is copied at once is limited in bytes, not in entries: "
    "rereplicationInFlightMaxBytes",
}
"""Keys without effect, and what happens instead."""

DANGEROUS = {
    "journalSyncData": "entries are acknowledged before they are on a disk: a power cut or a crash of the system loses "
    "those of the last journalPageCacheFlushIntervalMSec",
    "journalWriteData": "entries are acknowledged from memory: if the process ends for any reason, those of the last "
    "flushInterval are lost",
}
"""Keys that give up durability when set to false: after an unclean stop every ledger is in limbo (`ledgers.limbo`)."""


@dataclass(frozen=True, slots=True)
class Configuration:
    """The whole configuration of one bookie process.

    `unused_keys`: accepted keys without effect here.
    `notes`: a line for each value that is not used as given.
    `dangers`: a line for each setting that can lose acknowledged entries.
    `keeps_status`: a bookie that an operator made read-only stays so after a restart.
    `permitted_users`: names of users who may run the bookie; empty: any user may.
    `log_level`, `log_format`: what is logged, and how. `values`: the keys and values as they were given.
    `from_environment`: see `Values`; messages show the references instead.
    `rules_path`: the file of authorization rules; None: every client may do everything.
    `file_group`: the group that may read the bookie's files; None: only its user may.
    `traces`: requests that carry a span get spans here, too: `admin.trace_output`.
    """

    address: AddressOptions
    metadata_uri: MetadataUri
    zookeeper: ZooKeeperOptions
    """TLS and login of the connection to the metadata store."""
    service: ServiceOptions
    auto_recovery: AutoRecoveryOptions
    runs_auto_recovery: bool
    """Whether the bookie's process also has an auditor and a worker."""
    http: HttpOptions
    keeps_status: bool
    unused_keys: tuple[str, ...]
    notes: tuple[str, ...]
    dangers: tuple[str, ...]
    permitted_users: tuple[str, ...] = ()
    file_group: int | None = None
    rules_path: str | None = None
    traces: bool = False
    log_level: str = "info"
    log_format: str = "text"
    values: Mapping[str, str] = field(default_factory=dict, repr=False, compare=False)
    from_environment: Mapping[str, str] = field(default_factory=dict, repr=False, compare=False)


def load(
    path: Path | None, settings: Iterable[tuple[str, str]], on_read: OnRead = lambda values: None
) -> Configuration:
    """Return the configuration in a file, overridden by `settings`.

    Args:
        on_read: is called with the keys and values before they are checked.

    Raises:
        ConfigurationError: the file cannot be read, a key is unknown, or a value is not usable; one line.
    """
    values, notes = ({}, []) if path is None else read(path)
    values |= dict(settings)
    on_read(values)
    return configure(values, notes)


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
    """Return every key whose value has an effect, in the order in which the keys are read."""
    keys = Values({})
    _configured(keys, {})
    return {key: setting for key, setting in keys.asked.items() if key not in PROTECTING}


def _configured(keys: Values, values: Mapping[str, str]) -> Configuration:
    for key, what in PROTECTING.items():
        if (keys.text(key) or NULL).lower() not in (NULL, *FALSE):
            raise refused(key, values[key], f"this bookie has no {what} yet; remove the key to go without")
    zookeeper = session_options(keys)
    address = _address(keys)
    configuration = Configuration(
        address=address,
        metadata_uri=_metadata_uri(keys),
        zookeeper=zookeeper,
        service=_service(keys),
        auto_recovery=_auto_recovery(keys, zookeeper),
        runs_auto_recovery=keys.flag("autoRecoveryDaemonEnabled", False),
        http=_http(keys, is_local=address.is_local),
        keeps_status=keys.flag(
            "persistBookieStatusEnabled", True, "a bookie that was set read-only stays so after a restart"
        ),
        unused_keys=(),
        notes=(),
        dangers=(),
        permitted_users=tuple(name for name in keys.names("permittedStartupUsers") if name != NULL),
        traces=keys.flag("tracingEnabled", False, "V3 requests of traced clients have OpenTelemetry spans"),
        log_level=keys.parsed("logLevel", _one_of(LOG_LEVELS), default="info") or "info",
        log_format=keys.parsed("logFormat", _one_of(LOG_FORMATS), default="text") or "text",
        values=dict(values),
        rules_path=keys.parsed("authorizationRulesFile", os.path.abspath, default="none: everyone may do everything"),
        file_group=keys.parsed("permittedFileGroup", group_id, default="only the bookie's user"),
    )
    authentication, recovery = configuration.service.authentication, configuration.auto_recovery
    if configuration.runs_auto_recovery and authentication is not None and authentication.sasl is not None:
        note_missing_client(keys, recovery.sasl is not None)
    unused = sorted(key for key in values if key not in keys.asked and key not in HARMLESS and values[key].strip())
    dangers = [f"{key}=false is DANGEROUS: {what}" for key, what in DANGEROUS.items() if not keys.flag(key, True)]
    return replace(
        configuration,
        unused_keys=tuple(unused),
        notes=tuple(keys.notes),
        dangers=tuple(dangers),
        from_environment=keys.from_environment(),
    )


def _address(keys: Values) -> AddressOptions:
    options = fill(
        keys,
        AddressOptions,
        bookie_id=keys.parsed("bookieId", check_bookie_id),
        advertised_address=keys.parsed("advertisedAddress", _checked_host),
        listening_interface=keys.text("listeningInterface"),
        interface_as_given=keys.as_given("listeningInterface"),
    )
    if not keys.flag("allowEphemeralPorts", False) and options.port == 0:
        raise ConfigurationError("bookiePort=0: a port that changes at every start needs allowEphemeralPorts=true")
    return options


def _http(keys: Values, *, is_local: bool) -> HttpOptions:
    """`is_local`: the bookie serves this host alone, so its HTTP server does, too, unless a host is set."""
    provider = keys.text("statsProviderClass", default="none: the metrics have no port of their own") or NULL
    name = provider.rpartition(".")[2]
    is_prometheus = name == _PROMETHEUS
    if provider != NULL and not is_prometheus and name != "NullStatsProvider":
        keys.note("statsProviderClass", provider, f"this bookie has Prometheus metrics only: name {_PROMETHEUS}")
    serves_metrics = keys.flag("prometheusStatsHttpEnable", True, "if statsProviderClass is Prometheus's")
    access_file = keys.text("httpServerAccessFile")
    tls = http_tls(keys, has_access_file=access_file is not None)
    is_guarded = access_file is not None or (tls is not None and tls.client_authentication)
    unset = EVERYWHERE if is_guarded and not is_local else THIS_HOST
    host = keys.parsed("httpServerHost", _checked_host, default=_HOST_UNSET)
    metrics_host = keys.parsed("prometheusStatsHttpAddress", _checked_host, default=_HOST_UNSET)
    limits = fill(keys, HttpLimits)
    try:
        return fill(
            keys,
            HttpOptions,
            host=host or unset,
            serves_metrics=is_prometheus and serves_metrics,
            metrics_host=metrics_host or unset,
            limits=limits,
            access_file=access_file,
            tls=tls,
            allowed_hosts=keys.names("httpServerAllowedHosts"),
        )
    except ConfigurationError as error:
        message = str(error)
        for key in ("httpServerHost", "prometheusStatsHttpAddress"):
            message = keys.without_named(key, message)
        raise ConfigurationError(message) from None


def _metadata_uri(keys: Values) -> MetadataUri:
    default = f"made of zkServers, else {_DEFAULT_SERVERS}{_DEFAULT_ROOT}"
    uri = keys.parsed("metadataServiceUri", MetadataUri.parse, default=default)
    root = keys.parsed("zkLedgersRootPath", _checked_root, default=_DEFAULT_ROOT) or _DEFAULT_ROOT

    def of_servers(servers: str) -> MetadataUri:
        return MetadataUri.parse(f"zk://{servers.replace(',', ';')}{root}")

    if "@" in (servers := keys.text("zkServers") or ""):
        shown = f"***@{servers.rpartition('@')[2]}"
        raise refused("zkServers", shown, "it must name hosts alone, without a user or a password before @")
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


def _one_of(choices: Sequence[str]) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text.lower() not in choices:
            raise ValueError(f"it must be one of {', '.join(choices)}")
        return text.lower()

    return parse


def is_secret(key: str) -> bool:
    """Return whether the value of a key must not be shown."""
    return any(word in key.lower() for word in (*SECRET_WORDS, "token", "jaas"))


def _user_ids(names: str) -> frozenset[int]:
    return user_ids(name.strip() for name in names.split(",") if name.strip())


def _service(keys: Values) -> ServiceOptions:
    connection = fill(keys, ConnectionOptions, stalled_s_max=_stalled_s(keys))
    # A lower limit would rarely have room for frames of the largest size.
    frames_bytes = 2 * connection.frame_bytes_max
    tls = listener_tls(keys)
    append = fill(keys, AppendOptions, sync_bytes=_sync_bytes(keys))
    disks = _disks(keys, append.log_bytes_max)
    fetch_threads: int = value_of(keys, ServiceOptions, "fetch_threads")
    journal = _journal(keys)
    return fill(
        keys,
        ServiceOptions,
        journal_directories=keys.directories(
            "journalDirectories", keys.text("journalDirectory", default=_JOURNAL_DIRECTORY) or _JOURNAL_DIRECTORY
        ),
        ledger_directories=keys.directories("ledgerDirectories", _LEDGER_DIRECTORY),
        connections=fill(keys, ConnectionLimits),
        fetch_threads=fetch_threads,
        local_readers=keys.parsed("permittedLocalReadUsers", _user_ids, default="the bookie's own and root")
        or frozenset(),
        received_bytes_max=value_of(keys, ServiceOptions, "received_bytes_max", least=frames_bytes),
        checkpoint_interval_s=_flush_interval_s(keys),
        bookie=_bookie(keys, fetch_threads),
        connection=connection,
        flush=fill(keys, FlushLimits, marker_delay_ns=_marker_delay_ns(keys, journal.sync_groups)),
        journal=journal,
        store=_store(keys, append, frames_bytes, disks.limits),
        collection=_collection(keys),
        disks=disks,
        tls=tls,
        authentication=listener_authentication(keys, tls),
    )


def _bookie(keys: Values, fetch_threads: int) -> BookieOptions:
    waiting = default_of(ReadOptions, "waiting_max") // default_of(ServiceOptions, "fetch_threads")
    unit = "reads that wait for the disk, 0 or less: no limit"
    number = keys.number("maxPendingReadRequestsPerThread", waiting, least=-1, unit=unit)
    return fill(
        keys,
        BookieOptions,
        long_polls=_shares(keys, "maxLongPolls", "long_polls", "reads that wait for a LAC"),
        entry_lists=_shares(keys, "maxEntryLists", "entry_lists", "lists of entries that wait to be made, one by one"),
        reads=fill(keys, ReadOptions, waiting_max=fetch_threads * (number if number > 0 else MOST["reads"])),
    )


def _shares(keys: Values, key: str, field: str, what: str) -> ShareLimits:
    places = keys.number(key, default_of(BookieOptions, field).all, least=1, unit=what)
    unit = f"{what.split()[0]}, 0: half of {key}; one connection may have half of that"
    return ShareLimits.of(places, keys.number(f"{key}PerAddress", 0, least=0, unit=unit))


def _journal(keys: Values) -> JournalOptions:
    options = fill(keys, JournalOptions)
    if options.alignment_bytes % 512:
        raise refused("journalAlignmentSize", str(options.alignment_bytes), "it must be a multiple of 512")
    return options


def _marker_delay_ns(keys: Values, syncs: bool) -> int:
    unit = "ms, if journalSyncData=false"
    page_cache_ms = keys.number("journalPageCacheFlushIntervalMSec", 1000, least=1, unit=unit)
    return default_of(FlushLimits, "marker_delay_ns") if syncs else page_cache_ms * 1_000_000


def _disks(keys: Values, log_bytes_max: int) -> DiskOptions:
    full_share = keys.share("diskUsageThreshold", default_of(DiskLimits, "full_share"), unit="of a disk")
    # A user who lowers only diskUsageThreshold means this threshold, too.
    warn_share = min(default_of(DiskLimits, "warn_share"), full_share)

    def reserve(key: str, most: str) -> int | None:
        unit = f"bytes, 0 or less: {most}, or a quarter of what diskUsageThreshold keeps free if that is less"
        number = keys.number(key, 0, least=-1, unit=unit)
        return number if number > 0 else None

    limits = fill(
        keys,
        DiskLimits,
        full_share=full_share,
        warn_share=keys.share("diskUsageWarnThreshold", warn_share, unit="of a disk", raises=True),
        low_share=keys.share("diskUsageLwmThreshold", full_share, unit="of a disk", raises=True),
        high_priority_bytes_min=reserve("minUsableSizeForHighPriorityWrites", "logSizeLimit"),
        new_index_bytes_min=reserve("minUsableSizeForIndexFileCreation", "100 MiB"),
        new_log_bytes_min=reserve("minUsableSizeForEntryLogCreation", "logSizeLimit"),
        log_bytes_max=log_bytes_max,
    )
    return fill(keys, DiskOptions, limits=limits)


def _pages(keys: Values) -> PageOptions:
    defaults = PageOptions()
    cache_bytes = defaults.page_bytes * defaults.pages_max
    page_bytes = keys.number("pageSize", defaults.page_bytes, least=64, most=MIB, unit="bytes, a multiple of 8")
    if page_bytes % POSITION_BYTES:
        given, page_bytes = page_bytes, -(-page_bytes // POSITION_BYTES) * POSITION_BYTES
        keys.note(
            "pageSize", str(given), f"an index page of this bookie has complete positions only, so it uses {page_bytes}"
        )
    unit = f"pages, 0 or less: {cache_bytes // MIB} MiB of them"
    pages_max = keys.number("pageLimit", -1, least=-1, most=1 << 30, unit=unit)
    return PageOptions(page_bytes, pages_max if pages_max > 0 else max(1, cache_bytes // page_bytes))


def _storage_class(keys: Values) -> StorageClass:
    default = StorageClass.SORTED
    name = keys.text("ledgerStorageClass", default=default.short_name) or ""
    nearest = StorageClass.nearest(name)
    if nearest is not None and nearest.value != name:
        keys.note("ledgerStorageClass", name, f"this bookie has no such class, and uses {nearest.short_name}")
    chosen = nearest or keys.parsed("ledgerStorageClass", StorageClass.parse, default=default.short_name) or default
    # This is an older key, which Apache's bookies read first.
    is_sorted = keys.flag(
        "sortedLedgerStorageEnabled", True, "false: InterleavedLedgerStorage in place of the sorted one"
    )
    return StorageClass.INTERLEAVED if chosen is default and not is_sorted else chosen


def _open_files(keys: Values) -> int:
    # Pulsar's file has 0, because Apache's DbLedgerStorage opens no index files.
    most: int = default_of(StoreOptions, "open_files_max")
    number = keys.number("openFileLimit", most, least=-1, unit=f"files, 0 or less: {most}")
    if 0 < number < OPEN_FILES_MIN:
        keys.note("openFileLimit", str(number), f"this bookie needs at least {OPEN_FILES_MIN}, which it uses")
    return max(number, OPEN_FILES_MIN) if number > 0 else most


def _store(keys: Values, append: AppendOptions, half_bytes_min: int, disks: DiskLimits) -> StoreOptions:
    """Return the options of the storage. Half of its write cache holds at least `half_bytes_min`: two largest adds."""
    storage_class = _storage_class(keys)
    open_files = _open_files(keys)
    half: int = default_of(StoreOptions, "cache_half_bytes")
    file_half = keys.number("skipListSizeLimit", half, least=half_bytes_min, unit="bytes")
    db_mib_min = -(-2 * half_bytes_min // MIB)
    db_mib = keys.number("dbStorage_writeCacheMaxSizeMb", 2 * half // MIB, least=db_mib_min, unit="MiB, both halves")
    return StoreOptions(
        storage_class=storage_class,
        cache_half_bytes=db_mib * MIB // 2 if storage_class is StorageClass.DB else file_half,
        append=append,
        open_files_max=open_files,
        pages=_pages(keys),
        disks=disks,
        read_ahead=fill(keys, ReadAheadOptions),
        key_values=fill(keys, KeyValueOptions, open_files_max=open_files // 2),
    )


def _sync_bytes(keys: Values) -> int:
    # To Apache's bookies 0 means "only at the end of a flush". Here it means our default.
    default: int = default_of(AppendOptions, "sync_bytes")
    unit = f"bytes, at least {SYNC_BYTES_MIN}; 0 or less: {default // MIB} MiB"
    number = max(0, keys.number("flushEntrylogBytes", 0, least=-1, unit=unit)) or default
    if number >= SYNC_BYTES_MIN:
        return number
    keys.note("flushEntrylogBytes", str(number), f"a log is synced after at least {SYNC_BYTES_MIN} bytes")
    return SYNC_BYTES_MIN


def _flush_interval_s(keys: Values) -> float:
    # Apache's default storage flushes when a log is full, whatever this key says.
    default_ms = round(default_of(ServiceOptions, "checkpoint_interval_s") * 1000)
    number = keys.number("flushInterval", default_ms, least=-1, unit=f"ms, 0 or less: {default_ms}")
    return (number if number > 0 else default_ms) / 1000


def _stalled_s(keys: Values) -> float:
    """Return how long a peer may take no replies. A single reply is never dropped."""
    default: float = default_of(ConnectionOptions, "stalled_s_max")
    unit = f"ms, 0 or less: {default:g} s"
    wait_ms = keys.number("waitTimeoutOnResponseBackpressureMs", -1, least=-1, unit=unit)
    if not keys.flag("closeChannelOnResponseTimeout", True):
        return YEARS_S
    return wait_ms / 1000 if wait_ms > 0 else default


def _collection(keys: Values) -> CollectionOptions:
    # The older name counts if the newer one is not set. Apache's bookies ignore the rate that isThrottleByBytes does
    # not choose, so that rate may be -1 there.
    default: int = default_of(CollectionOptions, "entries_per_s")
    unit = "entries/s, 0 or less: no limit"
    older = keys.number("compactionRate", default, least=-1, unit=unit)
    share_max = default_of(CollectionOptions, "deleted_share_max")
    return fill(
        keys,
        CollectionOptions,
        minor=_compaction(keys, "minor"),
        major=_compaction(keys, "major"),
        deleted_share_max=keys.share("gcDeletedShareMax", share_max, unit="of the bookie's ledgers with entries"),
        entries_per_s=max(0, keys.number("compactionRateByEntries", older, least=-1, unit=unit)),
    )


def _auto_recovery(keys: Values, zookeeper: ZooKeeperOptions) -> AutoRecoveryOptions:
    password = (keys.text("passwd", default="empty") or "").encode()
    repair = fill(keys, RepairOptions, password=password)
    return AutoRecoveryOptions(
        fill(keys, AuditOptions), repair, client_tls(keys), client_authentication(keys), zookeeper
    )


def _compaction(keys: Values, kind: str) -> CompactionLevel:
    default: CompactionLevel = default_of(CollectionOptions, kind)
    key, unit = f"{kind}CompactionThreshold", "of an entry log, 0 or less: never"
    share = keys.share(key, default.threshold, least=-1, unit=unit, raises=True)
    if share > COMPACTED_SHARE_MAX:
        keys.note(key, f"{share:g}", f"a log is worth replacing below {COMPACTED_SHARE_MAX:g}, which this bookie uses")
        share = COMPACTED_SHARE_MAX
    return CompactionLevel(
        share,
        keys.number(f"{kind}CompactionInterval", round(default.interval_s), least=-1, unit="s, 0 or less: never"),
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
    """Return whether a value turns nothing on: it is empty, null or false, or a number that is only a time or a
    count."""
    return value.lower() in ("", NULL, *FALSE) or (value.isdecimal() and value not in TRUE)
