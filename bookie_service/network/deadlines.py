"""Deadlines: for how long a connection may stay silent, unfinished or unproved. Decisions only.

Times are those of the event loop's clock, in seconds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from bookie_service.network.connection_options import ConnectionOptions

NEVER = math.inf
"""A time that does not come."""


@dataclass(slots=True)
class Deadlines:
    """What one connection waits for from its peer, and until when."""

    options: ConnectionOptions
    """Limits of the connection. Constant."""
    idle_since: float
    """When `idle_s` last found that bytes had arrived or that the connection was busy; at first, when it began."""
    receptions: int = 0
    """How often bytes have arrived. Raised by the connection."""
    progress_at: float = 0.0
    """When the peer last took bytes of replies. Set by the connection. Only meaningful while some are unsent."""
    frame_since: float = NEVER
    """Since when the peer could have sent the rest of the unfinished frame; NEVER: there is none, or no room. The
    connection sets it to NEVER."""
    _seen: int = field(default=0, init=False)
    """The value of `receptions` at the last call of `idle_s`."""
    _secure_until: float = field(default=NEVER, init=False)
    """When TLS must be complete; NEVER: it need not be, or it is."""
    _authenticate_until: float = field(default=NEVER, init=False)
    """When the peer must be authenticated; NEVER: it need not be, or it is."""
    _handshake_s: float = field(default=0.0, init=False)
    """The limit that `_secure_until` comes from."""
    _authentication_s: float = field(default=0.0, init=False)
    """The limit that `_authenticate_until` comes from."""

    def begin_frame(self, now: float, *, is_new: bool) -> None:
        """Note that a frame is unfinished. `is_new`: requests before it were served since the last call."""
        if is_new or self.frame_since == NEVER:
            self.frame_since = now

    def expect_tls(self, now: float, handshake_s: float) -> None:
        """Let the peer complete its TLS handshake within this time. An earlier deadline stays."""
        self._secure_until = min(self._secure_until, now + handshake_s)
        self._handshake_s = handshake_s

    def end_handshake(self) -> None:
        """Note that TLS is complete."""
        self._secure_until = NEVER

    def expect_authentication(self, now: float, timeout_s: float) -> None:
        """Let the peer authenticate within this time, which begins again."""
        self._authenticate_until = now + timeout_s
        self._authentication_s = timeout_s

    def end_authentication(self) -> None:
        """Note that the peer has proved what it must."""
        self._authenticate_until = NEVER

    def overdue(self, now: float, unsent_bytes: int, received_bytes: int) -> str:
        """Return why the connection must be closed, or "".

        Args:
            unsent_bytes: bytes of replies that the peer has not taken.
            received_bytes: bytes of the unfinished frame.
        """
        options = self.options
        if unsent_bytes and now - self.progress_at > options.stalled_s_max:
            return (
                f"it has read none of {unsent_bytes} bytes of replies for {options.stalled_s_max:g} s "
                "(waitTimeoutOnResponseBackpressureMs)"
            )
        if now - self.frame_since > options.frame_s_max:
            return (
                f"a frame that it began is unfinished after {options.frame_s_max:g} s (frameTimeoutMs), "
                f"{received_bytes} bytes of it have come"
            )
        if now > self._secure_until:
            return f"its TLS handshake is not complete after {self._handshake_s:g} s (tlsHandshakeTimeoutMs)"
        if now > self._authenticate_until:
            return f"it is not authenticated after {self._authentication_s:g} s (authenticationTimeoutMs)"
        return ""

    def idle_s(self, now: float, *, is_busy: bool) -> float:
        """Return for how long nothing has arrived and the connection was not busy, as far as these calls have found."""
        if is_busy or self.receptions != self._seen:
            self._seen, self.idle_since = self.receptions, now
        return now - self.idle_since
