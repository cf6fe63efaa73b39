"""TopicRows: makes record batches for Spark from entries of topics, in tasks.

Option `mode` decides what happens with a malformed entry, and with a message whose value does not have its schema. The
entries that a check finds wrong are left out, and the others are tried again. If an error does not say which ones are
wrong, the halves are tried separately.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import StructType

from bkspark.entries import EntryBatch
from bkspark.errors import ConfigurationError, MalformedPayload
from bkspark.pulsar import entries as entry_fields
from bkspark.pulsar import message_columns as columns
from bkspark.pulsar.chunks import ChunkGatherer, HeadMissing
from bkspark.pulsar.entries import Entries, MalformedEntry, decode_entries, well_formed
from bkspark.pulsar.malformed import MALFORMED
from bkspark.pulsar.message_ids import MessageId
from bkspark.pulsar.messages import Joined, Messages, messages_of, outlines_of
from bkspark.pulsar.schemas import BYTES
from bkspark.pulsar.transactions import transaction_ids
from bkspark.spark.columns import arrow_schema, check_columns
from bkspark.spark.formats.decoding import MalformedMode, check_nulls, rows_at_once
from bkspark.spark.malformed_rows import MalformedRows, Placed
from bkspark.spark.options import SourceOptions
from bkspark.spark.topic_columns import (
    DESCRIBING,
    VALUE,
    RequestedColumns,
    check_describing,
    converted,
    describing_column,
    of_messages,
    of_type,
    paths_of,
    target_of,
)
from bkspark.spark.topic_options import AUTO, READ_COMMITTED
from bkspark.spark.topic_values import TopicValues
from bkspark.spark.topics import TopicFacts

_log = logging.getLogger(__name__)

CONTENT_BYTES_MAX = 64 << 20
"""Limit of the payloads that are decompressed together; a single entry may have more."""
MESSAGES_AT_ONCE = 32_768
"""Approximate number of messages that are made together: their arrays fit a core's cache."""
CHECKS = 4
"""How often entries that are found wrong are left out together, before the halves of the others are tried."""
MESSAGE_BYTES = 128
"""Approximate bytes that arrays take for each message, however small it is."""

_NOTHING = np.zeros(0, np.int64)

LookBack = Callable[[str], Iterator[EntryBatch]]
"""Returns the entries of a topic before those of a task, the nearest batch first."""


@dataclass(frozen=True, slots=True)
class _ChosenEntries:
    """Some entries of a batch, to make rows of.

    rows: their indexes in `entries`, ascending. is_raw: for each of `entries`, whether it is returned as it is stored.
    joined: the messages of several chunks, by the index of their last chunk.
    """

    entries: Entries
    rows: np.ndarray
    is_raw: np.ndarray
    joined: Mapping[int, Joined]

    def part(self, rows: np.ndarray) -> _ChosenEntries:
        """Return those with some of these indexes. If most entries are others, these are left out: some steps take all
        of them."""
        if len(rows) * 4 > len(self.entries):
            return replace(self, rows=rows)
        joined = {place: self.joined[row] for place, row in enumerate(rows.tolist()) if row in self.joined}
        return _ChosenEntries(self.entries.part(rows), np.arange(len(rows)), self.is_raw[rows], joined)


class TopicRows:
    """Makes record batches of the columns that Spark asked for.

    Raises:
        ConfigurationError: a column is not available.
    """

    def __init__(self, schema: StructType, options: SourceOptions) -> None:
        check_columns(schema)
        arrow = arrow_schema(schema)
        self.options = options
        self.mode = MalformedMode(options.malformed_mode)
        describing = {i: each.name.lower() for i, each in enumerate(arrow) if each.name.lower() in DESCRIBING}
        for i in describing:
            check_describing(arrow.field(i).name, arrow.field(i).type)
        corrupt = arrow.get_field_index(options.corrupt_record)
        if corrupt >= 0 and arrow.field(corrupt).type not in (pa.binary(), pa.string()):
            raise ConfigurationError(f"column '{options.corrupt_record}' must be a string or binary")
        payload = tuple(i for i in range(len(arrow)) if i not in describing and i != corrupt)
        self.columns = RequestedColumns(arrow, describing, corrupt, payload)

    def for_topic(self, topic: str, facts: TopicFacts, look_back: LookBack) -> TopicDecoder:
        return TopicDecoder(self, topic, facts, look_back)


