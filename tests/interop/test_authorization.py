"""Authorization and Apache's Java client: it writes, reads and recovers what the rules allow, and fails on the rest."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from bkspark.errors import ReadFailed, UnauthorizedAccess
from tests.cluster import Cluster
from tests.interop.cases import PASSWORD, SIZES
from tests.interop.peer import JavaClient, Peer, PeerError, contents, payloads
from tests.interop.tls_peers import QUORUMS, Stores, our_client
from tests.polling import wait_until
from tests.security.certificates import Authority

pytestmark = [pytest.mark.interop, pytest.mark.cluster]


REFUSED = "audit: refused certificate:CN=java,OU=0:writer"
READ_ALONE = "certificate:CN=java,* read *\n"


@dataclass(frozen=True)
class Ruled:
    """Three of our bookies that obey rules in a file."""

    cluster: Cluster
    stores: Stores
    rules: Path

    def put_in_force(self, rules: str) -> None:
        """Write other rules, and return when all bookies obey them."""
        read = self.logs().count("audit: file: 1 authorization rules")
        self.rules.write_text(rules)
        wait_until(lambda: self.logs().count("audit: file: 1 authorization rules") == read + 3, "the rules in force")

    def logs(self) -> str:
        return "".join(path.read_text() for path in self.cluster.dir.rglob("bookie.log"))


@pytest.fixture(scope="module")
def ruled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ruled]:
    folder = tmp_path_factory.mktemp("ruled")
    stores, rules = Stores(folder, Authority(folder)), folder / "rules"
    rules.write_text(READ_ALONE)
    settings = {**stores.ours("PEM"), "tlsRequired": "true", "authorizationRulesFile": str(rules)}
    with Cluster(folder / "cluster", settings=settings) as cluster:
        yield Ruled(cluster, stores, rules)


@pytest.mark.parametrize("protocol", ["v2", "v3"])
def test_apaches_client_may_do_what_the_rules_say(ruled: Ruled, peer: Peer, protocol: str) -> None:
    cluster, stores = ruled.cluster, ruled.stores
    with (
        JavaClient(peer, cluster.uri, protocol, stores.java("PEM")) as java,
        our_client(cluster.uri, stores.client("PEM"), protocol) as ours,
    ):
        ruled.put_in_force("certificate:CN=java,* read,write,fence id:0-5\n")
        ledger = java.write(QUORUMS, "crc32c", PASSWORD, SIZES)
        assert java.read(ledger, "crc32c", PASSWORD)["entries"] == contents(payloads(SIZES))
        # Our client has another certificate, and no rule.
        with pytest.raises(ReadFailed, match="authorizationRulesFile"):
            ours.open(ledger).read(0, 0)
        with pytest.raises(UnauthorizedAccess), ours.create(ensemble=3, write_quorum=3, ack_quorum=2) as writer:
            writer.append(b"x")

        ruled.put_in_force(READ_ALONE)
        assert java.read(ledger, "crc32c", PASSWORD)["entries"] == contents(payloads(SIZES))
        refused = ruled.logs().count(REFUSED)
        with pytest.raises(PeerError, match=r"(?i)unauthorized"):
            java.write(QUORUMS, "crc32c", PASSWORD, SIZES)
        wait_until(lambda: ruled.logs().count(REFUSED) > refused, "an audit line")
