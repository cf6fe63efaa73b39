"""Scans ledgers of bookies on this host in the caller's thread, without the event loop.

A Spark task that gets its batches through the event loop, which gets them from a reading thread, takes a third more
processor time, because three threads take turns with the interpreter lock. Like `bkspark.net.local_reads`, a scan
returns entries or nothing; what it does not return is read over the network.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from bkspark.core.metadata import LedgerMetadata
from bkspark.entries import EntryBatch
from bkspark.net.local_reads import LocalBookie, address_on_this_host
from bkspark.net.pool import NetOptions
from bkspark.wire.digest import EntryDigest


class LocalScan:
    """Reads entries of bookies on this host. For one thread, until `close`."""

    def __init__(self, addresses: Mapping[str, tuple[str, int]], options: NetOptions) -> None:
        """`addresses`: (host, port) of bookies, by id."""
        self._bookies: dict[str, LocalBookie] = {}
        """Bookies on this host, by id. Filled by the constructor."""
        if options.local_reads:
            for bookie, (host, port) in addresses.items():
                address = address_on_this_host(host, port)
                if address is not None:
                    self._bookies[bookie] = LocalBookie(bookie, address, options.read_timeout_s)

    def can_read(self, metadata: LedgerMetadata, entry_id: int) -> bool:
        """Return whether a bookie on this host may have an entry and the entries around it. Not in striped ledgers."""
        return self._bookie(metadata, entry_id) is not None

    def _bookie(self, metadata: LedgerMetadata, entry_id: int) -> LocalBookie | None:
        replicas = metadata.fragment_of(entry_id).bookies
        if metadata.write_quorum < len(replicas):
            return None
        here = (self._bookies[bookie] for bookie in replicas if bookie in self._bookies)
        return next((bookie for bookie in here if not bookie.is_off), None)

    def read(
        self,
        ledger_id: int,
        metadata: LedgerMetadata,
        first_entry: int,
        count_max: int,
        bytes_max: int,
        digest: EntryDigest,
    ) -> Iterator[EntryBatch]:
        """Yield at most `count_max` entries from `first_entry` on; what is missing is to be read over the network.

        All bytes of the bookie's file from the first to the last item count towards `bytes_max`.
        """
        bookie = self._bookie(metadata, first_entry)
        if bookie is None:
            return iter(())
        return bookie.read(ledger_id, first_entry, count_max, bytes_max, digest)

    def close(self) -> None:
        for bookie in self._bookies.values():
            bookie.close()
