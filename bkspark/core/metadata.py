"""Ledger metadata: an immutable value and its legal changes.

States go OPEN -> IN_RECOVERY -> CLOSED, or OPEN -> CLOSED by the writer; CLOSED is final. A change returns a new
value; storing it is a compare-and-set on the version that the metadata store gave with the old one.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from bkspark.ids import ENTRY_ID_MAX, LAST_ENTRY_MAX, NO_ENTRY, check_bookie_id
from bkspark.wire.digest import DigestType
from bkspark.wire.lac import LacBounds

LEDGER_TYPE_KEY = "bkspark.ledgerType"
"""Key of the custom metadata that names a ledger's type if it is not PD_JOURNAL. Apache's clients keep it and ignore
it."""

LENGTH_MAX = (1 << 63) - 1
"""The largest length of a ledger that metadata can hold, in payload bytes."""
MEMBERS_MAX = 1000
"""The largest ensemble that metadata may name: more than any real one, and few enough for a client to ask all of
them."""


class LedgerType(enum.Enum):
    """What an acknowledged add of a ledger means, constant for the ledger's life; the value is that in its metadata.

    PD_JOURNAL: it is durable (persistent durability). VD_JOURNAL: it is in page caches, and durable after a sync
    (volatile). VD_BYPASS_JOURNAL: in the bookies' memory until a sync; each byte is stored once.
    """

    PD_JOURNAL = "PD_JOURNAL"
    VD_JOURNAL = "VD_JOURNAL"
    VD_BYPASS_JOURNAL = "VD_BYPASS_JOURNAL"

    @property
    def is_relaxed(self) -> bool:
        """Whether an acknowledged add may be lost until it is synced."""
        return self is not LedgerType.PD_JOURNAL


class LedgerState(enum.Enum):
    """Where a ledger is in its life; the numbers are those of Apache's metadata."""

    OPEN = 1
    IN_RECOVERY = 2
    CLOSED = 3


@dataclass(frozen=True, slots=True)
class Fragment:
    """A run of entries from `first_entry` that one ensemble stores, until the next fragment begins.

    `unknown_fields`: as LedgerMetadata's.
    """

    first_entry: int
    bookies: tuple[str, ...]
    """The ensemble, in order of its slots."""
    unknown_fields: bytes = field(default=b"", repr=False)


