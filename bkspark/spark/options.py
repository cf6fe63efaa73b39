"""Every option of `format("bookkeeper")`: name, meaning, default, check.

Spark passes options with lower-cased names and text values. `SourceOptions.parse` turns them into one frozen value, or
raises one ConfigurationError that names the option, its value and the remedy. It runs on the driver, at `load()`,
`save()` or `start()`, before any task exists. An option without an effect on the operation, such as a write option in a
read, is refused, too: otherwise the user would believe that it works.
"""

from __future__ import annotations

import difflib
import itertools
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from bkspark.errors import ConfigurationError
from bkspark.log.positions import EARLIEST, LATEST
from bkspark.metadata.uri import without_user
from bkspark.metadata.zookeeper_options import JAAS_FILE, ZooKeeperOptions, read_zookeeper_file, zookeeper_options
from bkspark.secret_files import ENCRYPTION_KEY_FILE_VARIABLE, PASSWORD_FILE_VARIABLE, PASSWORD_VARIABLE
from bkspark.security.client_keys import client_sasl, read_client_sasl
from bkspark.security.sasl import SaslClientOptions
from bkspark.spark import option_values as values
from bkspark.spark.foreign_options import are_kafkas_offsets, remedy_of_others
from bkspark.spark.local_files import LedgerPassword, encryption_with
from bkspark.spark.offsets import position_of
from bkspark.spark.option import ANY, BATCHES, READ, READS, STREAM, WRITE, Option
from bkspark.spark.option_values import IdRange, Offset
from bkspark.spark.read_options import (
    PULSAR,
    READ_OPTIONS,
    check_consumer,
    check_json_dialect,
    check_ledgers_read,
    check_ledgers_stream,
    check_log_read,
    check_times,
    check_triggers,
    check_whole_log,
    refuse_two_starts,
)
from bkspark.spark.sasl_options import SASL, SASL_OPTIONS
from bkspark.spark.tls_options import TLS, TLS_OPTIONS
from bkspark.spark.topic_options import ADDRESSES, SELECT_TOPICS, TOPIC_OPTIONS, check_topic_options
from bkspark.spark.write_options import (
    APPEND,
    LEDGER_METADATA,
    NOT,
    WRITE_OPTIONS,
    check_schema_options,
    check_write_options,
)
from bkspark.spark.zookeeper_options import ZOOKEEPER, ZOOKEEPER_OPTIONS
from bkspark.tls.client_keys import FILE_VARIABLE, client_tls, read_client_file
from bkspark.tls.options import TlsOptions

if TYPE_CHECKING:
    from bkspark.ledger.encryption import EncryptionOptions
    from bkspark.spark.client_settings import ClientSettings

URI_VARIABLE = "BKSPARK_URI"
_ENCRYPTION_KEYS = "encryption_key_file"
_PASSWORD = "ledger_password"
"""The field of `password` and `passwordFile`."""

PULSARS_VIEWS = ("topics", "topicLedgers", "subscriptions")
VIEWS = ("ledgers", "logs", "bookies", "fragments", "consumers", *PULSARS_VIEWS)
_OF_INSPECTION = frozenset({"uri", "inspect", "password", "passwordfile", "bookkeeper", *ADDRESSES}).union(
    option.name.lower().partition(".")[0] for option in (*TLS_OPTIONS, *SASL_OPTIONS, *ZOOKEEPER_OPTIONS)
)
# What Spark itself puts among the options of a streaming sink.
_SPARK_OWN = frozenset({"checkpointlocation", "queryname"})


