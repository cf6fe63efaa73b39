"""Log lines that are written once, however often their reason is found again."""

from __future__ import annotations

SAID_MAX = 1000
"""More lines than one pass writes for good reasons. The texts name ledgers and errors, so there is no end to them."""


class SaidLines:
    """Remembers the last `SAID_MAX` lines that were asked about."""

    def __init__(self) -> None:
        self._said: dict[str, None] = {}
        """The lines; the one that was asked about least recently comes first."""

    def is_new(self, line: str) -> bool:
        """Return whether a line is not remembered. It is from now on."""
        is_new = line not in self._said
        self._said.pop(line, None)
        self._said[line] = None
        if len(self._said) > SAID_MAX:
            del self._said[next(iter(self._said))]
        return is_new
