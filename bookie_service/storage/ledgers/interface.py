"""What every ledger storage offers the rest of the bookie, and what every index offers the storages.

Apache's three storages stand behind one interface, `LedgerStorage`; `storage_class` makes the one that is configured.
What they share is in `base`. They differ in three places:

* the order in which a flush writes entries to the entry log: by (ledger, entry), or as they arrived;
* the index: a file per ledger, or an embedded key-value store; both are a `LedgerIndex`;
* what a read keeps in memory for the reads that follow it.

Adds, reads and everything else that bookie, replay, checkpoints and garbage collection do goes through these two.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from bkspark.ids import NO_ENTRY
from bookie_service.formats.index import LedgerHeader, decode_lac
from bookie_service.storage.index.index import ENTRIES_END, Extent, LedgerUpdate
from bookie_service.storage.io.byte_source import WAITING, ByteSource
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
            StorageDamaged: there are traces of it, but its header is unreadable.
        """

    def positions(self, ledger_id: int, first_entry: int, count: int) -> np.ndarray:
        """Return positions of `first_entry`, ... as int64, 0 where not held; shorter when nothing is held behind."""

    def last_entry(self, ledger_id: int) -> int:
        """Return the highest entry id with a position, NO_ENTRY when there is none."""

    def extents(self, ledger_id: int, first_entry: int = 0, end_entry: int = ENTRIES_END) -> Iterator[Extent]:
        """Yield (entry id, positions of that entry and those behind it), ascending; the ids between two are not held.

        The cost follows what is held, however far apart the ids lie. Every entry of [first_entry, end_entry) that is
        held when this begins is in one of them; so may be some that are held later. A position is 0 where not held. A
        piece has `EXTENT_ENTRIES` positions at most, and nothing of it stays in memory.
        """

    def close(self) -> None: ...


class LedgerIndex(IndexView, Protocol):
    """Headers and positions of all ledgers of a bookie; reading is for the event loop, `view` for other threads."""

    def view(self, open_files_max: int) -> IndexView:
        """Return a view for another thread, which that one closes; it sees positions as soon as they are held."""

    def ledger_ids(self) -> np.ndarray:
        """Return the ids of all ledgers, lost ones too, int64, ascending. For any thread."""

    def holding_entries(self, ledger_ids: np.ndarray) -> np.ndarray:
        """Return those of the ledgers, ascending, that hold entries, or did before they were lost. For any thread.

        All others are known by their master key, a fence or an explicit LAC alone, which anybody may send.
        """

    def has(self, ledger_id: int) -> bool:
        """Return whether the index knows the ledger, be its header readable or not. For any thread."""

    def absent(self, ledger_ids: np.ndarray) -> np.ndarray:
        """Return which of the ledgers the index certainly never had, bool; False where it takes a closer look."""

    @property
    def notices(self) -> Sequence[str]:
        """Lines for the operator about what was found when it was opened, mostly none."""

    def lost(self, ledger_id: int) -> str:
        """Return what is missing of a ledger although it was durable here, "" for nothing. For any thread."""

    def all_lost(self) -> list[int]:
        """Return the ledgers of which `lost` tells something, all looked at. For any thread."""

    def accept(self, ledger_ids: Collection[int]) -> None:
        """Take what there is of ledgers for all there ever was, durably. For the same thread as `hold`."""

    def disown(self, ledger_ids: Collection[int]) -> None:
        """Note durably that ledgers may be removed, before they are. For the same thread as `hold`.

        Raises:
            OSError: that is not durable. Removed all the same, they count as lost after a crash.
        """

    @property
    def is_clean(self) -> bool:
        """True when all that was held is durable. For any thread."""

    def hold(self, updates: Iterable[LedgerUpdate]) -> None:
        """Take headers and positions; views see the positions at once. For one thread at a time.

        The entry log bytes that positions point to must be durable: what is held may go to the disk at any moment.

        Raises:
            OSError: a write failed; which of the updates are held is unknown.
        """

    def sync(self, names_are_durable: bool = True) -> None:
        """Make all that was held durable. For one thread at a time, the same as for `hold`.

        Args:
            names_are_durable: False in replay: a process that was killed may have written any of it already, so that
                it is there and not durable.

        Raises:
            OSError: a write failed; what is durable is unknown.
        """

    def remove(self, ledger_id: int) -> None:
        """Forget a ledger; the event loop calls it. `sync_removed` makes it durable. It may be unknown."""

    def sync_removed(self, ledger_ids: Collection[int]) -> None:
        """Make the removal of ledgers durable."""


