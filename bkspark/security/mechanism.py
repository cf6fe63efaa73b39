"""The interface of SASL mechanisms, for both sides. PURE."""

from __future__ import annotations

from typing import Protocol

from bkspark.security.principal import Principal

PLUGIN_NAME = "sasl"
"""`authPluginName` of the AUTH messages of Apache's SASL plugin."""


class SaslFailure(Exception):
    """An exchange failed. The message says why, and contains no secret."""


class ServerExchange(Protocol):
    """A bookie's side of one exchange."""

    @property
    def principal(self) -> Principal | None:
        """The client, once it has proved its identity."""

    def step(self, message: bytes) -> bytes | None:
        """Return the answer to a client's message; None if there is no answer. Raises SaslFailure."""


class ClientExchange(Protocol):
    """A client's side of one exchange."""

    @property
    def is_complete(self) -> bool:
        """Whether both sides have proved their identities."""

    def first(self) -> bytes:
        """Return the first message. Raises SaslFailure."""

    def step(self, message: bytes) -> bytes | None:
        """Return the next message; None if the exchange is complete. Raises SaslFailure."""