class TopicDecoder:
    """Makes the rows of one topic or partition in one task, whose entries come in order."""

    def __init__(self, rows: TopicRows, topic: str, facts: TopicFacts, look_back: LookBack) -> None:
        self._columns = rows.columns
        self._schema = rows.columns.schema
        self._options = rows.options
        self._mode = rows.mode
        self._topic = topic
        self._named = f"topic {topic}" if topic else "a ledger of no topic"
        """What the messages are of, for errors."""
        self._facts = facts
        self._look_back = look_back
        self._chunks = ChunkGatherer()
        self._earlier: set[str] | None = None
        """The messages that have chunks before the task's first entry; None while not all of these entries were read.
        With it, messages whose first chunk is missing do not cause a search each."""
        self._has_lost = False
        """Whether the loss of a message's first chunks was logged. Set once."""
        self._newest = target_of(facts.schemas, pa.struct([self._schema.field(i) for i in self._columns.payload]))
        """The schema that all values are converted to: the newest one that has the wanted columns. Constant."""
        self._values = TopicValues(facts.schemas, self._newest, ends_at_first=self._mode is MalformedMode.FAILFAST)
        # Otherwise values are bytes, also in a topic whose schema was deleted: its newest version has no type.
        self._is_decoded = rows.options.value_format == AUTO and self._newest.kind != BYTES
        self._needs_keys = self._is_decoded and self._columns.need_values and self._newest.kind == "KEY_VALUE"
        """Whether columns are made of the key of a KEY_VALUE schema. Constant."""
        self._rows_at_once = rows_at_once(self._decoded_types())
        """How many rows are made together: a message of a few bytes has all fields of the topic's schema."""
        self._malformed_rows = MalformedRows(self._columns, self._named, topic, facts.partition, self._rows_at_once)

    def _decoded_types(self) -> list[pa.DataType]:
        is_needed = self._is_decoded and self._columns.need_values
        return [*self._schema.types, *([self._values.struct_type] if is_needed else [])]

    # ---- entries ----

    def batches(self, batch: EntryBatch) -> Iterator[pa.RecordBatch]:
        """Yield the rows of consecutive entries.

        Raises:
            MalformedPayload: an entry is not one of Pulsar's, or a value does not have its schema (FAILFAST).
            ConfigurationError: messages are encrypted, or belong to transactions that the plan has not scanned.
        """
        is_compacted = batch.ledger_id in self._facts.compacted_ledgers
        done = 0
        for entries in well_formed(batch, is_compacted=is_compacted):
            end = int(entries.rows[-1]) + 1
            malformed = np.setdiff1d(np.arange(done, end), entries.rows) if len(entries) < end - done else _NOTHING
            yield from (rows for rows, _ in self._beside_malformed(batch, entries, malformed))
            done = end
        yield from (rows for rows, _ in self._of_malformed(batch, np.arange(done, len(batch))))

    def _beside_malformed(self, batch: EntryBatch, entries: Entries, malformed: np.ndarray) -> Iterator[Placed]:
        """Yield the rows of entries, and at their places those of malformed entries."""
        if len(malformed) and self._mode is MalformedMode.FAILFAST:
            yield from self._of_entries(batch, entries.part(np.flatnonzero(entries.rows < malformed[0])))
            yield from self._of_malformed(batch, malformed)
        found = self._of_entries(batch, entries)
        is_given = self._mode is MalformedMode.PERMISSIVE and len(malformed)
        yield from self._malformed_rows.among(found, batch, malformed) if is_given else found

    def _of_entries(self, batch: EntryBatch, entries: Entries) -> Iterator[Placed]:
        """Yield the rows of entries of a batch: of all, or with DROPMALFORMED of some."""
        chosen = self._deliverable(entries)
        has_chunks = (entries.is_chunk & ~chosen.is_raw)[chosen.rows].any()
        yield from self._with_chunks(batch, chosen) if has_chunks else self._pieces(batch, chosen)

    def _pieces(self, batch: EntryBatch, chosen: _ChosenEntries) -> Iterator[Placed]:
        """Yield the rows of some entries, decompressing CONTENT_BYTES_MAX and about MESSAGES_AT_ONCE at a time."""
        entries, rows = chosen.entries, chosen.rows
        if not len(rows):
            return
        sizes = np.minimum(entries.uncompressed_sizes[rows], 1 << 32)
        messages = np.where(entries.is_batch[rows], entries.metadata.int32(entry_fields.BATCH_MESSAGES)[rows], 1)
        sizes += MESSAGE_BYTES * messages
        is_next = np.zeros(len(rows) - 1, bool)
        for amounts, limit in ((sizes, CONTENT_BYTES_MAX), (messages, MESSAGES_AT_ONCE)):
            is_next |= np.diff((np.cumsum(amounts) - amounts) // limit) > 0
        bounds = [0, *(np.flatnonzero(is_next) + 1).tolist(), len(rows)]
        for first, end in itertools.pairwise(bounds):
            yield from self._rows_of(batch, replace(chosen, rows=rows[first:end]))

    def _rows_of(self, batch: EntryBatch, chosen: _ChosenEntries, checks: int = CHECKS) -> Iterator[Placed]:
        """Yield the rows of some entries. `checks`: how often those that are found wrong are left out together."""
        entries, rows, is_raw = chosen.entries, chosen.rows, chosen.is_raw
        if not len(rows):
            return
        is_compacted = batch.ledger_id in self._facts.compacted_ledgers
        try:
            if self._columns.are_of_entries and not is_compacted and not is_raw.any():
                messages = outlines_of(entries, rows, chosen.joined)
            else:
                messages = messages_of(entries, rows, chosen.joined, is_raw=is_raw)
            messages = self._in_bounds(messages)
            described = {
                i: describing_column(name, messages, self._topic, self._facts.partition)
                for i, name in self._columns.describing.items()
            }
            keys = of_messages(columns.keys, messages) if self._needs_keys else None
        except MALFORMED as error:
            yield from self._rows_without(batch, chosen, error, checks)
            return
        for first in range(0, len(messages), self._rows_at_once):
            part = slice(first, first + self._rows_at_once)
            some = {i: column[part] for i, column in described.items()}
            yield self._record_batch(messages.part(part), some, is_raw, None if keys is None else keys[part])

    def _rows_without(
        self, batch: EntryBatch, chosen: _ChosenEntries, error: Exception, checks: int
    ) -> Iterator[Placed]:
        """Yield the rows of some entries, after an error said that not all of them are right."""
        rows = chosen.rows
        if len(rows) == 1:
            yield from self._of_malformed(batch, chosen.entries.rows[rows], str(error))
        elif isinstance(error, MalformedEntry) and checks and self._mode is not MalformedMode.FAILFAST:
            is_wrong = np.isin(rows, error.rows)
            others = self._rows_of(batch, chosen.part(rows[~is_wrong]), checks - 1)
            if self._mode is MalformedMode.PERMISSIVE:
                others = self._malformed_rows.among(others, batch, chosen.entries.rows[rows[is_wrong]])
            yield from others
        else:
            middle = len(rows) // 2
            for half in (rows[:middle], rows[middle:]):
                yield from self._rows_of(batch, chosen.part(half))

    def _deliverable(self, entries: Entries) -> _ChosenEntries:
        """Return the entries that may give rows."""
        wanted = ~entries.is_marker & self._may_be_in_time(entries)
        is_encrypted = entries.is_encrypted
        if self._options.encrypted == "skip":
            wanted &= ~is_encrypted
        has_transaction = entries.has_transaction & (self._options.isolation == READ_COMMITTED)
        wanted[self._aborted(entries, np.flatnonzero(has_transaction & wanted))] = False
        raw = is_encrypted & wanted
        if raw.any():
            self._check_encrypted(entries, int(np.argmax(raw)))
        unknown = has_transaction & wanted
        if self._facts.aborted is None and unknown.any():
            place = _entry_of(entries, int(np.argmax(unknown)))
            raise ConfigurationError(
                f"{self._named} has transactions (entry {place}), but its namespace has no snapshot of them, so which "
                "of them were aborted is not known: read all of them with isolation=read_uncommitted"
            )
        return _ChosenEntries(entries, np.flatnonzero(wanted), raw, {})

    def _aborted(self, entries: Entries, rows: np.ndarray) -> np.ndarray:
        """Return those of some entries with transactions whose transactions were aborted."""
        aborted = self._facts.aborted or ()
        return rows[np.array([txn in aborted for txn in transaction_ids(entries, rows)], bool)]

    def _may_be_in_time(self, entries: Entries) -> np.ndarray:
        """Return which entries may give messages of the times that the options name. A message in chunks has the time
        of its last one."""
        since_ms, until_ms = self._facts.since_ms, self._facts.until_ms
        if since_ms is None and until_ms is None:
            return np.ones(len(entries), bool)
        is_joined = entries.is_chunk & ~entries.is_encrypted
        return is_joined | _are_between(entries.metadata.value(entry_fields.PUBLISH_TIME), since_ms, until_ms)

    def _check_encrypted(self, entries: Entries, row: int) -> None:
        """Raise ConfigurationError if an encrypted entry cannot be returned as it is stored."""
        if self._options.encrypted == "raw":
            if self._is_decoded and self._columns.payload:
                raise ConfigurationError(
                    f"{self._named} has encrypted messages. encrypted=raw returns their stored bytes, which "
                    f"cannot be decoded with its schema ({self._newest.kind}): set valueFormat=raw, too"
                )
            return
        raise ConfigurationError(
            f"{self._named}, message {_entry_of(entries, row)}: messages are encrypted for keys "
            f"{_key_names(entries, row)}, and no key is here: leave them out (encrypted=skip), or read them as they "
            "are stored (encrypted=raw)"
        )

    # ---- chunks ----

    def _with_chunks(self, batch: EntryBatch, chosen: _ChosenEntries) -> Iterator[Placed]:
        """Yield the rows of entries when some are chunks: the row of a message is at its last chunk."""
        entries = chosen.entries
        is_chunk = entries.is_chunk & ~chosen.is_raw
        waiting: list[int] = []
        joined: dict[int, Joined] = {}

        def pieces() -> Iterator[Placed]:
            return self._pieces(batch, replace(chosen, rows=np.array(waiting, np.int64), joined=joined))

        for row in chosen.rows.tolist():
            if is_chunk[row]:
                try:
                    uuid = self._chunks.take(entries, row)
                    if uuid is None:
                        continue
                    whole = self._whole(uuid)
                except ValueError as error:
                    reason = str(error)
                    if isinstance(error, HeadMissing) and self._facts.is_searched_whole:
                        if not self._options.fail_on_data_loss:
                            self._warn_of_missing(entries, row, reason)
                            continue
                        where = self._where_missing(entries, row)
                        reason += f" (if its first chunks {where}, failOnDataLoss=false leaves it out)"
                    yield from pieces()
                    waiting, joined = [], {}
                    yield from self._of_malformed(batch, entries.rows[row : row + 1], reason)
                    continue
                if whole is None:
                    continue
                joined[row] = whole
            waiting.append(row)
        yield from pieces()

    def _where_missing(self, entries: Entries, row: int) -> str:
        """Return what may have happened to the first chunks of a message that were not found: the end of a clause."""
        before = [each for each in self._facts.offloaded if each < entries.ledger_ids[row]]
        return f"are in tiered storage (ledger {before[-1]}), or were trimmed" if before else "were trimmed"

    def _warn_of_missing(self, entries: Entries, row: int, reason: str) -> None:
        """Log a warning, once, that the chunks of a message that are left are left out."""
        if not self._has_lost:
            self._has_lost = True
            _log.warning(
                "%s, message %s: its first chunks %s, and it is left out: %s",
                self._named,
                _entry_of(entries, row),
                self._where_missing(entries, row),
                reason,
            )

    def _whole(self, uuid: str) -> Joined | None:
        """Return a message whose last chunk is here, looking for the others before the task's first entry."""
        if self._chunks.lacks(uuid) and (self._earlier is None or uuid in self._earlier):
            seen: set[str] = set()
            # The tasks that read malformed entries report them.
            parts = (part for batch in self._look_back(self._topic) for part in reversed([*well_formed(batch)]))
            for entries in parts:
                for row in np.flatnonzero(entries.is_chunk)[::-1].tolist():
                    seen.add(entries.text(entry_fields.UUID, row))
                    self._chunks.take_earlier(entries, row, uuid)
                if not self._chunks.lacks(uuid):
                    break
            else:
                self._earlier = seen
        return self._chunks.join(uuid)

    # ---- rows ----

    def _in_bounds(self, messages: Messages) -> Messages:
        """Return the messages between the positions and times that the options name."""
        facts = self._facts
        for bound, is_first in ((facts.first, True), (facts.last, False)):
            if isinstance(bound, MessageId):
                entry_ids = messages.entries.entry_ids[messages.entry]
                is_there = (entry_ids == bound.entry_id) & (
                    messages.entries.ledger_ids[messages.entry] == bound.ledger_id
                )
                places = messages.batch_index
                beyond = (places < bound.batch_index) if is_first else (places > bound.batch_index)
                messages = messages.select(~(is_there & beyond & (places >= 0)))
        if facts.since_ms is None and facts.until_ms is None:
            return messages
        return messages.select(_are_between(columns.publish_times(messages), facts.since_ms, facts.until_ms))

    def _record_batch(
        self, messages: Messages, described: Mapping[int, pa.Array], raw: np.ndarray, keys: pa.Array | None
    ) -> Placed:
        found: dict[int, pa.Array] = dict(described)
        kept = np.ones(len(messages), bool)
        if self._columns.need_values:
            payload, corrupt = self._payload_columns(messages, raw, keys)
            if self._mode is MalformedMode.DROPMALFORMED:
                kept = ~corrupt
            found |= payload
            if self._columns.corrupt >= 0:
                held = columns.values(messages)
                blank = pa.array(np.where(corrupt & (self._mode is MalformedMode.PERMISSIVE), False, True))
                held = pc.if_else(blank, pa.scalar(None, pa.binary()), held)
                found[self._columns.corrupt] = self._malformed_rows.corrupt_column(held)
        if not len(self._schema):
            return pa.record_batch({"rows": pa.nulls(len(messages))}).select([]), messages.entries.rows[messages.entry]
        made = pa.RecordBatch.from_arrays(
            [of_type(found[i], field.type) for i, field in enumerate(self._schema)], schema=self._schema
        )
        if not kept.all():
            made, messages = made.filter(pa.array(kept)), messages.select(kept)
        self._check_nulls(made, messages)
        return made, messages.entries.rows[messages.entry]

    def _check_nulls(self, made: pa.RecordBatch, messages: Messages) -> None:
        """Raise ConfigurationError if there is a null where the schema allows none: Spark would read a value there."""
        for field, column in zip(self._schema, made.columns):
            try:
                check_nulls(column, field)
            except ValueError as error:
                if len(made) == 1:
                    raise self._malformed_rows.no_null(error, _place_of(messages, 0)) from None
                for place in range(len(made)):
                    self._check_nulls(made.slice(place, 1), messages.part(slice(place, place + 1)))

    def _payload_columns(
        self, messages: Messages, raw: np.ndarray, keys: pa.Array | None
    ) -> tuple[dict[int, pa.Array], np.ndarray]:
        """Return the payload's columns, and which messages are malformed."""
        values = columns.values(messages)
        corrupt = np.zeros(len(messages), bool)
        if not self._is_decoded:
            return self._cells(pa.StructArray.from_arrays([values], [VALUE]), messages, corrupt), corrupt
        versions = self._versions_of(messages)
        parts: list[tuple[np.ndarray, pa.Array]] = []
        for version in np.unique(versions).tolist():
            rows = np.flatnonzero(versions == version)
            at = pa.array(rows)
            some_keys = None if keys is None else keys.take(at)
            on_malformed = self._checked_mode(messages, rows)
            structs, is_wrong = self._values.decode(version, values.take(at), some_keys, on_malformed)
            corrupt[rows[is_wrong]] = True
            parts.append((rows, structs))
        if len(parts) == 1:
            return self._cells(parts[0][1], messages, corrupt), corrupt
        order = np.empty(len(messages), np.int64)
        order[np.concatenate([rows for rows, _ in parts])] = np.arange(len(messages))
        whole = pa.concat_arrays([structs for _, structs in parts]).take(pa.array(order))
        return self._cells(whole, messages, corrupt), corrupt

    def _versions_of(self, messages: Messages) -> np.ndarray:
        """Return the version of the schema with which to decode each message. A null value has no encoding, so the
        newest version serves if its own cannot be used."""
        versions = columns.schema_versions(messages)
        usable = [version for version, schema in self._facts.schemas.items() if schema.kind == self._newest.kind]
        return np.where(messages.is_null & ~np.isin(versions, usable), self._newest.version, versions)

    def check_columns(self) -> None:
        """Raise ConfigurationError if the topic has no such column, or one whose type cannot be the wanted one."""
        kind = self._values.struct_type if self._is_decoded else pa.struct({VALUE: pa.binary()})
        for i, place in self._places(kind).items():
            self._cast(pa.nulls(1, kind.field(place).type), self._schema.field(i))

    def _places(self, kind: pa.StructType) -> dict[int, int]:
        """Return by index of a column which field of the payload it is. Raises ConfigurationError as
        `check_columns`."""
        names = [kind.field(i).name for i in range(kind.num_fields)]
        # Names may differ in case alone: the exact one takes precedence.
        places = {name.lower(): i for i, name in enumerate(names)} | {name: i for i, name in enumerate(names)}
        found = {}
        for i in self._columns.payload:
            field = self._schema.field(i)
            place = places.get(field.name, places.get(field.name.lower()))
            if place is None:
                raise ConfigurationError(
                    f"column '{field.name}' is not in {self._named}, whose payload has {', '.join(names)}: "
                    "correct the schema"
                )
            self._check_fields(field, kind.field(place))
            found[i] = place
        return found

    def _cells(self, structs: pa.StructArray, messages: Messages, corrupt: np.ndarray) -> dict[int, pa.Array]:
        """Return the payload's columns. A message with a value that a column cannot have is added to `corrupt`, and all
        its columns are null."""
        found: dict[int, pa.Array] = {}
        is_wrong = np.zeros(len(structs), bool)
        flat = structs.flatten()
        for i, place in self._places(structs.type).items():
            found[i], wrong, reason = self._cast(flat[place], self._schema.field(i))
            if wrong.any():
                self._check_mode(messages, int(np.argmax(wrong)), reason)
                is_wrong |= wrong
        if not is_wrong.any():
            return found
        corrupt |= is_wrong
        kept = pa.array(np.arange(len(structs)), mask=is_wrong)
        return {i: column.take(kept) for i, column in found.items()}

    def _cast(self, column: pa.Array, wanted: pa.Field) -> tuple[pa.Array, np.ndarray, str]:
        """As `topic_columns.converted`, for a column of the payload. Raises ConfigurationError as `check_columns`."""
        differs = f"{column.type}, which cannot be {wanted.type}"
        try:
            found, is_wrong, reason = converted(column, wanted.type)
        except pa.ArrowException as error:
            raise ConfigurationError(
                f"column '{wanted.name}' of {self._named} is {differs}: correct the schema ({error})"
            ) from None
        return found, is_wrong, f"its '{wanted.name}' is {differs} ({reason}); name another type in .schema()"

    def _check_fields(self, wanted: pa.Field, stored: pa.Field) -> None:
        """Raise ConfigurationError if a column lacks a field that the schema says: Arrow would make it null."""
        if wanted.type == stored.type or not wanted.type.num_fields:
            return
        known = paths_of(stored.type)
        missing = min(paths_of(wanted.type) - known, default=None)
        if missing is not None:
            raise ConfigurationError(
                f"field '{'.'.join((wanted.name, *missing))}' is not in {self._named}, whose column "
                f"'{stored.name}' has {', '.join(sorted(map('.'.join, known)))}: correct the schema"
            )

    # ---- malformed entries and messages ----

    def _checked_mode(self, messages: Messages, rows: np.ndarray) -> Callable[[int, object], None]:
        """Return `_check_mode` of the messages at some places."""
        return lambda index, reason: self._check_mode(messages, int(rows[index]), reason)

    def _check_mode(self, messages: Messages, place: int, reason: object) -> None:
        if self._mode is MalformedMode.FAILFAST:
            row = int(messages.entry[place])
            ids = int(messages.entries.ledger_ids[row]), int(messages.entries.entry_ids[row])
            raise self._failure(*ids, _place_of(messages, place), reason) from None

    def _failure(self, ledger_id: int, entry_id: int, place: str, reason: object) -> MalformedPayload:
        return MalformedPayload(
            f"{self._named}, message {place}: malformed: {reason}; read what is good with "
            "mode DROPMALFORMED or PERMISSIVE",
            ledger_id=ledger_id,
            entry_id=entry_id,
        )

    def _of_malformed(self, batch: EntryBatch, places: np.ndarray, reason: str | None = None) -> Iterator[Placed]:
        """Yield what malformed entries give: rows of nulls with PERMISSIVE. Without a reason, an entry has no metadata
        that can be decoded."""
        if not len(places) or self._mode is MalformedMode.DROPMALFORMED:
            return
        if self._mode is MalformedMode.FAILFAST:
            entry_id = batch.first_entry + int(places[0])
            why = self._reason_of(batch, places[:1]) if reason is None else reason
            raise self._failure(batch.ledger_id, entry_id, f"{batch.ledger_id}:{entry_id}", why) from None
        yield from self._malformed_rows.of(batch, places)

    def _reason_of(self, batch: EntryBatch, place: np.ndarray) -> str:
        try:
            decode_entries(batch, is_compacted=batch.ledger_id in self._facts.compacted_ledgers, only=place)
        except MalformedEntry as error:
            return str(error)
        raise AssertionError("it is not malformed")


def _are_between(times: np.ndarray, since_ms: int | None, until_ms: int | None) -> np.ndarray:
    found = np.ones(len(times), bool)
    if since_ms is not None:
        found &= times >= since_ms
    if until_ms is not None:
        found &= times < until_ms
    return found


def _key_names(entries: Entries, row: int) -> str:
    """Return the names of the keys with which an entry is encrypted, for a message."""
    sealed = messages_of(entries, np.array([row]), {}, is_raw=np.ones(len(entries), bool))
    try:
        return ", ".join(columns.encryptions(sealed).to_pylist()[0]["keys"])
    except MALFORMED as error:
        return f"that cannot be read ({error})"


def _place_of(messages: Messages, place: int) -> str:
    """Return the id of a message as users write it, without the partition."""
    index = int(messages.batch_index[place])
    entry = _entry_of(messages.entries, int(messages.entry[place]))
    return f"{entry}:-1:{index}" if index >= 0 else entry


def _entry_of(entries: Entries, row: int) -> str:
    """Return the position of an entry as users write it."""
    return f"{int(entries.ledger_ids[row])}:{int(entries.entry_ids[row])}"