class Ledger:
    """What the bookie holds in memory of one ledger. Changed by the event loop only."""

    __slots__ = (
        "explicit_lac",
        "fence_sequence",
        "fenced",
        "generation",
        "lac_entry",
        "lac_of_entries",
        "lac_sequence",
        "last_entry",
        "ledger_id",
        "master_key",
    )

    def __init__(self, header: LedgerHeader, last_entry: int) -> None:
        self.ledger_id = header.ledger_id
        self.master_key = header.master_key
        self.fenced = header.fenced
        self.generation = header.generation
        self.last_entry = last_entry
        """Highest entry id held, NO_ENTRY for none."""
        self.explicit_lac = header.explicit_lac
        """The explicit LAC packet with the highest LAC, b"" for none."""
        self.fence_sequence = 0
        """Journal sequence number of the fence; 0: durable since before this process served."""
        self.lac_sequence = 0
        """The same of the explicit LAC."""
        self.lac_of_entries = NO_ENTRY
        """The highest LAC that an entry named, as far as they were looked at: up to `lac_entry`."""
        self.lac_entry = NO_ENTRY

    def note_lac(self, lac: int) -> None:
        """Take the LAC that the last entry names; a writer's never goes back."""
        self.lac_of_entries = max(self.lac_of_entries, lac)
        self.lac_entry = self.last_entry

    @property
    def known_lac(self) -> int:
        """The highest LAC that entries, as far as `lac_entry`, and the explicit LAC name."""
        explicit = decode_lac(self.explicit_lac)[1] if self.explicit_lac else NO_ENTRY
        return max(self.lac_of_entries, explicit)


