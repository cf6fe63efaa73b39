"""Decoder: the interface of decoders, from entries to columns, and the handling of malformed payloads.

A decoder turns an EntryBatch into `Rows`: Arrow columns of the payload schema, in its order and types. `MalformedMode`
is as in Spark's own sources: FAILFAST raises, PERMISSIVE returns a row of nulls (and the payload in the column
`_corrupt_record`, if the schema has one), DROPMALFORMED leaves the entry out.
"""

from __future__ import annotations

import enum
import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.types as kinds

from bkspark.entries import EntryBatch
from bkspark.errors import ConfigurationError, MalformedPayload
from bkspark.spark.formats.nested import parts_of

CORRUPT_RECORD = "_corrupt_record"
BEYOND_MAX = 100
"""Columns left out of a read that a task names, at most."""
CELLS_MAX = 1 << 20
"""Cells of rows that are decoded together, about: a few bytes are a row of thousands of columns, most of them null."""
TYPES_CACHED_MAX = 1000
"""Number of nested types for which a process remembers whether they forbid nulls inside."""


class MalformedMode(enum.Enum):
    """What a read does with malformed entries, with the names that Spark's own sources use (option `mode`)."""

    FAILFAST = "FAILFAST"
    PERMISSIVE = "PERMISSIVE"
    DROPMALFORMED = "DROPMALFORMED"


@dataclass(frozen=True)
class Rows:
    """`count` decoded rows: one array for each column, and for each row the index of its entry in the batch.

    `entry_of_row` returns that int64 array, on demand; None if row i comes from entry i.
    """

    columns: list[pa.Array]
    count: int
    entry_of_row: Callable[[], np.ndarray] | None = None


class Decoder(ABC):
    """Decodes the payload columns of one schema.

    Args:
        schema: the requested payload columns, in the order and with the types and nullability of the output.
        mode: what happens with a malformed payload.
        is_whole: the user named no columns, so a payload with a column that the schema lacks is malformed, because the
            column would be lost. With DROPMALFORMED the payload keeps its rows, and `beyond` names the column.
        left_out: columns to which this does not apply, because the driver has logged that they are left out, or members
            of them.
        corrupt_record: name of the column for malformed payloads.

    Raises:
        ConfigurationError: PERMISSIVE with a column that cannot be null, or `_corrupt_record` with a wrong type.
    """

    def __init__(
        self,
        schema: pa.Schema,
        mode: MalformedMode,
        *,
        is_whole: bool = False,
        left_out: frozenset[str] = frozenset(),
        corrupt_record: str = CORRUPT_RECORD,
    ) -> None:
        self.schema = schema
        self.mode = mode
        self.is_whole = is_whole
        self.left_out = left_out
        self.beyond: dict[str, tuple[int, int]] = {}
        """The first entry of each column with values beyond its inferred type; at most BEYOND_MAX columns."""
        self._corrupt_index = schema.get_field_index(corrupt_record) if mode is MalformedMode.PERMISSIVE else -1
        if mode is MalformedMode.PERMISSIVE:
            for column in schema:
                if not column.nullable:
                    raise ConfigurationError(
                        f"column '{column.name}' is NOT NULL, but mode PERMISSIVE makes nulls of malformed payloads: "
                        "use mode FAILFAST or DROPMALFORMED, or let the column be null"
                    )
        if self._corrupt_index >= 0 and schema.field(self._corrupt_index).type not in (pa.binary(), pa.string()):
            raise ConfigurationError(
                f"column '{corrupt_record}' must be a string or binary, as mode PERMISSIVE puts malformed payloads "
                "into it: name another column by option 'columnNameOfCorruptRecord'"
            )

    @abstractmethod
    def decode(self, entries: EntryBatch) -> Iterator[Rows]:
        """Yield the rows of the entries, in order, in as many pieces as suits the format.

        Raises:
            MalformedPayload: a payload does not have the format, or does not fit the schema (FAILFAST only); the
                message has ledger, entry and reason.
        """

    def note_beyond(self, entries: EntryBatch, index: int, error: BeyondInferredError) -> None:
        """Record the first entry that has a column which is left out."""
        if len(self.beyond) < BEYOND_MAX:
            self.beyond.setdefault(str(error.name), (entries.ledger_id, entries.first_entry + index))

    def malformed(self, entries: EntryBatch, index: int, reason: object) -> MalformedPayload:
        """Return the error for the payload at `index` of the batch."""
        entry_id = entries.first_entry + index
        return MalformedPayload(
            f"ledger {entries.ledger_id} entry {entry_id}: malformed payload: {reason}; "
            "check payloadFormat and the schema, or set mode to PERMISSIVE or DROPMALFORMED",
            ledger_id=entries.ledger_id,
            entry_id=entry_id,
        )

    def corrupt_column(self, payloads: list[bytes | None]) -> pa.Array:
        """Return the `_corrupt_record` column: null for well-formed payloads."""
        wanted = self.schema.field(self._corrupt_index).type
        if wanted == pa.string():
            return pa.array([None if p is None else p.decode("utf-8", "replace") for p in payloads], wanted)
        return pa.array(payloads, wanted)


class BeyondInferredError(ValueError):
    """A payload has a column, or a member of a struct, that the columns of the read lack: it would be lost."""

    def __init__(self, name: object) -> None:
        super().__init__(f"it has a column '{name}', which this read does not have: name the columns by .schema()")
        self.name = name


def rows_at_once(kinds_of_columns: Iterable[pa.DataType]) -> int:
    """Return how many rows of these columns have about CELLS_MAX cells, members of structs included; at least one."""
    return max(1, CELLS_MAX // max(1, sum(map(_leaves, kinds_of_columns))))


def _leaves(kind: pa.DataType) -> int:
    return sum(_leaves(member.type) for member in kind) if kinds.is_struct(kind) else 1


def check_nulls(column: pa.Array, field: pa.Field) -> pa.Array:
    """Return `column`; raise ValueError when it, or what nests in it, has a null where the field allows none."""
    if not field.nullable and column.null_count:
        raise ValueError(f"column '{field.name}' is NOT NULL, but the payload has no value for it")
    # A flat type, the usual case, is checked without a cache look-up, because this is called for every entry.
    if field.type.num_fields and _forbids_null_inside(field.type):
        for array in column.chunks if isinstance(column, pa.ChunkedArray) else [column]:
            _check_inside(array, field.type, field.name)
    return column


def forbids_null(field: pa.Field) -> bool:
    """Return whether a column of this type may not have each null: `check_nulls` raises for some."""
    return not field.nullable or _forbids_null_inside(field.type)


@functools.lru_cache(TYPES_CACHED_MAX)
def _forbids_null_inside(kind: pa.DataType) -> bool:
    return any(not inner.nullable or _forbids_null_inside(inner.type) for inner in _inner_fields(kind))


def _inner_fields(kind: pa.DataType) -> list[pa.Field]:
    if kinds.is_map(kind):
        # The entry itself, and its key, are never null; Arrow ensures that.
        return [kind.key_field.with_nullable(True), kind.item_field]
    return [kind.field(i) for i in range(kind.num_fields)]


def _check_inside(array: pa.Array, kind: pa.DataType, name: str) -> None:
    # Spark trusts a NOT NULL type: it would read the bytes under a null as a value.
    if not _forbids_null_inside(kind):
        return
    for field, found in zip(_inner_fields(kind), parts_of(array)):
        if not field.nullable and found.null_count:
            raise ValueError(f"column '{name}' has a null in its '{field.name}', which is NOT NULL")
        _check_inside(found, field.type, name)
