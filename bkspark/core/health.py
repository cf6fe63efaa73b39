"""Judges whether a cluster is healthy, and whether one of its bookies may be stopped, from given facts. Decisions only.

A cluster is degraded if something needs an operator, or if one more failure could cost data or stop writers. Each
reason has a code for programs, a line of text, and a subject: the bookie or the cluster that it is about.

A bookie may be stopped if every entry that it holds keeps a copy on another bookie that answers, if every open ledger
keeps enough of them to be recovered, and if enough writable bookies remain for the ledgers that are being written.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from heapq import nsmallest

from bkspark.core.copies import holders, names
from bkspark.core.metadata import LedgerMetadata, LedgerState
from bkspark.one_line import one_line

FULL_SHARE = 0.95
"""Share of a bookie's disks above which it is about to refuse entries."""
EXAMPLES_MAX = 3
UNHEALTHY_CODES = (
    "bookie_down",
    "bookie_unreachable",
    "bookie_readonly",
    "bookie_disk_full",
    "bookie_index_limited",
    "no_writable_bookie",
    "underreplicated",
    "autorecovery_disabled",
    "no_auditor",
)
"""The codes of `reasons`."""
STOP_CODES = (
    "last_copy",
    "recovery_quorum",
    "too_few_bookies",
    "unreadable_ledgers",
    "unreadable_plans",
    "unknown_bookie",
)
"""The codes of `StopCheck.reasons`."""
AVAILABLE, READ_ONLY, DOWN = "available", "readonly", "down"


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a cluster is degraded, or why a bookie may not be stopped."""

    code: str
    """For programs: one of UNHEALTHY_CODES or STOP_CODES."""
    text: str
    """One line for people. It names the bookie and, where there is one, the remedy."""
    subject: str = ""
    """The bookie that it is about; "": the whole cluster."""


@dataclass(frozen=True, slots=True)
class BookieFacts:
    """What is known of the bookie `id`.

    problem: why it does not answer, "" if it does. free_bytes, total_bytes: of its disks, None if not known. reason:
    why it is read-only, "" if it does not say why; Apache's bookies never do. index_problem: of which ledgers its index
    fails or takes no changes, "" if it does not say so.
    """

    id: str
    state: str
    """AVAILABLE, READ_ONLY or DOWN, as registered."""
    problem: str = ""
    free_bytes: int | None = None
    total_bytes: int | None = None
    reason: str = ""
    index_problem: str = ""

    @property
    def serves(self) -> bool:
        """Whether its copies can be read now."""
        return self.state != DOWN and not self.problem


@dataclass(frozen=True, slots=True)
class ClusterFacts:
    """What is known of a cluster. underreplicated: how many ledgers are listed as lacking copies."""

    bookies: Sequence[BookieFacts]
    """All known bookies, those that are down included."""
    underreplicated: int
    is_auto_recovery_enabled: bool
    """False: an operator has turned repair off for the whole cluster."""
    auditor: str | None
    """The identity of the elected auditor; None: there is none."""


def reasons(facts: ClusterFacts) -> list[Reason]:
    """Return why a cluster is degraded; [] if it is healthy."""
    found = [reason for bookie in facts.bookies for reason in _of_bookie(bookie)]
    if not any(bookie.state == AVAILABLE and bookie.serves for bookie in facts.bookies):
        found.append(Reason("no_writable_bookie", "no bookie takes writes: start one, or free disk space"))
    if facts.underreplicated:
        text = f"{facts.underreplicated} ledgers are listed as lacking copies"
        found.append(Reason("underreplicated", text))
    if not facts.is_auto_recovery_enabled:
        text = "autorecovery is disabled: lost copies are not replaced; `bkspark cluster autorecovery --enable`"
        found.append(Reason("autorecovery_disabled", text))
    if facts.auditor is None and (facts.underreplicated or any(each.state == DOWN for each in facts.bookies)):
        text = "no process audits or repairs: set autoRecoveryDaemonEnabled, or run `bkspark cluster autorecovery`"
        found.append(Reason("no_auditor", text))
    return found


def _of_bookie(bookie: BookieFacts) -> Iterable[Reason]:
    if bookie.state == DOWN:
        yield Reason("bookie_down", f"bookie {bookie.id} is not registered: it does not run", bookie.id)
    elif bookie.problem:
        text = f"bookie {bookie.id} is registered and does not answer: {one_line(bookie.problem)}"
        yield Reason("bookie_unreachable", text, bookie.id)
    elif bookie.state == READ_ONLY:
        because = f": {one_line(bookie.reason)}" if bookie.reason else ""
        yield Reason("bookie_readonly", f"bookie {bookie.id} is read-only{because}", bookie.id)
    if bookie.serves and bookie.index_problem:
        text = f"bookie {bookie.id} does not serve all its ledgers: {one_line(bookie.index_problem)}"
        yield Reason("bookie_index_limited", text, bookie.id)
    if bookie.total_bytes and bookie.free_bytes is not None:
        used = 1 - bookie.free_bytes / bookie.total_bytes
        if used > FULL_SHARE:
            yield Reason("bookie_disk_full", f"bookie {bookie.id} uses {100 * used:.1f} % of its disks", bookie.id)


class StopCheck:
    """Whether a bookie may be stopped: `add` each ledger, then ask for `reasons`."""

    def __init__(
        self,
        bookie: str,
        bookies: Collection[BookieFacts],
        leaving: Collection[str] = (),
        unknown_plans: Collection[str] = (),
    ) -> None:
        """Begin with no ledger.

        Args:
            leaving: bookies in maintenance, which operators may stop at any moment: their copies do not count.
            unknown_plans: bookies whose plan cannot be read. They follow the last one that they read, so they may be
                in maintenance.
        """
        self._unknown_plans = sorted({*unknown_plans} - {bookie})
        """The other bookies whose plan cannot be read. Constant."""
        gone = {bookie, *leaving, *unknown_plans}
        self._bookie = bookie
        """The bookie to stop. Constant."""
        self._known = any(each.id == bookie for each in bookies)
        """Whether the cluster knows `_bookie`. Constant."""
        self._serving = frozenset(each.id for each in bookies if each.serves and each.id not in gone)
        """The other bookies that answer and stay. Constant."""
        self._writable = frozenset(each.id for each in bookies if each.state == AVAILABLE) & self._serving
        """The bookies in `_serving` that accept writes. Constant."""
        self._last_copies: list[int] = []
        """Ledgers with entries that no other serving bookie has. Grows in `add`."""
        self._unrecoverable: list[int] = []
        """Open ledgers that could not be recovered without the bookie. Grows in `add`."""
        self._unreadable: list[int] = []
        """Ledgers whose metadata cannot be read. Grows in `unreadable`."""
        self._widest = 0
        """The largest ensemble of an open ledger. Grows in `add`."""
        self.ledgers = 0
        """How many ledgers the bookie has entries of. Grows in `add`."""

    def unreadable(self, ledger_id: int) -> None:
        """Note a ledger whose metadata cannot be read."""
        self._unreadable.append(ledger_id)

    def add(self, ledger_id: int, metadata: LedgerMetadata, lacking: Collection[str] = ()) -> None:
        """Take a ledger into account. `lacking`: bookies that are listed as lacking copies of it."""
        if not metadata.is_closed:
            self._widest = max(self._widest, metadata.ensemble_size)
        if not names(metadata, self._bookie):
            return
        serving = self._serving.difference(lacking) if lacking else self._serving
        # Recovery needs an answer from at least one member of every possible acknowledgement quorum. All entries of
        # earlier fragments are confirmed, except those that a recovery may be copying.
        needed = metadata.write_quorum - metadata.ack_quorum + 1
        is_named = is_last_copy = is_unrecoverable = False
        for fragment, members in holders(metadata):
            if self._bookie not in members:
                continue
            is_named = True
            others = sum(member in serving for member in members)
            is_last_copy |= not others
            is_open = fragment == metadata.last_fragment or metadata.state is LedgerState.IN_RECOVERY
            is_unrecoverable |= is_open and others < needed
        self.ledgers += is_named
        if is_last_copy:
            self._last_copies.append(ledger_id)
        elif is_unrecoverable and not metadata.is_closed:
            self._unrecoverable.append(ledger_id)

    def reasons(self) -> list[Reason]:
        """Return why the bookie may not be stopped; [] if it may."""
        found = []
        if not self._known:
            found.append(Reason("unknown_bookie", f"there is no bookie {self._bookie}", self._bookie))
        if self._last_copies:
            others = "any other bookie that answers and is not in maintenance"
            text = f"{_some(self._last_copies)} would have entries without a copy on {others}"
            found.append(Reason("last_copy", text, self._bookie))
        if self._unrecoverable:
            text = f"{_some(self._unrecoverable)} are open and could not be recovered if their writer died"
            found.append(Reason("recovery_quorum", text, self._bookie))
        if self._unreadable:
            text = f"metadata of {_some(self._unreadable)} cannot be read: whether they keep a copy is not known"
            found.append(Reason("unreadable_ledgers", text, self._bookie))
        for other in self._unknown_plans:
            text = (
                f"the plan of bookie {other} cannot be read: it may be in maintenance, so its copies do not count; "
                f"`bkspark cluster plans --end {other}` removes the plan"
            )
            found.append(Reason("unreadable_plans", text, other))
        if len(self._writable) < self._widest:
            text = (
                f"{len(self._writable)} writable bookies would remain, and there are open ledgers that need "
                f"{self._widest}: a writer that loses one cannot replace it"
            )
            found.append(Reason("too_few_bookies", text, self._bookie))
        return found


def _some(ledger_ids: Sequence[int]) -> str:
    examples = ", ".join(map(str, nsmallest(EXAMPLES_MAX, ledger_ids)))
    return f"{len(ledger_ids)} ledgers ({examples}{', ...' if len(ledger_ids) > EXAMPLES_MAX else ''})"
