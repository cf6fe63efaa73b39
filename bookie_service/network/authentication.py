"""Authentication of a bookie's listening port: the plugin, and limits for peers that are not authenticated yet.

Apache's two plugins are supported. `SASLBookieAuthProviderFactory` takes AUTH messages. `BookieAuthZFactory` checks the
TLS certificate: its first role must be one of `authorizedRoles`. Without either plugin, `authenticationRequired=true`
accepts any certificate that the trust store vouches for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bkspark.options import COUNT_MAX, YEARS_S, bounded, check
from bkspark.security.certificate_roles import roles_of
from bkspark.security.mechanism import PLUGIN_NAME, ServerExchange
from bkspark.security.principal import ANONYMOUS, principal_of_certificate
from bkspark.security.sasl import SaslServer, SaslServerOptions
from bookie_service.network.waiting_peers import WaitingPeers


@dataclass(frozen=True, slots=True)
class ListenerAuthenticationOptions:
    """Authentication of a port.

    sasl: clients authenticate by AUTH messages. roles: clients authenticate by a role in their certificate. At most one
        of the two is set.
    required: a request before authentication closes the connection.
    timeout_s: time for authentication, from the start of the connection or from the end of its TLS handshake.
    waiting_max, waiting_per_address_max: how many connections may be unauthenticated, in all and per address.
    """

    sasl: SaslServerOptions | None = None
    roles: tuple[str, ...] = ()
    required: bool = False
    timeout_s: float = bounded(10.0, 0.001, YEARS_S, "seconds")
    waiting_max: int = bounded(1000, 1, COUNT_MAX)
    waiting_per_address_max: int = bounded(250, 1, COUNT_MAX)

    def __post_init__(self) -> None:
        check(self)


class ListenerAuthentication:
    """The credentials of a port, new exchanges, and connections that are not authenticated. For one event loop."""

    def __init__(self, options: ListenerAuthenticationOptions) -> None:
        """Read the credentials. Raises ConfigurationError if they cannot be used."""
        self.options = options
        self._sasl = None if options.sasl is None else SaslServer(options.sasl)
        self.waiting = WaitingPeers(
            "authentication",
            ("maxUnauthenticatedConnections", options.waiting_max),
            ("maxUnauthenticatedConnectionsPerAddress", options.waiting_per_address_max),
        )
        """Connections whose peer is not authenticated."""

    @property
    def plugin_name(self) -> str | None:
        """The plugin that takes AUTH messages; None: there is none."""
        return None if self._sasl is None else PLUGIN_NAME

    def begin(self) -> ServerExchange:
        """Return a new exchange of the plugin that takes AUTH messages."""
        assert self._sasl is not None
        return self._sasl.begin()

    def is_enough(self, certificate: Mapping[str, Any] | None) -> bool:
        """Return whether this certificate is enough to authenticate its peer."""
        if self._sasl is not None or certificate is None:
            return False
        if self.options.roles:
            # Apache's bookies compare only the first role, too.
            return bool(set(roles_of(certificate.get("subject", ()))[:1]) & set(self.options.roles))
        return principal_of_certificate(certificate) != ANONYMOUS