@dataclass(slots=True)
class Flush:
    """A full half and the headers that changed before it was taken, on their way to entry logs and index.

    advances_checkpoint: the index is synced after it, so that the marks may move; else positions and headers may
        stay in memory, and the journal keeps what they say.
    positions: where its entries lie in entry logs, durably; None as long as they do not. A flush that is tried again
        goes on behind what is done.
    is_held: the index has all of it; from then on garbage collection may move the positions.
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


class LedgerStorage(Protocol):
    """All ledgers of a bookie. The event loop calls everything but what names another thread."""

    logs: EntryLogs
    index: LedgerIndex
    tombstones: Tombstones
    limbo: Limbo
    active: MemTable
    """The half of the write cache that entries are added to."""
    writing: threading.Lock
    """Held while the index is written: a flush, or a move of positions."""

    # ---- ledgers ----

    def ledger(self, ledger_id: int) -> Ledger | None:
        """Return the ledger, None when this bookie certainly never held it.

        Raises:
            StorageDamaged: there are traces of it, but its header is unreadable.
            OSError: the index cannot be read.
        """

    def absent(self, ledger_ids: np.ndarray) -> np.ndarray:
        """Return of which ledgers this bookie certainly never held anything, bool; False where `ledger` must tell."""

    def create_ledger(self, ledger_id: int, master_key: bytes) -> Ledger:
        """Return a new ledger, or an existing one with its key replaced; the caller journals the key."""

    def fence(self, ledger: Ledger) -> None:
        """Bar the ledger against ordinary adds; the caller journals the fence."""

    def advance_lac(self, ledger: Ledger, packet: bytes) -> bool:
        """Keep an explicit LAC; False when one at least as high is kept already. The caller journals the packet.

        Raises:
            ValueError: `packet` is no explicit LAC of this ledger.
        """

    # ---- entries ----

    def insert(self, ledger: Ledger, entry_ids: np.ndarray, addresses: np.ndarray) -> None:
        """Hold entries that lie at `addresses` of the active half."""

    def add_single(self, ledger: Ledger, entry_id: int, octets: np.ndarray, at: int, size: int) -> memoryview:
        """Copy an entry into the active half, where it fits, and hold it; return its item there (`MemTable`)."""

    def read(
        self, ledger: Ledger, first_entry: int, count_max: int, bytes_max: int, source: ByteSource = WAITING
    ) -> list[FramedEntries]:
        """Return runs of consecutive entries from `first_entry` on, as far as held; empty when that one is not held.

        At least one entry, then as many as `count_max` and `bytes_max` bytes of items allow. Ends early before an entry
        that cannot be read, unless it is the first. What `source` lends is lent: see there.

        Raises:
            StorageDamaged, OSError: the first entry is held but cannot be read.
            NotCached: `source` does not wait, and the first entry is not at hand.
        """

    def locate(self, ledger: Ledger, first_entry: int, count_max: int, bytes_max: int) -> Located | None:
        """Return where consecutive entries from `first_entry` on lie in one entry log, ascending.

        At most `count_max`, whose items begin within `bytes_max` bytes. None where an ordinary read would not give the
        first one from an entry log; the run ends before an entry of which that is so.

        Raises:
            StorageDamaged, OSError: as `read`; but what lies in the log is not looked at.
        """

    def waiting_entries(self, ledger: Ledger) -> list[np.ndarray]:
        """Return ascending arrays of ids, int64, that together have the entries that wait to be flushed.

        Whatever else is held is in the index when this returns, and stays there.
        """

    # ---- flushing: begin and end on the event loop, write on the checkpoint thread, one at a time ----

    @property
    def is_clean(self) -> bool:
        """True when nothing waits to be flushed, and the marks stand behind all that was."""

    @property
    def is_flushing(self) -> bool:
        """True between `begin_flush` and `end_flush`."""

    @property
    def waiting_bytes(self) -> int:
        """How many bytes of items are not known to be in an entry log."""

    def begin_flush(self, *, advances_checkpoint: bool = True) -> Flush | None:
        """Take the active half and the changed headers out to be flushed; None while another flush runs.

        The flush moves the mark also when that was not asked for, if otherwise too much would depend on the journal.
        """

    def write_flush(self, flush: Flush, *, names_are_durable: bool = True) -> None:
        """Make entries durable in entry logs, then let the index hold their positions; sync it if the mark moves.

        `names_are_durable` is False in replay, see `LedgerIndex.sync`.

        Raises:
            OSError: a write failed, and the mark must not move. Where there was no space (`files.is_out_of_space`) the
                same flush can be tried again; after any other error the storage must not be used.
        """

    def end_flush(self, flush: Flush) -> None:
        """Forget what a flush wrote; from now on it is read from entry logs. The marks have moved if they should."""

    # ---- dropping and moving, for garbage collection ----

    def in_doubt(self, ledger_ids: np.ndarray) -> np.ndarray:
        """Return those of the ledgers of which entries may lie in entry logs without a position in the index.

        They are in limbo, or their index is lost or cut. For any thread.
        """

    def any_in_doubt(self) -> bool:
        """Return whether there is any such ledger; looks at all. For any thread."""

    def droppable(self, ledger_ids: Sequence[int]) -> list[tuple[int, bool]]:
        """Return (ledger id, is fenced) of those ledgers of which everything lies before the marks.

        A ledger counts as fenced when that cannot be told: its header is unreadable, or it is in doubt.
        """

    def prepare_drop(self, ledger_ids: Sequence[int], fenced: Sequence[int], now_s: int) -> None:
        """Note durably that ledgers may go, and which of them were fenced; on the collector's thread, before `drop`.

        Raises:
            OSError: the fenced ones are not noted, and must stay.
        """

    def end_limbo(self, ledger_ids: Sequence[int]) -> None:
        """Let ledgers out of limbo, durably; on any thread. Raises OSError: some are still in it."""

    def drop(self, ledger_ids: Sequence[int]) -> list[int]:
        """Remove ledgers that are still droppable; return them. `LedgerIndex.sync_removed` makes it durable.

        The entries go when their entry logs do.
        """

    def forget_log(self, log_id: int) -> None:
        """Read no more from a log to which no position points."""

    def move(self, updates: Sequence[LedgerUpdate]) -> None:
        """Make changed positions durable, on any thread that has held `writing` since it read the old ones.

        Raises:
            OSError: a write failed; which of the positions are changed is unknown.
        """

    def seal_logs(self) -> None:
        """Complete the entry logs that are being appended to, on any thread; the next flush begins others."""

    def close(self) -> None: ...
