"""TLS of a bookie's port: its certificates, and limits for peers whose handshake is not complete."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field

from bkspark.options import COUNT_MAX, YEARS_S, bounded, check
from bkspark.tls.contexts import TlsContext
from bkspark.tls.options import TlsOptions
from bookie_service.network.waiting_peers import WaitingPeers


@dataclass(frozen=True, slots=True)
class ListenerTlsOptions:
    """TLS of a port.

    required: requests are served only in TLS.
    handshake_s: time for the handshake. With `required`, it begins with the connection.
    handshakes_max, handshakes_per_address_max: how many handshakes may be unfinished, in all and per address.
    """

    tls: TlsOptions = field(default_factory=TlsOptions)
    required: bool = False
    handshake_s: float = bounded(10.0, 0.001, YEARS_S, "seconds")
    handshakes_max: int = bounded(1000, 1, COUNT_MAX)
    handshakes_per_address_max: int = bounded(250, 1, COUNT_MAX)

    def __post_init__(self) -> None:
        check(self)


class ListenerTls:
    """Contexts for new handshakes, and connections whose peer owes a message of its handshake. For one event loop.

    A connection whose handshake waits for the bookie is not counted. The limits of connections apply to it.
    """

    def __init__(self, options: ListenerTlsOptions) -> None:
        """Read the key and the certificates. Raises ConfigurationError if they cannot be used."""
        self.options = options
        self._context = TlsContext(options.tls, is_server=True)
        self.owing = WaitingPeers(
            "TLS handshake",
            ("maxTlsHandshakes", options.handshakes_max),
            ("maxTlsHandshakesPerAddress", options.handshakes_per_address_max),
        )
        """Connections whose peer owes the next message of its handshake."""

    def context(self) -> ssl.SSLContext:
        """Return the context for a handshake that begins now."""
        return self._context.current()
