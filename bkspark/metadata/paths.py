"""Every path below the ledgers root, built and parsed.

    /L%010d                          flat
    /dd/dddd/Ldddd                   2-4-4: ten digits; ids below 2^31 - 1 in the default (hybrid) scheme
    /ddd/dddd/dddd/dddd/Ldddd        3-4-4-4-4: nineteen digits; all other ids

In a listing (`listing`) the first level distinguishes the last two: two digits or three.
"""

from __future__ import annotations

import re

from bkspark.ids import LEDGER_ID_MAX
from bkspark.metadata.uri import LedgerManager

SHORT_ID_MAX = (1 << 31) - 2
"""The largest id that the hybrid scheme puts into the short tree; also the largest of the short id generator."""

LAYOUT = "LAYOUT"
INSTANCE_ID = "INSTANCEID"
AVAILABLE = "available"
READ_ONLY = "available/readonly"
COOKIES = "cookies"
ID_GENERATOR = "idgen"
LONG_ID_GENERATOR = "idgen-long"
UNDERREPLICATION = "underreplication"
RACKS = "bookies"
"""The rack map (`racks`), below the root or beside it."""

_SHORT = re.compile(r"(\d{2})/(\d{4})/L(\d{4})")
_LONG = re.compile(r"(\d{3})/(\d{4})/(\d{4})/(\d{4})/L(\d{4})")
_FLAT = re.compile(r"L(\d{10,19})")


def ledger_path(ledger_id: int, manager: LedgerManager) -> str:
    """Return the path of a ledger below the root, beginning with a slash.

    Raises:
        ValueError: the id is negative, or too large for the scheme.

    >>> ledger_path(12345, LedgerManager.HIERARCHICAL), ledger_path(2147483647, LedgerManager.HIERARCHICAL)
    ('/00/0001/L2345', '/000/0000/0021/4748/L3647')
    """
    if not 0 <= ledger_id <= LEDGER_ID_MAX:
        raise ValueError(f"ledger id {ledger_id} is not in 0 to {LEDGER_ID_MAX}")
    if manager is LedgerManager.FLAT:
        return f"/L{ledger_id:010d}"
    is_short = manager is LedgerManager.LEGACY_HIERARCHICAL
    if is_short and ledger_id >= 10**10:
        raise ValueError(f"ledger id {ledger_id} does not fit the {manager.value} scheme of ten digits")
    if is_short or (manager is LedgerManager.HIERARCHICAL and ledger_id <= SHORT_ID_MAX):
        digits = f"{ledger_id:010d}"
        return f"/{digits[:2]}/{digits[2:6]}/L{digits[6:]}"
    digits = f"{ledger_id:019d}"
    return f"/{digits[:3]}/{digits[3:7]}/{digits[7:11]}/{digits[11:15]}/L{digits[15:]}"


def parse_ledger_path(path: str) -> int | None:
    """Return the ledger id of a path below the root (without a leading slash), or None if it is not a ledger's."""
    for pattern in (_SHORT, _LONG, _FLAT):
        match = pattern.fullmatch(path)
        if match:
            return int("".join(match.groups()))
    return None


def parse_flat_name(name: str) -> int | None:
    """Return the ledger id of a child of the root of a flat cluster, or None if it is not a ledger's."""
    match = _FLAT.fullmatch(name)
    return int(match[1]) if match and int(match[1]) <= LEDGER_ID_MAX else None


def underreplication_path(ledger_id: int) -> str:
    """Return the path of a ledger's under-replication node below `underreplication/ledgers`.

    >>> underreplication_path(4294967301)
    '0000/0001/0000/0005/urL4294967301'
    """
    digits = f"{ledger_id:016x}"
    return f"{digits[:4]}/{digits[4:8]}/{digits[8:12]}/{digits[12:]}/urL{ledger_id:010d}"
