"""Roles of HTTP: what a caller of a bookie's HTTP server or of the console may do. PURE.

Each role includes those before it.
"""

from __future__ import annotations

import enum

_SHOWN_MAX = 15
"""Most characters of a text in a message: tokens are longer, so a misplaced token is never shown whole."""


class Role(enum.IntEnum):
    """What a caller may do.

    NONE: only what everyone may. METRICS: scrape the metrics. READ: read state, metadata and entries. OPERATE: change
    what can be changed back. DESTROY: delete ledgers, and give up bookies.
    """

    NONE = 0
    METRICS = 1
    READ = 2
    OPERATE = 3
    DESTROY = 4

    @classmethod
    def parse(cls, text: str) -> Role:
        """Return the role of a name. Raises ValueError, which shows no text that may be a token."""
        found = next((role for role in cls if role is not cls.NONE and str(role) == text), None)
        if found is None:
            names = ", ".join(str(role) for role in cls if role is not cls.NONE)
            shown = repr(text) if len(text) <= _SHOWN_MAX else f"a text of {len(text)} characters"
            raise ValueError(f"{shown} is not a role; there are {names}")
        return found

    def __str__(self) -> str:
        return self.name.lower()
