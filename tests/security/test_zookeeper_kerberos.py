"""A session at a real ZooKeeper by GSSAPI, with a real key distribution center."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from bkspark.cli.ports import free_ports
from bkspark.cli.zookeeper_process import ZooKeeperProcess
from bkspark.errors import MetadataAccessDenied
from bkspark.metadata.acls import ALL, Acl
from bkspark.metadata.uri import MetadataUri
from bkspark.metadata.zookeeper import open_tree
from bkspark.metadata.zookeeper_options import options_of
from tests.security import kdc
from tests.security.kdc import REALM, KeyDistributionCenter

pytestmark = [
    pytest.mark.skipif(bool(kdc.missing()), reason=kdc.missing() or "all is there"),
    pytest.mark.cluster,
    pytest.mark.xdist_group("kerberos"),
]

MODULE = "com.sun.security.auth.module.Krb5LoginModule"
SERVER, CLIENT = "zookeeper/127.0.0.1", "bookkeeper"


@pytest.fixture(scope="module")
def realm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KeyDistributionCenter]:
    with KeyDistributionCenter(tmp_path_factory.mktemp("kdc")) as center:
        yield center


@pytest.fixture(autouse=True)
def in_realm(realm: KeyDistributionCenter, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in realm.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", f"-Djava.security.krb5.conf={realm.configuration}")


def jaas(path: Path, section: str, keytab: str, principal: str) -> Path:
    path.write_text(
        f'{section} {{ {MODULE} required useKeyTab=true storeKey=true useTicketCache=false keyTab="{keytab}" '
        f'principal="{principal}@{REALM}"; }};\n'
    )
    return path


def test_session_has_the_kerberos_principal_and_closes_its_nodes(realm: KeyDistributionCenter, tmp_path: Path) -> None:
    server = jaas(tmp_path / "server.jaas", "Server", realm.keytab(SERVER), SERVER)
    client = jaas(tmp_path / "client.jaas", "Client", realm.keytab(CLIENT), CLIENT)
    port = free_ports(1)[0]
    uri = MetadataUri.parse(f"zk://127.0.0.1:{port}/ledgers")
    keys = {"saslJaasConfig": str(client), "zkEnableSecurity": "true"}

    async def test() -> None:
        tree = await open_tree(uri, options_of(keys))
        try:
            own = Acl("sasl", f"{CLIENT}@{REALM}", ALL)
            assert (own.scheme, own.id) in await tree.identities()
            await tree.create("/closed")
            assert (await tree.acl("/closed"))[0] == (own,)
        finally:
            await tree.close()
        with pytest.raises(MetadataAccessDenied, match=r"during the SASL login|not found in Kerberos database"):
            await open_tree(uri, options_of(keys | {"zookeeper.sasl.client.username": "elsewhere"}))

    with ZooKeeperProcess(tmp_path / "zookeeper", port=port, jaas_file=server):
        asyncio.run(asyncio.wait_for(test(), 120))
