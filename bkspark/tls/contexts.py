"""The `ssl` contexts of both sides, made again when a file has changed."""

from __future__ import annotations

import logging
import socket
import ssl
import time
from collections.abc import Callable

from bkspark.changed_files import ChangedFiles, Says
from bkspark.errors import ConfigurationError
from bkspark.tls import names
from bkspark.tls.finite_field import FFDHE2048, has_finite_field
from bkspark.tls.options import TlsOptions
from bkspark.tls.stores import files_of, memory_file, use_own_certificate, use_trusted_certificates
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


class _ClientContext(ssl.SSLContext):
    """A client's context. A host name may be absolute, with a dot at its end, which names in certificates lack.

    Java's clients leave the dot out, too.
    """

    def wrap_bio(
        self,
        incoming: ssl.MemoryBIO,
        outgoing: ssl.MemoryBIO,
        server_side: bool = False,
        server_hostname: str | bytes | None = None,
        session: ssl.SSLSession | None = None,
    ) -> ssl.SSLObject:
        return super().wrap_bio(incoming, outgoing, server_side, _without_dot(server_hostname), session)

    def wrap_socket(
        self,
        sock: socket.socket,
        server_side: bool = False,
        do_handshake_on_connect: bool = True,
        suppress_ragged_eofs: bool = True,
        server_hostname: str | bytes | None = None,
        session: ssl.SSLSession | None = None,
    ) -> ssl.SSLSocket:
        return super().wrap_socket(
            sock,
            server_side,
            do_handshake_on_connect,
            suppress_ragged_eofs,
            _without_dot(server_hostname),
            session,
        )


def _without_dot(host: str | bytes | None) -> str | bytes | None:
    return host.removesuffix(".") if isinstance(host, str) else host


class TlsContext:
    """The `ssl` context for new connections of one side. Existing connections keep the context that they began with."""

    def __init__(self, options: TlsOptions, *, is_server: bool, clock: Callable[[], float] = time.monotonic) -> None:
        """Read all files.

        Raises:
            ConfigurationError: a file cannot be used; the message names it.
        """
        self.options = options
        self._is_server = is_server
        """Whether it is for the side that accepts connections. Constant."""
        self._files = ChangedFiles(files_of(options), self._make, options.refresh_s, _SAYS, logger, clock)

    def current(self) -> ssl.SSLContext:
        """Return the context for one new connection.

        Changed files are read again, at most every `refresh_s`. While they cannot be used, the old context stays.
        """
        return self._files.current()

    def _make(self) -> ssl.SSLContext:
        options = self.options
        if self._is_server:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        else:
            context = _ClientContext(ssl.PROTOCOL_TLS_CLIENT)
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
        if self._is_server and has_finite_field(ciphers):
            with memory_file(FFDHE2048) as path:
                context.load_dh_params(path)
