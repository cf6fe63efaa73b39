"""Which ledgers a selection has, in a cluster whose ids are far apart: they are listed page by page."""

from __future__ import annotations

from pathlib import Path

import pytest

from bkspark.client import Client
from bkspark.core.metadata import Fragment, LedgerMetadata
from bkspark.errors import NoSuchLedger
from bkspark.spark.ledger_offsets import LedgerIds
from bkspark.spark.option_values import EVERY_LEDGER, IdRange
from bkspark.spark.selection import has_metadata
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


@pytest.mark.parametrize("value", ["x", "y"])
@pytest.mark.parametrize("keys", [("Team", "TEAM"), ("TEAM", "Team"), ("team", "Team")])
def test_keys_that_differ_in_case_alone_all_count(keys: tuple[str, str], value: str) -> None:
    """An option has no case, as Spark lower-cases it: a ledger must not be left out because of another key's value."""
    metadata = {keys[0]: b"x", keys[1]: b"y", "other": b"z"}
    assert has_metadata(metadata, "team", value)
    assert not has_metadata(metadata, "!team", value)
    assert has_metadata(metadata, "team", "*")
    assert not has_metadata(metadata, "!team", "*")
    assert has_metadata(metadata, "!team", "z")
    assert not has_metadata(metadata, "team", "z")


def test_conditions_are_exact_whatever_characters_they_have() -> None:
    metadata = {"a.b/ä!": "ünï*".encode(), "empty": b"", "bytes": b"\xff"}
    assert has_metadata(metadata, "a.b/ä!", "ünï*")
    assert has_metadata(metadata, "!a.b/ä!", "ünï")
    assert not has_metadata(metadata, "a.b/ä", "*")
    assert has_metadata(metadata, "empty", "*")
    assert has_metadata(metadata, "!bytes", "ÿ")
    assert not has_metadata(metadata, "!bytes", "*")


def test_positive_and_negated_conditions_on_one_key_hold_together() -> None:
    for stored, wanted in ((b"x", True), (b"y", False), (None, False)):
        metadata = {} if stored is None else {"Team": stored}
        conditions = (("team", "*"), ("!team", "y"))
        assert all(has_metadata(metadata, key, value) for key, value in conditions) == wanted
