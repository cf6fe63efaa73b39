"""Certificates for tests, made in the test: authorities, leaves for hosts and clients, in PEM, PKCS12 and JKS."""

from __future__ import annotations

import datetime
import ipaddress
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    pkcs12,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, ExtensionOID, NameOID

from bkspark.tls.options import TlsOptions

LOCAL = ("localhost", "127.0.0.1")
_DAY = datetime.timedelta(days=1)


UNREADABLE_NAME = x509.UnrecognizedExtension(
    ExtensionOID.SUBJECT_ALTERNATIVE_NAME, bytes((0x30, 5, 0x82, 3)) + b"\xff\xfe\xfd"
)
"""An alternative name that is not text."""


def _name(common_name: str, unit: str = "") -> x509.Name:
    units = [x509.NameAttribute(NameOID.ORGANIZATIONAL_UNIT_NAME, unit)] if unit else []
    return x509.Name([*units, x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _alternative(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


@dataclass(frozen=True)
class Leaf:
    """A key and its certificate, as files of a directory."""

    directory: Path
    name: str
    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate
    issuer: x509.Certificate

    def pem(self, password: bytes = b"") -> tuple[str, str]:
        """Write PEM files; return the names of those of the key and of the chain."""
        key, chain = self.directory / f"{self.name}.key", self.directory / f"{self.name}.pem"
        protection = BestAvailableEncryption(password) if password else NoEncryption()
        key.write_bytes(self.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, protection))
        chain.write_bytes(self.certificate.public_bytes(Encoding.PEM))
        return str(key), str(chain)

    def pkcs12(self, password: bytes, others: Sequence[x509.Certificate] | None = None) -> str:
        """Write a PKCS12 store; return its name. `others`: further certificates in it, by default the issuer's."""
        path = self.directory / f"{self.name}.p12"
        beside = [self.issuer] if others is None else others
        path.write_bytes(
            pkcs12.serialize_key_and_certificates(
                self.name.encode(), self.key, self.certificate, beside, BestAvailableEncryption(password)
            )
        )
        return str(path)

    def pem_with(self, *others: x509.Certificate) -> tuple[str, str]:
        """Write PEM files as `pem`, with a chain of more certificates."""
        key, chain = self.pem()
        with Path(chain).open("ab") as file:
            file.writelines(each.public_bytes(Encoding.PEM) for each in others)
        return key, chain


class Authority:
    """A certificate authority: `pem` is the name of the file with its certificate."""

    def __init__(self, directory: Path, name: str = "ca", issuer: Authority | None = None) -> None:
        """`issuer`: the authority that vouches for this one; None: it vouches for itself."""
        self._directory = directory
        self.name = name
        self._key = ec.generate_private_key(ec.SECP256R1())
        now = datetime.datetime.now(datetime.UTC)
        self.certificate = (
            x509.CertificateBuilder()
            .subject_name(_name(name))
            .issuer_name(_name(name) if issuer is None else issuer.certificate.subject)
            .public_key(self._key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - 2 * _DAY)
            .not_valid_after(now + 30 * _DAY)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .sign(self._key if issuer is None else issuer._key, hashes.SHA256())
        )
        path = directory / f"{name}.pem"
        path.write_bytes(self.certificate.public_bytes(Encoding.PEM))
        self.pem = str(path)

    def issue(
        self,
        name: str,
        hosts: Sequence[str] = LOCAL,
        *,
        days: int = 10,
        unit: str = "",
        begins_in_days: int = -1,
        usages: Sequence[x509.ObjectIdentifier] = (ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH),
    ) -> Leaf:
        """Return a leaf for hosts that is valid from yesterday on, for a negative number of days until before now.

        begins_in_days: from when it is valid, if it is so at all.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        now = datetime.datetime.now(datetime.UTC)
        end = now + days * _DAY
        builder = (
            x509.CertificateBuilder()
            .subject_name(_name(name, unit))
            .issuer_name(self.certificate.subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(min(end - _DAY, now + begins_in_days * _DAY))
            .not_valid_after(end)
            .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        )
        if hosts:
            builder = builder.add_extension(x509.SubjectAlternativeName(map(_alternative, hosts)), critical=False)
        return Leaf(self._directory, name, key, builder.sign(self._key, hashes.SHA256()), self.certificate)

    def issue_to(self, name: str, subject: x509.Name, extensions: Sequence[x509.ExtensionType] = ()) -> Leaf:
        """Return a leaf with any subject and extensions, valid for a day. `name`: of its files."""
        key = ec.generate_private_key(ec.SECP256R1())
        now = datetime.datetime.now(datetime.UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self.certificate.subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - _DAY)
            .not_valid_after(now + _DAY)
        )
        for extension in extensions:
            builder = builder.add_extension(extension, critical=False)
        return Leaf(self._directory, name, key, builder.sign(self._key, hashes.SHA256()), self.certificate)

    def keytool_trust_store(self, kind: str, password: str) -> str:
        """Return the name of a trust store of Java's keytool: JKS or PKCS12."""
        path = self._directory / f"{self.name}-trust.{kind.lower()}"
        if path.exists():
            return str(path)
        command = ["keytool", "-importcert", "-noprompt", "-alias", self.name, "-file", self.pem]
        subprocess.run(
            [*command, "-keystore", str(path), "-storetype", kind, "-storepass", password],
            check=True,
            capture_output=True,
            timeout=60,
        )
        return str(path)


def to_jks(store: str, password: str) -> str:
    """Return the name of a real JKS store that keytool made of a PKCS12 store."""
    path = str(Path(store).with_suffix(".jks"))
    command = ["keytool", "-importkeystore", "-noprompt", "-srckeystore", store, "-srcstorepass", password]
    subprocess.run(
        [*command, "-destkeystore", path, "-deststoretype", "jks", "-deststorepass", password],
        check=True,
        capture_output=True,
        timeout=60,
    )
    return path


def of_bookie(leaf: Leaf, **changes: object) -> TlsOptions:
    key, chain = leaf.pem()
    return replace(TlsOptions(key_store=key, certificate_path=chain), **changes)  # type: ignore[arg-type]
