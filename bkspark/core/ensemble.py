"""EnsembleChange: which bookies a writer replaces, by which others, and the metadata to store. Decisions only.

A change begins at LAC + 1. From the decision until the compare-and-set has succeeded, nothing is acknowledged, so the
LAC cannot move, and no entry goes to a new bookie. In a recovery, changes stay local: only the compare-and-set that
closes the ledger publishes them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from bkspark.core import effects
from bkspark.core.metadata import Fragment, LedgerMetadata, change_ensemble
from bkspark.core.placement import RandomSource, Topology, choose_replacements
from bkspark.core.slots import Slot, Slots


class EnsembleChange:
    """The ensemble changes of one writer, one after the other."""

    def __init__(
        self, slots: Slots, fragments: tuple[Fragment, ...], random: RandomSource, *, is_published: bool
    ) -> None:
        self.fragments = fragments
        """The ledger's fragments with the changes that are in force. Set by `adopt`. Only a recovery needs them:
        elsewhere the stored metadata have the changes, and those of re-replication, too."""
        self.is_published = is_published
        """Whether a change takes effect only when it is stored; in recovery it takes effect at once. Constant."""
        self._slots = slots
        """The writer's. This class changes their `needs_replacement` and `is_reported` alone."""
        self._random = random
        """Chooses among bookies. Constant."""
        self._proposed: tuple[str, ...] = ()
        """The ensemble that `choose` decided last; () before that."""
        self._is_finding = False
        """Whether a `FindBookies` is unanswered. Set by `find`, cleared by `end_search`."""
        self._is_seeking = False
        """Whether that look-up only seeks spares for bookies that are left out, so that nothing waits for it."""

    @property
    def is_finding(self) -> bool:
        """Whether bookies are being looked up."""
        return self._is_finding

    def find(self, failed: Iterable[Slot], *, is_seeking: bool = False) -> list[effects.WriterEffect]:
        """Look up replacements for the bookies in some slots, unless a look-up is under way.

        Args:
            is_seeking: the writer continues without them meanwhile.
        """
        if self._is_finding:
            return []
        self._is_finding = True
        self._is_seeking = is_seeking
        reported = []
        for slot in failed:
            if not slot.is_reported:
                slot.is_reported = True
                reported.append(slot.bookie)
        return [effects.FindBookies(tuple(reported))]

    def end_search(self) -> bool:
        """Record that the look-up has ended, with or without success; return whether nothing waited for it."""
        is_seeking, self._is_finding, self._is_seeking = self._is_seeking, False, False
        return is_seeking

    def choose(self, writable: Collection[str], topology: Topology) -> bool:
        """Choose bookies for the slots that need one, as far as spares exist; return whether any was chosen."""
        wanted = {slot.number for slot in self._slots.to_replace}
        ensemble = self._slots.ensemble
        chosen = choose_replacements(ensemble, wanted, writable, self._slots.write_quorum, self._random, topology)
        if chosen:
            self._proposed = tuple(chosen.get(number, bookie) for number, bookie in enumerate(ensemble))
        return bool(chosen)

    def changed(self, lac: int) -> tuple[Fragment, ...]:
        """Return the fragments with the proposed ensemble from LAC + 1 on."""
        return change_ensemble(self.fragments, lac + 1, self._proposed)

    def proposal(self, metadata: LedgerMetadata, lac: int) -> LedgerMetadata:
        """Return the metadata with the proposed ensemble from LAC + 1 on."""
        return metadata.with_ensemble(lac + 1, self._proposed)

    def is_ours(self, theirs: Fragment, lac: int) -> bool:
        """Return whether the last stored fragment is the proposed one."""
        return theirs == Fragment(lac + 1, self._proposed)

    def adopt(self, fragments: tuple[Fragment, ...]) -> list[tuple[Slot, str]]:
        """Put the proposed ensemble into effect; return the slots that get another bookie, with that bookie."""
        self.fragments = fragments
        return [(slot, bookie) for slot, bookie in zip(self._slots.all, self._proposed) if slot.bookie != bookie]

    def give_up(self) -> None:
        """Give up the change: no slot gets another bookie."""
        for slot in self._slots.all:
            slot.needs_replacement = False
