"""The principals of a bookie's connections."""

from __future__ import annotations

from bkspark.security.principal import Principal
from tests.bookie.serving import Serving


def principals(bookie: Serving) -> list[Principal]:
    """Return the principals of all connections of a bookie."""
    return bookie.call(lambda: [connection.principal for connection in bookie.service.connections.all()])
