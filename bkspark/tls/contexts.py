"""The `ssl` contexts of both sides, made again when a file has changed."""

from __future__ import annotations

import logging
import ssl
import time
from collections.abc import Callable

from bkspark.changed_files import ChangedFiles, Says
from bkspark.errors import ConfigurationError
from bkspark.tls import names
from bkspark.tls.options import TlsOptions
from bkspark.tls.stores import files_of, use_own_certificate, use_trusted_certificates
from bkspark.wall_clock import wall_clock_ms

logger = logging.getLogger(__name__)

_VERSIONS = {names.TLS_1_2: ssl.TLSVersion.TLSv1_2, names.TLS_1_3: ssl.TLSVersion.TLSv1_3}
_SAYS = Says("TLS continues with the certificates that it has", "TLS uses the changed certificates for new connections")


def has_expired(tls: ssl.SSLObject) -> bool:
    """Return whether the certificate that the peer showed is no longer valid, although the handshake is complete.

    A handshake that resumes a session of TLS 1.2 checks no certificate, and Python has no switch for such sessions.
    They belong to one context, so changed files end them.

    Raises:
        ValueError: the certificate cannot be read.
    """
    certificate = tls.getpeercert() if tls.session_reused else None
    if not certificate:
        return False
    return ssl.cert_time_to_seconds(str(certificate["notAfter"])) * 1000 < wall_clock_ms()


class TlsContext:
    """The `ssl` context for new connections of one side. Existing connections keep the context that they began with."""

    def __init__(self, options: TlsOptions, *, is_server: bool, clock: Callable[[], float] = time.monotonic) -> None:
        """Read all files.

        Raises:
            ConfigurationError: a file cannot be used; the message names it.
        """
        self.options = options
        self._is_server = is_server
        self._files = ChangedFiles(files_of(options), self._make, options.refresh_s, _SAYS, logger, clock)

    def current(self) -> ssl.SSLContext:
        """Return the context for one new connection.

        Changed files are read again, at most every `refresh_s`. While they cannot be used, the old context stays.
        """
        return self._files.current()

    def _make(self) -> ssl.SSLContext:
        options = self.options
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if self._is_server else ssl.PROTOCOL_TLS_CLIENT)
        context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_TICKET
        self._limit_versions(context)
        if self._is_server:
            context.num_tickets = 0
            use_own_certificate(context, options)
            context.verify_mode = ssl.CERT_NONE
            if options.client_authentication:
                use_trusted_certificates(context, options)
                context.verify_mode = ssl.CERT_OPTIONAL if options.optional_certificate else ssl.CERT_REQUIRED
        else:
            use_trusted_certificates(context, options)
            context.check_hostname = options.verify_host_name
            context.verify_mode = ssl.CERT_REQUIRED
            if options.client_authentication:
                use_own_certificate(context, options)
        return context

    def _limit_versions(self, context: ssl.SSLContext) -> None:
        suites = self.options.cipher_suites
        try:
            versions = sorted(_VERSIONS[name] for name in names.versions_of(self.options.protocols, suites))
        except ValueError as error:
            raise ConfigurationError(f"tlsEnabledCipherSuites={','.join(suites)}: {error}") from None
        context.minimum_version, context.maximum_version = versions[0], versions[-1]
        ciphers = names.openssl_ciphers(suites)
        if ciphers:
            try:
                context.set_ciphers(ciphers)
            except ssl.SSLError:
                raise ConfigurationError(
                    f"tlsEnabledCipherSuites={','.join(suites)}: OpenSSL has none of these"
                ) from None
