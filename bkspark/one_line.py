"""Text from outside, made safe for one line of a log or a table: it must not look like another line. Pure."""

from __future__ import annotations

SHOWN_CHARACTERS_MAX = 200
"""How many characters of a wrong value a message shows."""


def one_line(text: str) -> str:
    """Return a text with its control characters, line ends among them, as escapes such as `\\\\n`."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


def described_text(error: UnicodeEncodeError) -> str:
    """Return one line about a text that cannot be encoded.

    Words of a command line that are not UTF-8 have lone surrogates in Python. A terminal may have another encoding.
    """
    wrong = error.object[error.start : error.end][:SHOWN_CHARACTERS_MAX].encode("unicode_escape").decode()
    if error.encoding == "utf-8":
        return f"a text is not UTF-8: {wrong}"
    return f"the output has the encoding {error.encoding}, which lacks {wrong}: set PYTHONIOENCODING=utf-8"
