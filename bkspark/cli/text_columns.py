"""Texts in the columns of a terminal, where an East Asian character takes two and a combining one none."""

from __future__ import annotations

import unicodedata


def columns_of(text: str) -> int:
    """Return how many columns a text takes."""
    return len(text) if text.isascii() else sum(map(_columns, text))


def cut(text: str, columns: int) -> str:
    """Return as much of the beginning of a text as fits into some columns."""
    if text.isascii():
        return text[:columns]
    taken = 0
    for place, character in enumerate(text):
        taken += _columns(character)
        if taken > columns:
            return text[:place]
    return text


def padded(text: str, columns: int, *, right: bool = False) -> str:
    """Return a text with spaces after it, or before it, so that it takes at least some columns."""
    spaces = " " * (columns - columns_of(text))
    return f"{spaces}{text}" if right else f"{text}{spaces}"


def _columns(character: str) -> int:
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1
