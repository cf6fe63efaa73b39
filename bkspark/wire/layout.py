"""Sizes and offsets of fields that requests, entries and files share; all integers are big endian.

`digest` specifies the entry: its header is ledger id, entry id, LAC and length, an i64 each.
"""

from __future__ import annotations

ENTRY_ID_AT = 8
LAC_AT = 16
LENGTH_AT = 24
"""Offsets of these fields in an entry; the ledger id comes first."""
HEADER_BYTES = 32
ENTRY_BYTES_MIN = 16
"""An entry at a bookie has at least its two ids. Earlier versions took some that end before the LAC."""
MASTER_KEY_BYTES = 20
