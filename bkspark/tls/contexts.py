"""The `ssl` contexts of both sides, made again when a file has changed."""

from __future__ import annotations

import contextlib
import logging
import os
import ssl
import time
from collections.abc import Callable

from bkspark.errors import ConfigurationError
from bkspark.tls import names
from bkspark.tls.options import TlsOptions
from bkspark.tls.stores import files_of, use_own_certificate, use_trusted_certificates

logger = logging.getLogger(__name__)

_VERSIONS = {names.TLS_1_2: ssl.TLSVersion.TLSv1_2, names.TLS_1_3: ssl.TLSVersion.TLSv1_3}
_Stamps = tuple[tuple[int, int, int], ...]


class TlsContext:
    """The context for new connections of one side. Connections that exist keep the context they began with."""

    def __init__(self, options: TlsOptions, *, is_server: bool, clock: Callable[[], float] = time.monotonic) -> None:
        """Read all files.

        Raises:
            ConfigurationError: a file cannot be used; the message names it.
        """
        self.options = options
        self._is_server = is_server
        self._clock = clock
        self._paths = files_of(options)
        self._stamps = self._tried = self._look()
        self._context = self._make()
        self._looked_at = clock()

    def current(self) -> ssl.SSLContext:
        """Return the context for one new connection.

        Files that changed are read again, at most every `refresh_s`. While they cannot be used the old context stays,
        and they are tried again at each look: a key may be replaced before its certificate.
        """
        refresh_s = self.options.refresh_s
        now = self._clock()
        if refresh_s and now - self._looked_at >= refresh_s:
            self._looked_at = now
            stamps = self._look()
            if stamps != self._stamps:
                self._reload(stamps)
        return self._context

    def _reload(self, stamps: _Stamps) -> None:
        try:
            context = self._make()
        except ConfigurationError as error:
            if stamps != self._tried:
                logger.warning("TLS goes on with the certificates that it has: %s", error)
            self._tried = stamps
            return
        # The files may have changed again meanwhile: then the next look finds other stamps.
        self._context, self._stamps, self._tried = context, stamps, stamps
        logger.info("TLS uses the changed certificates for new connections")

    def _look(self) -> _Stamps:
        return tuple(map(_stamp, self._paths))

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


def _stamp(path: str) -> tuple[int, int, int]:
    """Return what changes when a file is written or replaced; a file that is missing has a stamp, too."""
    with contextlib.suppress(OSError):
        found = os.stat(path)
        return found.st_mtime_ns, found.st_size, found.st_ino
    return 0, 0, 0
