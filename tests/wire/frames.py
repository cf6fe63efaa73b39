"""The frames of a buffer."""

from __future__ import annotations

from bkspark.wire.framing import scan_frames


def frames_of(buffer: bytes) -> list[bytes]:
    table = scan_frames(buffer, len(buffer))
    assert table.consumed == len(buffer)
    return [buffer[start:end] for start, end in zip(table.starts.tolist(), table.ends.tolist())]
