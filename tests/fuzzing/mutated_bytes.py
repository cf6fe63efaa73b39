"""Bytes with a few random mistakes."""

from __future__ import annotations

import random


def mutated(data: bytes, source: random.Random, *, changes_max: int = 4, gap_max: int = 20) -> bytes:
    """Return bytes with some changed, removed, repeated or added.

    Args:
        changes_max: limit of the number of changes.
        gap_max: limit of the bytes that one change removes or adds.
    """
    found = bytearray(data)
    for _ in range(source.randint(1, changes_max)):
        at = source.randrange(len(found) + 1)
        match source.randrange(4):
            case 0 if at < len(found):
                found[at] = source.randrange(256)
            case 1:
                del found[at : at + source.randint(1, gap_max)]
            case 2:
                found[at:at] = found[at : at + source.randint(1, 50)]
            case _:
                found[at:at] = source.randbytes(source.randint(1, gap_max))
    return bytes(found)
