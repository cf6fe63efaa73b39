"""Decides when a writer sends an explicit LAC to bookies. Decisions only.

An add carries the LAC of the moment when it was sealed, so only the next add confirms the last adds of a burst. If no
add comes within an interval, the writer sends an explicit LAC to all bookies of the ensemble, as readers may ask any of
them. The LAC counts as delivered when Qa bookies of every write set have it durably; otherwise it is sent again an
interval later. There is one round at a time. A new ensemble gets the LAC again.
"""

from __future__ import annotations

from collections.abc import Sequence

from bkspark.core import effects
from bkspark.core.striping import write_set
from bkspark.ids import NO_ENTRY


class ExplicitLac:
    """Decides which LAC is sent, and when. Events: `on_sealed`, `on_interval`, `on_written`, `on_failed`."""

    def __init__(self, ensemble_size: int, write_quorum: int, ack_quorum: int) -> None:
        self._quorums = (ensemble_size, write_quorum, ack_quorum)
        """(E, Qw, Qa) of the ledger. Constant."""
        self._sent = NO_ENTRY
        """The LAC that adds carried, or that is durable at Qa bookies of every write set. Falls for a new ensemble."""
        self._sending = NO_ENTRY
        """The LAC that the last round of requests carried."""
        self._ensemble: tuple[str, ...] = ()
        """The bookies at the last interval; () before the first."""
        self._unanswered = 0
        """How many bookies have not answered in this round. No other round begins before it is 0."""
        self._durable_at: set[int] = set()
        """Slots that have `_sending` durably."""

    def on_sealed(self, lac: int) -> None:
        """The newest adds carry this LAC. A new bookie gets it with those that are pending, which are sent again."""
        self._sent = max(self._sent, lac)

    def on_interval(self, lac: int, ensemble: Sequence[str]) -> list[effects.LacEffect]:
        """An interval is over; `lac` is the writer's."""
        if self._unanswered:
            return []
        if tuple(ensemble) != self._ensemble:
            if self._ensemble:
                self._sent = NO_ENTRY
            self._ensemble = tuple(ensemble)
        if lac <= self._sent:
            return []
        self._sending = lac
        self._unanswered = len(ensemble)
        self._durable_at = set()
        return [effects.WriteLac(slot, bookie, lac) for slot, bookie in enumerate(ensemble)]

    def on_written(self, slot: int) -> None:
        """The bookie in `slot` has the LAC durably."""
        self._durable_at.add(slot)
        self._count_answer()

    def on_failed(self) -> None:
        """A bookie did not accept the LAC, or did not answer in time."""
        self._count_answer()

    def _count_answer(self) -> None:
        self._unanswered -= 1
        size, write_quorum, ack_quorum = self._quorums
        if all(
            sum(slot in self._durable_at for slot in write_set(start, size, write_quorum)) >= ack_quorum
            for start in range(size)
        ):
            self._sent = max(self._sent, self._sending)
