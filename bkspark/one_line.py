"""Text from outside, made safe for one line of a log or a table: it must not look like another line. Pure."""

from __future__ import annotations

SHOWN_CHARACTERS_MAX = 200
"""How many characters of a wrong value a message shows."""


def one_line(text: str) -> str:
    """Return a text with its control characters, line ends among them, as escapes such as `\\\\n`."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)
