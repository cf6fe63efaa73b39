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
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from bkspark.core.metadata import check_quorums
from bkspark.errors import ConfigurationError
from bkspark.ids import LEDGER_ID_MAX
from bkspark.metadata.uri import MetadataUri

URI_VARIABLE = "BKSPARK_URI"
PASSWORD_VARIABLE = "BKSPARK_PASSWORD"

MIB = 1 << 20
ENTRY_BYTES_MAX = 4 * MIB
"""Greatest target for an entry of many rows: with head and digest it stays below Apache's default frame of 5 MiB."""
EARLIEST = "earliest"
LATEST = "latest"
PAYLOAD_FORMATS = ("raw", "json", "msgpack", "arrow")
DIGESTS = ("crc32c", "crc32", "mac", "dummy")
MALFORMED_MODES = ("FAILFAST", "PERMISSIVE", "DROPMALFORMED")

READ, STREAM, WRITE = "a batch read", "a stream read", "a write"
_READS = frozenset({READ, STREAM})
_ANY = frozenset({READ, STREAM, WRITE})

# What Spark itself puts among the options of a streaming sink.
_SPARK_OWN = frozenset({"checkpointlocation", "queryname"})
_SIZE = re.compile(r"(\d+)\s*(?:([kmgt])(?:i?b)?|b)?", re.IGNORECASE)
_SIZE_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_INT64_MAX = (1 << 63) - 1


@dataclass(frozen=True)
class IdRange:
    """Ledger ids [first, end)."""

    first: int
    end: int


def _text(value: str) -> str:
    if not value:
        raise ValueError("is empty")
    return value


def _uri(value: str) -> str:
    try:
        return str(MetadataUri.parse(value))
    except ConfigurationError as error:
        raise ValueError(f"is no metadata URI: {error}") from None


def _password(value: str) -> bytes:
    return value.encode()


def _flag(value: str) -> bool:
    if value.lower() not in ("true", "false"):
        raise ValueError("is neither true nor false")
    return value.lower() == "true"


def _count(value: str) -> int:
    if not value.isdecimal() or not 1 <= int(value) <= _INT64_MAX:
        raise ValueError("is not a whole number of at least 1")
    return int(value)


def _size(value: str) -> int:
    match = _SIZE.fullmatch(value.strip())
    size = int(match[1]) * _SIZE_UNITS[(match[2] or "").lower()] if match else 0
    if not 1 <= size <= _INT64_MAX:
        raise ValueError("is not a size in bytes of at least 1, such as 1048576, 64k, 256m or 1g")
    return size


def _entry_size(value: str) -> int:
    size = _size(value)
    if size > ENTRY_BYTES_MAX:
        raise ValueError(f"is above {ENTRY_BYTES_MAX}, what a bookie's frame surely takes")
    return size


def _one_of(*choices: str) -> Callable[[str], str]:
    def check(value: str) -> str:
        for choice in choices:
            if value.lower() == choice.lower():
                return choice
        raise ValueError(f"is none of {', '.join(choices)}")

    return check


def _offsets(value: str) -> str | dict[str, Any]:
    if value.lower() in (EARLIEST, LATEST):
        return value.lower()
    try:
        parsed = json.loads(value)
    except ValueError:
        parsed = None
    if not isinstance(parsed, dict):
        raise ValueError("is neither earliest, latest nor the JSON of a position")
    return parsed


def parse_ledgers(value: str) -> tuple[IdRange, ...]:
    """Return the ledgers that "5", "5,7", "5-9" (9 included) or "[5, 7]" name, in that order.

    Raises:
        ValueError: the text is none of these, an id is out of range, or a ledger is named twice.
    """
    text = value.strip()
    if text.startswith("["):
        try:
            items = json.loads(text)
        except ValueError:
            raise ValueError("is not a JSON list of ledger ids") from None
        if not all(type(item) is int for item in items):
            raise ValueError("is not a JSON list of ledger ids")
        parts = [str(item) for item in items]
    else:
        parts = [part.strip() for part in text.split(",")]
    ranges = tuple(_id_range(part) for part in parts)
    if not ranges:
        raise ValueError("names no ledger")
    ascending = sorted(ranges, key=lambda ids: ids.first)
    for before, after in itertools.pairwise(ascending):
        if after.first < before.end:
            raise ValueError(f"names ledger {after.first} twice")
    return ranges


def _id_range(part: str) -> IdRange:
    match = re.fullmatch(r"(\d+)(?:\s*-\s*(\d+))?", part)
    if not match:
        raise ValueError(f"holds {part!r}, which is neither a ledger id nor a range such as 5-9")
    first = int(match[1])
    last = int(match[2]) if match[2] else first
    if last < first or last > LEDGER_ID_MAX:
        raise ValueError(f"holds {part!r}, which is empty or beyond the greatest ledger id")
    return IdRange(first, last + 1)


