"""Rows for malformed entries of topics (mode PERMISSIVE), and their places among the other rows.

A topic may have as many malformed entries as others. Their rows are therefore made together, and merged with the others
as arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pyarrow as pa

from bkspark.entries import EntryBatch
from bkspark.errors import ConfigurationError
from bkspark.pulsar.message_columns import message_id
from bkspark.spark.formats.decoding import check_nulls
from bkspark.spark.topic_columns import RequestedColumns

Placed = tuple[pa.RecordBatch, np.ndarray]
"""Rows, and for each the index of its entry in the batch that is decoded, ascending."""


class MalformedRows:
    """Makes a row for each malformed entry: what is known of it, and nulls.

    Args:
        named, topic, partition: what the entries are of: for errors, and for columns.
        rows_at_once: limit of rows that are made together.
    """

    def __init__(self, columns: RequestedColumns, named: str, topic: str, partition: int, rows_at_once: int) -> None:
        self._schema = columns.schema
        self._describing = columns.describing
        self._corrupt = columns.corrupt
        self._named = named
        self._topic = topic
        self._partition = partition
        self._rows_at_once = rows_at_once

    def of(self, batch: EntryBatch, places: np.ndarray) -> Iterator[Placed]:
        """Yield the rows for the entries at some places of a batch.

        Raises:
            ConfigurationError: a column is NOT NULL.
        """
        for first in range(0, len(places), self._rows_at_once):
            some = places[first : first + self._rows_at_once]
            yield self._rows(batch, some), some

    def among(self, others: Iterator[Placed], batch: EntryBatch, places: np.ndarray) -> Iterator[Placed]:
        """Yield other rows and those for the entries at some places, in order. Raises as `of`."""
        for rows, at in others:
            while len(at) and len(places) and places[0] < at[-1]:
                some = places[: self._rows_at_once]
                some = some[some < at[-1]]
                count = int(np.searchsorted(at, some[-1]))
                made = self._rows(batch, some)
                yield from _merged((rows.slice(0, count), at[:count]), (made, some))
                rows, at, places = rows.slice(count), at[count:], places[len(some) :]
            if len(at):
                yield rows, at
        yield from self.of(batch, places)

    def no_null(self, error: ValueError, place: str) -> ConfigurationError:
        """Return the error for a message without a value in a column that is NOT NULL."""
        return ConfigurationError(
            f"{self._named}, message {place}: {error}: let the column be null in .schema(), since a message may "
            "have no value, or be malformed"
        )

    def corrupt_column(self, held: pa.Array) -> pa.Array:
        """Return what is malformed, as the column for it has it."""
        wanted = self._schema.field(self._corrupt).type
        if wanted == pa.binary():
            return held
        return pa.array(
            [None if each is None else each.decode("utf-8", "replace") for each in held.to_pylist()], wanted
        )

    def _rows(self, batch: EntryBatch, places: np.ndarray) -> pa.RecordBatch:
        count = len(places)
        if not len(self._schema):
            return pa.record_batch({"rows": pa.nulls(count)}).select([])
        entry_ids = places + batch.first_entry
        cells = [self._cell(name, batch.ledger_id, entry_ids, field.type) for name, field in self._wanted()]
        if self._corrupt >= 0:
            cells[self._corrupt] = self.corrupt_column(
                pa.array([batch[place] for place in places.tolist()], pa.binary())
            )
        for cell, field in zip(cells, self._schema):
            try:
                check_nulls(cell, field)
            except ValueError as error:
                raise self.no_null(error, f"{batch.ledger_id}:{entry_ids[0]}") from None
        return pa.RecordBatch.from_arrays(cells, schema=self._schema)

    def _wanted(self) -> Iterator[tuple[str, pa.Field]]:
        return ((self._describing.get(i, ""), field) for i, field in enumerate(self._schema))

    def _cell(self, name: str, ledger_id: int, entry_ids: np.ndarray, kind: pa.DataType) -> pa.Array:
        known: dict[str, Callable[[], object]] = {
            "__topic": lambda: [self._topic] * len(entry_ids),
            "__partition": lambda: [self._partition if self._partition >= 0 else None] * len(entry_ids),
            "__ledgerid": lambda: [ledger_id] * len(entry_ids),
            "__entryid": lambda: entry_ids,
            "__messageid": lambda: [message_id(ledger_id, each, self._partition) for each in entry_ids.tolist()],
        }
        return pa.array(known[name](), kind) if name in known else pa.nulls(len(entry_ids), kind)


def _merged(one: Placed, other: Placed) -> Iterator[Placed]:
    """Yield the rows of both in the order of their places."""
    (rows, at), (more, places) = one, other
    if not len(at) or not rows.num_columns:  # the order of rows without columns does not matter
        yield from (each for each in (one, other) if len(each[1]))
        return
    whole = np.concatenate([at, places])
    order = np.argsort(whole, kind="stable")
    taken = pa.array(order)
    cells = [pa.concat_arrays(both).take(taken) for both in zip(rows.columns, more.columns)]
    yield pa.RecordBatch.from_arrays(cells, schema=rows.schema), whole[order]
