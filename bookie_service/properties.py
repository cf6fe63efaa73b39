r"""The syntax of Apache's configuration files. Pure.

A line is `key = value`, `key : value` or `key value`; blanks around key and separator do not count. Lines that begin
with `#` or `!` are comments. A `\` at the end of a line joins the next one, without its leading blanks; elsewhere it
takes the next character literally, and `\t`, `\n`, `\uXXXX` mean what they mean in Java. The last value of a key wins.

>>> parse("# comment\nbookiePort: 3181\nledgerDirectories=/a,\\\n    /b")
{'bookiePort': '3181', 'ledgerDirectories': '/a,/b'}
"""

from __future__ import annotations

import re

_KEY = re.compile(r"((?:\\.|[^\\=:\s])+)\s*[=:]?\s*(.*)", re.DOTALL)
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_NAMED = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


def parse(text: str) -> dict[str, str]:
    """Return the keys and values of a file, in order.

    Raises:
        ValueError: a line has no key; names its number.
    """
    values: dict[str, str] = {}
    for number, line in _logical_lines(text):
        match = _KEY.fullmatch(line)
        if match is None:
            raise ValueError(f"line {number} has no key before its separator: {line!r}")
        values[_unescape(match[1])] = _unescape(match[2]).strip()
    return values


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


def _unescape(text: str) -> str:
    return _ESCAPE.sub(lambda match: _escaped(match[1]), text)


def _escaped(code: str) -> str:
    if len(code) == 5:
        return chr(int(code[1:], 16))
    return _NAMED.get(code, code)
