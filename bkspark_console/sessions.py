"""Sessions of users. They end by time, idleness, signing out, and when their token or role is taken away.

They are in memory, so a console that starts again has no session. The clock is an argument.
"""

from __future__ import annotations

import re
import secrets
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from bkspark.security.principal import Principal

SESSIONS_MAX = 1000
"""Beyond that the session ends that was opened first."""
_IDENTITY = re.compile("[A-Za-z0-9_-]{1,100}")


def is_identity(text: str) -> bool:
    """Whether a text can be the id of a session."""
    return _IDENTITY.fullmatch(text) is not None


@dataclass(slots=True)
class Session:
    """A session of a user who signed in. mark: that of the token that was used; see `AccessFile.mark`."""

    principal: Principal
    """The user."""
    mark: str
    began_at: float
    """When it was opened, by the sessions' clock."""
    used_at: float
    """When it was last used, by the sessions' clock."""


class Sessions:
    """All sessions of a console. For one event loop."""

    def __init__(self, clock: Callable[[], float], idle_s: float, time_s: float) -> None:
        """`idle_s`: how long a session lasts without a request by the user. `time_s`: how long it lasts in all."""
        self._clock = clock
        self._idle_s = idle_s
        self._time_s = time_s
        self._sessions: OrderedDict[str, Session] = OrderedDict()
        """Open sessions by id, the oldest first; at most SESSIONS_MAX."""

    def open(self, principal: Principal, mark: str) -> str:
        """Return the id of a new session."""
        now, identity = self._clock(), secrets.token_urlsafe(24)
        self._sessions[identity] = Session(principal, mark, now, now)
        while len(self._sessions) > SESSIONS_MAX:
            self._sessions.popitem(last=False)
        return identity

    def find(self, identity: str, *, by_user: bool) -> Session | None:
        """Return a session that has not ended. `by_user`: the user does something, so the session is not idle."""
        found, now = self._sessions.get(identity), self._clock()
        if found is None:
            return None
        if now - found.began_at >= self._time_s or now - found.used_at >= self._idle_s:
            self.close(identity)
            return None
        if by_user:
            found.used_at = now
        return found

    def close(self, identity: str) -> None:
        """End a session, if there is one."""
        self._sessions.pop(identity, None)
