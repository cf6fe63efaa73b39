"""Every option of `format("bookkeeper")`: name, meaning, default, check.

Spark hands options over with lower-cased names and text values. `SourceOptions.parse` turns them into one frozen
value, or raises one ConfigurationError that names the option, its value and the remedy. It runs on the driver, at
`load()`, `save()` or `start()`, before any task exists. An option that has no effect on what is being done (a write
option of a read, say) is refused too: silence would let its user believe that it works.
"""

from __future__ import annotations

import difflib
import itertools
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from bkspark.core.metadata import check_quorums
from bkspark.errors import ConfigurationError
from bkspark.ids import DIGESTS, LEDGER_TYPES
from bkspark.log.positions import EARLIEST, LATEST
from bkspark.spark import option_values as values
from bkspark.spark.offsets import position_of
from bkspark.spark.option_values import IdRange, Offset

URI_VARIABLE = "BKSPARK_URI"
PASSWORD_VARIABLE = "BKSPARK_PASSWORD"

VIEWS = ("ledgers", "logs", "bookies", "fragments")
PAYLOAD_FORMATS = ("raw", "json", "msgpack", "arrow")
APPEND, ERROR, IGNORE, SKIP = "append", "error", "ignore", "skip"
MALFORMED_MODES = ("FAILFAST", "PERMISSIVE", "DROPMALFORMED")

READ, STREAM, WRITE = "a batch read", "a stream read", "a write"
_BATCH, _STREAM, _WRITE = frozenset({READ}), frozenset({STREAM}), frozenset({WRITE})
_READS = frozenset({READ, STREAM})
_ANY = frozenset({READ, STREAM, WRITE})

_OF_INSPECTION = frozenset({"uri", "inspect", "password"})
# What Spark itself puts among the options of a streaming sink.
_SPARK_OWN = frozenset({"checkpointlocation", "queryname"})


@dataclass(frozen=True)
class Option:
    """One option: its name as users write it, the SourceOptions field it fills, its check, where it has effect.

    default: as users would write it; None where there is none, or none that is always the same.
    """

    name: str
    field: str
    check: Callable[[str], Any]
    uses: frozenset[str]
    meaning: str
    default: str | None = None

    @property
    def choices(self) -> tuple[str, ...]:
        """The values that there are, where they are few."""
        return self.check.choices if isinstance(self.check, values.OneOf) else ()


