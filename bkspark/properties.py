r"""The syntax of Apache's configuration files. Pure.

A line is `key = value`, `key : value` or `key value`; blanks around key and separator are ignored. Lines that begin
with `#` or `!` are comments. A `\` at the end of a line joins the next line to it, without that line's leading blanks.
Elsewhere `\t`, `\n`, `\r`, `\f` and `\uXXXX` mean what they mean in Java. A `\` before one of `\ = : , # ! " '`, and in
a key before any other character, makes that character literal. Before any other character of a value it is an ordinary
character, as in commons-configuration.

`replaced` replaces references such as `${key}` in values.

>>> pairs("# comment\nbookiePort: 3181\nledgerDirectories=/a,\\\n    /b")
[('bookiePort', '3181'), ('ledgerDirectories', '/a,/b')]
"""

from __future__ import annotations

import re
from collections.abc import Callable

_KEY = re.compile(r"((?:\\.|[^\\=:\s])+)\s*[=:]?\s*(.*)", re.DOTALL)
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_LITERAL = "\\=:,#!\"'"
_REFERENCE = re.compile(r"\$\{([^${}]+)\}")
_REPLACEMENTS_MAX = 100
_NAMED = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


def pairs(text: str) -> list[tuple[str, str]]:
    """Return the keys and values of a file, in order; a key may come more than once.

    Raises:
        ValueError: a line has no key; the message has the line's number.
    """
    found: list[tuple[str, str]] = []
    for number, line in _logical_lines(text):
        match = _KEY.fullmatch(line)
        if match is None:
            raise ValueError(f"line {number} has no key before its separator")
        found.append((_unescape(match[1], is_key=True), _unescape(match[2], is_key=False).strip()))
    return found


def replaced(text: str, look_up: Callable[[str], str | None]) -> str:
    """Return a value with each `${REFERENCE}` replaced by `look_up("REFERENCE")`; None: it stays as it is.

    Raises:
        ValueError: what the value refers to refers to itself.
    """
    for _ in range(_REPLACEMENTS_MAX):
        before = text
        text = _REFERENCE.sub(lambda match: match[0] if (found := look_up(match[1])) is None else found, before)
        if text == before:
            return text
    raise ValueError("what it refers to refers to itself")


def _logical_lines(text: str) -> list[tuple[int, str]]:
    """Return (number of its first line, line) with continued lines joined, comments and empty lines left out."""
    lines: list[tuple[int, str]] = []
    continued: tuple[int, str] | None = None
    for number, raw in enumerate(text.splitlines(), start=1):
        line = raw.strip()
        if continued is None and (not line or line[0] in "#!"):
            continue
        first, before = continued or (number, "")
        backslashes = len(line) - len(line.rstrip("\\"))
        if backslashes % 2:
            continued = first, before + line[:-1]
        else:
            lines.append((first, before + line))
            continued = None
    if continued is not None:
        lines.append(continued)
    return lines


def _unescape(text: str, *, is_key: bool) -> str:
    return _ESCAPE.sub(lambda match: _escaped(match[1], is_key), text)


def _escaped(code: str, is_key: bool) -> str:
    if len(code) == 5:
        return chr(int(code[1:], 16))
    if code in _NAMED:
        return _NAMED[code]
    return code if is_key or code in _LITERAL else f"\\{code}"
