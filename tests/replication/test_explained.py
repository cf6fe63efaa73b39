"""`bkspark cluster underreplicated` says why, who repairs, what is left, when it is tried again; on real processes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from bkspark.blocking import Client
from bkspark.cli.zookeeper_process import ZooKeeperProcess
from tests.cluster import GuestCluster
from tests.polling import wait_until
from tests.replication.repairing import WAIT_S, autorecovery, command

pytestmark = pytest.mark.cluster


def test_each_ledger_has_its_reason_worker_bytes_left_and_next_try(zookeeper: ZooKeeperProcess, tmp_path: Path) -> None:
    """Operators' complaint: why is this ledger under-replicated? (apache/bookkeeper 1197, 3338, 4010)"""
    with GuestCluster(zookeeper, tmp_path, bookies=4) as cluster:
        uri = cluster.uri
        with Client(uri) as client:
            with client.create(ensemble=4, write_quorum=2, ack_quorum=2) as blocked:
                blocked.append_many([b"x" * 1000] * 40)
            large = []
            for _ in range(2):
                with client.create(ensemble=3, write_quorum=3, ack_quorum=3) as writer:
                    writer.append_many([b"x" * 100_000] * 100)
                large.append(writer.ledger_id)
            lost = next(each for each in cluster.bookies if each.id in client.metadata(large[0]).fragments[0].bookies)
            command(uri, "autorecovery", "--rate", "500000")
            with autorecovery(uri, tmp_path / "log", openLedgerRereplicationGracePeriod=100):
                lost.kill()

                def listed() -> dict[int, dict[str, Any]]:
                    return {each["ledger"]: each for each in command(uri, "underreplicated")[0]["ledgers"]}

                def is_working() -> bool:
                    found = listed()
                    return (
                        bool(found.get(blocked.ledger_id, {}).get("last_error"))
                        and (found.get(large[0], {}).get("copied_bytes") or 0) > 0
                    )

                wait_until(is_working, "one ledger to fail and another to be copied", WAIT_S)
                found = listed()
                without_spare = found[blocked.ledger_id]
                assert "no spare writable bookie" in without_spare["last_error"]
                assert without_spare["failures"] >= 1
                assert without_spare["next_try_ms"] > without_spare["since_ms"]
                assert without_spare["why"] == f"{lost.id} does not run"
                assert without_spare["bytes_left"] == 20_000
                repaired = found[large[0]]
                assert repaired["worker"]
                assert 0 < repaired["bytes_left"] < 10_000_000
                status = command(uri, "autorecovery", "--status")[0]
                (worker,) = status["workers"]
                assert (status["bytes_per_s"], worker["bytes_per_s"]) == (500_000, 500_000)
                assert any("no spare writable bookie" in cause for cause in worker["causes"])
                # The rate is live: without one, the rest takes no time.
                command(uri, "autorecovery", "--rate", "unlimited")
                wait_until(lambda: set(listed()) == {blocked.ledger_id}, "the others to be repaired", WAIT_S)
                other = next(each.id for each in cluster.bookies if each is not lost)
                assert command(uri, "underreplicated", "--missing", other)[0] == {"ledgers": [], "count": 0}
                assert command(uri, "autorecovery", "--rate", "configured")[0]["bytes_per_s"] is None
            command(uri, "autorecovery", "--disable")
            assert listed()[blocked.ledger_id]["why"].endswith("; autorecovery is disabled")
            assert re.search("is not a whole number", command(uri, "autorecovery", "--rate", "fast", code=2)[1])
