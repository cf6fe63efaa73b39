"""What both clients are tried with, and the codes that Apache's exceptions carry."""

from __future__ import annotations

import pytest

PASSWORD = "pässword"
SIZES = [0, 1, 15, 1000, 65_536, 1 << 20, *[200] * 150]
"""Entries of 0 bytes to 1 MiB, and enough small ones for several to travel together."""

Quorums = tuple[int, int, int]
"""E, Qw, Qa."""

EACH_DIGEST = pytest.mark.parametrize("digest", ["crc32c", "crc32", "mac", "dummy"])
EACH_QUORUM = pytest.mark.parametrize("quorums", [(1, 1, 1), (3, 3, 2), (3, 2, 2)], ids=["E1", "E3W3A2", "E3W2A2"])

COVERING = pytest.mark.long_except(
    *("our bookies-E1-dummy", "our bookies-E3W3A2-crc32c", "our bookies-E3W2A2-mac", "our bookies-E3W2A2-crc32"),
    *("apache's bookies-E3W3A2-crc32c", "apache's bookies-E3W2A2-mac"),
    reason="each digest with each quorum; the others have each digest, each quorum, and both on both kinds of bookies",
)
"""For tests of EACH_DIGEST and EACH_QUORUM on each kind of bookies."""

NO_SUCH_LEDGER = -25
LEDGER_FENCED = -101
UNAUTHORIZED = -102

FENCED_WRITER = (LEDGER_FENCED, -6)
"""The error of Java's writer once another client recovered its ledger. A bookie that refused an add because of the
fence, but after Qa others had taken it, counts as a failed one at the next add: then there are not enough bookies
(-6)."""

CALLS_IN_BOTH = {
    *(f"create, add, read, close with {digest}" for digest in ("CRC32", "CRC32C", "MAC", "DUMMY")),
    "entries of 0 bytes to the frame limit",
    "striped ledger",
    "entry ids of the caller",
    "ledger ids beyond 31 bits",
    "LAC of an open ledger",
    "explicit LAC",
    "unconfirmed reads",
    "recovery and fencing",
    "wrong password",
    "authentication that the bookies do without",
    "delete and list",
    "bookie info",
    "entries of a ledger by the administrator",
}
CALLS_IN_V2 = {"batch reads"}
CALLS_IN_V3 = {"long poll", "deferred sync and force", "list of the entries of a ledger"}
"""What Calls.java checks, by protocol."""
