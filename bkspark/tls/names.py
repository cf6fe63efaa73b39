"""Java's names of protocols and cipher suites, as Apache's configuration has them, and OpenSSL's. PURE.

Java and OpenSSL share the names of TLS 1.3's suites. Python cannot choose among these: if one is named, TLS 1.3 is on
with all of its suites; if no suite of TLS 1.3 is named, it is off, as in Java.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable

TLS_1_2, TLS_1_3 = "TLSv1.2", "TLSv1.3"
_OLD = frozenset({"SSLv2Hello", "SSLv3", "TLSv1", "TLSv1.1"})

_EXCHANGES = ("ECDHE_ECDSA", "ECDHE_RSA", "DHE_RSA", "RSA")
_CIPHERS = {
    "AES_128_GCM_SHA256": "AES128-GCM-SHA256",
    "AES_256_GCM_SHA384": "AES256-GCM-SHA384",
    "CHACHA20_POLY1305_SHA256": "CHACHA20-POLY1305",
    "AES_128_CBC_SHA256": "AES128-SHA256",
    "AES_256_CBC_SHA384": "AES256-SHA384",
    "AES_256_CBC_SHA256": "AES256-SHA256",
    "AES_128_CBC_SHA": "AES128-SHA",
    "AES_256_CBC_SHA": "AES256-SHA",
}


def _openssl_name(exchange: str, cipher: str) -> str:
    # OpenSSL's names omit the key exchange if the certificate's RSA key is used for it.
    prefix = "" if exchange == "RSA" else exchange.replace("_", "-") + "-"
    return prefix + _CIPHERS[cipher]


_SUITES_1_2 = {f"TLS_{e}_WITH_{c}": _openssl_name(e, c) for e, c in itertools.product(_EXCHANGES, _CIPHERS)}
_SUITES_1_3 = frozenset({"TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256"})

_LEFT_OUT = frozenset(
    {
        "TLS_EMPTY_RENEGOTIATION_INFO_SCSV",
        *(f"TLS_{e}_WITH_{c}" for e in ("DHE_DSS", "ECDH_ECDSA", "ECDH_RSA") for c in _CIPHERS),
        *(
            f"{prefix}_{e}_WITH_3DES_EDE_CBC_SHA"
            for prefix in ("TLS", "SSL")
            for e in (*_EXCHANGES, "DHE_DSS", "ECDH_ECDSA", "ECDH_RSA")
        ),
    }
)
"""Suites of Java's that lists for Apache's peers have beside others: weak ones, and a signal that is not a suite."""


def check_protocols(protocols: Iterable[str]) -> None:
    """Raise ValueError for a protocol that is not served."""
    for protocol in protocols:
        if protocol in _OLD:
            raise ValueError(f"{protocol} is not safe and not served: {TLS_1_2} and {TLS_1_3} are")
        if protocol not in (TLS_1_2, TLS_1_3):
            raise ValueError(f"{protocol!r:.80} is not a protocol: {TLS_1_2} and {TLS_1_3} are")


def served_protocols(protocols: tuple[str, ...]) -> tuple[str, ...]:
    """Return the protocols without old ones, which files may name in addition to newer ones; all if all are old."""
    return tuple(name for name in protocols if name not in _OLD) or protocols


def served_suites(suites: tuple[str, ...]) -> tuple[str, ...]:
    """Return the suites without those that files may name beside served ones; all of them if no other is named."""
    return tuple(name for name in suites if name not in _LEFT_OUT) or suites


def check_cipher_suites(suites: Iterable[str]) -> None:
    """Raise ValueError for a suite that is not known."""
    for suite in suites:
        if suite not in _SUITES_1_2 and suite not in _SUITES_1_3 and suite not in _SUITES_1_2.values():
            raise ValueError(
                f"{suite!r:.80} is not a cipher suite that is served; an example of one is "
                "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384"
            )


def versions_of(protocols: Iterable[str], suites: Iterable[str]) -> frozenset[str]:
    """Return which of TLS 1.2 and 1.3 may be used.

    Raises:
        ValueError: none, because no suite is for one of the protocols.
    """
    versions = frozenset(protocols) or frozenset({TLS_1_2, TLS_1_3})
    named = set(suites)
    if named:
        versions &= {TLS_1_3 if suite in _SUITES_1_3 else TLS_1_2 for suite in named}
    if not versions:
        raise ValueError("no enabled cipher suite is for an enabled protocol")
    return versions


def openssl_ciphers(suites: Iterable[str]) -> str:
    """Return OpenSSL's list of the suites for TLS 1.2, "" where none is named."""
    return ":".join(_SUITES_1_2.get(suite, suite) for suite in suites if suite not in _SUITES_1_3)
