"""Java's key stores and our client for tests with TLS."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

from bkspark.blocking import Client
from bkspark.net.pool import NetOptions
from bkspark.tls.client_keys import client_tls, parse
from bkspark.tls.options import FACTORY_CLASS, TlsOptions
from tests.interop.cases import PASSWORD
from tests.security.certificates import Authority, Leaf, to_jks

STORE_PASSWORD = "changeit"
QUORUMS = (3, 3, 2)


@dataclass(frozen=True)
class Stores:
    """An authority, and certificates of a bookie and of a client, in all formats."""

    directory: Path
    authority: Authority
    _made: dict[str, dict[str, str]] = field(default_factory=dict)
    """What was made already: keytool takes a second."""

    def keys(self, leaf: Leaf, kind: str, *, real_jks: bool) -> dict[str, str]:
        """Return Apache's keys of one side, which shows this certificate."""
        password = self.directory / "password"
        password.write_text(STORE_PASSWORD)
        keys = {"tlsProviderFactoryClass": FACTORY_CLASS, "tlsClientAuthentication": "true"}
        if kind == "PEM":
            key, chain = leaf.pem()
            return keys | {
                "tlsKeyStoreType": kind,
                "tlsKeyStore": key,
                "tlsCertificatePath": chain,
                "tlsTrustStoreType": kind,
                "tlsTrustStore": self.authority.pem,
            }
        store = leaf.pkcs12(STORE_PASSWORD.encode())
        trust_store = self.authority.keytool_trust_store(kind if real_jks else "PKCS12", STORE_PASSWORD)
        return keys | {
            "tlsKeyStoreType": kind,
            "tlsKeyStore": to_jks(store, STORE_PASSWORD) if kind == "JKS" and real_jks else store,
            "tlsKeyStorePasswordPath": str(password),
            "tlsTrustStoreType": kind,
            "tlsTrustStore": trust_store,
            "tlsTrustStorePasswordPath": str(password),
        }

    def java(self, kind: str) -> dict[str, str]:
        """Return the keys of Apache's client, or of a bookie of Apache's."""
        return {**self._side("java", kind, real_jks=True), "tlsProvider": "JDK"}

    def ours(self, kind: str) -> dict[str, str]:
        """Return the keys of our bookie or client."""
        return self._side("ours", kind, real_jks=False)

    def _side(self, name: str, kind: str, *, real_jks: bool) -> dict[str, str]:
        folder = self.directory / f"{name}-{kind}"
        if folder.name not in self._made:
            folder.mkdir()
            leaf = replace(self.authority.issue(name, unit="0:writer;1:test"), directory=folder)
            self._made[folder.name] = self.keys(leaf, kind, real_jks=real_jks)
        return self._made[folder.name]

    def client(self, kind: str, **changes: str) -> TlsOptions:
        """Return the options of our client."""
        keys = {**self.ours(kind), **changes}
        found = client_tls({key: parse(key, text) for key, text in keys.items()})
        assert found is not None
        return found


def our_client(uri: str, tls: TlsOptions | None, wire_protocol: str = "v2") -> Client:
    return Client(uri, password=PASSWORD.encode(), wire_protocol=wire_protocol, net=NetOptions(tls=tls))
