"""Quarantine: which bookies have failed too often recently and should receive no new entries.

A failure is any reason for which a writer replaces a bookie: it is unreachable, drops its connection, answers with an
error, does not answer within the add time-out, refuses load for that long, or lags beyond the limit. `failures_max` of
them within `window_ns` put a bookie into quarantine for `quarantine_ns`; afterwards the count begins at zero.

Failures within INCIDENT_NS count as one: if a thousand writers lose one connection at the same moment, that is one
incident.
"""

from __future__ import annotations

from dataclasses import dataclass, field

INCIDENT_NS = 1_000_000_000


@dataclass(slots=True)
class Quarantine:
    """The failures of every bookie; times are those of the events, in nanoseconds."""

    failures_max: int
    """This many failures within the window bring a bookie into quarantine. Constant."""
    window_ns: int
    """How long a failure counts. Constant."""
    quarantine_ns: int
    """How long a quarantine lasts. Constant."""
    _failures: dict[str, list[int]] = field(default_factory=dict)
    """When a bookie failed, for bookies that are not in quarantine; fewer than `failures_max` each."""
    _until: dict[str, int] = field(default_factory=dict)
    """When the quarantine of a bookie ends. Past ones are removed by `members`."""

    def on_failure(self, bookie: str, now_ns: int) -> None:
        """Count a failure of a bookie; those in quarantine are not counted."""
        if self._until.get(bookie, now_ns) > now_ns:
            return
        recent = [at for at in self._failures.get(bookie, []) if now_ns - at < self.window_ns]
        if not recent or now_ns - recent[-1] >= INCIDENT_NS:
            recent.append(now_ns)
        self._failures[bookie] = recent
        if len(recent) >= self.failures_max:
            self._until[bookie] = now_ns + self.quarantine_ns
            del self._failures[bookie]

    def members(self, now_ns: int) -> frozenset[str]:
        """Return the bookies in quarantine."""
        self._until = {bookie: until for bookie, until in self._until.items() if until > now_ns}
        return frozenset(self._until)