@dataclass(frozen=True)
class LedgerMetadata:
    """What the metadata store knows of one ledger.

    Invariants, checked at construction: MEMBERS_MAX >= E (`ensemble_size`) >= Qw >= Qa >= 1; at least one fragment;
    each fragment has E members, none twice; first entries strictly ascend from 0 and fit 63 bits; `last_entry` is -1
    unless CLOSED, then -1 .. LAST_ENTRY_MAX; the length is 0 unless CLOSED, and fits 63 bits. `unknown_fields`: fields
    that a later peer added to the stored form, kept unchanged.

    Raises:
        ValueError: an invariant does not hold (the message says which).
    """

    ensemble_size: int
    write_quorum: int
    ack_quorum: int
    fragments: tuple[Fragment, ...]
    state: LedgerState = LedgerState.OPEN
    last_entry: int = NO_ENTRY
    length: int = 0
    digest: DigestType = DigestType.CRC32C
    password: bytes | None = field(default=b"", repr=False)
    """The ledger's password; None: format 1 does not store it, and only bookies can check it."""
    custom_metadata: Mapping[str, bytes] = field(default_factory=dict)
    """What the creator stored with the ledger, by name."""
    ctime: int | None = None
    """When it was created, in ms since 1970, by its creator; None: unknown."""
    ctoken: int = 0
    """A random number from its creation on until the first change; 0: none. Apache's clients have it, too."""
    format_version: int = 3
    """The version of the stored form: 1 and 2 are text, 3 is protobuf."""
    unknown_fields: bytes = field(default=b"", repr=False)
    creation: int = field(default=0, repr=False, compare=False)
    """Which node of the metadata store they come from (`bkspark.metadata.tree.Stat`); 0: unknown. Not stored."""

    def __post_init__(self) -> None:
        check_quorums(self.ensemble_size, self.write_quorum, self.ack_quorum)
        if self.ensemble_size > MEMBERS_MAX:
            raise ValueError(f"an ensemble of {self.ensemble_size} bookies is above the limit of {MEMBERS_MAX}")
        if not self.fragments or self.fragments[0].first_entry != 0:
            raise ValueError("the first fragment of a ledger begins at entry 0")
        previous = NO_ENTRY
        for fragment in self.fragments:
            if fragment.first_entry <= previous:
                raise ValueError(f"fragments do not ascend: {fragment.first_entry} after {previous}")
            if len(fragment.bookies) != self.ensemble_size:
                raise ValueError(f"a fragment has {len(fragment.bookies)} bookies, E is {self.ensemble_size}")
            if len(set(fragment.bookies)) != self.ensemble_size:
                # One answer would count twice, in a quorum and in coverage.
                raise ValueError(f"the fragment from entry {fragment.first_entry} names a bookie twice")
            previous = fragment.first_entry
            for bookie in fragment.bookies:
                check_bookie_id(bookie)
        if self.state is not LedgerState.CLOSED and (self.last_entry != NO_ENTRY or self.length):
            raise ValueError("only a closed ledger has a last entry and a length")
        if previous > ENTRY_ID_MAX or not NO_ENTRY <= self.last_entry <= LAST_ENTRY_MAX:
            raise ValueError(f"its last entry {self.last_entry} or last fragment, at {previous}, is not an entry's id")
        if not 0 <= self.length <= LENGTH_MAX:
            raise ValueError(f"its length of {self.length} bytes is not in 0 .. {LENGTH_MAX}")
        object.__setattr__(self, "custom_metadata", MappingProxyType(dict(self.custom_metadata)))

    def __reduce__(self) -> tuple[object, ...]:
        # A MappingProxyType cannot be pickled.
        values = {name: getattr(self, name) for name in self.__dataclass_fields__}
        values["custom_metadata"] = dict(self.custom_metadata)
        return (type(self), tuple(values.values()))

    @property
    def type_name(self) -> str:
        """The name of the ledger's type: a LedgerType's, or one that only a later version knows."""
        return self.custom_metadata.get(LEDGER_TYPE_KEY, b"PD_JOURNAL").decode(errors="replace")

    @property
    def is_closed(self) -> bool:
        return self.state is LedgerState.CLOSED

    @property
    def lac_bounds(self) -> LacBounds:
        """The bounds on the LAC that an entry of the ledger may carry; see `bkspark.wire.lac`."""
        if self.state is LedgerState.CLOSED:
            return LacBounds(self.last_entry, self.last_entry)
        # All entries before the last fragment were confirmed when it began.
        return LacBounds(self.last_fragment.first_entry - 1)

    @property
    def last_fragment(self) -> Fragment:
        return self.fragments[-1]

    def fragment_of(self, entry_id: int) -> Fragment:
        """Return the fragment that names the bookies of one entry, entry_id >= 0."""
        for fragment in reversed(self.fragments):
            if fragment.first_entry <= entry_id:
                return fragment
        raise ValueError(f"entry {entry_id} is negative")

    def in_recovery(self) -> LedgerMetadata:
        if self.state is LedgerState.CLOSED:
            raise ValueError("a closed ledger stays closed")
        return replace(self, state=LedgerState.IN_RECOVERY)

    def closed(self, last_entry: int, length: int, fragments: Sequence[Fragment] | None = None) -> LedgerMetadata:
        """Return the ledger closed at `last_entry` with `length` payload bytes, optionally with new fragments."""
        if self.state is LedgerState.CLOSED:
            raise ValueError("a closed ledger stays closed")
        return replace(
            self,
            state=LedgerState.CLOSED,
            last_entry=last_entry,
            length=length,
            fragments=self.fragments if fragments is None else tuple(fragments),
        )

    def with_ensemble(self, first_entry: int, bookies: Sequence[str]) -> LedgerMetadata:
        """Return the ledger with `bookies` from `first_entry` on (LAC + 1 of an ensemble change).

        It replaces the last fragment if that begins at the same entry; otherwise it appends one.
        """
        return replace(self, fragments=change_ensemble(self.fragments, first_entry, bookies))


def change_ensemble(fragments: Sequence[Fragment], first_entry: int, bookies: Sequence[str]) -> tuple[Fragment, ...]:
    """Return fragments whose last one is `bookies` from `first_entry`.

    Raises:
        ValueError: `first_entry` is before the last fragment.
    """
    last = fragments[-1]
    if first_entry < last.first_entry:
        raise ValueError(f"entry {first_entry} lies before the last fragment, at {last.first_entry}")
    kept = tuple(fragments[:-1]) if first_entry == last.first_entry else tuple(fragments)
    return (*kept, Fragment(first_entry, tuple(bookies)))


def check_quorums(ensemble_size: int, write_quorum: int, ack_quorum: int) -> None:
    """Raise ValueError unless E >= Qw >= Qa >= 1."""
    if ack_quorum < 1:
        raise ValueError(f"ack quorum {ack_quorum} is below 1")
    if write_quorum < ack_quorum:
        raise ValueError(f"write quorum {write_quorum} is below ack quorum {ack_quorum}")
    if ensemble_size < write_quorum:
        raise ValueError(f"ensemble size {ensemble_size} is below write quorum {write_quorum}")