OPTIONS = (
    Option(
        "uri",
        "uri",
        values.uri,
        _ANY,
        f"metadata URI of the cluster, zk://host:port/ledgers; default: {URI_VARIABLE}",
    ),
    Option("log", "log", values.log_name, _ANY, "named log to read, follow or append to"),
    Option("logsPattern", "logs_pattern", values.pattern, _READS, "regular expression of names of logs to read"),
    Option(
        "ledgers",
        "ledgers",
        values.parse_ledgers,
        _BATCH,
        'ledgers to read: "5", "5,7", "5-9", "[5, 7]", "*", or entries of one: "5:10-99"',
    ),
    Option("inspect", "inspect", values.OneOf(*VIEWS), _BATCH, "a table about the cluster instead of entries"),
    Option(
        "password", "password", values.password, _ANY, f"ledger password; default: {PASSWORD_VARIABLE}, else empty", ""
    ),
    Option("startingOffsets", "starting_offsets", values.offset, _READS, "earliest, latest, -N or a position's JSON"),
    Option("endingOffsets", "ending_offsets", values.offset, _BATCH, "latest, -N or a position's JSON", "latest"),
    Option("startingTimestamp", "starting_timestamp", values.moment, _READS, "without ledgers closed before this time"),
    Option(
        "endingTimestamp", "ending_timestamp", values.moment, _BATCH, "without ledgers created at this time or later"
    ),
    Option("payloadFormat", "payload_format", values.OneOf(*PAYLOAD_FORMATS), _ANY, "what an entry holds"),
    Option(
        "mode", "malformed_mode", values.OneOf(*MALFORMED_MODES), _READS, "what a malformed payload does", "FAILFAST"
    ),
    Option(
        "includeMetadata", "include_metadata", values.flag, _READS, "add the columns that describe an entry", "false"
    ),
    Option(
        "failOnDataLoss", "fail_on_data_loss", values.flag, _READS, "fail when data that was asked for is gone", "true"
    ),
    Option("recover", "recover", values.flag, _BATCH, "fence and close open ledgers before reading them", "false"),
    Option(
        "unconfirmed",
        "unconfirmed",
        values.flag,
        _BATCH,
        "read open ledgers beyond what is confirmed: dangerous",
        "false",
    ),
    Option("maxPartitionBytes", "partition_bytes_max", values.size, _READS, "payload bytes in one task, about", "1g"),
    Option("maxEntriesPerPartition", "partition_entries_max", values.count, _READS, "entries in one task, at most"),
    Option(
        "minPartitions", "partitions_min", values.count, _READS, "tasks to plan at least, if there are as many entries"
    ),
    Option("maxEntriesPerTrigger", "trigger_entries_max", values.count, _STREAM, "entries in one micro-batch"),
    Option("maxBytesPerTrigger", "trigger_bytes_max", values.size, _STREAM, "bytes in one micro-batch, about"),
    Option("minEntriesPerTrigger", "trigger_entries_min", values.count, _STREAM, "entries to wait for"),
    Option("maxTriggerDelay", "trigger_delay_ms", values.duration, _STREAM, "how long to wait for them", "15m"),
    Option(
        "digestType",
        "digest",
        values.OneOf(*DIGESTS),
        _WRITE,
        f"check of written entries: {', '.join(DIGESTS)}",
        "crc32c",
    ),
    Option("ensembleSize", "ensemble_size", values.count, _WRITE, "bookies that store a ledger", "3"),
    Option("writeQuorum", "write_quorum", values.count, _WRITE, "bookies that store each entry", "3"),
    Option("ackQuorum", "ack_quorum", values.count, _WRITE, "bookies that must confirm an entry", "2"),
    Option(
        "ledgerType",
        "ledger_type",
        values.OneOf(*LEDGER_TYPES),
        _WRITE,
        "when what tasks write is durable, and where",
        "PD_JOURNAL",
    ),
    Option(
        "ifExists",
        "if_exists",
        values.OneOf(APPEND, ERROR, IGNORE),
        _WRITE,
        "what a log that holds ledgers does",
        "append",
    ),
    Option("txnAppId", "txn_app_id", values.publisher, _WRITE, "name under which versions are published once"),
    Option("txnVersion", "txn_version", values.version, _WRITE, "version of this write; of a stream: of its epoch 0"),
    Option(
        "ifPublished",
        "if_published",
        values.OneOf(ERROR, SKIP),
        _WRITE,
        "what a version that another published does",
        "error",
    ),
    Option("maxLedgerBytes", "ledger_bytes_max", values.size, _WRITE, "roll to a new ledger at this size, about", "1g"),
    Option("maxLedgerAge", "ledger_age_ms", values.age, _WRITE, "roll a shared ledger at this age", "1h"),
    Option(
        "inlineBytes", "inline_bytes", values.inline_size, _WRITE, "rows that the driver appends for a task", "512k"
    ),
    Option(
        "entryTargetBytes",
        "entry_bytes_target",
        values.entry_size,
        _WRITE,
        "size of an entry of many rows, about",
        "1m",
    ),
)
LEDGER_METADATA = "ledgerMetadata."
"""Options of this prefix: ledgerMetadata.key=value. A read selects the ledgers that have it, a write sets it."""
LEDGER_METADATA_BYTES_MAX = 256 * 1024
"""Limit of all custom metadata that a write sets: a ledger's metadata is one node of ZooKeeper, which takes less than 1
MiB."""
_OWN_METADATA = frozenset({"application", "log"})
_LEDGER_METADATA = Option(
    "ledgerMetadata", "ledger_metadata", values.text, frozenset({READ, WRITE}), "custom metadata of ledgers"
)
_KAFKA_NAMES = {
    "kafka.bootstrap.servers": "uri",
    "subscribe": "log",
    "topic": "log",
    "subscribePattern": "logsPattern",
    "assign": "ledgers",
    "startingOffsetsByTimestamp": "startingTimestamp",
    "endingOffsetsByTimestamp": "endingTimestamp",
    "maxOffsetsPerTrigger": "maxEntriesPerTrigger",
    "minOffsetsPerTrigger": "minEntriesPerTrigger",
    "maxRecordsPerPartition": "maxEntriesPerPartition",
    "includeHeaders": "includeMetadata",
}
"""Options of Spark's connector for Kafka that have an equivalent here under another name."""
_OF_LOGS = """; of several logs, a JSON object of their names and one of these each"""
_KAFKA_PREFIXES = ("kafka.", "kafkaconsumer.", "fetchoffset.", "groupidprefix", "startingoffsetsbytimestampstrategy")
_OF_KAFKA = {theirs.lower(): ours for theirs, ours in _KAFKA_NAMES.items()}
_TABLE_PROVIDER, _TABLE_OPTION = "provider", "option."
_NO_OPTIONS = (
    "no option was given. Spark hands none of a table's OPTIONS to a Python source: name them in the query, "
    "SELECT … FROM t WITH ('uri' = 'zk://…', 'log' = '…') or INSERT INTO t WITH (…), or use CREATE TEMPORARY VIEW … "
    "USING bookkeeper OPTIONS (…); from Python, set option 'uri' and one of 'log', 'logsPattern', 'ledgers', 'inspect'"
)
_BY_KEY = {option.name.lower(): option for option in OPTIONS}
_BY_USE = {**_BY_KEY, _LEDGER_METADATA.name.lower(): _LEDGER_METADATA}


