"""Encoder: the interface of encoders, from columns to entries."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator

import pyarrow as pa

from bkspark.entries import EntryBatch


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
