"""The interface of every ledger storage for the rest of the bookie, and of every index for the storages.

Apache's three storages have one interface, `LedgerStorage`; `storage_class` selects the configured one. Their common
part is in `base`. They differ in three places:

* the order in which a flush writes entries to the entry log: by (ledger, entry), or as they arrived;
* the index: a file per ledger, or an embedded key-value store; both are a `LedgerIndex`;
* what a read keeps in memory for later reads.

Adds, reads and everything else that bookie, replay, checkpoints and garbage collection do goes through these two.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from bkspark.ids import NO_ENTRY
from bkspark.wire.placed_entries import PlacedEntries
from bookie_service.formats.index import LedgerHeader, decode_lac
from bookie_service.storage.index.index import ENTRIES_END, Extent, LedgerUpdate, StoredLedger
from bookie_service.storage.io.byte_source import WAITING, ByteSource, CachedSource
from bookie_service.storage.io.disk_threads import DiskWork
from bookie_service.storage.io.framed_entries import FramedEntries
from bookie_service.storage.ledgers.limbo import Limbo
from bookie_service.storage.ledgers.tombstones import Tombstones
from bookie_service.storage.ledgers.write_cache import MemTable
from bookie_service.storage.logs.entry_log import EntryLogs


class IndexView(Protocol):
    """Reads headers and positions. For one thread."""

    def header(self, ledger_id: int) -> LedgerHeader | None:
        """Return a ledger's header, None when the index certainly never had the ledger.

        Raises:
            StorageDamaged: traces of it exist, but its header is unreadable.
        """

    def positions(self, ledger_id: int, first_entry: int, count: int, source: ByteSource = WAITING) -> np.ndarray:
        """Return positions of `first_entry`, ... as int64, 0 where not held; shorter when no later entry is held.

        Raises:
            NotCached: `source` does not wait, and they are not in memory.
        """

    def last_entry(self, ledger_id: int) -> int:
        """Return the highest entry id with a position, NO_ENTRY when there is none."""

    def extents(self, ledger_id: int, first_entry: int = 0, end_entry: int = ENTRIES_END) -> Iterator[Extent]:
        """Yield (entry id, positions of that entry and the following ones), ascending; the ids between two are not
        held.

        The cost depends on the held entries, however far apart their ids are. Every entry of [first_entry, end_entry)
        that is held when this begins is in one of the pieces; some later ones may be, too. A position is 0 where not
        held. A piece has at most `EXTENT_ENTRIES` positions, and does not stay in memory.
        """

    def close(self) -> None: ...


class LedgerIndex(IndexView, Protocol):
    """Headers and positions of all ledgers of a bookie; reading is for the event loop, `view` for other threads."""

    def view(self, open_files_max: int) -> IndexView:
        """Return a view for another thread, which must close it; it sees positions as soon as they are held."""

    def page_in_memory(self, ledger_id: int, first_entry: int, last_entry: int) -> tuple[int, np.ndarray] | None:
        """Return an id, and the positions from it on, 0 where not held, if one page in memory has both entries' places.

        It may end before them: then they are not held. It changes when the index does. None: ask for `positions`.
        """

    def stored(self, ledger_id: int) -> StoredLedger:
        """Return the header and the last entry of a ledger, and whether all of it is there.

        Raises:
            StorageDamaged: as `header`.
        """

    def ledger_ids(self) -> np.ndarray:
        """Return the ids of all ledgers, lost ones too, int64, ascending. For any thread."""

    def holding_entries(self, ledger_ids: np.ndarray) -> np.ndarray:
        """Return those of the ledgers, ascending, that hold entries, or did before they were lost. For any thread.

        All others are known only by their master key, a fence or an explicit LAC, which any client may send.
        """

    def has(self, ledger_id: int) -> bool:
        """Return whether the index knows the ledger, even if its header is unreadable. For any thread."""

    def absent(self, ledger_ids: np.ndarray) -> np.ndarray:
        """Return which of the ledgers the index certainly never had, bool; False where only a look-up can decide."""

    def counts(self) -> tuple[int, int]:
        """Return about how many ledgers and entries are stored, without those in the write cache. For any thread."""

    @property
    def notices(self) -> Sequence[str]:
        """Lines for the operator about findings at the opening; usually empty."""

    def lost(self, ledger_id: int) -> str:
        """Return which durable data of a ledger is missing, "" for nothing. For any thread."""

    def all_lost(self) -> list[int]:
        """Return the ledgers for which `lost` is not empty, after a check of all. For any thread."""

    def accept(self, ledger_ids: Collection[int]) -> None:
        """Accept the present data of ledgers as complete, durably. For the same thread as `hold`."""

    def disown(self, ledger_ids: Collection[int]) -> None:
        """Record durably that ledgers may be removed, before they are. For the same thread as `hold`.

        Raises:
            OSError: the record is not durable. If the ledgers are removed nevertheless, they count as lost after a
                crash.
        """

    @property
    def is_clean(self) -> bool:
        """True when everything held is durable. For any thread."""

    def hold(self, updates: Iterable[LedgerUpdate]) -> None:
        """Hold headers and positions; views see the positions at once. For one thread at a time.

        The entry log bytes that positions point to must be durable: held positions may go to the disk at any moment.

        Raises:
            OSError: a write failed; which of the updates are held is unknown.
        """

    def sync(self, names_are_durable: bool = True) -> None:
        """Make everything held durable. For one thread at a time, the same as for `hold`.

        Args:
            names_are_durable: False in replay: a killed process may have written any of it already, so that it exists
                without being durable.

        Raises:
            DiskStalled: a disk is late; everything is held as before, and this can be repeated.
            OSError: a write failed; it is unknown what is durable.
        """

    def remove(self, ledger_id: int) -> None:
        """Forget a ledger; the event loop calls it. `sync_removed` makes it durable. It may be unknown."""

    def finish_removal(self, ledger_ids: Collection[int]) -> None:
        """Remove files of removed ledgers, those that are still there. For the same thread as `hold`."""

    def sync_removed(self, ledger_ids: Collection[int]) -> None:
        """Make the removal of ledgers durable, where their disks take writes. For the same thread as `hold`."""


@dataclass(slots=True, eq=False)
class Ledger:
    """The bookie's state of one ledger in memory. Changed by the event loop only.

    last_entry: highest entry id held, or NO_ENTRY.
    explicit_lac: the explicit LAC packet with the highest LAC, or b"".
    fence_sequence: journal sequence number of the fence; 0: durable since before this process served.
    lac_sequence: the same of the explicit LAC.
    lac_of_entries: the highest LAC in the entries that were read, which are those up to `lac_entry`.
    """

    ledger_id: int
    """Constant."""
    generation: int
    """Which life of the id this is: an id that was deleted may be created again. Constant."""
    fenced: bool
    """Whether the ledger is fenced. Set once."""
    master_key: bytes = field(repr=False)
    """The key that adds must have. Constant."""
    explicit_lac: bytes
    last_entry: int
    fence_sequence: int = 0
    lac_sequence: int = 0
    lac_of_entries: int = NO_ENTRY
    lac_entry: int = NO_ENTRY
    """The entry up to which LACs were read; NO_ENTRY: not one was."""

    def note_lac(self, lac: int) -> None:
        """Use the LAC in the last entry; a writer's LAC never decreases."""
        self.lac_of_entries = max(self.lac_of_entries, lac)
        self.lac_entry = self.last_entry

    @property
    def known_lac(self) -> int:
        """The highest of the LACs in entries up to `lac_entry` and the explicit LAC."""
        explicit = decode_lac(self.explicit_lac)[1] if self.explicit_lac else NO_ENTRY
        return max(self.lac_of_entries, explicit)


