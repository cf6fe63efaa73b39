"""Effects: what a core requests from its driver. They are data; the driver performs a list of them in order.

Each core has its own closed union of effects, at the end of this module.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from bkspark.core.metadata import LedgerMetadata
from bkspark.entries import EntryBatch
from bkspark.errors import BookKeeperError
from bkspark.wire.digest import SealedEntries


@dataclass(frozen=True, slots=True)
class SendAdds:
    """Send entries to the bookie in `slot`: all of `entries`, or those at `positions` in it."""

    slot: int
    bookie: str
    entries: SealedEntries
    positions: np.ndarray | None


@dataclass(frozen=True, slots=True)
class Acknowledge:
    """Every entry up to `last_entry` is acknowledged: durable on Qa bookies, and so are all before it.

    With relaxed durability it is in the page cache of Qa bookies; `Confirm` reports what is durable.
    """

    last_entry: int


@dataclass(frozen=True, slots=True)
class Confirm:
    """The LAC has reached `last_entry`: everything up to it is synced (relaxed durability)."""

    last_entry: int


@dataclass(frozen=True, slots=True)
class Force:
    """Make the bookie in `slot` sync what it acknowledged, on the connection of the adds; then call `on_forced`.

    `number`: number of its round of forces.
    """

    slot: int
    bookie: str
    number: int


@dataclass(frozen=True, slots=True)
class CallAfter:
    """Call `on_tick` after this many nanoseconds, in addition to its regular calls."""

    delay_ns: int


@dataclass(frozen=True, slots=True)
class DropIfSilent:
    """Drop the connection to a bookie if it has received nothing for as long as an answer may take."""

    bookie: str


@dataclass(frozen=True, slots=True)
class FindBookies:
    """Look up the writable bookies and call `on_writable_bookies`.

    `failed`: the bookies that failed since the last such effect; the driver reports them.
    """

    failed: tuple[str, ...] = field(default=(), compare=False)


@dataclass(frozen=True, slots=True)
class WriteMetadata:
    """Store `metadata` if `expected_version` is still stored; then call `on_metadata_written`, `on_metadata_conflict`
    or `on_metadata_failed`."""

    metadata: LedgerMetadata
    expected_version: int


@dataclass(frozen=True, slots=True)
class Fail:
    """The core has failed for good: end all pending work of its user with `error`."""

    error: BookKeeperError


@dataclass(frozen=True, slots=True)
class Fence:
    """Ask the bookie in `slot` to fence the ledger and return its last entry; then call `on_fence_answer`."""

    slot: int
    bookie: str


@dataclass(frozen=True, slots=True)
class RecoveryRead:
    """Read entries with the fencing flag from the bookie in `slot`; then call `on_read_answers`."""

    slot: int
    bookie: str
    entry_ids: np.ndarray


@dataclass(frozen=True, slots=True)
class BackOff:
    """Send nothing to the bookie in `slot` for `delay_ns`, because it refuses load; then call `on_backoff_over`."""

    slot: int
    delay_ns: int


@dataclass(frozen=True, slots=True)
class RewriteEntries:
    """Seal entries with the frozen LAC and pass them to the recovery's writer; report silent bookies to it
    (`on_silent`).

    `silent`: bookies that did not answer a read in time, by slot.
    """

    payloads: EntryBatch
    """Consecutive entries, as they were read."""
    length_before: int
    """Payload bytes of the ledger before the first of them."""
    lac: int
    silent: Mapping[int, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class AbandonRewriting:
    """Recovery begins again: abandon the writer that rewrote entries; the next `RewriteEntries` gets a new one."""


@dataclass(frozen=True, slots=True)
class ReadLength:
    """Determine the cumulative length of `entry_id` by ordinary reads from all its bookies; then call `on_length`."""

    entry_id: int


@dataclass(frozen=True, slots=True)
class Recovered:
    """The ledger is closed, by us or by another recoverer; `metadata` is what is stored."""

    metadata: LedgerMetadata


@dataclass(frozen=True, slots=True)
class LongPoll:
    """Send a long poll: the bookie answers when it knows a LAC above `previous_lac`, after `wait_ns` at the latest.

    Then call `on_polled` or `on_poll_failed`.
    """

    bookie: str
    previous_lac: int
    wait_ns: int


@dataclass(frozen=True, slots=True)
class ProveLac:
    """Ask a bookie for its last entry and its explicit LAC; then call `on_proven` with the LAC that digests prove."""

    bookie: str


@dataclass(frozen=True, slots=True)
class Refresh:
    """Read the metadata, and the LAC from all bookies; then call `on_refreshed` or `on_refresh_failed`."""


@dataclass(frozen=True, slots=True)
class WriteLac:
    """Store an explicit LAC at the bookie in `slot`; then call `on_written` or `on_failed`."""

    slot: int
    bookie: str
    lac: int


WriterEffect = SendAdds | Acknowledge | Confirm | Force | CallAfter | DropIfSilent | FindBookies | WriteMetadata | Fail
"""The effects of `WriterCore`."""
RecoveryEffect = (
    Fence | RecoveryRead | BackOff | RewriteEntries | AbandonRewriting | ReadLength | WriteMetadata | Recovered | Fail
)
"""The effects of `RecoveryCore`."""
TailEffect = LongPoll | ProveLac | Refresh | CallAfter | Fail
"""The effects of `Tail`."""
LacEffect = WriteLac
"""The effects of `ExplicitLac`."""
