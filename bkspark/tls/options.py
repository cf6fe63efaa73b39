"""TlsOptions: the options of TLS, after Apache's configuration keys. They contain names of files, never secrets."""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass, field

from bkspark.errors import ConfigurationError
from bkspark.options import DAY_S, YEARS_S, bounded, check
from bkspark.tls.names import check_cipher_suites, check_protocols

FACTORY_CLASS = "org.apache.bookkeeper.tls.TLSContextFactory"
"""The value of `tlsProviderFactoryClass` that turns TLS on, in Apache's bookies and clients as here."""


class StoreType(enum.Enum):
    """How certificates and keys are stored. JKS also means PKCS12, and the reverse: the first bytes decide."""

    PEM = "PEM"
    PKCS12 = "PKCS12"
    JKS = "JKS"

    @classmethod
    def parse(cls, text: str) -> StoreType:
        """Return the type of a name. Raises ValueError."""
        try:
            return cls[text.upper()]
        except KeyError:
            raise ValueError(f"it must be one of {', '.join(cls.__members__)}") from None


@dataclass(frozen=True, slots=True)
class TlsOptions:
    """One side of a TLS connection. An instance can be pickled; each process reads the files itself.

    key_store: the store with key and certificate; for PEM, the file of the private key.
    certificate_path: the file of the certificate chain, leaf first; for PEM alone.
    trust_store: the store with the certificates that are trusted; for PEM, a file of certificates.
    key_store_type, trust_store_type: None: the first bytes of the file decide.
    key_store_password_path, trust_store_password_path: files with the passwords of the stores.
    client_authentication: at a bookie: clients must present a certificate; at a client: it presents one.
    protocols, cipher_suites: names as Java writes them; empty: TLS 1.2 and 1.3, and OpenSSL's cipher suites.
    verify_host_name: a client checks that the certificate names the host or IP address that it connects to.
    start_tls_timeout_s: how long a client waits for the answer to START_TLS and for the handshake.
    refresh_s: how long a context is used before its files are checked for changes; 0: for ever.
    optional_certificate: at a server with client_authentication: a client may also present no certificate.
    """

    trust_store: str | None = None
    trust_store_type: StoreType | None = None
    trust_store_password_path: str | None = field(default=None, repr=False)
    key_store: str | None = None
    key_store_type: StoreType | None = None
    key_store_password_path: str | None = field(default=None, repr=False)
    certificate_path: str | None = None
    client_authentication: bool = False
    protocols: tuple[str, ...] = ()
    cipher_suites: tuple[str, ...] = ()
    verify_host_name: bool = True
    start_tls_timeout_s: float = bounded(10.0, 0.001, DAY_S, "seconds")
    refresh_s: float = bounded(60.0, 0.0, YEARS_S, "seconds")
    optional_certificate: bool = False

    def __post_init__(self) -> None:
        check(self)
        _check_names("tlsEnabledProtocols", self.protocols, check_protocols)
        _check_names("tlsEnabledCipherSuites", self.cipher_suites, check_cipher_suites)


def _check_names(key: str, names: tuple[str, ...], check_all: Callable[[tuple[str, ...]], None]) -> None:
    try:
        check_all(names)
    except ValueError as error:
        raise ConfigurationError(f"{key}={','.join(names):.200}: {error}") from None
