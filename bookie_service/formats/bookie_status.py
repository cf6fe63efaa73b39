"""The file `BOOKIE_STATUS`, which keeps a bookie read-only over a restart if an operator made it so. Version 1, text.

It is in `current/` of every ledger directory, and has one line, as Apache's bookies write it:

    1,READ_ONLY,1763900000000,true

These are the version of the layout; READ_ONLY or READ_WRITE; the time of the change in milliseconds since 1970; and
whether an operator, and not a full disk, made the bookie read-only. Bookies before 4.18 do not write the last part; it
is then taken to be true. If the directories differ, the latest status counts. A file that has another form is treated
as missing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

STATUS_NAME = "BOOKIE_STATUS"
_VERSION = 1
_READ_ONLY, _READ_WRITE = "READ_ONLY", "READ_WRITE"
CHANGED_MS_MAX = 10**18 - 1
"""The latest time that a status can have."""
STATUS_BYTES_MAX = 1024
"""A longer file does not have this form."""


@dataclass(frozen=True, slots=True)
class BookieStatus:
    """Whether an operator made the bookie read-only, and since when (ms since 1970)."""

    is_read_only: bool
    """False: an operator made it writable again, or never did otherwise."""
    changed_ms: int
    """When an operator last changed it, in ms since 1970."""


def encode_status(status: BookieStatus) -> bytes:
    mode = _READ_ONLY if status.is_read_only else _READ_WRITE
    return f"{_VERSION},{mode},{status.changed_ms},{str(status.is_read_only).lower()}\n".encode()


def decode_status(data: bytes) -> BookieStatus | None:
    """Return the status; None: the bytes do not have this form."""
    parts = data[:STATUS_BYTES_MAX].split(b"\n")[0].decode("ascii", "replace").split(",")
    if len(parts) not in (3, 4) or parts[0].strip() != str(_VERSION) or parts[1] not in (_READ_ONLY, _READ_WRITE):
        return None
    text = parts[2].strip()
    if not text.isdecimal() or len(text) > len(str(CHANGED_MS_MAX)):
        return None
    is_operators = len(parts) == 3 or parts[3].strip() == "true"
    return BookieStatus(parts[1] == _READ_ONLY and is_operators, int(text))


def latest(found: Iterable[BookieStatus | None]) -> BookieStatus | None:
    """Return the latest status; None: there is none."""
    return max((each for each in found if each is not None), key=lambda each: each.changed_ms, default=None)
