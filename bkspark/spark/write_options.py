"""The options of writes: their values, and which go together. PURE."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Protocol

from bkspark.core.metadata import check_quorums
from bkspark.errors import ConfigurationError
from bkspark.ids import DIGESTS, LEDGER_TYPES
from bkspark.log.formats import OWN_METADATA
from bkspark.spark import option_values as values
from bkspark.spark.formats.compression import LEVELS_MAX, LZ4, NONE
from bkspark.spark.option import WRITES, Option

APPEND, ERROR, IGNORE, SKIP = "append", "error", "ignore", "skip"
LEDGER_METADATA = "ledgerMetadata."
"""Options of this prefix: ledgerMetadata.key=value. A read selects the ledgers that have it, a write sets it."""
NOT = "!"
"""Negates a condition on custom metadata, before the key: it selects ledgers with another value or without the key."""
ANY_VALUE = "*"
"""As the value of a condition: the ledger has the key, whatever its value."""
LEDGER_METADATA_BYTES_MAX = 256 * 1024
"""Limit of all custom metadata that a write sets: a ledger's metadata are one ZooKeeper node, which must be below 1
MiB."""

WRITE_OPTIONS = (
    Option(
        "digestType",
        "digest",
        values.OneOf(*DIGESTS),
        WRITES,
        f"check of written entries: {', '.join(DIGESTS)}",
        "crc32c",
    ),
    Option("ensembleSize", "ensemble_size", values.count, WRITES, "bookies that store a ledger", "3"),
    Option("writeQuorum", "write_quorum", values.count, WRITES, "bookies that store each entry", "3"),
    Option("ackQuorum", "ack_quorum", values.count, WRITES, "bookies that must confirm an entry", "2"),
    Option(
        "ledgerType",
        "ledger_type",
        values.OneOf(*LEDGER_TYPES),
        WRITES,
        "when the entries of tasks are durable, and where",
        "PD_JOURNAL",
    ),
    Option(
        "ifExists",
        "if_exists",
        values.OneOf(APPEND, ERROR, IGNORE),
        WRITES,
        "what to do if the log holds ledgers",
        "append",
    ),
    Option("txnAppId", "txn_app_id", values.publisher, WRITES, "name under which versions are published once"),
    Option("txnVersion", "txn_version", values.version, WRITES, "version of this write; of a stream: of its epoch 0"),
    Option(
        "ifPublished",
        "if_published",
        values.OneOf(ERROR, SKIP),
        WRITES,
        "what to do with a version that another query published",
        "error",
    ),
    Option("maxLedgerBytes", "ledger_bytes_max", values.size, WRITES, "roll to a new ledger at about this size", "1g"),
    Option("maxLedgerAge", "ledger_age_ms", values.age, WRITES, "roll a shared ledger at this age", "1h"),
    Option(
        "inlineBytes", "inline_bytes", values.inline_size, WRITES, "rows that the driver appends for a task", "512k"
    ),
    Option(
        "entryTargetBytes",
        "entry_bytes_target",
        values.entry_size,
        WRITES,
        "about the size of an entry of many rows",
        "1m",
    ),
    Option(
        "compression",
        "compression",
        values.OneOf(NONE, *LEVELS_MAX),
        WRITES,
        "codec of entries of payload format arrow that it makes smaller",
        LZ4,
    ),
    Option("compressionLevel", "compression_level", values.count, WRITES, "level of the codec, higher for fewer bytes"),
    Option("mergeSchema", "merge_schema", values.flag, WRITES, "add new columns to the log, and widen types", "false"),
    Option(
        "overwriteSchema", "overwrite_schema", values.flag, WRITES, "replace the log's columns, with overwrite", "false"
    ),
)


class ChosenForWrite(Protocol):
    """The options of a write."""

    @property
    def ledger_metadata(self) -> Mapping[str, str]: ...
    @property
    def ensemble_size(self) -> int: ...
    @property
    def write_quorum(self) -> int: ...
    @property
    def ack_quorum(self) -> int: ...
    @property
    def ledger_type(self) -> str: ...
    @property
    def compression(self) -> str: ...
    @property
    def compression_level(self) -> int | None: ...
    @property
    def payload_format(self) -> str | None: ...
    @property
    def given(self) -> Collection[str]: ...
    @property
    def merge_schema(self) -> bool: ...
    @property
    def overwrite_schema(self) -> bool: ...


def check_write_options(options: ChosenForWrite) -> None:
    """Raise ConfigurationError for custom metadata that cannot be set, impossible quorums, or a ledger type without
    them."""
    for key in options.ledger_metadata:
        if key.startswith(NOT):
            raise ConfigurationError(
                f"option '{LEDGER_METADATA}{key}' is a negated condition, for reads: a write sets metadata, so leave "
                f"out '{NOT}'"
            )
        if key in OWN_METADATA or key.startswith("bkspark."):
            raise ConfigurationError(
                f"option '{LEDGER_METADATA}{key}' has a key that bkspark itself uses: choose another one"
            )
    metadata_bytes = sum(len(key.encode()) + len(value.encode()) for key, value in options.ledger_metadata.items())
    if metadata_bytes > LEDGER_METADATA_BYTES_MAX:
        raise ConfigurationError(
            f"options '{LEDGER_METADATA}*' are {metadata_bytes} bytes together, above the "
            f"{LEDGER_METADATA_BYTES_MAX} that each ledger can keep: shorten them"
        )
    try:
        check_quorums(options.ensemble_size, options.write_quorum, options.ack_quorum)
    except ValueError as error:
        raise ConfigurationError(
            f"options 'ensembleSize', 'writeQuorum', 'ackQuorum': {error}; "
            "choose ensembleSize >= writeQuorum >= ackQuorum >= 1"
        ) from None
    check_compression(options, options.payload_format)
    if options.ledger_type != LEDGER_TYPES[0] and options.ensemble_size != options.write_quorum:
        raise ConfigurationError(
            f"option 'ledgerType' {options.ledger_type} goes with entries on all bookies of a ledger: set "
            f"ensembleSize and writeQuorum, now {options.ensemble_size} and {options.write_quorum}, to the same number"
        )


def check_compression(options: ChosenForWrite, payload_format: str | None) -> None:
    """Raise ConfigurationError if compression is set for a payload format without it, or its level is not the codec's.

    Args:
        payload_format: of the entries; None if it is not known yet.
    """
    given = [name for name in ("compression", "compressionLevel") if name.lower() in options.given]
    if given and payload_format not in (None, "arrow"):
        raise ConfigurationError(
            f"option '{given[0]}' has an effect on payloadFormat arrow only, and the entries are {payload_format}: "
            "remove it"
        )
    level = options.compression_level
    if level is not None and not 1 <= level <= LEVELS_MAX.get(options.compression, 0):
        levels = ", ".join(f"{codec} 1 to {level_max}" for codec, level_max in LEVELS_MAX.items())
        raise ConfigurationError(
            f"option 'compressionLevel' is {level}, and compression {options.compression} has no such level: {levels}"
        )


def check_schema_options(options: ChosenForWrite, *, is_overwrite: bool) -> None:
    """Raise ConfigurationError if mergeSchema and overwriteSchema exclude each other or the mode."""
    if not options.overwrite_schema:
        return
    if options.merge_schema:
        raise ConfigurationError(
            "options 'mergeSchema' and 'overwriteSchema' exclude each other: the first keeps the log's columns, the "
            "second drops them: give one of them"
        )
    if not is_overwrite:
        raise ConfigurationError(
            "option 'overwriteSchema' goes with mode overwrite, as rows that stay need the log's columns: remove it, "
            "or set mergeSchema to add columns"
        )
