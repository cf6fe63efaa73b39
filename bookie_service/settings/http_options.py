"""Options of the HTTP server, which serves the administration API and the metrics."""

from __future__ import annotations

from dataclasses import dataclass, field

from bkspark.errors import ConfigurationError
from bkspark.ids import PORT_MAX
from bkspark.options import BYTES_MAX, COUNT_MAX, YEARS_S, bounded, check
from bkspark.security.web import is_loopback
from bkspark.tls.options import TlsOptions

ACCESS_FILE_KEY = "httpServerAccessFile"
EVERYWHERE, THIS_HOST = "0.0.0.0", "127.0.0.1"


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """Limits of the server: counts, bytes and seconds.

    idle_s: time for the next request to begin, for a request to come completely, and for a peer to take a response.
    handshake_s, handshakes: time for a TLS handshake, and how many handshakes may be unfinished.
    """

    connections: int = bounded(64, 1, COUNT_MAX)
    """Connections that may be open at the same time."""
    head_bytes: int = bounded(16 * 1024, 1024, BYTES_MAX, "bytes")
    """The longest first line and headers of a request; `body_bytes`: the longest body."""
    body_bytes: int = bounded(256 * 1024, 1024, BYTES_MAX, "bytes")
    idle_s: float = bounded(15.0, 0.001, YEARS_S, "seconds")
    handshake_s: float = bounded(10.0, 0.001, YEARS_S, "seconds")
    handshakes: int = bounded(32, 1, COUNT_MAX)

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True, slots=True)
class HttpOptions:
    """Where the API and the metrics are served.

    serves_api: the API is served, and the metrics at the same port. serves_metrics: the metrics are served at a port of
        their own, unless it is the same port. access_file: names tokens and certificates, with their roles. tls: None:
        plain HTTP. allowed_hosts: names by which requests may address the servers, in addition to addresses and the
        host's own names.
    """

    serves_api: bool = False
    host: str = THIS_HOST
    port: int = bounded(8080, 0, PORT_MAX)
    serves_metrics: bool = False
    metrics_host: str = THIS_HOST
    """The address at which the metrics are served if they have a port of their own, which is `metrics_port`."""
    metrics_port: int = bounded(8000, 0, PORT_MAX)
    limits: HttpLimits = field(default_factory=HttpLimits)
    access_file: str | None = None
    tls: TlsOptions | None = None
    allowed_hosts: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check(self)
        for is_served, key, host in (
            (self.serves_api, "httpServerHost", self.host),
            (self.has_metrics_port, "prometheusStatsHttpAddress", self.metrics_host),
        ):
            if is_served and not self.is_guarded and not is_loopback(host):
                raise ConfigurationError(
                    f"{key}={host}: other hosts would reach the HTTP server, and nothing says who may use it. Set "
                    "httpServerAccessFile (tokens and certificates with roles), or httpServerTlsEnable=true with "
                    f"httpServerTrustStorePath, or {key}={THIS_HOST}"
                )

    @property
    def checks_certificates(self) -> bool:
        """Whether clients may present a certificate."""
        return self.tls is not None and self.tls.client_authentication

    @property
    def is_guarded(self) -> bool:
        """Whether callers must prove their identity."""
        return self.access_file is not None or self.checks_certificates

    @property
    def has_metrics_port(self) -> bool:
        """Whether the metrics have a port of their own."""
        is_same = self.serves_api and self.port == self.metrics_port != 0
        return self.serves_metrics and not is_same
