"""Selection of ledgers and of their entries, by option `ledgers` and by conditions on custom metadata."""

from __future__ import annotations

import math
from collections.abc import Mapping

from bkspark.errors import ConfigurationError
from bkspark.spark.option_values import IdRange
from bkspark.spark.ranges import EntryRange, ReadableSegment
from bkspark.spark.write_options import ANY_VALUE, NOT


def has_metadata(metadata: Mapping[str, bytes], key: str, value: str) -> bool:
    """Return whether custom metadata fulfil a condition. A key that begins with `!` negates it; `*` is any value.

    Args:
        key: lower-cased, since Spark lower-cases options. Keys of metadata that differ in case alone all count.
    """
    name = key.removeprefix(NOT)
    found = [stored for each, stored in metadata.items() if each.lower() == name]
    is_met = bool(found) if value == ANY_VALUE else value.encode() in found
    return is_met != key.startswith(NOT)


def chosen_entries(extent: ReadableSegment, selected: IdRange) -> EntryRange:
    """Return the chosen entries of a ledger; an empty range if it has none of them.

    Raises:
        ConfigurationError: the ledger ends before the named entries do.
    """
    end = extent.end_entry if selected.end_entry is None else selected.end_entry
    if end > extent.end_entry:
        raise ConfigurationError(
            f"option 'ledgers' names entries {selected.first_entry}-{end - 1} of ledger {extent.ledger_id}, which can "
            f"be read up to entry {extent.end_entry - 1}: choose entries below"
        )
    first = min(selected.first_entry, end)
    size = math.ceil((end - first) * extent.entry_bytes)
    return EntryRange(extent.ordinal, extent.ledger_id, first, end, size)
