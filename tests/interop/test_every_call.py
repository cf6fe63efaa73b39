"""Apache's Java client, call by call, in both of its protocols, and its shell: docs/compatibility.md, items 4, 5, 9."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from bkspark.blocking import Client
from bkspark.cli.cluster_process import BookieProcess
from bkspark.cli.ports import free_ports
from bkspark.errors import LedgerFenced
from tests.cluster import Cluster
from tests.interop.apache import SESSION_TIMEOUT_MS, ApacheCluster
from tests.interop.cases import CALLS_IN_BOTH, CALLS_IN_V2, CALLS_IN_V3, PASSWORD
from tests.interop.conftest import Bookies
from tests.interop.peer import JavaClient, contents, payloads
from tests.interop.shell import shell

pytestmark = [pytest.mark.interop, pytest.mark.cluster]


@pytest.mark.long_except(
    "our bookies-v2", "our bookies-v3", reason="Apache's client on Apache's bookies shows that the checks are right"
)
@pytest.mark.parametrize(
    ("bookies", "protocol"),
    # Apache's: so that the checks are right.
    [("our bookies", "v2"), ("our bookies", "v3"), ("apache's bookies", "v3")],
    indirect=["bookies"],
)
def test_item_4_every_call_of_javas_client(java: JavaClient, bookies: Bookies, protocol: str) -> None:
    first_id = (1 << 31) + (1000 if protocol == "v2" else 2000)
    with java.speaking(protocol) as client:
        answer = client.call("calls", first_id=first_id)
    assert answer["failed"] == {}
    assert set(answer["passed"]) == CALLS_IN_BOTH | (CALLS_IN_V3 if protocol == "v3" else CALLS_IN_V2)


def test_item_4_java_in_v3_replaces_a_killed_bookie_and_copies_what_it_had(
    java_on_ours: JavaClient, cluster: Cluster
) -> None:
    with java_on_ours.speaking("v3") as java:
        ledger = java.create((2, 2, 2), "crc32c", PASSWORD)
        java.append(ledger, [1000] * 30)
        before = java.call("metadata", ledger=ledger)["fragments"][0]["bookies"]
        next(bookie for bookie in cluster.bookies if bookie.id == before[0]).kill()
        java.append(ledger, [1000] * 30)
        java.call("close", ledger=ledger)
        fragments = java.call("metadata", ledger=ledger)["fragments"]
        assert [fragment["first_entry"] for fragment in fragments] == [0, 30]
        java.call("recover_bookie", bookie=before[0], ledger=ledger)
        for fragment in java.call("metadata", ledger=ledger)["fragments"]:
            assert before[0] not in fragment["bookies"]
        next(bookie for bookie in cluster.bookies if bookie.id == before[1]).kill()
        # One bookie is left: what the killed one had must have been copied to it.
        assert java.read(ledger, "crc32c", PASSWORD)["entries"] == contents(payloads([1000] * 60))


@pytest.fixture
def ours_among_apaches(
    apache_bookies: ApacheCluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[BookieProcess]:
    """One of our bookies beside Apache's three, in a cluster that Apache's code made."""
    directory = tmp_path_factory.mktemp("ours")
    ours = BookieProcess(1, free_ports(1)[0], directory, apache_bookies.uri, {"zkTimeout": SESSION_TIMEOUT_MS})
    try:
        ours.restart()
        yield ours
    finally:
        ours.stop()


def test_item_5_ledgers_of_both_kinds_of_bookies_are_recovered_by_either_client(
    java_on_apache: JavaClient, apache_bookies: ApacheCluster, ours_among_apaches: BookieProcess
) -> None:
    """Mixed clusters. Every write set of E4W2A2 but one has Apache's bookies only."""
    for protocol in ("v2", "v3"):
        with (
            java_on_apache.speaking(protocol) as java,
            Client(apache_bookies.uri, password=PASSWORD.encode(), wire_protocol=protocol) as client,
        ):
            by_java = java.create((4, 2, 2), "crc32c", PASSWORD)
            java.append(by_java, [1000] * 40)
            assert ours_among_apaches.id in java.call("metadata", ledger=by_java)["fragments"][0]["bookies"]
            closed = client.recover(by_java)
            assert (closed.last_entry, closed.length) == (39, 40_000)
            assert list(client.open(by_java).read(0, 39)) == payloads([1000] * 40)
            assert java.read(by_java, "crc32c", PASSWORD)["entries"] == contents(payloads([1000] * 40))
            java.call("abandon", ledger=by_java)

            writer = client.create(ensemble=4, write_quorum=3, ack_quorum=2)
            writer.append_many(payloads([1000] * 40))
            assert ours_among_apaches.id in writer.metadata.last_fragment.bookies
            answer = java.read(writer.ledger_id, "crc32c", PASSWORD, recover=True)
            assert answer["closed"]
            assert answer["entries"] == contents(payloads([1000] * 40))
            with pytest.raises(LedgerFenced):
                writer.append(b"too late")
            writer.abandon()


def test_item_9_apaches_shell_on_our_cluster(java_on_ours: JavaClient, cluster: Cluster, tmp_path: Path) -> None:
    """Each command succeeds and says what is so."""
    ledger = java_on_ours.write((3, 3, 2), "crc32c", "", [100] * 5)
    bookie, saved = cluster.bookies[0].id, tmp_path / "metadata"
    for command, said in (
        ("simpletest -ensemble 3 -writeQuorum 3 -ackQuorum 2 -numEntries 20", ""),
        (f"ledgermetadata -ledgerid {ledger}", "lastEntryId=4"),
        ("listbookies -rw", bookie),
        ("listbookies -ro", ""),
        ("listbookies -a", bookie),
        ("listledgers -meta", f"ledgerId={ledger}, "),
        (f"listledgers -bookieid {bookie}", f"ledgerId={ledger}"),
        ("bookieinfo", bookie),
        (f"endpointinfo -b {bookie}", "protocol=bookie-rpc"),
        (f"readledger -ledgerid {ledger}", "entryId=4"),
        # From one bookie it leaves the last one out, on Apache's bookies too.
        (f"readledger -ledgerid {ledger} -bookie {bookie} -firstentryid 0 -lastentryid 4", "entryId=3"),
        ("clusterinfo", '"totalBookiesCount"'),
        ("queryautorecoverystatus", "No Ledger is being recovered"),
        ("autorecovery", "enabled"),
        ("listunderreplicated", "count"),
        # The bookie lives: what would be copied is only said.
        (f"recover -dryrun -force -ledger {ledger} {bookie}", ""),
        (f"recover -query -force {bookie}", ""),
        (f"ledgermetadata -ledgerid {ledger} -dumptofile {saved}", ""),
        (f"deleteledger -ledgerid {ledger} -force", ""),
        (f"ledgermetadata -ledgerid {ledger} -restorefromfile {saved}", ""),
    ):
        assert said in shell(java_on_ours, command), command
    assert java_on_ours.call("metadata", ledger=ledger)["last_entry"] == 4
    java_on_ours.call("delete", ledger=ledger)