@dataclass(slots=True)
class Flush:
    """A full half and the headers that changed before it was taken, on their way to entry logs and index.

    advances_checkpoint: the index is synced after it, so that the marks may move; otherwise positions and headers may
        stay in memory, and the journal keeps their contents.
    positions: the durable positions of its entries in entry logs; None before that. A retried flush continues after the
        finished steps.
    is_held: the index holds all positions; from then on garbage collection may move them.
    """

    half: MemTable
    headers: Sequence[LedgerHeader]
    advances_checkpoint: bool
    positions: np.ndarray | None = None
    is_held: bool = False


@dataclass(frozen=True, slots=True)
class Located:
    """Entries in an entry log: the log's path, and where each item begins in it, int64, ascending."""

    path: str
    offsets: np.ndarray


@dataclass(slots=True)
class LookResult:
    """What one look found; rows are numbers of the requested entries. Rows that are nowhere here need another look.

    pieces: (rows, the entries), lent as `ByteSource` says. missing: entries that are not held. odd: entries that
    `LedgerStorage.read` must read.
    """

    pieces: list[tuple[np.ndarray, PlacedEntries]] = field(default_factory=list)
    missing: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))
    odd: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))

    @property
    def is_empty(self) -> bool:
        """Whether nothing is known of any entry yet."""
        return not (self.pieces or len(self.missing) or len(self.odd))

    def order(self, count: int) -> np.ndarray | None:
        """Return all `count` rows in this order: found, missing, odd, others; None when they are in it already."""
        rows = np.concatenate([*(rows for rows, _ in self.pieces), self.missing, self.odd])
        if len(rows) < count:
            is_left = np.ones(count, bool)
            is_left[rows] = False
            rows = np.concatenate([rows, np.flatnonzero(is_left)])
        return None if bool((rows[1:] > rows[:-1]).all()) else rows


