"""What a peer must still prove before its requests are served, and what it may use until then."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bkspark.security.mechanism import ServerExchange
from bookie_service.network.authentication import ListenerAuthentication

BYTES_MAX = 64 * 1024
"""Bytes of frames that a peer may send before it is authenticated, or in clear before TLS."""
REQUESTS_MAX = 16
"""AUTH messages and refused requests of one connection. An exchange has at most five messages."""
START_TLS_WAIT_S = 0.1
"""How long the first AUTH message in clear waits for START_TLS on a port that offers TLS.

Apache's clients write both independently of each other. Those with V2 ignore an answer to START_TLS after one in V2."""
REQUIRED_START_TLS_WAIT_S = 1.0
"""The same on a port that requires TLS. The longer wait delays no client that could be served."""


class Gate:
    """The state of one connection until its requests are served."""

    def __init__(
        self, authentication: ListenerAuthentication | None, *, offers_tls: bool = False, needs_tls: bool = False
    ) -> None:
        """`offers_tls`: START_TLS may come. `needs_tls`: requests are served only in TLS."""
        self.authentication = authentication
        self.needs_tls = needs_tls
        """Whether TLS is still required. Cleared once, when TLS is complete."""
        self._may_wait = offers_tls
        """Whether an AUTH message may still wait for START_TLS. Cleared once."""
        self._held = b""
        """The frame of the waiting AUTH message; empty: none waits."""
        self._exchange: ServerExchange | None = None
        """The login in progress; None: it has not begun."""
        self._bytes_left, self._requests_left = BYTES_MAX, REQUESTS_MAX
        """The bytes and requests that may still come before the gate opens. Lowered by `spend`."""

    @property
    def refuses(self) -> bool:
        """Whether requests other than START_TLS and AUTH are refused."""
        return self.needs_tls or self.authentication is not None

    @property
    def closes(self) -> bool:
        """Whether a request closes the connection before the gate opens; Apache's bookies only refuse the request."""
        return self.needs_tls or (self.authentication is not None and self.authentication.options.required)

    def exchange(self) -> ServerExchange:
        """Return the exchange of AUTH messages, which the first call begins."""
        assert self.authentication is not None
        if self._exchange is None:
            self._exchange = self.authentication.begin()
        return self._exchange

    def hold(self, frame: bytes) -> float:
        """Keep an AUTH message that came in clear, if START_TLS may follow it.

        Returns:
            How long the message waits; 0.0: it is not kept, and no message waits any more.
        """
        may_wait, self._may_wait = self._may_wait and not self._held, False
        if not may_wait:
            return 0.0
        self._held = frame
        return REQUIRED_START_TLS_WAIT_S if self.needs_tls else START_TLS_WAIT_S

    def take_held(self) -> bytes:
        """Return the waiting frame, which no longer waits then; b"": no frame waits."""
        held, self._held = self._held, b""
        return held

    def opens_with_tls(self, certificate: Mapping[str, Any] | None) -> bool:
        """Note that TLS is complete; return whether the gate is open now."""
        self.needs_tls = self._may_wait = False
        self._bytes_left, self._requests_left = BYTES_MAX, REQUESTS_MAX
        return self.authentication is None or self.authentication.is_enough(certificate)

    def spend(self, frame_bytes: int) -> str:
        """Count a frame; return "", or why the connection must be closed."""
        self._bytes_left -= frame_bytes
        self._requests_left -= 1
        if self._bytes_left < 0:
            return f"it sent more than {BYTES_MAX} bytes before it was {self.missing}"
        if self._requests_left < 0:
            return f"it sent more than {REQUESTS_MAX} requests before it was {self.missing}"
        return ""

    @property
    def missing(self) -> str:
        """What the connection is not yet: a word for messages."""
        return "in TLS" if self.needs_tls else "authenticated"

    @property
    def reason(self) -> str:
        """Why a request closes the connection."""
        if self.needs_tls:
            return "it sent a request in clear, and this bookie serves TLS only (tlsRequired=true)"
        if not self.closes:
            return "it sent a request before it was authenticated, and its kind of request cannot be refused"
        return "it sent a request before it was authenticated (authenticationRequired=true)"
