"""Compression of entries: codecs and their levels. PURE."""

from __future__ import annotations

from dataclasses import dataclass

NONE, LZ4, ZSTD = "none", "lz4", "zstd"
LEVELS_MAX = {LZ4: 12, ZSTD: 22}
"""The highest level of each codec; the lowest is 1."""


@dataclass(frozen=True)
class Compression:
    """A codec of LEVELS_MAX, or `none`, and its level; None for the codec's own default."""

    codec: str
    level: int | None = None


UNCOMPRESSED = Compression(NONE)
