"""Scans: what a Spark task reads in its own thread, from entry logs on its host or over the network.

A task asks `Scans` for the entries of a ledger. What it does not get, it reads on the event loop (`RangeReader`), from
all replicas. Only this module knows the two ways of a scan.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from bkspark.blocking.local_scan import LocalScan
from bkspark.blocking.network_scan import NetworkScan
from bkspark.core.metadata import LedgerMetadata
from bkspark.core.reader import next_span
from bkspark.entries import EntryBatch
from bkspark.net.pool import NetOptions
from bkspark.wire.digest import EntryDigest
from bkspark.wire.framing import LENGTH_BYTES

LOCAL_BYTES = 15 << 19
"""Size of the items whose positions are requested at once. Large ones fit one batch, even if they are larger than those
before them; of small ones, far less is in memory at a time."""
LOCAL_ENTRIES = 32
"""The least number of entries whose positions are requested at once, however large they are: a request for a few costs
as much as reading an entry of 1 MiB."""
REMOTE_BYTES = 64 << 20
"""Bytes that are scanned over the network before the bookie to scan is chosen again."""


class Scans:
    """Scans of ledgers. For one thread, until `close`."""

    def __init__(self, addresses: Mapping[str, tuple[str, int]], options: NetOptions) -> None:
        """`addresses`: (host, port) of bookies, by id."""
        self._is_clear = options.tls is None and options.sasl is None
        """Whether scans may be used: they have neither TLS nor authentication. Constant."""
        self._local = LocalScan(addresses, options)
        """Scans of entry logs on this host; preferred."""
        self._remote = NetworkScan(addresses, options)
        """Scans over the network, where no local one returns entries."""

    def read(
        self,
        ledger_id: int,
        metadata: LedgerMetadata,
        first_entry: int,
        end_entry: int,
        entry_bytes: int,
        digest: EntryDigest,
    ) -> Iterator[EntryBatch]:
        """Yield the leading entries of [first_entry, end_entry), possibly none of them.

        Args:
            entry_bytes: approximate size of an entry, at least 1.
        """
        position, stretch = first_entry, 1
        while self._is_clear and position < end_entry:
            before = position
            span = next_span(metadata, position, end_entry, _local_entries(entry_bytes))
            count = span.end_entry - position
            bytes_max = max(LOCAL_BYTES, count * (LENGTH_BYTES + digest.overhead_bytes + entry_bytes))
            for entries in self._local.read(ledger_id, metadata, position, count, bytes_max, digest):
                position, entry_bytes = entries.end_entry, _mean_bytes(entries)
                yield entries
            if position > before:
                stretch = 1
                continue
            end = end_entry
            if self._local.can_read(metadata, position):
                # Later entries may be local again; each miss doubles how far we read over the network before the next.
                end = min(end, position + stretch * count)
                stretch *= 2
            span = next_span(metadata, position, end, max(1, REMOTE_BYTES // entry_bytes))
            for entries in self._remote.read(ledger_id, metadata, position, span.end_entry, entry_bytes, digest):
                position, entry_bytes = entries.end_entry, _mean_bytes(entries)
                yield entries
            if position == before:
                return

    def end_of_gap(self, metadata: LedgerMetadata, position: int, end_entry: int, entry_bytes: int) -> int:
        """Return the end of the range that the caller reads itself after a scan ended at `position`, before it scans
        again."""
        if not self._is_clear:
            return end_entry
        may_scan = self._remote.can_read(metadata, position) or self._local.can_read(metadata, position)
        return min(end_entry, position + _local_entries(entry_bytes)) if may_scan else end_entry

    def close(self) -> None:
        self._local.close()
        self._remote.close()


def _local_entries(entry_bytes: int) -> int:
    return max(LOCAL_ENTRIES, LOCAL_BYTES // entry_bytes)


def _mean_bytes(entries: EntryBatch) -> int:
    return max(1, entries.payload_bytes // len(entries))
