"""SourceOptions: the options of `format("bookkeeper")` as one value, and which of them go together.

Spark passes options with lower-cased names and text values. `SourceOptions.parse` makes one frozen value of them, or
raises one ConfigurationError that names the option, its value and the remedy. It runs on the driver, at `load()`,
`save()` or `start()`, before any task exists. An option without an effect on the operation, such as a write option in a
read, is refused, too: otherwise the user would believe that it works.
"""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from bkspark.errors import ConfigurationError
from bkspark.log.positions import EARLIEST, LATEST
from bkspark.metadata.zookeeper_options import ZooKeeperOptions
from bkspark.security.sasl import SaslClientOptions
from bkspark.spark import option_values as values
from bkspark.spark.foreign_options import are_kafkas_offsets
from bkspark.spark.local_files import LedgerPassword, encryption_with
from bkspark.spark.offsets import position_of
from bkspark.spark.option import READ, STREAM, WRITE
from bkspark.spark.option_parsing import parsed_fields
from bkspark.spark.option_table import BY_KEY, BY_USE, PULSARS_VIEWS, option_default
from bkspark.spark.option_values import IdRange, Offset
from bkspark.spark.read_options import (
    PULSAR,
    check_consumer,
    check_json_dialect,
    check_ledgers_read,
    check_ledgers_stream,
    check_log_read,
    check_offsets,
    check_times,
    check_triggers,
    check_whole_log,
    refuse_two_starts,
)
from bkspark.spark.sasl_options import SASL_OPTIONS
from bkspark.spark.tls_options import TLS_OPTIONS
from bkspark.spark.topic_options import ADDRESSES, SELECT_TOPICS, check_topic_options
from bkspark.spark.write_options import (
    APPEND,
    check_schema_options,
    check_write_options,
)
from bkspark.spark.zookeeper_options import ZOOKEEPER_OPTIONS
from bkspark.tls.options import TlsOptions

if TYPE_CHECKING:
    from bkspark.ledger.encryption import EncryptionOptions
    from bkspark.spark.client_settings import ClientSettings

_OF_INSPECTION = frozenset({"uri", "inspect", "password", "passwordfile", "bookkeeper", *ADDRESSES}).union(
    option.name.lower().partition(".")[0] for option in (*TLS_OPTIONS, *SASL_OPTIONS, *ZOOKEEPER_OPTIONS)
)
_OF_LOGS = """; of several logs (logsPattern), a JSON object of their names and one of these each"""


@dataclass(frozen=True)
class SourceOptions:
    """The parsed options; a field left at None was not given and has no fixed default.

    `given` has the lower-cased names of options that the user set, so that options without an effect can be refused.
    The others are not options. `columns_inferred`: the user named no columns, and the log's schema, or its entries,
    determined them. `metadata_found`: if the log has recorded the payload format, and the user named none, the
    lower-cased names of the columns that the user requests and the payload lacks.
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
    value_format: str = option_default("valueFormat")
    isolation: str = option_default("isolation")
    encrypted: str = option_default("encrypted")
    read_compacted: bool = option_default("readCompacted")
    publish_time_slack_ms: int = option_default("publishTimeSlack")
    starting_subscription: str | None = None
    inspect: str | None = None
    ledgers: tuple[IdRange, ...] | None = None
    ledger_password: LedgerPassword = field(default=option_default("password"), repr=False)
    encryption_key_file: str | None = None
    tls: TlsOptions | None = None
    sasl: SaslClientOptions | None = None
    zookeeper: ZooKeeperOptions | None = None
    starting_offsets: Offset | None = None
    ending_offsets: Offset = option_default("endingOffsets")
    starting_timestamp: int | None = None
    ending_timestamp: int | None = None
    ledger_metadata: Mapping[str, str] = field(default_factory=dict)
    payload_format: str | None = None
    malformed_mode: str = option_default("mode")
    corrupt_record: str = option_default("columnNameOfCorruptRecord")
    json_dialect: str = option_default("jsonDialect")
    include_metadata: bool = option_default("includeMetadata")
    fail_on_data_loss: bool = option_default("failOnDataLoss")
    recover: bool = option_default("recover")
    unconfirmed: bool = option_default("unconfirmed")
    partition_bytes_max: int = option_default("maxPartitionBytes")
    partition_entries_max: int | None = None
    partitions_min: int | None = None
    trigger_entries_max: int | None = None
    trigger_bytes_max: int | None = None
    trigger_entries_min: int | None = None
    trigger_delay_ms: int = option_default("maxTriggerDelay")
    consumer: str | None = None
    consumer_expiry_ms: int = option_default("consumerExpiry")
    digest: str = option_default("digestType")
    ensemble_size: int = option_default("ensembleSize")
    write_quorum: int = option_default("writeQuorum")
    ack_quorum: int = option_default("ackQuorum")
    ledger_type: str = option_default("ledgerType")
    if_exists: str = option_default("ifExists")
    txn_app_id: str | None = None
    txn_version: int | None = None
    if_published: str = option_default("ifPublished")
    ledger_bytes_max: int = option_default("maxLedgerBytes")
    ledger_age_ms: int = option_default("maxLedgerAge")
    inline_bytes: int = option_default("inlineBytes")
    entry_bytes_target: int = option_default("entryTargetBytes")
    compression: str = option_default("compression")
    compression_level: int | None = None
    merge_schema: bool = option_default("mergeSchema")
    overwrite_schema: bool = option_default("overwriteSchema")
    columns_inferred: bool = False
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
        parsed = cls(**parsed_fields(options, environment))
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
        for check in (checks[use] for use in checks if all(use in BY_USE[key].uses for key in self.given)):
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
        offset: Offset | None = getattr(self, BY_KEY[option.lower()].field)
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
        check_offsets(self)
        refuse_two_starts(self)
        check_json_dialect(self)
        if self.reads_logs:
            self._check_positions()
        check_topic_options(self, BY_KEY)
        check_times(self)
        if self.reads_logs:
            check_log_read(self)
        elif not self.reads_topics:
            check_ledgers_read(self)
        return replace(self, **self._read_defaults(EARLIEST))

    def _check_positions(self) -> None:
        """Raise ConfigurationError if an offset option's JSON is not a position, or not one of a log."""
        for option in ("startingOffsets", "endingOffsets"):
            value = getattr(self, BY_KEY[option.lower()].field)
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
        check_topic_options(self, BY_KEY)
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
            raise ConfigurationError("payloadFormat pulsar is for reads: only brokers write topics")
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
            option = BY_USE[key]
            if use not in option.uses:
                remedy = "remove it"
                if use == WRITE and option.name in SELECT_TOPICS:
                    remedy = "only brokers write topics of Pulsar: name the destination by option 'log', and remove it"
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


def _check_together(given: frozenset[str]) -> None:
    """Raise ConfigurationError if two options exclude each other."""
    for one, other in itertools.combinations(sorted(given), 2):
        first, second = BY_USE[one], BY_USE[other]
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
        name = BY_USE[min(others)].name
        raise ConfigurationError(f"option '{name}' has no effect on a read of 'inspect' {options.inspect}: remove it")
