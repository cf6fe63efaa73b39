"""Texts that an argument of a command line must take, or refuse in one line."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

LONG = 5000
"""Python refuses to convert this many digits to a number."""

NUMBERS = {
    "many digits": "9" * LONG,
    "many digits below 0": "-" + "9" * LONG,
    "another digit": "\u0663",
    "a power": "\u00b2",
    "an underscore": "1_0",
    "below 0": "-1",
    "2^63": str(1 << 63),
    "2^64": str(1 << 64),
    "not finite": "1e400",
    "large": "1e308",
    "no number": "nan",
    "no finite number": "inf",
    "in another base": "0x10",
    "a space before": " 5",
}
"""What Python takes for a number in one place and not in another, or cannot store."""

TEXTS = {
    **NUMBERS,
    "empty": "",
    "a space": " ",
    "long": "x" * LONG,
    "two lines": "a\nb",
    "an escape": "\x1b[31m",
    "not UTF-8": "\udcff",
    "deep": "[" * LONG,
    "a path": "/no/such/file",
}
"""Other texts that end a program which expects a name, a file or a time."""


def leaves(parser: argparse.ArgumentParser, words: tuple[str, ...] = ()) -> Iterator[tuple[str, list[argparse.Action]]]:
    """Yield each command of a parser, and its arguments that take a value."""
    groups = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    if not groups:
        yield " ".join(words), [each for each in parser._actions if each.nargs != 0]
        return
    for name, below in groups[0].choices.items():
        yield from leaves(below, (*words, name))
