"""Stored entries as tasks read them: those before a task's first one, and those that are left of a striped ledger."""

from dataclasses import replace

import pytest

from bkspark.blocking import run
from bkspark.core.metadata import Fragment
from bkspark.errors import DataLoss
from bkspark.spark.look_back import entries_before
from bkspark.spark.options import SourceOptions
from bkspark.spark.read import BookKeeperReader
from bkspark.spark.source import BookKeeperDataSource
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


def lose_all_but(cluster, client, ledger_id: int, kept: int) -> None:
    """Say in the metadata of a ledger that all entries except one are where they never were."""

    async def change() -> None:
        ledgers = (await client.asynchronous.context()).ledgers
        stored = await ledgers.read(ledger_id)
        (fragment,) = stored.metadata.fragments
        other = next(bookie.id for bookie in cluster.bookies if bookie.id not in fragment.bookies)
        fragments = (Fragment(0, (other,)), Fragment(kept, fragment.bookies), Fragment(kept + 1, (other,)))
        await ledgers.write(ledger_id, replace(stored.metadata, fragments=fragments), stored.version)

    run(change)


def test_entry_between_thousands_of_lost_ones_is_read_and_the_rest_is_not_searched(cluster, client, caplog):
    """docs/spark.md: "What exists is read". The bookies say by their lists where the entry is."""
    one = ledger(client, range(6_000), ensemble=1, write_quorum=1, ack_quorum=1)
    lose_all_but(cluster, client, one, 5_000)
    options = {"uri": cluster.uri, "ledgers": str(one), "failOnDataLoss": "false"}
    reader = BookKeeperReader(VALUE, SourceOptions.parse(options))
    assert rows(reader, reader.partitions()) == [5_000]
    assert [record.message for record in caplog.records if "are gone" in record.message] == [
        f"entries 0-4999 of ledger {one} are gone and are left out",
        f"entries 5001-5999 of ledger {one} are gone and are left out",
    ]


def test_columns_are_those_of_what_is_left_if_the_first_thousands_of_entries_are_lost(cluster, client):
    with client.create(ensemble=1, write_quorum=1, ack_quorum=1) as writer:
        writer.append_many([b'{"a": %d}' % number for number in range(6_000)])
    lose_all_but(cluster, client, writer.ledger_id, 2_500)
    options = {"uri": cluster.uri, "ledgers": str(writer.ledger_id), "payloadFormat": "json"}
    assert BookKeeperDataSource({**options, "failOnDataLoss": "false"}).schema().names == ["a"]
    with pytest.raises(DataLoss):
        BookKeeperDataSource(options).schema()
