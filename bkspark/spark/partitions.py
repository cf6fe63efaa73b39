"""Partitions of reads: what the driver plans and sends to a task."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pyspark.sql.datasource import InputPartition

from bkspark.core.metadata import LedgerMetadata
from bkspark.net.pool import NetOptions
from bkspark.spark.local_files import LedgerPassword
from bkspark.spark.ranges import PackedRanges

EntryTimes = tuple[tuple[int, int | None], ...]
"""(entry, ms since 1970 or None), ascending: the entries from there on entered the log at that time."""


@dataclass(frozen=True)
class LedgerRead:
    """Entries [first_entry, end_entry) of one ledger, and the metadata that says which bookies have them.

    The metadata contain custom metadata only if includeMetadata makes a column of them, or if they are needed to
    decrypt entries. The times at which entries entered the log are included if a column has them.
    """

    ordinal: int
    ledger_id: int
    first_entry: int
    end_entry: int
    metadata: LedgerMetadata
    created_ms: int
    """When the ledger was created, in ms since 1970: the time of its first entries if no mark says it."""
    log: str
    times: EntryTimes = ()


class ReadPartition(InputPartition):
    """What one task reads, in order. It has all that the task needs, so that the task does not ask the metadata store.

    `password`: the password, or only the name of its file. `net`: options of the task's connections. `leaves_out`:
    names of columns that logs have recorded and the read lacks, or has with fewer members; the driver has logged them.
    `unopened`: replaces `reads` in a plan of so many ledgers that each task reads the metadata of its own ledgers from
    the store.
    """

    def __init__(
        self,
        reads: tuple[LedgerRead, ...],
        addresses: Mapping[str, tuple[str, int]],
        password: LedgerPassword,
        *,
        leaves_out: frozenset[str] = frozenset(),
        net: NetOptions = NetOptions(),
        encryption_key_file: str | None = None,
        unopened: PackedRanges | None = None,
    ) -> None:
        super().__init__(None)
        self.unopened = unopened
        self.reads = reads
        self.addresses = addresses
        """(host, port) of the bookies that the tasks ask, by id."""
        self.password = password
        self.leaves_out = leaves_out
        self.net = net
        self.encryption_key_file = encryption_key_file
        """The path of the key file on each machine; None: encrypted ledgers cannot be read."""

    def place_of(self, read: LedgerRead, entry_id: int) -> str:
        """Return the log of an entry, to begin an error with; empty without a log."""
        return f"log {read.log}: " if read.log else ""
