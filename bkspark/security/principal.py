"""Principals: the identity of the peer of a connection. PURE.

Every connection of a bookie has one `Principal`. It is `ANONYMOUS` until the peer has proved another one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

KINDS = ("anonymous", "certificate", "digest", "kerberos", "token", "local")
"""How a principal was established.

anonymous: not at all. certificate: the subject of the TLS certificate, as RFC 4514 writes it. digest: the user of
DIGEST-MD5. kerberos: the Kerberos principal with its realm. token: the name of a token. local: a user of this host.
"""

_SHORT_NAMES = {
    "commonName": "CN",
    "localityName": "L",
    "stateOrProvinceName": "ST",
    "organizationName": "O",
    "organizationalUnitName": "OU",
    "countryName": "C",
    "streetAddress": "STREET",
    "domainComponent": "DC",
    "userId": "UID",
}
"""OpenSSL's names of attributes, and those of RFC 4514."""
_FURTHER_SHORT_NAMES = {
    "surname": "SN",
    "givenName": "GN",
    "jurisdictionCountryName": "jurisdictionC",
    "jurisdictionLocalityName": "jurisdictionL",
    "jurisdictionStateOrProvinceName": "jurisdictionST",
}
"""Names that RFC 4514 does not have, as OpenSSL's commands shorten them."""
_ALTERNATIVES = {"URI": "URI", "DNS": "DNS", "IP Address": "IP", "email": "email"}
"""Python's kinds of alternative names, and how they are written here."""
_SPECIAL = frozenset('"+,;<>\\=')


@dataclass(frozen=True, slots=True)
class Principal:
    """A name, and how it was established; two kinds never share a name.

    Raises:
        ValueError: the kind is not one of `KINDS`, or there is no name.
    """

    name: str
    kind: str

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"{self.kind!r:.40} is not a kind of principal; there are {', '.join(KINDS)}")
        if not self.name:
            raise ValueError("a principal needs a name")

    def __str__(self) -> str:
        return self.name if self.kind == "anonymous" else f"{self.kind}:{self.name}"


ANONYMOUS = Principal("anonymous", "anonymous")
"""The principal of a peer that has not proved its identity."""

Subject = Iterable[Iterable[tuple[str, str]]]
"""A subject as `ssl` returns it: relative names in the order of the certificate, each of attributes and values."""


def principal_of_certificate(certificate: Mapping[str, Any] | None) -> Principal:
    """Return the principal of what `getpeercert` returns; `ANONYMOUS` without a certificate or a name in it.

    A certificate without a subject has its first alternative name: `URI:spiffe://cluster/writer`, `DNS:HOST`,
    `IP:ADDRESS` or `email:ADDRESS`. No subject looks like one: its first `=` comes before any `:`.
    """
    if not certificate:
        return ANONYMOUS
    name = subject_name(certificate.get("subject", ())) or _alternative_name(certificate.get("subjectAltName", ()))
    return Principal(name, "certificate") if name else ANONYMOUS


def _alternative_name(names: Iterable[tuple[str, Any]]) -> str:
    found = (f"{_ALTERNATIVES[kind]}:{value}" for kind, value in names if kind in _ALTERNATIVES and value)
    return next(found, "")


def short_name(attribute: str) -> str:
    """Return the name that RFC 4514 has for an attribute; otherwise OpenSSL's."""
    return _SHORT_NAMES.get(attribute, attribute)


def subject_name(subject: Subject) -> str:
    """Return a subject as RFC 4514 writes it: the last relative name first, "" for an empty one.

    Attributes that the RFC does not name have OpenSSL's short names.
    """
    relative = ["+".join(f"{_shown_name(key)}={_escaped(value)}" for key, value in part) for part in subject]
    return ",".join(reversed(relative))


def _shown_name(attribute: str) -> str:
    return _FURTHER_SHORT_NAMES.get(attribute) or short_name(attribute)


def _escaped(value: str) -> str:
    """Return a value with the characters of the syntax escaped (RFC 4514, section 2.4)."""
    escaped = "".join(f"\\{char}" if char in _SPECIAL else "\\00" if char == "\0" else char for char in value)
    if value.startswith(("#", " ")):
        escaped = "\\" + escaped
    if value.endswith(" ") and len(value) > 1:
        escaped = escaped[:-1] + "\\ "
    return escaped
