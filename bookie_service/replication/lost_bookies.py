"""Which bookies are lost, and for long enough to act. Decisions only.

A bookie is lost while it has a cookie but is registered neither as writable nor as read-only. The lost bookies of one
host have `lostBookieRecoveryDelay` to come back, as in a rolling restart: they go and come together when the host
restarts, and placement regards the host as one failure domain. When a bookie of another host is lost, too, the auditor
acts on all of them at once. An audited bookie is remembered until it comes back.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class AuditDecision:
    """What to do now.

    audit: bookies whose ledgers must be listed as under-replicated.
    look_after_s: in how many seconds to check again; None: after a change.
    """

    audit: frozenset[str]
    look_after_s: float | None


class LostBookies:
    """Remembers since when each bookie is lost, and for which bookies all ledgers have been listed."""

    def __init__(self) -> None:
        self._since_s: dict[str, float] = {}
        """Since when each lost bookie is lost."""
        self._audited: frozenset[str] = frozenset()
        """Lost bookies whose ledgers have all been listed; a subset of the keys of `_since_s`."""

    def decide(
        self,
        known: Collection[str],
        registered: Collection[str],
        now_s: float,
        delay_s: float,
        host_of: Callable[[str], str],
    ) -> AuditDecision:
        """Return what to do about the bookies that are lost now.

        Args:
            now_s: from a clock that never goes back.
            host_of: returns the host of a bookie.
        """
        lost = set(known) - set(registered)
        self._since_s = {bookie: self._since_s.get(bookie, now_s) for bookie in lost}
        self._audited &= lost
        waiting = lost - self._audited
        if not waiting:
            return AuditDecision(frozenset(), None)
        oldest_s = min(self._since_s[bookie] for bookie in waiting)
        if len(set(map(host_of, lost))) > 1 or now_s - oldest_s >= delay_s:
            return AuditDecision(frozenset(lost), None)
        return AuditDecision(frozenset(), oldest_s + delay_s - now_s)

    def on_audited(self, lost: Collection[str]) -> None:
        """Note that every ledger of these bookies is listed."""
        self._audited |= set(lost)

    def forget_audits(self) -> None:
        """Audit all lost bookies again, because ledgers may since name them, or may have been removed from the list."""
        self._audited = frozenset()

    def end_delay(self) -> None:
        """Act on every lost bookie at the next check, because an operator requested an audit."""
        self._since_s = dict.fromkeys(self._since_s, float("-inf"))
        self.forget_audits()


def lost_in(
    ensembles: Collection[tuple[str, ...]], lost: Collection[str], known: Collection[str], registered: Collection[str]
) -> list[str]:
    """Return the bookies of a ledger's ensembles whose copies are missing, sorted.

    These are lost bookies, and bookies with neither cookie nor registration, whose cookie was removed too early.
    """
    named = {bookie for ensemble in ensembles for bookie in ensemble}
    return sorted(b for b in named if b not in registered and (b in lost or b not in known))