class LedgerStorage(Protocol):
    """All ledgers of a bookie. The event loop calls all methods that do not name another thread."""

    logs: EntryLogs
    index: LedgerIndex
    tombstones: Tombstones
    limbo: Limbo
    active: MemTable
    """The half of the write cache that entries are added to."""
    disks: DiskWork
    """Works for the ledger directories at the same time."""
    writing: threading.Lock
    """Held while the index is written: a flush, or a move of positions."""

    # ---- ledgers ----

    def ledger(self, ledger_id: int) -> Ledger | None:
        """Return the ledger, None when this bookie certainly never held it.

        Raises:
            StorageDamaged: traces of it exist, but its header is unreadable.
            OSError: the index cannot be read.
        """

    def absent(self, ledger_ids: np.ndarray) -> np.ndarray:
        """Return which ledgers this bookie certainly never held, bool; False where only `ledger` can decide."""

    def create_ledger(self, ledger_id: int, master_key: bytes) -> Ledger:
        """Return a new ledger, or an existing one with its key replaced; the caller journals the key."""

    def fence(self, ledger: Ledger) -> None:
        """Fence the ledger against ordinary adds; the caller journals the fence."""

    def advance_lac(self, ledger: Ledger, packet: bytes) -> bool:
        """Store an explicit LAC; False when one at least as high is stored already. The caller journals the packet.

        Raises:
            ValueError: `packet` is not an explicit LAC of this ledger.
        """

    # ---- entries ----

    def insert(self, ledger: Ledger, entry_ids: np.ndarray, addresses: np.ndarray) -> None:
        """Hold entries at `addresses` of the active half."""

    def add_single(self, ledger: Ledger, entry_id: int, octets: np.ndarray, at: int, size: int) -> memoryview:
        """Copy an entry into the active half, where it fits, and hold it; return its item there (`MemTable`)."""

    def read(
        self, ledger: Ledger, first_entry: int, count_max: int, bytes_max: int, source: ByteSource = WAITING
    ) -> list[FramedEntries]:
        """Return runs of consecutive entries from `first_entry` on, as far as held; empty when that one is not held.

        At least one entry, then as many as `count_max` and `bytes_max` bytes of items allow. Ends early before an entry
        that cannot be read, unless it is the first. Bytes from `source` are lent: see there.

        Raises:
            StorageDamaged, OSError: the first entry is held but cannot be read.
            NotCached: `source` does not wait, and the first entry is not in memory.
        """

    def read_each(
        self,
        ledgers: Sequence[Ledger],
        ends: Sequence[int],
        entry_ids: np.ndarray,
        bytes_max: int,
        source: CachedSource,
    ) -> LookResult:
        """Return what one look finds of the entries, which may be any, in any order, and come twice: at least one of
        them is found, missing or odd. Bytes from `source` are lent: see there.

        About `bytes_max` bytes of items; a little more where they differ in size, and at least one.

        Args:
            ends: where in `entry_ids` the entries of each ledger end; each has one at least.

        Raises:
            StorageDamaged, OSError: the index of one of the ledgers cannot be read.
            NotCached: `source` does not wait, and no entry is in memory.
        """

    def locate(self, ledger: Ledger, first_entry: int, count_max: int, bytes_max: int) -> Located | None:
        """Return the places of consecutive entries from `first_entry` on in one entry log, ascending.

        At most `count_max`, whose items begin within `bytes_max` bytes. None if an ordinary read would not return the
        first one from an entry log; the run ends before the next such entry.

        Raises:
            StorageDamaged, OSError: as `read`; but the bytes in the log are not checked.
        """

    def waiting_entries(self, ledger: Ledger) -> list[np.ndarray]:
        """Return ascending arrays of ids, int64, that together have the entries that wait to be flushed.

        All other held entries are in the index when this returns, and stay there.
        """

    # ---- flushing: begin and end on the event loop, write on the checkpoint thread, one at a time ----

    @property
    def is_clean(self) -> bool:
        """True when nothing waits to be flushed, and the marks are after everything flushed."""

    @property
    def is_flushing(self) -> bool:
        """True between `begin_flush` and `end_flush`."""

    @property
    def waiting_bytes(self) -> int:
        """Bytes of items that are not known to be in an entry log."""

    def begin_flush(self, *, advances_checkpoint: bool = True) -> Flush | None:
        """Take the active half and the changed headers out to be flushed; None while another flush runs.

        The flush moves the mark without a request if otherwise too much would depend on the journal.
        """

    def write_flush(self, flush: Flush, *, names_are_durable: bool = True) -> None:
        """Make entries durable in entry logs, then let the index hold their positions; sync it if the mark moves.

        `names_are_durable` is False in replay, see `LedgerIndex.sync`. If a disk is late with its part of the index,
        the flush no longer `advances_checkpoint`.

        Raises:
            OSError: a write failed, and the mark must not move. If there was no space (`files.is_out_of_space`), the
                same flush can be retried; after any other error the storage must not be used.
        """

    def end_flush(self, flush: Flush) -> None:
        """Drop the entries of a finished flush; from now on they are read from entry logs. The marks have moved if
        required."""

    # ---- dropping and moving, for garbage collection ----

    def in_doubt(self, ledger_ids: np.ndarray) -> np.ndarray:
        """Return those of the ledgers that may have entries in entry logs without a position in the index.

        They are in limbo, or their index is lost or cut. For any thread.
        """

    def any_in_doubt(self) -> bool:
        """Return whether there is any such ledger; checks all. For any thread."""

    def droppable(self, ledger_ids: Sequence[int]) -> list[tuple[int, bool]]:
        """Return (ledger id, is fenced) of those ledgers whose records are all before the marks.

        A ledger counts as fenced when its fence is unknown: its header is unreadable, or it is in doubt.
        """

    def read_ahead_of_drop(self, ledger_ids: Sequence[int]) -> None:
        """Read what `droppable` will ask for, so that it does not wait for a disk; on the collector's thread."""

    def prepare_drop(self, ledger_ids: Sequence[int], fenced: Sequence[int], now_s: int) -> None:
        """Record durably that ledgers may be dropped, and which were fenced; on the collector's thread, before `drop`.

        Raises:
            OSError: the fenced ones are not recorded, and must stay.
        """

    def end_limbo(self, ledger_ids: Sequence[int]) -> None:
        """Release ledgers from limbo, durably; on any thread. Raises OSError: some are still in limbo."""

    def drop(self, ledger_ids: Sequence[int]) -> list[int]:
        """Remove ledgers that are still droppable; return them. `sync_dropped` makes it durable.

        The entries are removed with their entry logs.
        """

    def sync_dropped(self, ledger_ids: Collection[int]) -> None:
        """Make the removal of dropped ledgers durable, where their disks take writes; on the collector's thread."""

    def forget_log(self, log_id: int) -> None:
        """Stop reading from a log to which no position points."""

    def move(self, updates: Sequence[LedgerUpdate]) -> None:
        """Make changed positions durable, on any thread that has held `writing` since it read the old ones.

        Raises:
            OSError: a write failed; which of the positions are changed is unknown.
        """

    def seal_logs(self) -> None:
        """Complete the entry logs that are being appended to, on any thread; the next flush begins others."""

    def close(self) -> None: ...
