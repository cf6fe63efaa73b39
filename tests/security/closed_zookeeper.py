"""A ZooKeeper server that users log in to, with a port for TLS beside the clear one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Self

from bkspark.cli.ports import free_ports
from bkspark.cli.zookeeper_process import HOST, ZooKeeperProcess
from bkspark.metadata.uri import MetadataUri
from bkspark.metadata.zookeeper import ZooKeeperTree, open_tree
from bkspark.metadata.zookeeper_options import ZooKeeperOptions, options_of
from tests.security.certificates import Authority, Leaf

MODULE = "org.apache.zookeeper.server.auth.DigestLoginModule"
USERS = {"bookkeeper": "s3cret of bookkeeper", "stranger": "s3cret of a stranger"}


def one_pem(leaf: Leaf) -> str:
    """Return the name of a file with key and certificate, as ZooKeeper's PEM key stores are."""
    key, chain = leaf.pem()
    path = leaf.directory / f"{leaf.name}-both.pem"
    path.write_text(Path(key).read_text() + Path(chain).read_text())
    return str(path)


class ClosedZooKeeper:
    """Users log in by DIGEST-MD5 on both ports; certificates of clients are taken, and not demanded.

    A context manager that starts and ends the server.
    """

    def __init__(self, directory: Path, settings: Mapping[str, str] | None = None) -> None:
        """`settings`: further ones of the server."""
        self.directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        self.authority = Authority(directory)
        self.port, self.secure_port = free_ports(2)
        users = " ".join(f'user_{name}="{password}"' for name, password in USERS.items())
        self.server_jaas = directory / "server.jaas"
        self.server_jaas.write_text(f"Server {{ {MODULE} required {users}; }};\n")
        tls = {
            "secureClientPort": str(self.secure_port),
            "serverCnxnFactory": "org.apache.zookeeper.server.NettyServerCnxnFactory",
            "ssl.keyStore.location": one_pem(self.authority.issue("server")),
            "ssl.trustStore.location": self.authority.pem,
            "ssl.clientAuth": "want",
            "authProvider.x509": "org.apache.zookeeper.server.auth.X509AuthenticationProvider",
        }
        self.process = ZooKeeperProcess(
            directory / "zookeeper", port=self.port, settings=tls | dict(settings or {}), jaas_file=self.server_jaas
        )

    def __enter__(self) -> Self:
        self.process.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.process.stop()

    def uri(self, root: str = "/ledgers", *, secure: bool = False) -> MetadataUri:
        return MetadataUri.parse(f"zk://{HOST}:{self.secure_port if secure else self.port}{root}")

    def jaas(self, user: str, password: str | None = None, section: str = "Client") -> str:
        """Return the name of a JAAS file of a client."""
        path = self.directory / f"{user}.jaas"
        password = USERS[user] if password is None else password
        path.write_text(f'{section} {{ {MODULE} required username="{user}" password="{password}"; }};\n')
        return str(path)

    def login(self, user: str = "bookkeeper", *, closes: bool = True) -> dict[str, str]:
        """Return the keys of a client that logs in."""
        return {"saslJaasConfig": self.jaas(user), "zkEnableSecurity": str(closes).lower()}

    def tls(self, leaf: Leaf | None = None) -> dict[str, str]:
        """Return the keys of a client that uses TLS, and shows a certificate."""
        keys = {"zookeeper.client.secure": "true", "zookeeper.ssl.trustStore.location": self.authority.pem}
        return keys if leaf is None else keys | {"zookeeper.ssl.keyStore.location": one_pem(leaf)}

    async def session(
        self, keys: Mapping[str, str] | None = None, *, root: str = "/ledgers", seconds: float = 20.0
    ) -> ZooKeeperTree:
        """Return a session of a client with these keys; its port follows from them."""
        options = ZooKeeperOptions() if keys is None else options_of(keys)
        return await open_tree(self.uri(root, secure=options.tls is not None), options, call_timeout_s=seconds)
