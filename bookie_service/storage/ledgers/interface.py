"""The interface of every ledger storage for the rest of the bookie, and of every index for the storages.

Apache's three storages have one interface, `LedgerStorage`. `storage_class` selects the configured one. Their common
part is in `base`. They differ in three ways:

* the order in which a flush writes entries to the entry log: by (ledger, entry), or in order of arrival;
* the index: one file per ledger, or an embedded key-value store; both are a `LedgerIndex`;
* what a read keeps in memory for later reads.

Bookie, replay, checkpoints and garbage collection use a storage only through these two interfaces.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Iterator, Sequence
from concurrent.futures import Future
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
from bookie_service.storage.ledgers.write_watch import WriteWatch
from bookie_service.storage.logs.entry_log import EntryLogs


class IndexView(Protocol):
    """Reads headers and positions. For one thread."""

    def header(self, ledger_id: int) -> LedgerHeader | None:
        """Return a ledger's header; None: the index certainly never had the ledger.

        Raises:
            StorageDamaged: there are traces of the ledger, but its header is unreadable.
        """

    def positions(self, ledger_id: int, first_entry: int, count: int, source: ByteSource = WAITING) -> np.ndarray:
        """Return the positions of `first_entry`, ... as int64; 0: not held. Shorter if no later entry is held.

        Raises:
            NotCached: `source` does not wait, and the positions are not in memory.
        """

    def last_entry(self, ledger_id: int) -> int:
        """Return the highest entry id with a position; NO_ENTRY: there is none."""

    def extents(self, ledger_id: int, first_entry: int = 0, end_entry: int = ENTRIES_END) -> Iterator[Extent]:
        """Yield (entry id, positions of this entry and the following ones), ascending; ids in between are not held.

        The cost depends on the number of held entries, not on the distance of their ids. Every entry of [first_entry,
        end_entry) that is held at the beginning is in one of the pieces. Later entries may be, too. A position of 0
        means not held. A piece has at most `EXTENT_ENTRIES` positions, and does not stay in memory.
        """

    def close(self) -> None: ...


class LedgerIndex(IndexView, Protocol):
    """Headers and positions of all ledgers of a bookie. The event loop reads here, other threads through `view`."""

    is_divided: bool
    """Whether each ledger directory has its own part, so that some ledgers can be hidden or full. Constant."""
    has_hidden: bool
    """Whether there are hidden ledgers: their disk fails, and nothing certain is known of any of them, not even whether
    the bookie has them. They get errors from all look-ups, and `ledger_ids` does not list them. For any thread."""

    @property
    def has_full(self) -> bool:
        """Whether there are full ledgers: their disk takes no changes now, so what is held for them stays in memory,
        and the bookie must not accept more. For any thread."""

    @property
    def problems(self) -> Sequence[str]:
        """A line for the operator for each directory with hidden or full ledgers. For any thread."""

    def is_hidden(self, ledger_id: int) -> bool:
        """Return whether a ledger is hidden. For any thread."""

    def hidden(self, ledger_ids: np.ndarray) -> np.ndarray:
        """Return which ledgers are hidden, bool. For any thread."""

    def is_full(self, ledger_id: int) -> bool:
        """Return whether a ledger is full. For any thread."""

    def view(self, open_files_max: int) -> IndexView:
        """Return a view for another thread, which must close it. It sees positions as soon as they are held."""

    def page_in_memory(self, ledger_id: int, first_entry: int, last_entry: int) -> tuple[int, np.ndarray] | None:
        """Return (an entry id, the positions from it on) if one page in memory covers both entries; None: use
        `positions`.

        A position of 0 means not held. The array may end before the entries; then they are not held. It changes when
        the index changes.
        """

    def stored(self, ledger_id: int) -> StoredLedger:
        """Return the header and the last entry of a ledger, and whether the ledger is whole.

        Raises:
            StorageDamaged: as `header`.
        """

    def ledger_ids(self) -> np.ndarray:
        """Return the ids of all ledgers, including lost ones, without hidden ones: int64, ascending. For any thread."""

    def holding_entries(self, ledger_ids: np.ndarray) -> np.ndarray:
        """Return those of the ledgers, ascending, that hold entries, or held entries that are lost. For any thread.

        All other ledgers are known only by a master key, a fence or an explicit LAC, which any client may have sent.
        Hidden ledgers may hold entries.
        """

    def has(self, ledger_id: int) -> bool:
        """Return whether the index knows the ledger, even if its header is unreadable. For any thread."""

    def absent(self, ledger_ids: np.ndarray) -> np.ndarray:
        """Return which of the ledgers the index certainly never had, bool; False: only a look-up can decide."""

    def counts(self) -> tuple[int, int]:
        """Return about how many ledgers and entries are stored, without those in the write cache. For any thread."""

    @property
    def notices(self) -> Sequence[str]:
        """Lines for the operator about findings when the index was opened; usually empty."""

    def lost(self, ledger_id: int) -> str:
        """Return which durable data of a ledger is missing; "": nothing. For any thread."""

    def all_lost(self) -> list[int]:
        """Check all ledgers; return those that lack durable data, or whose disk hides it. For any thread."""

    def keep_records(self) -> None:
        """Write the records of the index to another directory if their disk fails. For the thread that calls `hold`.

        Raises:
            OSError: no other directory takes them.
        """

    def accept(self, ledger_ids: Collection[int]) -> None:
        """Accept the present data of ledgers as complete, durably. For the thread that calls `hold`."""

    def disown(self, ledger_ids: Collection[int]) -> None:
        """Record durably that ledgers may be removed, before they are. For the thread that calls `hold`.

        Raises:
            OSError: the record is not durable. If the ledgers are removed nevertheless, they count as lost after a
                crash.
        """

    @property
    def is_clean(self) -> bool:
        """True when everything held is durable. For any thread."""

    def goes_on_without(self, ledger_id: int, error: OSError) -> bool:
        """Return whether a start can go on, though the disk fails to read what the index has of a ledger. `hold` does
        not replace it then, as long as it cannot be read. For replay."""

    def hold(self, updates: Iterable[LedgerUpdate]) -> None:
        """Hold headers and positions. Views see the positions at once. For one thread at a time.

        The entry log bytes at the positions must be durable, because held positions may go to disk at any moment.
        Hidden ledgers are put into limbo instead, durably.

        Raises:
            OSError: a write failed; it is unknown which of the updates are held.
        """

    def sync(self, names_are_durable: bool = True) -> None:
        """Make everything held durable. For the thread that calls `hold`.

        Args:
            names_are_durable: False in replay: a process that was killed may have written any of it already, so it may
                exist without being durable.

        Raises:
            DiskStalled: a disk is late, or one of several is full. Everything is held as before, and the call can be
                repeated.
            OSError: a write failed; it is unknown what is durable.
        """

    def remove(self, ledger_id: int) -> None:
        """Forget a ledger, which may be unknown. For the event loop. `sync_removed` makes it durable.

        Raises:
            OSError: nothing is changed, for lack of space or because the ledger is hidden.
        """

    def finish_removal(self, ledger_ids: Collection[int]) -> None:
        """Remove files of removed ledgers that still exist. For the thread that calls `hold`."""

    def sync_removed(self, ledger_ids: Collection[int]) -> Collection[Future[None]]:
        """Begin to make the removal of ledgers durable, as far as their disks take writes. For the thread that calls
        `hold`.

        Return the syncs of the disks. A disk that is late ends its sync later. Before all of them have ended, no entry
        log may be removed: a crash may restore the ledgers, whose positions name it. A sync that failed has an OSError.
        """

    def may_come_back(self, ledger_ids: Collection[int]) -> Collection[int]:
        """Return those of removed ledgers that a start may find again, because the disk of the index fails or has no
        space. On any thread, after `sync_removed`."""

    def forget_removed(self, ledger_ids: Collection[int]) -> None:
        """Let reads no longer step over what removed ledgers left. It may wait for a disk, and for long. On any thread,
        beside all other calls but `close`. None of them waits for it."""


@dataclass(slots=True, eq=False)
class Ledger:
    """The bookie's state of one ledger in memory. Changed by the event loop only.

    last_entry: the highest entry id that is held, or NO_ENTRY.
    explicit_lac: the explicit LAC packet with the highest LAC, or b"".
    fence_sequence: the journal's sequence number of the fence; 0: it was durable before this process began.
    lac_sequence: the same for the explicit LAC.
    lac_of_entries: the highest LAC in the entries that were read. They are entries up to `lac_entry`.
    """

    ledger_id: int
    """Constant."""
    generation: int
    """Distinguishes ledgers that had the same id, because a deleted id may be created again. Constant."""
    fenced: bool
    """Whether the ledger is fenced. Set once, by `LedgerStorage.fence`."""
    master_key: bytes = field(repr=False)
    """The key that adds must carry; UNKNOWN_KEY: replaced by the first key that comes."""
    explicit_lac: bytes
    last_entry: int
    fence_sequence: int = 0
    lac_sequence: int = 0
    lac_of_entries: int = NO_ENTRY
    lac_entry: int = NO_ENTRY
    """The entry up to which LACs were read; NO_ENTRY: no LAC was read."""

    @property
    def header(self) -> LedgerHeader:
        """What the index has of the ledger, without positions."""
        return LedgerHeader(self.ledger_id, self.generation, self.fenced, self.master_key, self.explicit_lac)

    def note_lac(self, lac: int) -> None:
        """Note the LAC in the last entry. It never lowers the known one, because a writer's LAC does not decrease.

        A copy may carry a LAC that is not below its own id (`bkspark.wire.lac`). It proves no later entry.
        """
        self.lac_of_entries = max(self.lac_of_entries, min(lac, self.last_entry))
        self.lac_entry = self.last_entry

    @property
    def known_lac(self) -> int:
        """The highest LAC of the entries up to `lac_entry` and of the explicit LAC."""
        explicit = decode_lac(self.explicit_lac)[1] if self.explicit_lac else NO_ENTRY
        return max(self.lac_of_entries, explicit)


@dataclass(slots=True)
class Flush:
    """A full half, and the headers that changed before it was taken, on their way to entry logs and index.

    advances_checkpoint: the index is synced afterwards, so the marks may advance. Otherwise positions and headers may
        stay in memory, and the journal keeps their contents.
    positions: the durable positions of its entries in entry logs; None: they are not written yet. A flush that is
        retried continues after the steps that are done.
    is_held: the index holds all positions. From then on garbage collection may move them.
    """

    half: MemTable
    headers: Sequence[LedgerHeader]
    advances_checkpoint: bool
    positions: np.ndarray | None = None
    is_held: bool = False


@dataclass(frozen=True, slots=True)
class Located:
    """Entries in an entry log: the path of the log, and the offsets of the items, int64, ascending."""

    path: str
    offsets: np.ndarray


@dataclass(slots=True)
class LookResult:
    """What one look found. Rows are numbers of the requested entries. A row that is nowhere here needs another look.

    pieces: (rows, their entries), lent as `ByteSource` says. missing: rows of entries that are not held. odd: rows of
    entries that `LedgerStorage.read` must read.
    """

    pieces: list[tuple[np.ndarray, PlacedEntries]] = field(default_factory=list)
    missing: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))
    odd: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))

    @property
    def is_empty(self) -> bool:
        """Whether the look decided nothing."""
        return not (self.pieces or len(self.missing) or len(self.odd))

    def order(self, count: int) -> np.ndarray | None:
        """Return all `count` rows in the order found, missing, odd, others; None: they are in this order already."""
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
    """The half of the write cache that takes entries."""
    watch: WriteWatch
    """Notes, for garbage collection, which ledgers are written: `drop` keeps these."""
    disks: DiskWork
    """Does work for several ledger directories at the same time."""
    writing: threading.Lock
    """Held while entry logs or the index are written: during a flush, or a move of positions."""

    # ---- ledgers ----

    def ledger(self, ledger_id: int) -> Ledger | None:
        """Return a ledger; None: this bookie certainly never had it.

        Raises:
            StorageDamaged: there are traces of the ledger, but its header is unreadable.
            OSError: the index cannot be read, or the ledger is hidden.
        """

    def absent(self, ledger_ids: np.ndarray) -> np.ndarray:
        """Return which ledgers this bookie certainly never had, bool; False: only `ledger` can decide."""

    @property
    def takes_new_ledgers(self) -> bool:
        """False: too many ledgers wait for the marks, which a disk keeps back, so no others may be created."""

    def create_ledger(self, ledger_id: int, master_key: bytes) -> Ledger:
        """Return a new ledger, or an existing one whose key is replaced. The caller journals the key."""

    def fence(self, ledger: Ledger) -> None:
        """Fence a ledger against ordinary adds. The caller journals the fence."""

    def advance_lac(self, ledger: Ledger, packet: bytes) -> bool:
        """Store an explicit LAC; False: the stored one is at least as high. The caller journals the packet.

        Raises:
            ValueError: `packet` is not an explicit LAC of this ledger.
        """

    # ---- entries ----

    def insert(self, ledger: Ledger, entry_ids: np.ndarray, addresses: np.ndarray) -> None:
        """Hold entries at `addresses` of the active half."""

    def add_single(self, ledger: Ledger, entry_id: int, octets: np.ndarray, at: int, size: int) -> memoryview:
        """Copy an entry, which must fit, into the active half, and hold it; return its item there (`MemTable`)."""

    def read(
        self, ledger: Ledger, first_entry: int, count_max: int, bytes_max: int, source: ByteSource = WAITING
    ) -> list[FramedEntries]:
        """Return runs of consecutive entries from `first_entry` on, as far as held; empty: that entry is not held.

        Returns at least one entry, and then as many as `count_max` and `bytes_max` bytes of items allow. The result
        ends early before an entry that cannot be read, unless it is the first. Bytes from `source` are lent: see there.

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
        """Return what one look finds of the entries: at least one of them is found, missing or odd.

        The entries may be any, in any order, and come twice. Returns about `bytes_max` bytes of items: a little more if
        they differ in size, and at least one. Bytes from `source` are lent: see there.

        Args:
            ends: where the entries of each ledger end in `entry_ids`. Each ledger has at least one entry.

        Raises:
            StorageDamaged, OSError: the index of one of the ledgers cannot be read.
            NotCached: `source` does not wait, and no entry is in memory.
        """

    def locate(self, ledger: Ledger, first_entry: int, count_max: int, bytes_max: int) -> Located | None:
        """Return the places of consecutive entries from `first_entry` on in one entry log, ascending.

        Returns at most `count_max` entries whose items begin within `bytes_max` bytes. None: an ordinary read would not
        return the first entry from an entry log. The run ends before the next such entry.

        Raises:
            StorageDamaged, OSError: as `read`; but the bytes in the log are not checked.
        """

    def waiting_entries(self, ledger: Ledger) -> list[np.ndarray]:
        """Return ascending arrays of ids, int64, which together contain all entries that wait to be flushed.

        All other held entries are in the index when this returns, and stay there.
        """

    # ---- flushing: begin and end on the event loop, write on the checkpoint thread, one at a time ----

    @property
    def is_clean(self) -> bool:
        """True if nothing waits to be flushed, and the marks are after everything that was flushed."""

    @property
    def is_flushing(self) -> bool:
        """True between `begin_flush` and `end_flush`."""

    @property
    def waiting_bytes(self) -> int:
        """Bytes of items that are not known to be in an entry log."""

    def begin_flush(self, *, advances_checkpoint: bool = True) -> Flush | None:
        """Take the active half and the changed headers for a flush; None: another flush runs.

        The flush advances the mark even if not requested when too much would otherwise depend on the journal.
        """

    def write_flush(self, flush: Flush, *, names_are_durable: bool = True) -> None:
        """Make entries durable in entry logs, then let the index hold their positions; sync it if the mark advances.

        `names_are_durable` is False in replay: see `LedgerIndex.sync`. If a disk is late with its part of the index,
        the flush no longer `advances_checkpoint`.

        Raises:
            OSError: a write failed, and the mark must not advance. If there was no space (`files.is_out_of_space`), the
                same flush can be retried. After any other error the storage must not be used.
        """

    def end_flush(self, flush: Flush) -> None:
        """Drop the entries of a finished flush, which are read from entry logs from now on. If the flush advances the
        marks, they have advanced."""

    # ---- dropping and moving, for garbage collection ----

    def in_doubt(self, ledger_ids: np.ndarray) -> np.ndarray:
        """Return those of the ledgers that may have entries in entry logs without a position in the index.

        These ledgers are in limbo, hidden, or their index is lost or cut. For any thread.
        """

    def any_in_doubt(self) -> bool:
        """Check all ledgers; return whether any of them is in doubt, or some are hidden. For any thread."""

    def droppable(self, ledger_ids: Sequence[int]) -> list[tuple[int, bool]]:
        """Return (ledger id, is fenced) for those ledgers whose records are all before the marks.

        A ledger counts as fenced if that is unknown, because its header is unreadable or it is in doubt.
        """

    def read_ahead_of_drop(self, ledger_ids: Sequence[int]) -> None:
        """Read what `droppable` will need, so that it does not wait for a disk. On the collector's thread."""

    def prepare_drop(self, ledger_ids: Sequence[int], fenced: Sequence[int], now_s: int) -> None:
        """Record durably that ledgers may be dropped, and which were fenced; on the collector's thread, before `drop`.

        Raises:
            OSError: the fenced ones are not recorded, and must not be dropped.
        """

    def end_limbo(self, ledger_ids: Sequence[int]) -> None:
        """Release ledgers from limbo, durably, except hidden ones. On any thread. Flushes do not wait for it.

        Raises:
            OSError: some are still in limbo.
        """

    def drop(self, ledger_ids: Sequence[int]) -> list[int]:
        """Remove ledgers that are still droppable and unwritten; return them. `sync_dropped` makes the removal durable.

        The entries are removed with their entry logs.
        """

    def keep_prepared(self, ledger_ids: Collection[int]) -> None:
        """Record durably that ledgers stay that `prepare_drop` was called for. On the collector's thread."""

    def sync_dropped(self, ledger_ids: Collection[int]) -> None:
        """Make the removal of ledgers durable, as far as their disks take writes; those whose removal is durable leave
        limbo. Waits for a disk that is late; flushes do not wait for it. On the collector's thread.

        Raises:
            OSError: a sync failed, and the process must end.
        """

    def forget_log(self, log_id: int) -> None:
        """Stop reading a log to which no position points."""

    def move(self, updates: Sequence[LedgerUpdate]) -> None:
        """Make changed positions durable. For a thread that has held `writing` since it read the old positions.

        Raises:
            OSError: a write failed; it is unknown which of the positions are changed.
        """

    def keep_records(self) -> None:
        """Write the files of the whole bookie to another directory if their disk fails, so that a start without this
        disk finds them. If no other directory takes them, log that. For the collector's thread.
        """

    def seal_logs(self) -> None:
        """Complete the entry logs that are being appended to. On any thread. The next flush begins other logs."""

    def close(self) -> None: ...
