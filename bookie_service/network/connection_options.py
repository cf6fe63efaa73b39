"""The options of one connection to a bookie."""

from __future__ import annotations

from dataclasses import dataclass

from bkspark.options import YEARS_S, bounded, check
from bkspark.wire.framing import FRAME_BYTES_MAX


@dataclass(frozen=True, slots=True)
class ConnectionOptions:
    """Limits of one connection, in bytes and seconds, and the options of its socket.

    stalled_s_max: how long a peer may leave replies unread before its connection is closed.
    frame_s_max: how long a peer may take to send one frame, from its first byte on, while there is room to receive it.
    """

    frame_bytes_max: int = bounded(FRAME_BYTES_MAX, 1024, 64 * 1024 * 1024, "bytes")
    """A client that announces a larger frame is disconnected."""
    stalled_s_max: float = bounded(60.0, 0.001, YEARS_S, "seconds")
    frame_s_max: float = bounded(60.0, 0.001, YEARS_S, "seconds")
    no_delay: bool = True
    """TCP_NODELAY: small responses are sent at once."""
    keep_alive: bool = True
    """SO_KEEPALIVE: the kernel notices a peer that is gone."""

    def __post_init__(self) -> None:
        check(self)
