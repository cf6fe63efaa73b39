"""Stored entries as tasks read them: those before a task's first one, and those that are left of a striped ledger."""

from dataclasses import replace

import pytest

from bkspark.core.metadata import Fragment
from bkspark.spark.look_back import entries_before
from bkspark.spark.options import SourceOptions
from bkspark.spark.read import BookKeeperReader
from tests.spark.read_rows import VALUE, ledger, rows

pytestmark = pytest.mark.cluster


@pytest.mark.parametrize("size", [0, 60])
def test_entries_before_a_task_come_in_batches_the_last_one_first(cluster, client, monkeypatch, size):
    monkeypatch.setattr("bkspark.spark.read.READ_BYTES", 200)
    with client.create(ensemble=1, write_quorum=1, ack_quorum=1) as writer:
        writer.append_many([bytes(size)] * 60)
    source = SourceOptions.parse({"uri": cluster.uri, "ledgers": str(writer.ledger_id)})
    (partition,) = BookKeeperReader(VALUE, source).partitions()
    found = [(batch.first_entry, batch.end_entry) for batch in entries_before(partition)]
    assert found == sorted(found, reverse=True)
    assert [entry for first, end in reversed(found) for entry in range(first, end)] == list(range(60))


def test_last_entries_of_all_bookies_say_whether_a_striped_ledger_goes_on(cluster, client):
    """The last entry alone says it of its own bookies: others may have the entries before."""
    striped = ledger(client, range(10), ensemble=3, write_quorum=1, ack_quorum=1)
    reader = BookKeeperReader(
        VALUE, SourceOptions.parse({"uri": cluster.uri, "ledgers": str(striped), "failOnDataLoss": "false"})
    )
    (partition,) = reader.partitions()
    (read,) = partition.reads
    (fragment,) = read.metadata.fragments
    first, second, third = fragment.bookies
    # The bookies of entries 0, 3, 6, 9 and 2, 5, 8 are exchanged, so that neither has what it is asked for.
    exchanged = replace(read.metadata, fragments=(Fragment(0, (third, second, first)),))
    partition.reads = (replace(read, metadata=exchanged),)
    assert rows(reader, [partition]) == [1, 4, 7]
