"""The options of reads: their values, and which go together. PURE."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Protocol

from bkspark.errors import ConfigurationError
from bkspark.log.positions import EARLIEST, LATEST
from bkspark.spark import option_values as values
from bkspark.spark.option import ANY, BATCHES, READS, STREAMS, Option
from bkspark.spark.option_values import Offset
from bkspark.spark.write_options import ANY_VALUE, LEDGER_METADATA, NOT

PULSAR = "pulsar"
PAYLOAD_FORMATS = ("raw", "json", "msgpack", "arrow", PULSAR)
STRICT, SPARK = "strict", "spark"
MALFORMED_MODES = ("FAILFAST", "PERMISSIVE", "DROPMALFORMED")

READ_OPTIONS = (
    Option("startingOffsets", "starting_offsets", values.offset, READS, "earliest, latest, -N or a position's JSON"),
    Option("endingOffsets", "ending_offsets", values.offset, BATCHES, "latest, -N or a position's JSON", "latest"),
    Option(
        "startingTimestamp",
        "starting_timestamp",
        values.moment,
        READS,
        "begin at the first entry of this time",
    ),
    Option(
        "endingTimestamp",
        "ending_timestamp",
        values.moment,
        BATCHES,
        "end before the first entry of this time",
    ),
    Option("payloadFormat", "payload_format", values.OneOf(*PAYLOAD_FORMATS), ANY, "what an entry holds"),
    Option(
        "mode", "malformed_mode", values.OneOf(*MALFORMED_MODES), READS, "what a malformed payload does", "FAILFAST"
    ),
    Option(
        "columnNameOfCorruptRecord",
        "corrupt_record",
        values.text,
        READS,
        "column that gets malformed payloads in mode PERMISSIVE",
        "_corrupt_record",
    ),
    Option(
        "jsonDialect",
        "json_dialect",
        values.OneOf(STRICT, SPARK),
        READS,
        "spark reads json as Spark's own source does",
        STRICT,
    ),
    Option(
        "includeMetadata", "include_metadata", values.flag, READS, "add the columns that describe an entry", "false"
    ),
    Option(
        "failOnDataLoss", "fail_on_data_loss", values.flag, READS, "fail when data that was asked for is gone", "true"
    ),
    Option("recover", "recover", values.flag, BATCHES, "fence and close open ledgers before reading them", "false"),
    Option(
        "unconfirmed",
        "unconfirmed",
        values.flag,
        BATCHES,
        "read open ledgers beyond what is confirmed: dangerous",
        "false",
    ),
    Option("maxPartitionBytes", "partition_bytes_max", values.size, READS, "payload bytes in one task, about", "1g"),
    Option("maxEntriesPerPartition", "partition_entries_max", values.count, READS, "entries in one task, at most"),
    Option(
        "minPartitions", "partitions_min", values.count, READS, "tasks to plan at least, if there are as many entries"
    ),
    Option("maxEntriesPerTrigger", "trigger_entries_max", values.count, STREAMS, "entries in one micro-batch"),
    Option("maxBytesPerTrigger", "trigger_bytes_max", values.size, STREAMS, "bytes in one micro-batch, about"),
    Option("minEntriesPerTrigger", "trigger_entries_min", values.count, STREAMS, "entries to wait for"),
    Option("maxTriggerDelay", "trigger_delay_ms", values.duration, STREAMS, "how long to wait for them", "15m"),
    Option("consumer", "consumer", values.consumer, STREAMS, "name under which retention keeps what is unread"),
    Option("consumerExpiry", "consumer_expiry_ms", values.age, STREAMS, "how long it does so without a batch", "7d"),
)


class ChosenForRead(Protocol):
    """The options of a read."""

    @property
    def starting_offsets(self) -> Offset | None: ...
    @property
    def ending_offsets(self) -> Offset: ...
    @property
    def starting_timestamp(self) -> int | None: ...
    @property
    def ending_timestamp(self) -> int | None: ...
    @property
    def ledger_metadata(self) -> Mapping[str, str]: ...
    @property
    def payload_format(self) -> str | None: ...
    @property
    def recover(self) -> bool: ...
    @property
    def unconfirmed(self) -> bool: ...
    @property
    def trigger_entries_max(self) -> int | None: ...
    @property
    def trigger_entries_min(self) -> int | None: ...
    @property
    def consumer(self) -> str | None: ...
    @property
    def reads_logs(self) -> bool: ...
    @property
    def given(self) -> Collection[str]: ...


def check_ledgers_read(options: ChosenForRead) -> None:
    """Raise ConfigurationError if options of a read of ledgers exclude each other."""
    for name, value in (("startingOffsets", options.starting_offsets), ("endingOffsets", options.ending_offsets)):
        if isinstance(value, dict):
            raise ConfigurationError(
                f"option '{name}' is a position in a log, but 'ledgers' chooses what to read: use 'log', or drop it"
            )
    if options.recover and options.unconfirmed:
        raise ConfigurationError(
            "options 'recover' and 'unconfirmed' exclude each other: a recovered ledger has no unconfirmed entries"
        )
    check_conditions(options.ledger_metadata)


def check_log_read(options: ChosenForRead) -> None:
    """Raise ConfigurationError for options that have no effect on a batch read of logs."""
    if options.recover:
        raise ConfigurationError("option 'recover' would fence a log's writer: use it with 'ledgers' only")
    if options.unconfirmed:
        raise ConfigurationError("option 'unconfirmed' is for 'ledgers': a log is read up to its confirmed end")
    check_whole_log(options)


def check_conditions(ledger_metadata: Mapping[str, str]) -> None:
    """Raise ConfigurationError if a condition on custom metadata and a negated one exclude each other."""
    for key, value in ledger_metadata.items():
        if key.startswith(NOT):
            continue  # two negated conditions: "!!k" is about the key "!k"
        excluded = ledger_metadata.get(f"{NOT}{key}")
        if excluded is not None and excluded in (value, ANY_VALUE):
            raise ConfigurationError(
                f"options '{LEDGER_METADATA}{key}' {values.shown(value)} and '{LEDGER_METADATA}{NOT}{key}' "
                f"{values.shown(excluded)} exclude each other: no ledger fulfils both; remove one of them"
            )


def check_whole_log(options: ChosenForRead) -> None:
    """Raise ConfigurationError for a choice among the ledgers of a log."""
    if options.ledger_metadata:
        raise ConfigurationError(f"option '{LEDGER_METADATA}*' selects some of 'ledgers': a log is read completely")


def check_ledgers_stream(options: ChosenForRead) -> None:
    """Raise ConfigurationError for options that have no effect on a stream of ledgers."""
    check_ledgers_read(options)
    if options.payload_format == PULSAR:
        raise ConfigurationError(
            "payloadFormat pulsar is for batch reads of ledgers: follow a topic with option 'topic', or the "
            "ledgers with payloadFormat raw"
        )


def check_offsets(options: ChosenForRead) -> None:
    """Raise ConfigurationError if a batch read has nothing between its offsets, as far as options alone can tell."""
    start, end = options.starting_offsets, options.ending_offsets
    for name, value, is_empty in (("startingOffsets", start, start == LATEST), ("endingOffsets", end, end == EARLIEST)):
        if is_empty:
            raise ConfigurationError(
                f"option '{name}' is {value}, and a batch read {'from' if value == LATEST else 'to'} there reads "
                "nothing: set startingOffsets to earliest, -N or a position, endingOffsets to latest, -N or a position"
            )
    if isinstance(start, int) and isinstance(end, int) and start >= end:
        raise ConfigurationError(
            f"option 'startingOffsets' {start} is not before 'endingOffsets' {end}, both counted back from the "
            f"end, so nothing would be read: {_remedy_of_order(start, end)}"
        )


def _remedy_of_order(start: int, end: int) -> str:
    return "they are the same: move one of them" if start == end else "exchange them"


def check_times(options: ChosenForRead) -> None:
    """Raise ConfigurationError if nothing lies between the times, or they contradict an offset."""
    since, until = options.starting_timestamp, options.ending_timestamp
    # A relative time, which is below 0, is compared only with another relative one.
    if since is not None and until is not None and (since < 0) == (until < 0) and since >= until:
        raise ConfigurationError(
            f"option 'startingTimestamp' ({values.moment_shown(since)}) is not before 'endingTimestamp' "
            f"({values.moment_shown(until)}), so nothing would be read: {_remedy_of_order(since, until)}"
        )
    if "endingoffsets" in options.given and until is not None:
        raise ConfigurationError("options 'endingOffsets' and 'endingTimestamp' exclude each other: give one of them")


def check_json_dialect(options: ChosenForRead) -> None:
    """Raise ConfigurationError if a dialect of JSON is set for entries that are not JSON."""
    if "jsondialect" in options.given and options.payload_format not in (None, "json"):
        raise ConfigurationError(
            f"option 'jsonDialect' has an effect on payloadFormat json only, and the entries are "
            f"{options.payload_format}: remove it"
        )


def refuse_two_starts(options: ChosenForRead) -> None:
    """Raise ConfigurationError if both startingOffsets and startingTimestamp are set."""
    if options.starting_offsets is not None and options.starting_timestamp is not None:
        raise ConfigurationError(
            "options 'startingOffsets' and 'startingTimestamp' exclude each other: give one of them"
        )


def check_triggers(options: ChosenForRead) -> None:
    """Raise ConfigurationError if the limits of micro-batches contradict each other."""
    least, most = options.trigger_entries_min, options.trigger_entries_max
    if "maxtriggerdelay" in options.given and least is None:
        raise ConfigurationError("option 'maxTriggerDelay' needs 'minEntriesPerTrigger': set that, too")
    if least is not None and most is not None and least > most:
        raise ConfigurationError(
            f"option 'minEntriesPerTrigger' is {least}, more than 'maxEntriesPerTrigger' {most}: lower it"
        )


def check_consumer(options: ChosenForRead) -> None:
    """Raise ConfigurationError if `consumer` is set for ledgers or topics, which have no retention here."""
    if options.consumer is not None and not options.reads_logs:
        raise ConfigurationError(
            "option 'consumer' is for 'log' and 'logsPattern': only logs have a retention; remove it"
        )
    if "consumerexpiry" in options.given and options.consumer is None:
        raise ConfigurationError("option 'consumerExpiry' needs 'consumer': set that, too")