def _default(name: str) -> Any:
    """Return the value of an option that is not given."""
    option = _BY_KEY[name.lower()]
    assert option.default is not None
    return option.check(option.default)


@dataclass(frozen=True)
class SourceOptions:
    """The parsed options; a field left at None was not given and has no fixed default.

    `given` holds the lower-cased names that the user set, so that the check of a use can refuse options that do not
    apply. `columns_inferred` is not an option: the user named no columns, and the first entries determined them.
    """

    uri: str
    log: str | None = None
    logs_pattern: str | None = None
    inspect: str | None = None
    ledgers: tuple[IdRange, ...] | None = None
    password: bytes = field(default=_default("password"), repr=False)
    starting_offsets: Offset | None = None
    ending_offsets: Offset = _default("endingOffsets")
    starting_timestamp: int | None = None
    ending_timestamp: int | None = None
    ledger_metadata: Mapping[str, str] = field(default_factory=dict)
    payload_format: str | None = None
    malformed_mode: str = _default("mode")
    include_metadata: bool = _default("includeMetadata")
    fail_on_data_loss: bool = _default("failOnDataLoss")
    recover: bool = _default("recover")
    unconfirmed: bool = _default("unconfirmed")
    partition_bytes_max: int = _default("maxPartitionBytes")
    partition_entries_max: int | None = None
    partitions_min: int | None = None
    trigger_entries_max: int | None = None
    trigger_bytes_max: int | None = None
    trigger_entries_min: int | None = None
    trigger_delay_ms: int = _default("maxTriggerDelay")
    digest: str = _default("digestType")
    ensemble_size: int = _default("ensembleSize")
    write_quorum: int = _default("writeQuorum")
    ack_quorum: int = _default("ackQuorum")
    ledger_type: str = _default("ledgerType")
    if_exists: str = _default("ifExists")
    txn_app_id: str | None = None
    txn_version: int | None = None
    if_published: str = _default("ifPublished")
    ledger_bytes_max: int = _default("maxLedgerBytes")
    ledger_age_ms: int = _default("maxLedgerAge")
    inline_bytes: int = _default("inlineBytes")
    entry_bytes_target: int = _default("entryTargetBytes")
    columns_inferred: bool = False
    given: frozenset[str] = field(default=frozenset())

    @classmethod
    def parse(cls, options: Mapping[str, str], environment: Mapping[str, str] = os.environ) -> SourceOptions:
        """Return the options of one load, save or start.

        Args:
            options: names in any case.
            environment: the source of `uri` and `password` when they are not given.

        Raises:
            ConfigurationError: an option is unknown or wrong, or two of them exclude each other.
        """
        options = _without_properties(options)
        if not options:
            raise ConfigurationError(_NO_OPTIONS)
        fields: dict[str, Any] = {}
        _refuse_twice(options)
        for key, value in options.items():
            if key.lower() in _SPARK_OWN:
                continue
            if key.lower().startswith(LEDGER_METADATA.lower()):
                named = fields.setdefault("ledger_metadata", {})
                named[_metadata_key(key)] = _checked(_LEDGER_METADATA, str(value))
                continue
            option = _BY_KEY.get(key.lower())
            if option is None:
                raise ConfigurationError(_unknown(key))
            fields[option.field] = _checked(option, str(value))
        given = frozenset(key.lower().partition(".")[0] for key in options) - _SPARK_OWN
        _fill_from_environment(fields, environment)
        if "uri" not in fields:
            raise ConfigurationError(
                f"option 'uri' is missing: set it to zk://host:port/ledgers, or set {URI_VARIABLE}"
            )
        parsed = cls(**fields, given=given)
        _check_selection(parsed)
        return parsed

    def check_at_load(self) -> None:
        """Raise ConfigurationError if neither a batch nor a stream can be read with these options.

        Spark requests a reader only when it plans one, which may be long after load(). Options of writes are ignored:
        their writer is requested at once.
        """
        if self.inspect is not None:
            return
        _check_together(self.given)
        checks = {WRITE: lambda: self, READ: self.for_batch_read, STREAM: self.for_stream_read}
        errors = []
        for check in (checks[use] for use in checks if all(use in _BY_USE[key].uses for key in self.given)):
            try:
                check()
            except ConfigurationError as error:
                errors.append(error)
            else:
                return
        raise errors[0]

    @property
    def reads_logs(self) -> bool:
        """True when logs are read, not ledgers chosen by themselves."""
        return self.log is not None or self.logs_pattern is not None

    def offset_of(self, log: str, option: str) -> Offset | None:
        """Return the value of the named offset option for one log; None if it does not name the log.

        Raises:
            ConfigurationError: its value for this log is not an offset.
        """
        offset: Offset | None = getattr(self, _BY_KEY[option.lower()].field)
        if self.logs_pattern is None or not isinstance(offset, dict):
            return offset
        if log not in offset:
            return None
        named = offset[log]
        try:
            return named if isinstance(named, dict) else values.offset(str(named))
        except ValueError as error:
            raise ConfigurationError(
                f"option '{option}': the offset of log {log} is {values.shown(named)}, which {error}"
            ) from None

    def for_batch_read(self) -> SourceOptions:
        """Return these options with the defaults of a batch read, checked.

        Raises:
            ConfigurationError: an option given has no effect on a batch read, or the range is impossible.
        """
        self._refuse_foreign(READ)
        if self.starting_offsets == LATEST or self.ending_offsets == EARLIEST:
            raise ConfigurationError(
                "a batch read that starts at 'latest' or ends at 'earliest' reads nothing: "
                "set startingOffsets to earliest, -N or a position, endingOffsets to latest, -N or a position"
            )
        start, end = self.starting_offsets, self.ending_offsets
        if isinstance(start, int) and isinstance(end, int) and start >= end:
            raise ConfigurationError(
                f"option 'startingOffsets' {start} is not before 'endingOffsets' {end}, both counted back from the "
                "end, so nothing would be read: exchange them"
            )
        self._refuse_two_starts()
        if self.reads_logs:
            self._check_positions()
        if "endingoffsets" in self.given and self.ending_timestamp is not None:
            raise ConfigurationError(
                "options 'endingOffsets' and 'endingTimestamp' exclude each other: give one of them"
            )
        self._check_times()
        if self.reads_logs:
            self._check_log_read()
        else:
            self._check_ledgers_read()
        return replace(self, **self._read_defaults(EARLIEST))

    def _check_ledgers_read(self) -> None:
        for name, value in (("startingOffsets", self.starting_offsets), ("endingOffsets", self.ending_offsets)):
            if isinstance(value, dict):
                raise ConfigurationError(
                    f"option '{name}' is a position in a log, but 'ledgers' chooses what to read: use 'log', or drop it"
                )
        if self.recover and self.unconfirmed:
            raise ConfigurationError(
                "options 'recover' and 'unconfirmed' exclude each other: a recovered ledger has no unconfirmed entry"
            )

    def _check_positions(self) -> None:
        """Raise ConfigurationError if an offset option's JSON is not a position, or not one of a log."""
        for option in ("startingOffsets", "endingOffsets"):
            value = getattr(self, _BY_KEY[option.lower()].field)
            if not isinstance(value, dict):
                continue
            if _is_kafkas(value):
                raise ConfigurationError(
                    f"option '{option}' is {values.shown(json.dumps(value))}, which is of Kafka's form (topic, "
                    "partition, offset). A log has no partitions: give earliest, latest, -N, or a position, as column "
                    f"'position' has it{_OF_LOGS if self.logs_pattern is not None else ''}"
                )
            if self.logs_pattern is None:
                position_of(value, f"option '{option}'")
                continue
            for log in value:
                if isinstance(offset := self.offset_of(log, option), dict):
                    position_of(offset, f"option '{option}': log {log}")

    def _check_log_read(self) -> None:
        if self.recover:
            raise ConfigurationError("option 'recover' would fence a log's writer: use it with 'ledgers' only")
        if self.unconfirmed:
            raise ConfigurationError("option 'unconfirmed' is for 'ledgers': a log is read to what is confirmed")
        if self.ledger_metadata:
            raise ConfigurationError(f"option '{LEDGER_METADATA}*' chooses among 'ledgers': a log is read whole")

    def _check_times(self) -> None:
        since, until = self.starting_timestamp, self.ending_timestamp
        # A relative time, which is below 0, is compared only with another relative one.
        if since is not None and until is not None and (since < 0) == (until < 0) and since >= until:
            raise ConfigurationError(
                "option 'startingTimestamp' is not before 'endingTimestamp', so nothing would be read: exchange them"
            )

    def _refuse_two_starts(self) -> None:
        if self.starting_offsets is not None and self.starting_timestamp is not None:
            raise ConfigurationError(
                "options 'startingOffsets' and 'startingTimestamp' exclude each other: give one of them"
            )

    def for_stream_read(self) -> SourceOptions:
        """Return these options with the defaults of a stream read (new data only), checked.

        Raises:
            ConfigurationError: an option given has no effect on a stream read, or 'log' is missing.
        """
        self._refuse_foreign(STREAM)
        self._require_log(STREAM)
        self._refuse_two_starts()
        self._check_positions()
        if "maxtriggerdelay" in self.given and self.trigger_entries_min is None:
            raise ConfigurationError("option 'maxTriggerDelay' needs 'minEntriesPerTrigger': set that, too")
        least, most = self.trigger_entries_min, self.trigger_entries_max
        if least is not None and most is not None and least > most:
            raise ConfigurationError(
                f"option 'minEntriesPerTrigger' is {least}, more than 'maxEntriesPerTrigger' {most}: lower it"
            )
        return replace(self, **self._read_defaults(LATEST))

    def for_batch_write(self, *, is_overwrite: bool = False) -> SourceOptions:
        """Return these options with the defaults of a batch write, checked. Raises as `for_write`."""
        if (self.txn_app_id is None) != (self.txn_version is None):
            raise ConfigurationError(
                "options 'txnAppId' and 'txnVersion' belong together in a batch write: set both, and raise the version "
                "with every write (in foreachBatch: the batch's id)"
            )
        if self.if_exists != APPEND and (is_overwrite or self.txn_app_id is not None):
            other = "mode overwrite" if is_overwrite else "'txnAppId'"
            raise ConfigurationError(
                f"option 'ifExists' is {self.if_exists}, and {other} says otherwise what a log with content does: "
                "drop one of them"
            )
        return self.for_write()

    def for_stream_write(self) -> SourceOptions:
        """Return these options with the defaults of a streaming write, checked. Raises as `for_write`."""
        if "ifexists" in self.given:
            raise ConfigurationError(
                "option 'ifExists' has no effect on a streaming write, whose epochs follow each other: remove it"
            )
        return self.for_write()

    def for_write(self) -> SourceOptions:
        """Return these options with the defaults of any write, checked; `payload_format` may still be None.

        Raises:
            ConfigurationError: an option has no effect on a write, 'log' is missing, or the quorums are impossible.
        """
        self._refuse_foreign(WRITE)
        self._require_log(WRITE)
        if self.txn_version is not None and self.txn_app_id is None:
            raise ConfigurationError("option 'txnVersion' needs 'txnAppId': set that, too")
        if "ifpublished" in self.given and self.txn_app_id is None:
            raise ConfigurationError("option 'ifPublished' needs 'txnAppId': set that, too, or remove it")
        for key in self.ledger_metadata:
            if key in _OWN_METADATA or key.startswith("bkspark."):
                raise ConfigurationError(
                    f"option '{LEDGER_METADATA}{key}' names what bkspark writes itself: choose another key"
                )
        metadata_bytes = sum(len(key.encode()) + len(value.encode()) for key, value in self.ledger_metadata.items())
        if metadata_bytes > LEDGER_METADATA_BYTES_MAX:
            raise ConfigurationError(
                f"options '{LEDGER_METADATA}*' are {metadata_bytes} bytes together, above the "
                f"{LEDGER_METADATA_BYTES_MAX} that each ledger can keep: shorten them"
            )
        try:
            check_quorums(self.ensemble_size, self.write_quorum, self.ack_quorum)
        except ValueError as error:
            raise ConfigurationError(
                f"options 'ensembleSize', 'writeQuorum', 'ackQuorum': {error}; "
                "choose ensembleSize >= writeQuorum >= ackQuorum >= 1"
            ) from None
        if self.ledger_type != LEDGER_TYPES[0] and self.ensemble_size != self.write_quorum:
            raise ConfigurationError(
                f"option 'ledgerType' {self.ledger_type} goes with entries on all bookies of a ledger: set "
                f"ensembleSize and writeQuorum, now {self.ensemble_size} and {self.write_quorum}, to the same number"
            )
        return self

    def _read_defaults(self, start: Offset) -> dict[str, Any]:
        given = self.starting_offsets
        return {"starting_offsets": start if given is None else given, "payload_format": self.payload_format or "raw"}

    def _refuse_foreign(self, use: str) -> None:
        for key in sorted(self.given):
            option = _BY_USE[key]
            if use not in option.uses:
                raise ConfigurationError(
                    f"option '{option.name}' has no effect on {use}, only on {_places(option)}: remove it"
                )

    def _require_log(self, use: str) -> None:
        if self.log is None and self.logs_pattern is None:
            raise ConfigurationError(f"option 'log' is missing: {use} needs the name of a log")


