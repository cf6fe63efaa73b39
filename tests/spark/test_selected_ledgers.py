"""Which ledgers a selection has, in a cluster whose ids are far apart: they are listed page by page."""

from __future__ import annotations

from pathlib import Path

import pytest

from bkspark.client import Client
from bkspark.core.metadata import Fragment, LedgerMetadata
from bkspark.errors import NoSuchLedger
from bkspark.spark.ledger_offsets import LedgerIds
from bkspark.spark.option_values import EVERY_LEDGER, IdRange
from bkspark.spark.stored_ledgers import selected_ledgers
from tests.ledger.in_process import InProcessCluster, run

IDS = (3, 7, 20_000)


async def selected(client: Client, *ranges: IdRange, finished: tuple[int, ...] = ()) -> list[int]:
    found = selected_ledgers(client, ranges, LedgerIds().with_ids(finished), must_exist=True)
    return [ledger_id async for some in found for ledger_id, _ in some]


def test_range_has_the_ledgers_of_all_pages_and_is_empty_only_if_none_has_one(tmp_path: Path) -> None:
    async def test(cluster: InProcessCluster) -> None:
        client = cluster.client()
        for ledger_id in IDS:
            metadata = LedgerMetadata(1, 1, 1, (Fragment(0, ("b:1",)),))
            await (await client.context()).ledgers.create(metadata, ledger_id=ledger_id)
        assert await selected(client, IdRange(3, 10_001)) == [3, 7]
        assert await selected(client, IdRange(0, 20_001)) == [3, 7, 20_000]
        assert await selected(client, IdRange(3, 7)) == [3]
        assert await selected(client, IdRange(4, 20_000)) == [7]
        assert await selected(client, IdRange(5, 6), IdRange(6, 20_001)) == [5, 7, 20_000]
        assert await selected(client, IdRange(0, 20_001), finished=(7,)) == [3, 20_000]
        assert await selected(client, EVERY_LEDGER) == [3, 7, 20_000]
        with pytest.raises(NoSuchLedger, match="names 8-19999, but no ledger has such an id"):
            await selected(client, IdRange(8, 20_000))

    run(tmp_path, test, bookies=1)
