"""Patterns that `v3_single_add` and `v3_single_read` share: numbers, and the beginning of a request."""

from __future__ import annotations

import re

from bkspark.wire import bookkeeper_protocol_pb2 as protocol
from bkspark.wire.v3 import FIRST_BYTE

NUMBER = rb"([\x80-\xff]{0,8}[\x00-\x7f])"
"""A pattern of numbers below 2**63: longer ones are left to protobuf's classes."""


def header_of(operation: int) -> bytes:
    """Return the header of a request or response up to its transaction id."""
    return bytes((0x08, protocol.VERSION_THREE, 0x10, operation, 0x18))


def beginning(header: bytes) -> bytes:
    """Return a pattern of the bytes of a request before what it asks. `header`: as of `header_of`.

    Its groups are the length of the header, which is one byte; the transaction id; and the priority, if there is one.
    """
    return bytes((FIRST_BYTE,)) + rb"(.)" + re.escape(header) + NUMBER + rb"(?:\x20" + NUMBER + rb")?"


def number(octets: bytes) -> int:
    """Return the number that `NUMBER` matched.

    >>> number(bytes((0x80, 0x01)))
    128
    """
    value = 0
    for octet in reversed(octets):
        value = value << 7 | octet & 0x7F
    return value
