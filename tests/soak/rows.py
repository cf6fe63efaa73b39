"""The rows of the log that a soak has Spark copy: text that follows from a row's number."""

from __future__ import annotations

import hashlib

ROW_BYTES = 300


def row(number: int) -> bytes:
    """Return a row: its number and what follows from that, as text, which goes through a column of strings."""
    head = b"%d " % number
    digest = hashlib.blake2b(head, digest_size=32).hexdigest().encode()
    return head + digest * (ROW_BYTES // len(digest))


def number_of(data: bytes | memoryview) -> int:
    """Return the number of a row.

    Raises:
        ValueError: these bytes are not a row.
    """
    found = bytes(data)
    number = int(found.partition(b" ")[0])
    if found != row(number):
        raise ValueError(f"{found[:40]!r} ... is not a row")
    return number