OPTIONS = (
    Option(
        "uri",
        "uri",
        values.uri,
        ANY,
        f"metadata URI of the cluster, zk://host:port/ledgers; default: {URI_VARIABLE}",
    ),
    Option("log", "log", values.log_name, ANY, "named log to read, follow or append to"),
    Option("logsPattern", "logs_pattern", values.pattern, READS, "regular expression of names of logs to read"),
    Option(
        "ledgers",
        "ledgers",
        values.parse_ledgers,
        READS,
        'ledgers to read: "5", "5,7", "5-9", "[5, 7]", "*", or entries of one: "5:10-99"',
    ),
    *TOPIC_OPTIONS,
    *TLS_OPTIONS,
    *SASL_OPTIONS,
    *ZOOKEEPER_OPTIONS,
    Option("inspect", "inspect", values.OneOf(*VIEWS), BATCHES, "a table about the cluster instead of entries"),
    Option(
        "passwordFile",
        _PASSWORD,
        LedgerPassword.in_file,
        ANY,
        f"file with the ledger password, on the driver and every executor; default: {PASSWORD_FILE_VARIABLE}",
    ),
    Option(
        "password",
        _PASSWORD,
        LedgerPassword.given,
        ANY,
        f"ledger password itself; default: {PASSWORD_VARIABLE}, else empty",
        "",
    ),
    Option(
        "encryptionKeyFile",
        _ENCRYPTION_KEYS,
        values.text,
        ANY,
        "file with the keys that new ledgers are encrypted with and encrypted ones are read with, on the driver and "
        f"every executor; default: {ENCRYPTION_KEY_FILE_VARIABLE}",
    ),
    *READ_OPTIONS,
    *WRITE_OPTIONS,
)
_LEDGER_METADATA = Option("ledgerMetadata", "ledger_metadata", values.text, ANY, "custom metadata of ledgers")
CLIENT_PREFIX = "bookkeeper."
"""Options of this prefix are settings of the client: `client_settings`."""
_CLIENT = Option("bookkeeper", "client", values.text, ANY, "settings of the client")
_ZOOKEEPER = Option(ZOOKEEPER, ZOOKEEPER, values.text, ANY, "settings of the connection to ZooKeeper")
_OF_LOGS = """; of several logs (logsPattern), a JSON object of their names and one of these each"""
_TABLE_PROVIDER, _TABLE_OPTION = "provider", "option."
_NO_OPTIONS = (
    "no option was given. Spark does not pass a table's OPTIONS to a Python source: name them in the query, "
    "SELECT … FROM t WITH ('uri' = 'zk://…', 'log' = '…') or INSERT INTO t WITH (…), or use CREATE TEMPORARY VIEW … "
    "USING bookkeeper OPTIONS (…); from Python, set option 'uri' and one of 'log', 'logsPattern', 'ledgers', 'inspect'"
)
_BY_KEY = {option.name.lower(): option for option in OPTIONS}
_BY_USE = {**_BY_KEY, **{option.name.lower(): option for option in (_LEDGER_METADATA, _CLIENT, _ZOOKEEPER)}}


def _default(name: str) -> Any:
    """Return the value of an option that is not given."""
    option = _BY_KEY[name.lower()]
    assert option.default is not None
    return option.check(option.default)


