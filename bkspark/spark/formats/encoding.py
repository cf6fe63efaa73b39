"""Encoder: the interface of encoders, from columns to entries."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator

import pyarrow as pa

from bkspark.entries import EntryBatch
from bkspark.errors import MalformedPayload


class Encoder(ABC):
    """Encodes Arrow batches of one schema as entries.

    Raises:
        ConfigurationError: the format cannot represent the schema; the message has the column and the remedy.
    """

    @abstractmethod
    def encode(self, batch: pa.RecordBatch) -> Iterator[EntryBatch]:
        """Yield the rows of the batch as entries, in order.

        Raises:
            MalformedPayload: the format cannot represent a row, such as a null in raw; the message says what to do.
        """


def check_text(batch: pa.RecordBatch, column: pa.Field) -> None:
    """Raise MalformedPayload if a string is not UTF-8, as Spark's may be: readers would refuse the whole entry."""
    try:
        batch.column(column.name).validate(full=True)
    except pa.ArrowInvalid as error:
        raise MalformedPayload(f"column '{column.name}' cannot be read back ({error}): cast it to binary") from None
