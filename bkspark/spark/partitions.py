"""What a task reads: it is planned on the driver and sent to the task."""

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

    Custom metadata comes along where includeMetadata makes a column of it, and the part that opens encrypted entries;
    so do the times at which the entries entered the log.
    """

    ordinal: int
    ledger_id: int
    first_entry: int
    end_entry: int
    metadata: LedgerMetadata
    created_ms: int
    log: str
    times: EntryTimes = ()


class ReadPartition(InputPartition):
    """What one task reads, in order. It holds all that the task needs: no metadata store is asked again.

    `password`: where it is in a file, the file's name alone. `net`: limits of its connections. `leaves_out`: the log
    remembers columns that the read lacks, and the driver has logged that. `unopened`: what to read instead of
    `reads`, in a plan of so many ledgers that each task asks the metadata store for its own.
    """

    def __init__(
        self,
        reads: tuple[LedgerRead, ...],
        addresses: Mapping[str, tuple[str, int]],
        password: LedgerPassword,
        *,
        leaves_out: bool = False,
        net: NetOptions = NetOptions(),
        encryption_key_file: str | None = None,
        unopened: PackedRanges | None = None,
    ) -> None:
        super().__init__(None)
        self.unopened = unopened
        self.reads = reads
        self.addresses = addresses
        self.password = password
        self.leaves_out = leaves_out
        self.net = net
        self.encryption_key_file = encryption_key_file
