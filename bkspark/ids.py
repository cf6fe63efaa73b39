"""Identifiers: ledger ids, entry ids and bookie ids; names of logs, of their publishers and of kinds of ledgers.

Ledger and entry ids are plain `int` (63-bit, never negative for a real one). A bookie id is plain `str`:
Apache's syntax (letters, digits, `:` to `_`, `.` and `-`), by default `host:port`. Its identity survives a
change of address, so code that dials resolves the id through the metadata store and never parses it itself.
"""

from __future__ import annotations

import ipaddress
import re

NO_ENTRY = -1
"""The id that means "no entry": the LAC of an empty ledger, and the last entry of a ledger that was closed empty."""

PORT_MAX = 65_535
INT64_MAX = (1 << 63) - 1
LEDGER_ID_MAX = INT64_MAX
ENTRY_ID_MAX = INT64_MAX
LAST_ENTRY_MAX = ENTRY_ID_MAX - 1
"""The highest id that an entry may have: the id after it still fits 63 bits."""

DIGESTS = ("crc32c", "crc32", "mac", "dummy")
"""How entries can be checked, by name."""
LEDGER_TYPES = ("PD_JOURNAL", "VD_JOURNAL", "VD_BYPASS_JOURNAL")
"""What an acknowledged add can mean, by name; see `bkspark.core.metadata.LedgerType`."""

NAME_LENGTH_MAX = 200
LOG_NAME_RULE = f"1 to {NAME_LENGTH_MAX} letters, digits and . _ - only, and not . or .."
PUBLISHER_RULE = f"1 to {NAME_LENGTH_MAX} printable characters"

_PORT = re.compile("[0-9]{1,5}")
_HOST = re.compile(r"[^\s\]/,;]+")
# Apache's BookieId: one or more of letters, digits and the characters from ':' to '_', '.', '-'.
_BOOKIE_ID = re.compile(r"[a-zA-Z0-9:-_.\-]+")
_LOG_NAME = re.compile(r"[A-Za-z0-9._-]+")


def is_log_name(name: object) -> bool:
    """Return whether a log can have this name: LOG_NAME_RULE."""
    if not isinstance(name, str) or len(name) > NAME_LENGTH_MAX:
        return False
    return _LOG_NAME.fullmatch(name) is not None and name not in (".", "..")


def is_publisher(name: object) -> bool:
    """Return whether a log can store this id of a query, a job or an application: PUBLISHER_RULE."""
    return isinstance(name, str) and 0 < len(name) <= NAME_LENGTH_MAX and name.isprintable()


def check_bookie_id(bookie_id: str) -> str:
    """Return `bookie_id` unchanged when it has Apache's syntax.

    Raises:
        ValueError: it is empty, holds a character that Apache's peers refuse, is the reserved word `readonly`, or
            cannot name a znode.
    """
    if not _BOOKIE_ID.fullmatch(bookie_id) or bookie_id.lower() in ("readonly", ".", ".."):
        raise ValueError(
            f"bookie id {bookie_id[:200]!r} is not usable: letters, digits and . : _ - only, and not 'readonly', '.' "
            "or '..'"
        )
    return bookie_id


def parse_host_port(text: str) -> tuple[str, int]:
    """Return (host, port) of `host:port`; an IPv6 host may be in square brackets.

    Raises:
        ValueError: there is no port, or it is not 1 to 65535, or the host cannot be one.
    """
    host, separator, port = text.rpartition(":")
    if not separator or not host or not _PORT.fullmatch(port) or not 0 < int(port) < 65536:
        raise ValueError(f"{text!r} is not host:port with a port of 1 to 65535")
    if ":" in host or "[" in host:
        # Peers write an IPv6 host without the brackets, too.
        return str(ipaddress.IPv6Address(host.removeprefix("[").removesuffix("]"))), int(port)
    if not _HOST.fullmatch(host) or not _has_labels(host):
        raise ValueError(f"{text!r} is not host:port: no host has such a name")
    return host, int(port)


def _has_labels(host: str) -> bool:
    """Return whether a name can be looked up: the resolver takes labels of 1 to 63 characters."""
    try:
        host.encode("idna")
    except UnicodeError:
        return False
    return True
