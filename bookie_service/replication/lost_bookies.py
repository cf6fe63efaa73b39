"""Which bookies are lost, and since when for long enough to act. Decisions only.

A bookie is lost while it has a cookie and no registration, writable or read-only. A single lost bookie has
`lostBookieRecoveryDelay` to come back, as in a rolling restart; once a second one is lost, the auditor acts on all of
them at once. An audited bookie is remembered until it comes back.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class AuditDecision:
    """The bookies whose ledgers to list as under-replicated now; and in how many seconds to check again, None: after a
    change."""

    audit: frozenset[str]
    look_after_s: float | None


class LostBookies:
    """Remembers since when each bookie is lost, and for which of them all ledgers have been listed."""

    def __init__(self) -> None:
        self._since_s: dict[str, float] = {}
        """Since when each lost bookie is lost."""
        self._audited: frozenset[str] = frozenset()
        """Lost bookies whose ledgers have been listed; part of `_since_s`."""

    def decide(
        self, known: Collection[str], registered: Collection[str], now_s: float, delay_s: float
    ) -> AuditDecision:
        """Return what to do about the bookies that are lost now; `now_s` is a clock that never goes back."""
        lost = set(known) - set(registered)
        self._since_s = {bookie: self._since_s.get(bookie, now_s) for bookie in lost}
        self._audited &= lost
        waiting = lost - self._audited
        if not waiting:
            return AuditDecision(frozenset(), None)
        oldest_s = min(self._since_s[bookie] for bookie in waiting)
        if len(lost) > 1 or now_s - oldest_s >= delay_s:
            return AuditDecision(frozenset(lost), None)
        return AuditDecision(frozenset(), oldest_s + delay_s - now_s)

    def on_audited(self, lost: Collection[str]) -> None:
        """Every ledger of these bookies is listed."""
        self._audited |= set(lost)

    def forget_audits(self) -> None:
        """Audit all lost bookies again: ledgers may name them since then, or may have been removed from the list."""
        self._audited = frozenset()

    def end_delay(self) -> None:
        """Act on every lost bookie at the next check: an operator requested an audit."""
        self._since_s = dict.fromkeys(self._since_s, float("-inf"))
        self.forget_audits()


def lost_in(
    ensembles: Collection[tuple[str, ...]], lost: Collection[str], known: Collection[str], registered: Collection[str]
) -> list[str]:
    """Return the bookies of a ledger's ensembles whose copies are missing, sorted.

    These are the lost ones, and bookies with neither cookie nor registration: their cookie was removed too early.
    """
    named = {bookie for ensemble in ensembles for bookie in ensemble}
    return sorted(b for b in named if b not in registered and (b in lost or b not in known))
