"""Principals: what a bookie knows about the peer of each connection."""

from __future__ import annotations

from pathlib import Path

import pytest

from bkspark.security.authorization import READ, parse_rules
from bkspark.security.principal import ANONYMOUS, KINDS, Principal, principal_of_certificate, subject_name
from tests.security.certificates import Authority
from tests.security.principals import principals
from tests.security.tls_serving import TlsPeer, listener, serving, trusting


def test_principal_is_a_name_and_a_known_kind() -> None:
    assert [str(Principal("x", kind)) for kind in KINDS[1:]] == [f"{kind}:x" for kind in KINDS[1:]]
    assert str(ANONYMOUS) == "anonymous"
    assert Principal("x", "digest") != Principal("x", "kerberos")


@pytest.mark.parametrize(("name", "kind"), [("x", "user"), ("", "digest")])
def test_principal_without_a_name_or_of_an_unknown_kind_does_not_exist(name: str, kind: str) -> None:
    with pytest.raises(ValueError, match="principal"):
        Principal(name, kind)


@pytest.mark.parametrize(
    ("subject", "name"),
    [
        ((), ""),
        (
            ((("countryName", "DE"),), (("organizationName", "A, B"),), (("commonName", "client"),)),
            r"CN=client,O=A\, B,C=DE",
        ),
        (((("organizationalUnitName", "0:a,b;1:c"),), (("commonName", "x"),)), r"CN=x,OU=0:a\,b\;1:c"),
        (((("commonName", "x"), ("userId", "7")),), "CN=x+UID=7"),
        (((("commonName", "#x "),),), r"CN=\#x\ "),
        (((("commonName", "x,OU=0:admin"),),), r"CN=x\,OU\=0:admin"),
        (((("commonName", " "),),), r"CN=\ "),
        (((("1.2.3", "x\0y"),),), r"1.2.3=x\00y"),
    ],
)
def test_subject_is_written_as_rfc_4514_does_and_no_value_looks_like_another_part(
    subject: tuple[tuple[tuple[str, str], ...], ...], name: str
) -> None:
    assert subject_name(subject) == name


@pytest.mark.parametrize(
    ("names", "name"),
    [
        ((("DNS", "writer.example"), ("DNS", "other.example")), "DNS:writer.example"),
        ((("othername", "<unsupported>"), ("URI", "spiffe://cluster/writer")), "URI:spiffe://cluster/writer"),
        ((("IP Address", "10.0.0.7"),), "IP:10.0.0.7"),
        ((("email", "writer@example.com"),), "email:writer@example.com"),
    ],
)
def test_certificate_without_a_subject_has_its_first_alternative_name(
    names: tuple[tuple[str, str], ...], name: str
) -> None:
    """RFC 5280 allows it, and tools that name services make such certificates."""
    assert principal_of_certificate({"subject": (), "subjectAltName": names}) == Principal(name, "certificate")
    named = {"subject": ((("commonName", "x"),),), "subjectAltName": names}
    assert principal_of_certificate(named) == Principal("CN=x", "certificate")
    assert parse_rules(f"certificate:{name} read *".encode()).of(Principal(name, "certificate")).everywhere == READ


def test_no_certificate_and_an_empty_subject_are_anonymous() -> None:
    assert principal_of_certificate(None) == principal_of_certificate({}) == ANONYMOUS
    assert principal_of_certificate({"subject": ()}) == ANONYMOUS
    assert principal_of_certificate({"subject": (), "subjectAltName": (("DirName", ()), ("DNS", ""))}) == ANONYMOUS


def test_connection_has_the_subject_of_its_certificate_and_is_anonymous_without_one(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    writer = authority.issue("writer", unit="0:writer;1:test")
    with serving(tmp_path, listener(authority.issue("bookie"), authority)) as bookie, bookie.connect() as peer:
        peer.add(1, 0, [b"one"])
        assert principals(bookie) == [ANONYMOUS]
        with TlsPeer(bookie.port, trusting(authority, writer)) as secured:
            secured.add(1, 1, [b"two"])
            assert principals(bookie) == [ANONYMOUS, Principal(r"CN=writer,OU=0:writer\;1:test", "certificate")]


def test_connection_in_tls_without_client_certificates_is_anonymous(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    served = serving(tmp_path, listener(authority.issue("bookie")))
    with served as bookie, TlsPeer(bookie.port, trusting(authority)) as peer:
        peer.add(1, 0, [b"one"])
        assert principals(bookie) == [ANONYMOUS]
