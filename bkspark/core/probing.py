"""Probe and Trial: how a bookie that a writer left out comes back: a probe of one entry after a pause, then a trial.

The pause doubles with each failed probe. On trial a bookie gets new entries as fast as it answers for them: at most one
window is in flight to it, so it uses at most the window's memory, whatever it does.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

NOT_SENT = -1
TRIAL_ENTRIES_MAX = 1024
TRIAL_BYTES_MAX = 4 * 1024 * 1024
"""Limits of what may be in flight to a bookie on trial."""
TRIAL_PACE_MIN = 4
"""A bookie passes when it has answered for at least one in this many of the entries that its slot stores."""
FORGIVEN_PAUSES = 4
"""After a bookie took part for this many of the longest pauses, its next pause is the shortest again."""


@dataclass(frozen=True, slots=True)
class Pauses:
    """`least_ns`, `most_ns`: the shortest and the longest pause before a probe."""

    least_ns: int
    most_ns: int


@dataclass(frozen=True, slots=True)
class Probe:
    """The probes of one slot: the next is due at `due_ns`, or one went out at `sent_ns` with entry `entry_id`.

    `returned_ns`: when the bookie took part again; None: it is left out.
    """

    pause_ns: int
    """The pause before this probe. It doubles after each probe that fails."""
    due_ns: int
    sent_ns: int = NOT_SENT
    entry_id: int = NOT_SENT
    returned_ns: int | None = None

    @property
    def is_under_way(self) -> bool:
        return self.sent_ns != NOT_SENT

    @classmethod
    def begun(cls, before: Probe | None, pauses: Pauses, now_ns: int) -> Probe:
        """Return the first probe of a bookie that is left out now; `before`: its last probe, None if it had none."""
        pause_ns = pauses.least_ns
        back_ns = None if before is None else before.returned_ns
        if before is not None and back_ns is not None and now_ns - back_ns < FORGIVEN_PAUSES * pauses.most_ns:
            pause_ns = min(2 * before.pause_ns, pauses.most_ns)
        return cls(pause_ns, now_ns + pause_ns)

    def sent(self, entry_id: int, now_ns: int) -> Probe:
        """Return the state after the probe was sent."""
        return replace(self, sent_ns=now_ns, entry_id=entry_id)

    def failed(self, pauses: Pauses, now_ns: int) -> Probe:
        """Return the state after the probe was not answered, or answered with an error."""
        pause_ns = min(2 * self.pause_ns, pauses.most_ns)
        return Probe(pause_ns, now_ns + pause_ns)

    def due(self, now_ns: int) -> Probe:
        """Return the state with the next probe due at once: the bookie has registered again."""
        return self if self.is_under_way else replace(self, due_ns=now_ns)

    def answered(self, now_ns: int) -> Probe:
        """Return the state after the bookie answered the probe: it takes part again."""
        return Probe(self.pause_ns, self.due_ns, returned_ns=now_ns)


@dataclass(frozen=True, slots=True)
class Trial:
    """A trial of one slot.

    since_ns: when it began. first_rank: the rank, among the slot's entries, of the first one in the trial. sent: how
    many entries were sent to it in the trial.
    """

    since_ns: int
    first_rank: int
    sent: int = 0

    def has_room(self, outstanding: int, count: int, size_bytes: int) -> bool:
        """Return whether a further batch of this many entries and bytes may be sent."""
        entries_max = min(TRIAL_ENTRIES_MAX, TRIAL_BYTES_MAX * count // max(1, size_bytes))
        return outstanding == 0 or outstanding + count <= entries_max

    def with_sent(self, count: int) -> Trial:
        """Count entries that were sent."""
        return replace(self, sent=self.sent + count)

    def has_kept_up(self, rank: int, outstanding: int) -> bool:
        """Return whether enough is answered, when the next entry has this rank."""
        return (self.sent - outstanding) * TRIAL_PACE_MIN >= rank - self.first_rank or outstanding == 0
