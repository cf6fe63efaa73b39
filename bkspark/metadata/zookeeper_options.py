"""ZooKeeperOptions: TLS and login of the connection to ZooKeeper, and who may use the nodes that a client creates.

The keys are Apache's: `zkEnableSecurity`, and the system properties of ZooKeeper's own client, which Java gets as
`-Dzookeeper.client.secure=true`. Configuration files of bookies, client files and options of Spark have them as keys.
`saslJaasConfig` names the JAAS file, Java's `java.security.auth.login.config`; the variable BKSPARK_JAAS replaces it.

The options contain names of files and never a secret, so plans may contain them. Each process reads the files itself.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from bkspark import client_files
from bkspark.client_files import OFF, flag, read_keys
from bkspark.errors import ConfigurationError
from bkspark.metadata import acls
from bkspark.metadata.acls import CREATOR_ALL, OPEN, AclList
from bkspark.options import bounded, check
from bkspark.tls.names import served_protocols, served_suites
from bkspark.tls.options import StoreType, TlsOptions

ENABLE_SECURITY, FURTHER_ACLS = "zkEnableSecurity", "zkFurtherAcls"
JAAS_FILE, JAAS_SECTION, USES_SASL = "saslJaasConfig", "zookeeper.sasl.clientconfig", "zookeeper.sasl.client"
SERVICE = "zookeeper.sasl.client.username"
SECURE = "zookeeper.client.secure"
SOCKET = "zookeeper.clientCnxnSocket"
JAAS_VARIABLE = "BKSPARK_JAAS"
"""The environment variable with the name of the JAAS file, where `saslJaasConfig` does not name one."""
DEFAULT_SECTION, DEFAULT_SERVICE = "Client", "zookeeper"
_SOCKETS = ("ClientCnxnSocketNetty", "ClientCnxnSocketNIO")


@dataclass(frozen=True, slots=True)
class ZooKeeperOptions:
    """How this process connects to ZooKeeper.

    jaas_file: a JAAS file whose section `jaas_section` has the SASL user of this process; None: it does not log in. If
        the file lacks the default section, it applies to other connections only, unless `closes_nodes` needs an
        identity.
    service: the first part of the servers' Kerberos principal.
    tls: the connection uses TLS, or fails. With a key store the client shows its certificate, which ZooKeeper takes as
        an identity of the scheme x509.
    closes_nodes: nodes that are created are open to the identities of this process alone (`zkEnableSecurity`);
        otherwise to every client.
    further_acls: further entries of closed nodes.
    timeout_s: how long the session survives its connection, and how long a call waits for an answer.
    """

    jaas_file: str | None = None
    jaas_section: str = DEFAULT_SECTION
    service: str = DEFAULT_SERVICE
    tls: TlsOptions | None = None
    closes_nodes: bool = False
    further_acls: AclList = ()
    timeout_s: float = bounded(10.0, 0.5, 3600.0)

    def __post_init__(self) -> None:
        check(self)
        shows_certificate = self.tls is not None and self.tls.client_authentication
        if self.closes_nodes and self.jaas_file is None and not shows_certificate:
            raise ConfigurationError(
                f"{ENABLE_SECURITY}=true needs an identity, for which the nodes are closed to others: name the JAAS "
                f"file with the section {self.jaas_section} by {JAAS_FILE}, or set {SECURE}=true and "
                "zookeeper.ssl.keyStore.location for a certificate"
            )
        if self.further_acls and not self.closes_nodes:
            raise ConfigurationError(f"{FURTHER_ACLS} has no effect without {ENABLE_SECURITY}=true: set that, too")

    @property
    def new_node_acl(self) -> AclList:
        """The access control list of nodes that this process creates."""
        return (*CREATOR_ALL, *self.further_acls) if self.closes_nodes else OPEN


# ---- keys ----


def _names(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _socket(text: str) -> str:
    if text.removeprefix("org.apache.zookeeper.") not in _SOCKETS:
        raise ValueError(f"it must be org.apache.zookeeper.{_SOCKETS[0]}, which {SECURE}=true needs in Java")
    return text


@dataclass(frozen=True, slots=True)
class Key:
    """A key: how its text is parsed, its default as text, and what it means."""

    parse: Callable[[str], Any]
    """Turns its text into a value. Raises ValueError that says what would be right."""
    default: str
    meaning: str
    """One line for docs and messages."""

    @property
    def is_flag(self) -> bool:
        return self.parse is flag


KEYS: Mapping[str, Key] = {
    ENABLE_SECURITY: Key(flag, "false", "new nodes of ZooKeeper are closed to other clients"),
    FURTHER_ACLS: Key(acls.parse_list, "none", "who may use closed nodes, too: scheme:id:permissions, ; between"),
    JAAS_FILE: Key(str, f"what {JAAS_VARIABLE} names", "the JAAS file"),
    USES_SASL: Key(flag, "true", "false: no SASL to ZooKeeper, whatever the JAAS file has"),
    JAAS_SECTION: Key(str, DEFAULT_SECTION, "the section of the JAAS file for ZooKeeper"),
    SERVICE: Key(str, DEFAULT_SERVICE, "the first part of the Kerberos principal of ZooKeeper's servers"),
    SECURE: Key(flag, "false", "TLS to ZooKeeper"),
    SOCKET: Key(_socket, "unset", "Java's class for TLS to ZooKeeper; no effect here"),
    "zookeeper.ssl.trustStore.location": Key(str, "unset", "the certificates that are trusted"),
    "zookeeper.ssl.trustStore.type": Key(StoreType.parse, "by the file's first bytes", "PEM, PKCS12 or JKS"),
    "zookeeper.ssl.trustStore.passwordPath": Key(str, "unset", "file with the trust store's password"),
    "zookeeper.ssl.keyStore.location": Key(str, "unset", "key and certificate that the client shows; PEM: one file"),
    "zookeeper.ssl.keyStore.type": Key(StoreType.parse, "by the file's first bytes", "PEM, PKCS12 or JKS"),
    "zookeeper.ssl.keyStore.passwordPath": Key(str, "unset", "file with the key store's password"),
    "zookeeper.ssl.hostnameVerification": Key(flag, "true", "compare host and certificate"),
    "zookeeper.ssl.enabledProtocols": Key(
        lambda text: served_protocols(_names(text)), "TLSv1.2,TLSv1.3", "protocols of TLS to ZooKeeper"
    ),
    "zookeeper.ssl.ciphersuites": Key(
        lambda text: served_suites(_names(text)), "OpenSSL's", "cipher suites by Java's names"
    ),
}
"""Every key of a client of ZooKeeper that has an effect, and the socket class, which files for Java have."""

_TLS_FIELDS = {
    "trustStore.location": "trust_store",
    "trustStore.type": "trust_store_type",
    "trustStore.passwordPath": "trust_store_password_path",
    "keyStore.location": "key_store",
    "keyStore.type": "key_store_type",
    "keyStore.passwordPath": "key_store_password_path",
    "hostnameVerification": "verify_host_name",
    "enabledProtocols": "protocols",
    "ciphersuites": "cipher_suites",
}
_TLS = "zookeeper.ssl."
_NAMES_OF_TLS = (
    ("tlsKeyStorePasswordPath", "zookeeper.ssl.keyStore.passwordPath"),
    ("tlsTrustStorePasswordPath", "zookeeper.ssl.trustStore.passwordPath"),
    ("tlsKeyStoreType", "zookeeper.ssl.keyStore.type"),
    ("tlsTrustStoreType", "zookeeper.ssl.trustStore.type"),
    ("tlsKeyStore", "zookeeper.ssl.keyStore.location"),
    ("tlsTrustStore", "zookeeper.ssl.trustStore.location"),
    ("tlsCertificatePath", "zookeeper.ssl.keyStore.location"),
    ("tlsEnabledProtocols", "zookeeper.ssl.enabledProtocols"),
    ("tlsEnabledCipherSuites", "zookeeper.ssl.ciphersuites"),
)


def in_keys_of_zookeeper(error: ConfigurationError) -> ConfigurationError:
    """Return an error about key and trust stores with the names that these have for ZooKeeper."""
    text = str(error)
    for name, own in _NAMES_OF_TLS:
        text = text.replace(name, own)
    return ConfigurationError(text)


def parse(key: str, text: str) -> Any:
    """Return the value of a key of `KEYS`. Raises ValueError."""
    return KEYS[key].parse(text)


def zookeeper_options(
    parsed: Mapping[str, Any], *, shown: str = "{}", environment: Mapping[str, str] = os.environ
) -> ZooKeeperOptions:
    """Return the options of values that `parse` returned, by key.

    Args:
        shown: how messages show a key.

    Raises:
        ConfigurationError: a key has no effect without another, has an unsupported value, or lacks another key.
    """
    jaas_file = parsed.get(JAAS_FILE) or environment.get(JAAS_VARIABLE) or None
    if parsed.get(USES_SASL, True) is False:
        jaas_file = None
    elif JAAS_SECTION in parsed and jaas_file is None:
        raise ConfigurationError(
            f"{shown.format(JAAS_SECTION)} names a section of a JAAS file, and no file is named: set {JAAS_FILE}"
        )
    return ZooKeeperOptions(
        jaas_file=jaas_file,
        jaas_section=parsed.get(JAAS_SECTION, DEFAULT_SECTION),
        service=parsed.get(SERVICE, DEFAULT_SERVICE),
        tls=_tls(parsed, shown),
        closes_nodes=parsed.get(ENABLE_SECURITY, False),
        further_acls=parsed.get(FURTHER_ACLS, ()),
    )


def _tls(parsed: Mapping[str, Any], shown: str) -> TlsOptions | None:
    given = {key.removeprefix(_TLS): value for key, value in parsed.items() if key.startswith(_TLS)}
    if not parsed.get(SECURE):
        if given:
            raise ConfigurationError(
                f"{shown.format(_TLS + next(iter(given)))} has no effect without {SECURE}=true, which turns TLS to "
                "ZooKeeper on: set that, too"
            )
        return None
    if "trustStore.location" not in given:
        raise ConfigurationError(
            f"{SECURE}=true needs {shown.format(_TLS + 'trustStore.location')}: name the file with the certificates "
            "that are trusted for ZooKeeper"
        )
    key_store = given.get("keyStore.location")
    fields = {_TLS_FIELDS[name]: value for name, value in given.items()}
    try:
        # A PEM key store of ZooKeeper's holds the private key and the certificate chain in one file.
        return TlsOptions(**fields, certificate_path=key_store, client_authentication=key_store is not None)
    except ConfigurationError as error:
        raise in_keys_of_zookeeper(error) from None


def options_of(
    settings: Mapping[str, str], *, where: str = "", environment: Mapping[str, str] = os.environ
) -> ZooKeeperOptions:
    """Return the options that configuration keys set, as text; others are ignored.

    Args:
        where: what messages begin with.

    Raises:
        ConfigurationError: a value is wrong, or as `zookeeper_options`.
    """
    given = {key: text for key, text in settings.items() if key in KEYS and text.lower() not in OFF}
    return client_files.options_of(
        given, parse, lambda parsed: zookeeper_options(parsed, environment=environment), where=where
    )


def read_zookeeper_file(path: str, environment: Mapping[str, str] = os.environ) -> ZooKeeperOptions:
    """Return the options that a file of Apache's keys sets; keys that do not concern ZooKeeper are ignored.

    Raises:
        ConfigurationError: the file cannot be read or understood, or as `zookeeper_options`.
    """
    return options_of(read_keys(path, KEYS), where=f"{path}: ", environment=environment)
