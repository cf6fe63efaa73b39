"""What is reported of data that is gone, where the loss is allowed and where it is not."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from bkspark.blocking import Client, run
from bkspark.errors import DataLoss
from bkspark.spark.losses import LostEntries
from bkspark.spark.options import SourceOptions
from bkspark.spark.plan import ReadPlanner
from bkspark.spark.ranges import EntryRange

if TYPE_CHECKING:
    from tests.cluster import Cluster

pytestmark = pytest.mark.cluster


def test_entries_that_a_ledger_does_not_have_are_counted_where_loss_is_allowed(
    cluster: Cluster, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    with client.create() as writer:
        writer.append_many([b"0", b"1", b"2"])
    one = writer.ledger_id
    ranges = [EntryRange(0, one, 1, 7, 100, "clicks"), EntryRange(1, one, 5, 7, 100), EntryRange(2, one, 0, 2, 100)]

    def planned(**options: str) -> list[tuple[int, int]]:
        given = SourceOptions.parse({"uri": cluster.uri, "ledgers": str(one), **options})
        planner = ReadPlanner(client.asynchronous, given)
        parts = run(lambda: planner.partitions(ranges))
        return [(read.first_entry, read.end_entry) for part in parts for read in part.reads]

    with pytest.raises(DataLoss, match=f"ledger {one} of log clicks ends at entry 2, .* up to 6 .*startingOffsets"):
        planned()
    assert planned(failOnDataLoss="false") == [(1, 3), (0, 2)]
    of_log, of_none = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert of_log == f"ledger {one} of log clicks ends at entry 2: 4 entries are lost and are left out"
    assert of_none == f"ledger {one} ends at entry 2: 2 entries are lost and are left out"


def test_ledger_without_entries_is_reported_as_empty(caplog: pytest.LogCaptureFixture) -> None:
    wanted = EntryRange(0, 7, 0, 4, 100, "clicks")
    with pytest.raises(DataLoss, match=r"^ledger 7 .* has no entries, entries up to 3 were to be read: ask"):
        LostEntries(SourceOptions("zk://h:1/l"), "topic", "ask").stored_end(wanted, -1)
    assert LostEntries(SourceOptions("zk://h:1/l", fail_on_data_loss=False), "topic", "ask").stored_end(wanted, -1) == 0
    assert caplog.messages == ["ledger 7 of topic clicks has no entries: 4 entries are lost and are left out"]
