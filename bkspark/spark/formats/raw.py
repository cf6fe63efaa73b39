"""payloadFormat raw: an entry is the bytes of the one column `value`, binary or string (UTF-8). Nothing is copied."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np
import pyarrow as pa

from bkspark.entries import EntryBatch
from bkspark.errors import ConfigurationError, MalformedPayload
from bkspark.spark.formats.decoding import CORRUPT_RECORD, Decoder, MalformedMode, Rows
from bkspark.spark.formats.encoding import Encoder, check_text

VALUE = "value"
_TYPES = (pa.binary(), pa.string())


class RawDecoder(Decoder):
    """Returns `value` as a view of the received buffer. A string column must be UTF-8."""

    def __init__(self, schema: pa.Schema, mode: MalformedMode, corrupt_record: str = CORRUPT_RECORD) -> None:
        for column in schema:
            is_value = column.name.lower() == VALUE or column.name == corrupt_record
            if not is_value or column.type not in _TYPES:
                raise ConfigurationError(
                    f"column '{column.name} {column.type}' is not in raw entries, which have 'value' (binary or "
                    "string): set payloadFormat for columns of your own"
                )
        super().__init__(schema, mode, corrupt_record=corrupt_record)
        self._corrupt_record = corrupt_record

    def decode(self, entries: EntryBatch) -> Iterator[Rows]:
        payloads = entries.to_arrow()
        try:
            rows = Rows(self._columns(payloads, payloads), len(payloads))
        except pa.ArrowInvalid:
            rows = self._decode_singly(entries, payloads)
        return iter((rows,))

    def _decode_singly(self, entries: EntryBatch, payloads: pa.Array) -> Rows:
        good = np.array([_is_text(payload) for payload in entries], bool)
        if self.mode is MalformedMode.FAILFAST:
            raise self.malformed(entries, int(np.argmin(good)), "it is not UTF-8 text; read 'value' as binary")
        if self.mode is MalformedMode.DROPMALFORMED:
            kept = payloads.filter(pa.array(good))
            return Rows(self._columns(kept, kept), len(kept), partial(np.flatnonzero, good))
        texts = pa.array([payload if fine else None for payload, fine in zip(entries, good)], pa.binary())
        corrupt = [None if fine else payload for payload, fine in zip(entries, good)]
        return Rows(self._columns(payloads, texts, corrupt), len(entries))

    def _columns(
        self, payloads: pa.Array, texts: pa.Array, corrupt: list[bytes | None] | None = None
    ) -> list[pa.Array]:
        """Return the columns: binary ones of all payloads, text ones of valid text; `corrupt`: the other payloads."""
        columns = []
        for index, column in enumerate(self.schema):
            if column.name == self._corrupt_record:
                if corrupt is not None and index == self._corrupt_index:
                    columns.append(self.corrupt_column(corrupt))
                else:
                    columns.append(pa.nulls(len(payloads), column.type))
            else:
                columns.append((payloads if column.type == pa.binary() else texts).cast(column.type))
        return columns


def _is_text(payload: bytes) -> bool:
    try:
        payload.decode()
    except UnicodeDecodeError:
        return False
    return True


class RawEncoder(Encoder):
    """One entry per row, a view of the row's own bytes."""

    def __init__(self, schema: pa.Schema) -> None:
        if [name.lower() for name in schema.names] != [VALUE] or schema.field(0).type not in _TYPES:
            columns = ", ".join(f"{column.name} {column.type}" for column in schema)
            raise ConfigurationError(
                f"payloadFormat raw writes the one column 'value' (binary or string), but the data has {columns}: "
                "select it, or use payloadFormat arrow, json or msgpack"
            )

    def encode(self, batch: pa.RecordBatch) -> Iterator[EntryBatch]:
        column = batch.column(0)
        if column.null_count:
            raise MalformedPayload(
                "column 'value' holds a null, which raw entries cannot hold: filter it out, or use payloadFormat arrow"
            )
        check_text(batch, batch.schema.field(0))
        yield EntryBatch.from_arrow(column)