def _is_kafkas(value: Mapping[str, Any]) -> bool:
    """Whether offsets have the form of Kafka's connector: `{"topic": {"0": 23, "1": -2}}`."""
    partitions = [key for offsets in value.values() if isinstance(offsets, dict) for key in offsets]
    return bool(partitions) and all(key.isdecimal() for key in partitions)


def _without_properties(options: Mapping[str, str]) -> Mapping[str, str]:
    """Return the OPTIONS of a CREATE TABLE without columns: Spark mixes the table's properties with them."""
    if _TABLE_PROVIDER not in options:
        return options
    return {key[len(_TABLE_OPTION) :]: value for key, value in options.items() if key.startswith(_TABLE_OPTION)}


def _refuse_twice(options: Mapping[str, str]) -> None:
    """Spark's own mappings ignore the case of names: if two names differ only in case, one of them would be lost."""
    known: dict[str, str] = {}
    for key in options:
        before = known.setdefault(key.lower(), key)
        if before != key:
            raise ConfigurationError(f"options '{before}' and '{key}' are the same, as case does not count: give one")


def _checked(option: Option, value: str) -> Any:
    try:
        return option.check(value)
    except ValueError as error:
        shown = "***" if option.field == "password" else values.shown(value)
        raise ConfigurationError(f"option '{option.name}' is {shown}, which {error} ({option.meaning})") from None


