"""Where the records of a TLS stream end, by their headers, which are in clear. PURE.

type     u8
version  u16
length   u16, of what follows
"""

from __future__ import annotations

HEADER_BYTES = 5
_LENGTH_AT = 3


class RecordEnds:
    """Divides the bytes of a stream into parts of few records."""

    __slots__ = ("_header", "_left")

    def __init__(self) -> None:
        self._header = b""
        """The beginning of a header that has not come completely."""
        self._left = 0
        """How many bytes of the present record are still to come; 0: a header is next."""

    def take(self, octets: memoryview, records: int) -> int:
        """Return how many of the next bytes of the stream belong to the next `records` records; they are taken then."""
        at, size = 0, len(octets)
        while records and at < size:
            if not self._left:
                header_end = at + HEADER_BYTES - len(self._header)
                self._header += octets[at:header_end]
                if header_end > size:
                    return size
                self._left = int.from_bytes(self._header[_LENGTH_AT:], "big")
                self._header = b""
                at = header_end
            part = min(self._left, size - at)
            self._left -= part
            at += part
            if not self._left:
                records -= 1
        return at