@dataclass(frozen=True)
class SourceOptions:
    """The parsed options; a field left at None was not given and has no fixed default.

    `given` has the lower-cased names of options that the user set, so that options without an effect can be refused.
    The others are not options. `columns_inferred`: the user named no columns, and the log's schema, or its entries,
    determined them. `format_found`: the user named no payloadFormat, and the log has recorded one; then
    `metadata_found` has the lower-cased names of columns that the user requests and the payload lacks.
    """

    uri: str
    client: ClientSettings | None = None
    log: str | None = None
    logs_pattern: str | None = None
    topic: str | None = None
    topics: tuple[str, ...] | None = None
    topics_pattern: str | None = None
    pulsar_uri: str | None = None
    pulsar_configuration_uri: str | None = None
    value_format: str = _default("valueFormat")
    isolation: str = _default("isolation")
    encrypted: str = _default("encrypted")
    read_compacted: bool = _default("readCompacted")
    publish_time_slack_ms: int = _default("publishTimeSlack")
    starting_subscription: str | None = None
    inspect: str | None = None
    ledgers: tuple[IdRange, ...] | None = None
    ledger_password: LedgerPassword = field(default=_default("password"), repr=False)
    encryption_key_file: str | None = None
    tls: TlsOptions | None = None
    sasl: SaslClientOptions | None = None
    zookeeper: ZooKeeperOptions | None = None
    starting_offsets: Offset | None = None
    ending_offsets: Offset = _default("endingOffsets")
    starting_timestamp: int | None = None
    ending_timestamp: int | None = None
    ledger_metadata: Mapping[str, str] = field(default_factory=dict)
    payload_format: str | None = None
    malformed_mode: str = _default("mode")
    corrupt_record: str = _default("columnNameOfCorruptRecord")
    json_dialect: str = _default("jsonDialect")
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
    consumer: str | None = None
    consumer_expiry_ms: int = _default("consumerExpiry")
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
    compression: str = _default("compression")
    compression_level: int | None = None
    merge_schema: bool = _default("mergeSchema")
    overwrite_schema: bool = _default("overwriteSchema")
    columns_inferred: bool = False
    format_found: bool = False
    metadata_found: frozenset[str] = frozenset()
    given: frozenset[str] = field(default=frozenset())

    @classmethod
    def parse(cls, options: Mapping[str, str], environment: Mapping[str, str] = os.environ) -> SourceOptions:
        """Return the options of one load, save or start.

        Args:
            options: names in any case.
            environment: the source of `uri`, password, encryption keys, TLS and SASL when they are not given.

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
            if key.lower().startswith(CLIENT_PREFIX):
                fields.setdefault("client", {})[key[len(CLIENT_PREFIX) :]] = str(value)
                continue
            option = _BY_KEY.get(key.lower())
            if option is None:
                raise ConfigurationError(_unknown(key))
            if option.field in (TLS, SASL, ZOOKEEPER):
                fields.setdefault(option.field, {})[option.name] = _checked(option, str(value))
            else:
                fields[option.field] = _checked(option, str(value))
        if {"password", "passwordfile"} <= {key.lower() for key in options}:
            raise ConfigurationError("options 'password' and 'passwordFile' exclude each other: give one of them")
        if TLS in fields:
            fields[TLS] = client_tls(fields[TLS], shown="option '{}'")
        if JAAS_FILE in fields.get(SASL, {}):
            # One file for connections to bookies and to ZooKeeper.
            fields.setdefault(ZOOKEEPER, {})[JAAS_FILE] = fields[SASL][JAAS_FILE]
        if SASL in fields:
            fields[SASL] = client_sasl(fields[SASL], shown="option '{}'")
        if ZOOKEEPER in fields:
            fields[ZOOKEEPER] = zookeeper_options(fields[ZOOKEEPER], shown="option '{}'", environment=environment)
        given = frozenset(key.lower().partition(".")[0] for key in options) - _SPARK_OWN
        _fill_from_environment(fields, environment)
        if "client" in fields or any(fields.get(name) is not None for name in (TLS, SASL, ZOOKEEPER)):
            from bkspark.spark.client_settings import client_settings  # imports the client, which few need here

            own = (fields.get(name) for name in (TLS, SASL, ZOOKEEPER))
            fields["client"] = client_settings(fields.get("client", {}), *own)
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
    def password(self) -> bytes:
        """The ledger password; read from its file at each call. Raises as `LedgerPassword.read`."""
        return self.ledger_password.read()

    @property
    def encryption(self) -> EncryptionOptions:
        """The keys with which this process's client encrypts and opens ledgers."""
        return encryption_with(self.encryption_key_file)

    @property
    def reads_logs(self) -> bool:
        """Whether logs are read, not ledgers or topics."""
        return self.log is not None or self.logs_pattern is not None

    @property
    def reads_topics(self) -> bool:
        """Whether topics of Pulsar are read."""
        return self.topic is not None or self.topics is not None or self.topics_pattern is not None

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
            return named if isinstance(named, dict) else values.offset_in_log(str(named))
        except ValueError as error:
            raise ConfigurationError(
                f"option '{option}': the offset of log {log} is {values.shown(named)}, which {error}{_OF_LOGS}"
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
        refuse_two_starts(self)
        check_json_dialect(self)
        if self.reads_logs:
            self._check_positions()
        check_topic_options(self, _BY_KEY)
        check_times(self)
        if self.reads_logs:
            check_log_read(self)
        elif not self.reads_topics:
            check_ledgers_read(self)
        return replace(self, **self._read_defaults(EARLIEST))

    def _check_positions(self) -> None:
        """Raise ConfigurationError if an offset option's JSON is not a position, or not one of a log."""
        for option in ("startingOffsets", "endingOffsets"):
            value = getattr(self, _BY_KEY[option.lower()].field)
            if not isinstance(value, dict):
                continue
            if are_kafkas_offsets(value):
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

    def for_stream_read(self) -> SourceOptions:
        """Return these options with the defaults of a stream read (new data only), checked.

        Raises:
            ConfigurationError: an option given has no effect on a stream read, or 'log' is missing.
        """
        self._refuse_foreign(STREAM)
        self._require_log(STREAM)
        refuse_two_starts(self)
        check_json_dialect(self)
        check_topic_options(self, _BY_KEY)
        if self.ledgers is not None:
            check_ledgers_stream(self)
        elif not self.reads_topics:
            self._check_positions()
            check_whole_log(self)
        check_triggers(self)
        check_consumer(self)
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
                f"option 'ifExists' {self.if_exists} and {other} exclude each other: remove one of them"
            )
        check_schema_options(self, is_overwrite=is_overwrite)
        return self._for_any_write()

    def for_stream_write(self, *, is_overwrite: bool = False) -> SourceOptions:
        """Return these options with the defaults of a streaming write, checked. Raises as `for_write`."""
        check_schema_options(self, is_overwrite=is_overwrite)
        if "ifexists" in self.given:
            raise ConfigurationError(
                "option 'ifExists' has no effect on a streaming write, whose epochs follow each other: remove it"
            )
        return self._for_any_write()

    def for_write(self) -> SourceOptions:
        """Return these options with the defaults of any write, checked; `payload_format` may still be None.

        Raises:
            ConfigurationError: an option has no effect on a write, 'log' is missing, or the quorums are impossible.
        """
        checked = self._for_any_write()
        self._require_log(WRITE)
        return checked

    def for_routed_write(self) -> SourceOptions:
        """Return these options with the defaults of a write whose rows name their logs. Raises as `for_write`."""
        if self.if_exists != APPEND:
            raise ConfigurationError(
                f"option 'ifExists' is {self.if_exists}, and goes with option 'log': with a column 'log' each log is "
                "appended to, or replaced in mode overwrite; remove it"
            )
        return self._for_any_write()

    def _for_any_write(self) -> SourceOptions:
        self._refuse_foreign(WRITE)
        if self.payload_format == PULSAR:
            raise ConfigurationError("payloadFormat pulsar is read only: brokers alone write topics")
        if self.txn_version is not None and self.txn_app_id is None:
            raise ConfigurationError("option 'txnVersion' needs 'txnAppId': set that, too")
        if "ifpublished" in self.given and self.txn_app_id is None:
            raise ConfigurationError("option 'ifPublished' needs 'txnAppId': set that, too, or remove it")
        check_write_options(self)
        return self

    def _read_defaults(self, start: Offset) -> dict[str, Any]:
        given = self.starting_offsets
        return {"starting_offsets": start if given is None else given, "payload_format": self.payload_format or "raw"}

    def _refuse_foreign(self, use: str) -> None:
        for key in sorted(self.given):
            option = _BY_USE[key]
            if use not in option.uses:
                remedy = "remove it"
                if use == WRITE and option.name in SELECT_TOPICS:
                    remedy = "brokers alone write topics of Pulsar; name the destination by option 'log', and remove it"
                raise ConfigurationError(
                    f"option '{option.name}' has no effect on {use}, only on {option.places}: {remedy}"
                )

    def check_named(self) -> None:
        """Raise ConfigurationError if the options name nothing to read. In a write, the rows may name the logs."""
        selections = (self.log, self.logs_pattern, self.topic, self.topics, self.topics_pattern, self.ledgers)
        if self.inspect is None and all(value is None for value in selections):
            raise ConfigurationError(
                "nothing to read or write is named: give option 'log', 'logsPattern', 'topic', 'ledgers' or 'inspect'; "
                "a write may have a column 'log' instead, which names the log of each row"
            )

    def _require_log(self, use: str) -> None:
        follows = use == STREAM and (self.reads_topics or self.ledgers is not None)
        if self.log is None and self.logs_pattern is None and not follows:
            raise ConfigurationError(f"option 'log' is missing: {use} needs the name of a log")