def _metadata_key(name: str) -> str:
    key = name[len(LEDGER_METADATA) :].lower()
    if not key:
        raise ConfigurationError(f"option '{name}' names no key: write {LEDGER_METADATA}key=value")
    return key


def _unknown(key: str) -> str:
    if key.lower() in ("path", "paths"):
        return (
            "a path has no meaning here: name what to use by option 'log' or 'ledgers', and call load() or save() bare"
        )
    if key.lower() in _OF_KAFKA:
        return f"unknown option '{key}': what it is to Kafka's connector is option '{_OF_KAFKA[key.lower()]}' here"
    if key.lower().startswith(_KAFKA_PREFIXES):
        return f"unknown option '{key}': it is one of Kafka's connector, and nothing takes its place here: remove it"
    if difflib.get_close_matches(key.lower().partition(".")[0], [_LEDGER_METADATA.name.lower()], cutoff=0.8):
        return f"unknown option '{key}': did you mean '{LEDGER_METADATA}KEY', with a key of custom metadata?"
    nearest = difflib.get_close_matches(key.lower(), _BY_KEY, n=1)
    if nearest:
        return f"unknown option '{key}': did you mean '{_BY_KEY[nearest[0]].name}'?"
    names = ", ".join(option.name for option in OPTIONS)
    return f"unknown option '{key}': the options are {names}"


