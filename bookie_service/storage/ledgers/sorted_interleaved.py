"""The two storages with one index file per ledger. Each can open what the other wrote.

Sorted: the entries of a ledger are adjacent in the entry log, so reading a ledger reads one part of the disk.
Interleaved: the entries of all ledgers are in order of arrival. A flush writes one contiguous block for any number of
ledgers, and reading one ledger skips the entries of others.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bookie_service.storage.index.index_moves import DoubtCallbacks
from bookie_service.storage.index.per_ledger import PerLedgerIndex
from bookie_service.storage.io.files import LocalFiles
from bookie_service.storage.ledgers.base import BaseLedgerStorage, StoreOptions
from bookie_service.storage.ledgers.limbo import DirtyMarker


class _FileStorage(BaseLedgerStorage):
    """A storage with index files. A file moves if its disk takes no writes."""

    def _open_index(self, files: LocalFiles, directories: Sequence[str], options: StoreOptions) -> PerLedgerIndex:
        return PerLedgerIndex(
            files,
            directories,
            options.pages,
            options.reader_files_max,
            DoubtCallbacks(
                self.limbo.begin,
                lambda: DirtyMarker(files, directories).set(journal_is_complete=False),
                self.known_header,
            ),
            disks=self.disks,
            places=self._places,
        )


class SortedLedgerStorage(_FileStorage):
    """Each flush goes to the entry log sorted by (ledger, entry)."""

    def _log_order(self, addresses: np.ndarray) -> slice:
        return slice(None)


class InterleavedLedgerStorage(_FileStorage):
    """Each flush goes to the entry log in the order in which the entries arrived."""

    def _log_order(self, addresses: np.ndarray) -> np.ndarray:
        # The write cache is filled from its beginning, so addresses ascend in order of arrival.
        return np.argsort(addresses)