def _without_properties(options: Mapping[str, str]) -> Mapping[str, str]:
    """Return the OPTIONS of a CREATE TABLE without columns: Spark mixes the table's properties with them."""
    if _TABLE_PROVIDER not in options:
        return options
    return {key[len(_TABLE_OPTION) :]: value for key, value in options.items() if key.startswith(_TABLE_OPTION)}


def _refuse_twice(options: Mapping[str, str]) -> None:
    """Raise ConfigurationError if two names differ only in case: Spark ignores case, so one of them would be lost."""
    known: dict[str, str] = {}
    for key in options:
        before = known.setdefault(key.lower(), key)
        if before != key:
            raise ConfigurationError(f"options '{before}' and '{key}' are the same, as case does not count: give one")


def _checked(option: Option, value: str) -> Any:
    try:
        return option.check(value)
    except ValueError as error:
        shown = "***" if option.name == "password" else values.shown(without_user(value))
        raise ConfigurationError(f"option '{option.name}' is {shown}, which {error} ({option.meaning})") from None


def _metadata_key(name: str) -> str:
    key = name[len(LEDGER_METADATA) :].lower()
    if not key.removeprefix(NOT):
        raise ConfigurationError(f"option '{name}' names no key: write {LEDGER_METADATA}key=value")
    return key


