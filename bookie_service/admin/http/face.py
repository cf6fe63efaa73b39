"""Starts the HTTP servers that are configured: the API, and the metrics at a port of their own."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

from bkspark.errors import ConfigurationError
from bkspark.security.access_file import AccessFile
from bkspark.tls.contexts import TlsContext
from bkspark.tls.gate import TlsGate
from bookie_service.admin.http.routing import Permit, Routes, add_metrics
from bookie_service.metrics.families import Registry
from bookie_service.settings.http_options import ACCESS_FILE_KEY, HttpOptions
from bookie_service.settings.tls import in_http_keys

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Ports:
    """Where the servers listen; None: this server does not run."""

    api: tuple[str, int] | None = None
    """(host, port) of the API, and (`metrics`) of the metrics."""
    metrics: tuple[str, int] | None = None

    def shown(self) -> dict[str, str]:
        """Return the addresses as text, by what is served, for the log."""
        places = {"http": self.api, "metrics": self.metrics}
        return {what: f"{place[0]}:{place[1]}" for what, place in places.items() if place is not None}

    def facts(self) -> dict[str, object]:
        """Return the ports, for the JSON with which a process says that it serves."""
        places = {"http_port": self.api, "metrics_port": self.metrics}
        return {name: place[1] for name, place in places.items() if place is not None}


def check_credentials(options: HttpOptions) -> None:
    """Raise ConfigurationError unless the files of certificates, tokens and roles can be used."""
    if not options.serves_api and not options.has_metrics_port:
        return
    if options.access_file is not None:
        AccessFile(options.access_file, ACCESS_FILE_KEY)
    _context(options)


def _context(options: HttpOptions) -> TlsContext | None:
    try:
        return None if options.tls is None else TlsContext(options.tls, is_server=True)
    except ConfigurationError as error:
        raise in_http_keys(error) from None


@asynccontextmanager
async def http_serving(
    options: HttpOptions,
    registry: Registry,
    prepare: Callable[[], Awaitable[None]],
    add_api: Callable[[Routes], None],
    own_names: Sequence[str],
    permit: Permit | None = None,
) -> AsyncIterator[Ports]:
    """Serve what the options say inside the context.

    Args:
        prepare: awaited before each scrape.
        own_names: names of this host that requests may use.
        permit: see `Routes`. It does not apply at a port of the metrics alone.

    Raises:
        ConfigurationError: an address, a certificate or the access file cannot be used.
    """
    if not options.serves_api and not options.has_metrics_port:
        yield Ports()
        return
    # Imported here, because a bookie without HTTP needs neither the server nor h11.
    from bookie_service.admin.http.access import HttpAccess
    from bookie_service.admin.http.server import serving

    access, context, limits = HttpAccess(options, own_names), _context(options), options.limits

    def gate() -> TlsGate | None:
        return None if context is None else TlsGate(context, limits.handshake_s, limits.handshakes)

    api = metrics = None
    async with AsyncExitStack() as held:
        if options.serves_api:
            routes = Routes(permit)
            add_metrics(routes, registry, prepare)
            add_api(routes)
            keys = "httpServerHost:httpServerPort"
            server = serving(options.host, options.port, keys, routes.answer, limits, access, gate())
            api = options.host, await held.enter_async_context(server)
        if options.has_metrics_port:
            routes = Routes()
            add_metrics(routes, registry, prepare)
            keys = "prometheusStatsHttpAddress:prometheusStatsHttpPort"
            host, port = options.metrics_host, options.metrics_port
            server = serving(host, port, keys, routes.answer, limits, access, gate())
            metrics = host, await held.enter_async_context(server)
        if not options.is_guarded:
            logger.info(
                "HTTP listens at this host alone, and everyone on it may use it: httpServerAccessFile names tokens and "
                "certificates with their roles, and opens it to other hosts"
            )
        yield Ports(api, metrics)
