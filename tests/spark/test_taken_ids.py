"""Reads and streams of a log, one of whose ledgers was deleted and another ledger created with its id."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

import pytest

from bkspark.errors import DataLoss
from bkspark.spark.read import BookKeeperReader
from bkspark.spark.stream import BookKeeperStreamReader
from tests.spark.read_rows import VALUE, append, options, rows

if TYPE_CHECKING:
    from bkspark.blocking import Client
    from tests.cluster import Cluster

pytestmark = [pytest.mark.cluster, pytest.mark.admission_control]


@pytest.fixture
def log() -> str:
    return f"taken-{uuid.uuid4().hex[:12]}"


def take(client: Client, ledger_id: int, *, closes: bool) -> None:
    """Delete a ledger, and create another one with its id."""
    client.delete(ledger_id)
    writer = client.create(ledger_id=ledger_id)
    writer.append_many([b"70", b"71", b"72", b"73"])
    if closes:
        writer.close()
    else:
        writer.abandon()


@pytest.mark.parametrize("is_large", [False, True])
def test_batch_read_does_not_return_entries_of_another_ledger(
    cluster: Cluster, client: Client, log: str, is_large: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a plan of many ledgers, the tasks notice it."""
    append(client, log, 1, 2)
    append(client, log, 3, 4)
    take(client, client.log(log).show()["ledgers"][0]["ledger"], closes=True)
    if is_large:
        monkeypatch.setattr("bkspark.spark.plan.OPENED_LEDGERS_MAX", 1)
    reader = BookKeeperReader(VALUE, options(cluster, log))
    with pytest.raises(DataLoss, match=f"of log {log} .*another ledger.*startingOffsets, or allow the loss"):
        rows(reader, reader.partitions())
    reader = BookKeeperReader(VALUE, options(cluster, log, failOnDataLoss="false"))
    assert rows(reader, reader.partitions()) == [3, 4]


@pytest.mark.parametrize("closes", [True, False])
def test_stream_ends_at_an_open_ledger_that_another_one_replaced(
    cluster: Cluster, client: Client, log: str, closes: bool
) -> None:
    """Also if the query runs on: it looks ahead to the ledger that was open at its last trigger."""
    writer = client.log(log).open_for_writing()
    writer.append_many([b"1", b"2"])
    writer.append(b"3")  # confirms those before it
    strict = BookKeeperStreamReader(VALUE, options(cluster, log, startingOffsets="earliest"))
    start = strict.initialOffset()
    end = strict.latestOffset(start)
    assert rows(strict, strict.partitions(start, end)) == [1, 2]
    writer.abandon()
    take(client, client.log(log).show()["ledgers"][0]["ledger"], closes=closes)
    restarted = BookKeeperStreamReader(VALUE, options(cluster, log, startingOffsets="earliest"))
    for stream in (strict, restarted):
        with pytest.raises(DataLoss, match=f"of log {log} .*another ledger.*new checkpoint, or allow the loss"):
            stream.latestOffset(end)
    lenient = BookKeeperStreamReader(VALUE, options(cluster, log, startingOffsets="earliest", failOnDataLoss="false"))
    append(client, log, 5, 6)
    after = lenient.latestOffset(end)
    assert rows(lenient, lenient.partitions(end, after)) == [5, 6]