def _unknown(key: str) -> str:
    if key.lower() in ("path", "paths"):
        return (
            "a path has no meaning here: name what to use by option 'log' or 'ledgers', and call load() or save() bare"
        )
    if (remedy := remedy_of_others(key.lower())) is not None:
        return f"unknown option '{key}': {remedy}"
    if difflib.get_close_matches(key.lower().partition(".")[0], [_LEDGER_METADATA.name.lower()], cutoff=0.8):
        return f"unknown option '{key}': did you mean '{LEDGER_METADATA}KEY', with a key of custom metadata?"
    from bkspark.spark.client_settings import setting_meant  # imports the client, which few need here

    if (setting := setting_meant(key)) is not None:
        return f"unknown option '{key}': did you mean '{setting}'?"
    nearest = difflib.get_close_matches(key.lower(), _BY_KEY, n=1)
    if nearest:
        return f"unknown option '{key}': did you mean '{_BY_KEY[nearest[0]].name}'?"
    names = ", ".join(option.name for option in OPTIONS)
    return f"unknown option '{key}': the options are {names}"


def _fill_from_environment(fields: dict[str, Any], environment: Mapping[str, str]) -> None:
    if TLS not in fields and environment.get(FILE_VARIABLE):
        fields[TLS] = read_client_file(environment[FILE_VARIABLE])
    if SASL not in fields and environment.get(FILE_VARIABLE):
        fields[SASL] = read_client_sasl(environment[FILE_VARIABLE])
    if ZOOKEEPER not in fields:
        path = environment.get(FILE_VARIABLE)
        found = read_zookeeper_file(path, environment) if path else zookeeper_options({}, environment=environment)
        if found != ZooKeeperOptions():
            fields[ZOOKEEPER] = found
    if _PASSWORD not in fields:
        fields[_PASSWORD] = LedgerPassword.of_environment(environment)
    if _ENCRYPTION_KEYS not in fields and environment.get(ENCRYPTION_KEY_FILE_VARIABLE):
        fields[_ENCRYPTION_KEYS] = environment[ENCRYPTION_KEY_FILE_VARIABLE]
    if "uri" not in fields and environment.get(URI_VARIABLE):
        fields["uri"] = _checked(_BY_KEY["uri"], environment[URI_VARIABLE])


def _check_together(given: frozenset[str]) -> None:
    """Raise ConfigurationError if two options exclude each other."""
    for one, other in itertools.combinations(sorted(given), 2):
        first, second = _BY_USE[one], _BY_USE[other]
        if not first.uses & second.uses:
            raise ConfigurationError(
                f"option '{first.name}' is for {first.places}, option '{second.name}' for {second.places}: "
                "remove one of them"
            )


def _check_selection(options: SourceOptions) -> None:
    selections = {
        "log": options.log,
        "logsPattern": options.logs_pattern,
        "topic": options.topic,
        "topics": options.topics,
        "topicsPattern": options.topics_pattern,
        "ledgers": options.ledgers,
        "inspect": options.inspect,
    }
    chosen = [name for name, value in selections.items() if value is not None]
    if len(chosen) > 1:
        remedy = "give one of them"
        if chosen[0] == "log" and chosen[1] in SELECT_TOPICS:
            remedy += f": '{chosen[1]}' names what to read of Pulsar, 'log' all else, and alone where to write"
        raise ConfigurationError(f"options '{chosen[0]}' and '{chosen[1]}' exclude each other: {remedy}")
    without_effect = options.given - _OF_INSPECTION
    if options.inspect not in PULSARS_VIEWS:
        without_effect |= options.given & ADDRESSES
    if options.inspect is not None and (others := without_effect):
        name = _BY_USE[min(others)].name
        raise ConfigurationError(f"option '{name}' has no effect on a read of 'inspect' {options.inspect}: remove it")
