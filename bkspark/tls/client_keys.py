"""The keys of a client's TLS, as Apache's client configuration names them: Spark options and client files have them.

`tlsProviderFactoryClass` turns TLS on. A key without it is an error, because the user who set it believes that it has
an effect. A `client...` key takes precedence over the `tls...` key of the same name, so that one file can serve a
bookie and its clients.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from bkspark.client_files import OFF, flag, options_of, read_keys
from bkspark.errors import ConfigurationError
from bkspark.options import DAY_S, YEARS_S
from bkspark.tls.names import check_cipher_suites, check_protocols, served_protocols, served_suites
from bkspark.tls.options import FACTORY_CLASS, StoreType, TlsOptions

FACTORY = "tlsProviderFactoryClass"
FILE_VARIABLE = "BKSPARK_CLIENT_CONFIG"
"""The environment variable with the name of a file of these keys."""
_NUMBER = re.compile("-?[0-9]{1,9}")
_STORES = ("KeyStoreType", "KeyStore", "KeyStorePasswordPath", "TrustStoreType", "TrustStore", "TrustStorePasswordPath")


def _names(text: str) -> tuple[str, ...]:
    names = tuple(part.strip() for part in text.split(",") if part.strip())
    if not names:
        raise ValueError("it must name at least one, separated by commas")
    return names


def _protocols(text: str) -> tuple[str, ...]:
    served = served_protocols(_names(text))
    check_protocols(served)
    return served


def _cipher_suites(text: str) -> tuple[str, ...]:
    suites = served_suites(_names(text))
    check_cipher_suites(suites)
    return suites


def _seconds(text: str, least: float, most: float) -> float:
    if not _NUMBER.fullmatch(text) or not least <= int(text) <= most:
        raise ValueError(f"it must be a whole number from {least:g} to {most:.0f}")
    return float(max(0, int(text)))


FIELDS: Mapping[str, tuple[str, Callable[[str], Any], str]] = {
    "tlsTrustStore": ("trust_store", str, "file of the certificates that are trusted"),
    "tlsTrustStoreType": ("trust_store_type", StoreType.parse, "PEM, PKCS12 or JKS"),
    "tlsTrustStorePasswordPath": ("trust_store_password_path", str, "file with the trust store's password"),
    "tlsKeyStore": ("key_store", str, "file of the client's key and certificate; with PEM of the key"),
    "tlsKeyStoreType": ("key_store_type", StoreType.parse, "PEM, PKCS12 or JKS"),
    "tlsKeyStorePasswordPath": ("key_store_password_path", str, "file with the key store's password"),
    "tlsCertificatePath": ("certificate_path", str, "PEM: file of the client's certificate chain"),
    "tlsClientAuthentication": ("client_authentication", flag, "show the client's certificate"),
    "tlsHostnameVerificationEnabled": ("verify_host_name", flag, "compare host and certificate"),
    "tlsEnabledProtocols": ("protocols", _protocols, "TLSv1.2,TLSv1.3 or one of them"),
    "tlsEnabledCipherSuites": ("cipher_suites", _cipher_suites, "cipher suites by Java's names"),
    "tlsCertFilesRefreshDurationSeconds": (
        "refresh_s",
        lambda text: _seconds(text, -1, YEARS_S),
        "seconds between checks for changed files, 0: never",
    ),
    "startTLSTimeoutSecs": (
        "start_tls_timeout_s",
        lambda text: _seconds(text, 1, DAY_S),
        "seconds for START_TLS and the handshake",
    ),
}
"""By key: the field of `TlsOptions`, how its text is parsed, and what it means."""


def parse(key: str, text: str) -> Any:
    """Return the value of a key of `FIELDS` or of `tlsProviderFactoryClass`. Raises ValueError."""
    if key == FACTORY:
        if text.lower() not in OFF and text != FACTORY_CLASS:
            raise ValueError(f"it must be {FACTORY_CLASS}, or empty for no TLS")
        return text.lower() not in OFF
    return FIELDS[key][1](text)


def client_tls(parsed: Mapping[str, Any], *, shown: str = "{}") -> TlsOptions | None:
    """Return the options of values that `parse` returned, by key; None if the client does not use TLS.

    Args:
        shown: how messages show a key.

    Raises:
        ConfigurationError: a key has no effect without another, or has an unsupported value.
    """
    others = [key for key in parsed if key != FACTORY]
    if not parsed.get(FACTORY):
        if others:
            raise ConfigurationError(
                f"{shown.format(others[0])} has no effect without {FACTORY}={FACTORY_CLASS}, which turns TLS on: "
                "set that, too"
            )
        return None
    if "tlsTrustStore" not in parsed:
        raise ConfigurationError(
            f"{shown.format('tlsTrustStore')} is missing: name the file with the certificates that the client trusts"
        )
    return TlsOptions(**{FIELDS[key][0]: parsed[key] for key in others})


def read_client_file(path: str) -> TlsOptions | None:
    """Return the options that a file of Apache's keys sets for a client; keys that do not concern TLS are ignored.

    Raises:
        ConfigurationError: the file cannot be read or understood, or as `client_tls`.
    """
    given = read_keys(path, (FACTORY, *FIELDS, *(f"client{store}" for store in _STORES)))
    key_of = {}
    for key in (FACTORY, *FIELDS):
        own = f"client{key.removeprefix('tls')}"
        key_of[own if key.removeprefix("tls") in _STORES and own in given else key] = key
    return options_of(
        {name: given[name] for name in key_of if name in given},
        lambda name, text: parse(key_of[name], text),
        lambda parsed: client_tls({key_of[name]: value for name, value in parsed.items()}),
        where=f"{path}: ",
    )
