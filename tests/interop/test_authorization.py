"""Authorization and Apache's Java client: it writes, reads and recovers what the rules allow, and fails on the rest."""

from __future__ import annotations

from pathlib import Path

import pytest

from bkspark.errors import ReadFailed, UnauthorizedAccess
from tests.cluster import Cluster
from tests.interop.cases import PASSWORD, SIZES
from tests.interop.peer import JavaClient, Peer, PeerError, contents, payloads
from tests.interop.test_tls import QUORUMS, Stores, our_client
from tests.polling import wait_until
from tests.security.certificates import Authority

pytestmark = [pytest.mark.interop, pytest.mark.cluster]


@pytest.mark.parametrize("protocol", ["v2", "v3"])
def test_apaches_client_may_do_what_the_rules_say(tmp_path: Path, peer: Peer, protocol: str) -> None:
    stores = Stores(tmp_path, Authority(tmp_path))
    rules = tmp_path / "rules"
    rules.write_text("certificate:CN=java,* read,write,fence id:0-2\n")
    settings = {**stores.ours("PEM"), "tlsRequired": "true", "authorizationRulesFile": str(rules)}
    with (
        Cluster(tmp_path / "cluster", settings=settings) as cluster,
        JavaClient(peer, cluster.uri, protocol, stores.java("PEM")) as java,
        our_client(cluster.uri, stores.client("PEM"), protocol) as ours,
    ):
        ledger = java.write(QUORUMS, "crc32c", PASSWORD, SIZES)
        assert java.read(ledger, "crc32c", PASSWORD)["entries"] == contents(payloads(SIZES))
        # Our client has another certificate, and no rule.
        with pytest.raises(ReadFailed, match="authorizationRulesFile"):
            ours.open(ledger).read(0, 0)
        with pytest.raises(UnauthorizedAccess), ours.create(ensemble=3, write_quorum=3, ack_quorum=2) as writer:
            writer.append(b"x")

        rules.write_text("certificate:CN=java,* read *\n")
        wait_until(lambda: logs(cluster).count("audit: file: 1 authorization rules") == 3, "the rules to be in force")
        assert java.read(ledger, "crc32c", PASSWORD)["entries"] == contents(payloads(SIZES))
        with pytest.raises(PeerError, match=r"(?i)unauthorized"):
            java.write(QUORUMS, "crc32c", PASSWORD, SIZES)
        wait_until(lambda: "audit: refused certificate:CN=java,OU=0:writer" in logs(cluster), "an audit line")


def logs(cluster: Cluster) -> str:
    return "".join(path.read_text() for path in cluster.dir.rglob("bookie.log"))