@dataclass(frozen=True)
class Option:
    """One option: its name as users write it, the SourceOptions field it fills, its check, where it has effect."""

    name: str
    field: str
    check: Callable[[str], Any]
    uses: frozenset[str]
    meaning: str


OPTIONS = (
    Option("uri", "uri", _uri, _ANY, f"metadata URI of the cluster, zk://host:port/ledgers; default: {URI_VARIABLE}"),
    Option("log", "log", _text, _ANY, "named log to read, follow or append to"),
    Option("ledgers", "ledgers", parse_ledgers, frozenset({READ}), 'ledgers to read: "5", "5,7", "5-9" or "[5, 7]"'),
    Option("password", "password", _password, _ANY, f"ledger password; default: {PASSWORD_VARIABLE}, else empty"),
    Option("startingOffsets", "starting_offsets", _offsets, _READS, "earliest, latest or the JSON of a position"),
    Option("endingOffsets", "ending_offsets", _offsets, frozenset({READ}), "latest or the JSON of a position"),
    Option("payloadFormat", "payload_format", _one_of(*PAYLOAD_FORMATS), _ANY, "what an entry holds"),
    Option("mode", "malformed_mode", _one_of(*MALFORMED_MODES), _READS, "what a malformed payload does"),
    Option("includeMetadata", "include_metadata", _flag, _READS, "add ids (and log, position) to payload columns"),
    Option("failOnDataLoss", "fail_on_data_loss", _flag, _READS, "fail when data that was asked for is gone"),
    Option("recover", "recover", _flag, frozenset({READ}), "fence and close open ledgers before reading them"),
    Option("maxPartitionBytes", "partition_bytes_max", _size, _READS, "payload bytes in one task, about"),
    Option("minPartitions", "partitions_min", _count, _READS, "tasks to plan at least, when there are as many entries"),
    Option("maxEntriesPerTrigger", "trigger_entries_max", _count, frozenset({STREAM}), "entries in one micro-batch"),
    Option("maxBytesPerTrigger", "trigger_bytes_max", _size, frozenset({STREAM}), "bytes in one micro-batch, about"),
    Option(
        "digestType",
        "digest",
        _one_of(*DIGESTS),
        frozenset({WRITE}),
        "check of written entries: crc32c, crc32, mac, dummy",
    ),
    Option("ensembleSize", "ensemble_size", _count, frozenset({WRITE}), "bookies that store a ledger"),
    Option("writeQuorum", "write_quorum", _count, frozenset({WRITE}), "bookies that store each entry"),
    Option("ackQuorum", "ack_quorum", _count, frozenset({WRITE}), "bookies that must confirm an entry"),
    Option("maxLedgerBytes", "ledger_bytes_max", _size, frozenset({WRITE}), "roll to a new ledger at this size, about"),
    Option(
        "entryTargetBytes",
        "entry_bytes_target",
        _entry_size,
        frozenset({WRITE}),
        "size of an entry of many rows, about",
    ),
)
_BY_KEY = {option.name.lower(): option for option in OPTIONS}


