"""The interpreter of a bookie ends cleanly: threads, RocksDB and the HTTP server are gone before what they use.

Most processes of tests end without this (`tests/quick_end.py`).
"""

from __future__ import annotations

import re
import uuid
from pathlib import Path

import pytest

from bkspark.blocking import Client
from bkspark.cli.cluster_process import BookieProcess
from bkspark.cli.ports import free_ports
from bkspark.cli.zookeeper_process import ZooKeeperProcess
from tests.bookie.child import new_cluster
from tests.bookie.http_process import HTTP

pytestmark = pytest.mark.cluster

LOG_LINE = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} (INFO|WARNING) .*")


@pytest.mark.usefixtures("cold_starts")
def test_interpreter_of_a_bookie_with_db_ledger_storage_says_nothing_when_it_ends(
    zookeeper: ZooKeeperProcess, tmp_path: Path
) -> None:
    uri = new_cluster(zookeeper.connect_string, uuid.uuid4().hex)
    bookie = BookieProcess(1, free_ports(1)[0], tmp_path / "bookie", uri, HTTP)
    bookie.launch()
    try:
        bookie.wait_until_serving()
        with Client(uri) as client:
            with client.create(ensemble=1, write_quorum=1, ack_quorum=1) as writer:
                writer.append_many([b"kept"] * 100)
            assert list(client.open(writer.ledger_id).read(0, 99)) == [b"kept"] * 100
        bookie.terminate()
    finally:
        bookie.stop()
    assert bookie.exit_code == 0, bookie.ending()
    lines = (tmp_path / "bookie" / "bookie.log").read_text().splitlines()
    assert "has stopped in order" in lines[-1]
    assert [line for line in lines if not LOG_LINE.fullmatch(line)] == []
