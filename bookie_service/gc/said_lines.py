"""Log lines that are written once, however often their reason is found again."""

from __future__ import annotations

SAID_MAX = 1000
"""More lines than one pass writes for good reasons. The texts name ledgers and errors, so there is no end to them."""
_FULL = f"further reasons are not logged: {SAID_MAX} are remembered, as many as can be"


class SaidLines:
    """Remembers at most `SAID_MAX` lines. None is forgotten that the present pass or the one before it has found."""

    def __init__(self) -> None:
        self._said: dict[str, int] = {}
        """In which pass each line was found last; the one that was found least recently comes first."""
        self._pass = 0
        """The number of the present pass."""
        self._is_full = False
        """Whether it was logged that further lines are not, and no other line was forgotten since."""

    def __len__(self) -> int:
        return len(self._said)

    def begin_pass(self) -> None:
        """Let lines be forgotten that were found last before the pass that ends now."""
        self._pass += 1

    def to_log(self, line: str) -> str:
        """Remember a line that was found; return what to log: the line, or that it is one too many, or ""."""
        is_new = self._said.pop(line, None) is None
        if is_new and len(self._said) == SAID_MAX and not self._forget_one():
            was_full, self._is_full = self._is_full, True
            return "" if was_full else _FULL
        self._said[line] = self._pass
        return line if is_new else ""

    def _forget_one(self) -> bool:
        """Forget the line that was found least recently, if it was not found in this pass or the one before it."""
        oldest = next(iter(self._said))
        if self._said[oldest] >= self._pass - 1:
            return False
        del self._said[oldest]
        self._is_full = False
        return True
