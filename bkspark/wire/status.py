"""The status of a bookie's response, the same for both protocols: used by cores, client and bookie.

The numbers are those of Apache's `BookieProtocol`, so V2 sends them unchanged, except EUNKNOWNLEDGERSTATE
(`v2.code_of`). V3 has numbers of its own (`v3.code_of`, `v3.statuses_of`).
"""

from __future__ import annotations

import enum


class Status(enum.IntEnum):
    """The outcome of a request. Only EOK, ENOLEDGER, ENOENTRY and EFENCED are certain."""

    EOK = 0
    ENOLEDGER = 1
    ENOENTRY = 2
    EBADREQ = 100
    EIO = 101
    EUA = 102
    EBADVERSION = 103
    EFENCED = 104
    EREADONLY = 105
    ETOOMANYREQUESTS = 106
    EUNKNOWNLEDGERSTATE = 107


EOK = int(Status.EOK)
"""For comparisons with arrays: numpy takes ten times as long to make a number of an enumeration's member."""