@dataclass(frozen=True)
class SourceOptions:
    """The parsed options; a field left at None was not given and has no fixed default.

    `given` holds the lower-cased names that the user set, so that the check of a use can refuse what does not apply.
    """

    uri: str
    log: str | None = None
    ledgers: tuple[IdRange, ...] | None = None
    password: bytes = field(default=b"", repr=False)
    starting_offsets: str | dict[str, Any] | None = None
    ending_offsets: str | dict[str, Any] = LATEST
    payload_format: str | None = None
    malformed_mode: str = "FAILFAST"
    include_metadata: bool = False
    fail_on_data_loss: bool = True
    recover: bool = False
    partition_bytes_max: int = 256 * MIB
    partitions_min: int | None = None
    trigger_entries_max: int | None = None
    trigger_bytes_max: int | None = None
    digest: str = DIGESTS[0]
    ensemble_size: int = 3
    write_quorum: int = 3
    ack_quorum: int = 2
    ledger_bytes_max: int = 1 << 30
    entry_bytes_target: int = MIB
    given: frozenset[str] = field(default=frozenset())

    @classmethod
    def parse(cls, options: Mapping[str, str], environment: Mapping[str, str] = os.environ) -> SourceOptions:
        """Return the options of one load, save or start.

        Args:
            options: names in any case.
            environment: where `uri` and `password` come from when they are not given.

        Raises:
            ConfigurationError: an option is unknown or wrong, or two of them exclude each other.
        """
        fields: dict[str, Any] = {}
        for key, value in options.items():
            if key.lower() in _SPARK_OWN:
                continue
            option = _BY_KEY.get(key.lower())
            if option is None:
                raise ConfigurationError(_unknown(key))
            fields[option.field] = _checked(option, str(value))
        given = frozenset(key.lower() for key in options) - _SPARK_OWN
        _fill_from_environment(fields, environment)
        if "uri" not in fields:
            raise ConfigurationError(
                f"option 'uri' is missing: set it to zk://host:port/ledgers, or set {URI_VARIABLE}"
            )
        parsed = cls(**fields, given=given)
        _check_selection(parsed)
        return parsed

    def for_batch_read(self) -> SourceOptions:
        """Return these options with the defaults of a batch read, checked.

        Raises:
            ConfigurationError: an option given has no effect on a batch read, or the range is impossible.
        """
        self._refuse_foreign(READ)
        if self.starting_offsets == LATEST or self.ending_offsets == EARLIEST:
            raise ConfigurationError(
                "a batch read that starts at 'latest' or ends at 'earliest' reads nothing: "
                "set startingOffsets to earliest or a position, endingOffsets to latest or a position"
            )
        for name, value in (("startingOffsets", self.starting_offsets), ("endingOffsets", self.ending_offsets)):
            if self.log is None and isinstance(value, dict):
                raise ConfigurationError(
                    f"option '{name}' is a position in a log, but 'ledgers' chooses what to read: use 'log', or drop it"
                )
        if self.recover and self.log is not None:
            raise ConfigurationError("option 'recover' would fence a log's writer: use it with 'ledgers' only")
        return replace(self, starting_offsets=self.starting_offsets or EARLIEST, **self._read_defaults())

    def for_stream_read(self) -> SourceOptions:
        """Return these options with the defaults of a stream read (new data only), checked.

        Raises:
            ConfigurationError: an option given has no effect on a stream read, or 'log' is missing.
        """
        self._refuse_foreign(STREAM)
        self._require_log(STREAM)
        return replace(self, starting_offsets=self.starting_offsets or LATEST, **self._read_defaults())

    def for_write(self) -> SourceOptions:
        """Return these options with the defaults of a write, checked; `payload_format` may still be None.

        Raises:
            ConfigurationError: an option has no effect on a write, 'log' is missing, or the quorums are impossible.
        """
        self._refuse_foreign(WRITE)
        self._require_log(WRITE)
        try:
            check_quorums(self.ensemble_size, self.write_quorum, self.ack_quorum)
        except ValueError as error:
            raise ConfigurationError(
                f"options 'ensembleSize', 'writeQuorum', 'ackQuorum': {error}; "
                "choose ensembleSize >= writeQuorum >= ackQuorum >= 1"
            ) from None
        return self

    def _read_defaults(self) -> dict[str, Any]:
        return {"payload_format": self.payload_format or "raw"}

    def _refuse_foreign(self, use: str) -> None:
        for key in sorted(self.given):
            option = _BY_KEY[key]
            if use not in option.uses:
                places = " or ".join(sorted(option.uses))
                raise ConfigurationError(f"option '{option.name}' has no effect on {use}, only on {places}: remove it")

    def _require_log(self, use: str) -> None:
        if self.log is None:
            raise ConfigurationError(f"option 'log' is missing: {use} needs the name of a log")


def _checked(option: Option, value: str) -> Any:
    try:
        return option.check(value)
    except ValueError as error:
        shown = "***" if option.field == "password" else repr(value)
        raise ConfigurationError(f"option '{option.name}' is {shown}, which {error} ({option.meaning})") from None


def _unknown(key: str) -> str:
    if key.lower() in ("path", "paths"):
        return (
            "a path has no meaning here: name what to use by option 'log' or 'ledgers', and call load() or save() bare"
        )
    nearest = difflib.get_close_matches(key.lower(), _BY_KEY, n=1)
    if nearest:
        return f"unknown option '{key}': did you mean '{_BY_KEY[nearest[0]].name}'?"
    names = ", ".join(option.name for option in OPTIONS)
    return f"unknown option '{key}': the options are {names}"


def _fill_from_environment(fields: dict[str, Any], environment: Mapping[str, str]) -> None:
    for name, variable in (("uri", URI_VARIABLE), ("password", PASSWORD_VARIABLE)):
        if name not in fields and environment.get(variable):
            fields[name] = _checked(_BY_KEY[name], environment[variable])


def _check_selection(options: SourceOptions) -> None:
    if options.log is not None and options.ledgers is not None:
        raise ConfigurationError("options 'log' and 'ledgers' exclude each other: give one of them")
    if options.log is None and options.ledgers is None:
        raise ConfigurationError("nothing to read or write is named: give option 'log' or 'ledgers'")