def _fill_from_environment(fields: dict[str, Any], environment: Mapping[str, str]) -> None:
    for name, variable in (("uri", URI_VARIABLE), ("password", PASSWORD_VARIABLE)):
        if name not in fields and environment.get(variable):
            fields[name] = _checked(_BY_KEY[name], environment[variable])


def _check_together(given: frozenset[str]) -> None:
    """Raise ConfigurationError if two options exclude each other."""
    for one, other in itertools.combinations(sorted(given), 2):
        first, second = _BY_USE[one], _BY_USE[other]
        if not first.uses & second.uses:
            raise ConfigurationError(
                f"option '{first.name}' is for {_places(first)}, option '{second.name}' for {_places(second)}: "
                "remove one of them"
            )


def _places(option: Option) -> str:
    return " or ".join(sorted(option.uses))


def _check_selection(options: SourceOptions) -> None:
    selections = {
        "log": options.log,
        "logsPattern": options.logs_pattern,
        "ledgers": options.ledgers,
        "inspect": options.inspect,
    }
    chosen = [name for name, value in selections.items() if value is not None]
    if len(chosen) > 1:
        raise ConfigurationError(f"options '{chosen[0]}' and '{chosen[1]}' exclude each other: give one of them")
    if not chosen:
        raise ConfigurationError(
            "nothing to read or write is named: give option 'log', 'logsPattern', 'ledgers' or 'inspect'"
        )
    if options.inspect is not None and (others := options.given - _OF_INSPECTION):
        name = _BY_USE[min(others)].name
        raise ConfigurationError(f"option '{name}' has no effect on a read of 'inspect': remove it")
