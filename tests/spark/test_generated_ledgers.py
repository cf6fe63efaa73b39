"""Random lives of ledgers under a stream: each entry is read once, or lost with its ledger and reported."""

from __future__ import annotations

import json
import random
import uuid
from typing import Any

import pytest
from pyspark.sql.types import StructType

from bkspark.blocking import Client
from bkspark.errors import DataLoss
from bkspark.spark.ledger_stream import LedgerStreamReader
from bkspark.spark.options import SourceOptions
from tests.cluster import Cluster

pytestmark = [pytest.mark.cluster, pytest.mark.admission_control]

VALUE = StructType().add("value", "string")
STEPS, STEPS_MAX = 40, 1000
ACTS = ("create", "append", "append", "close", "fence", "delete", "batch", "batch", "restart")


class Lives:
    """Ledgers of a team, which are written, closed, fenced and deleted by chance, and a stream that follows them."""

    def __init__(self, cluster: Cluster, client: Client, seed: int, *, fails: bool) -> None:
        self.chance = random.Random(seed)
        self.client = client
        self.team = uuid.uuid4().hex[:12]
        self.written: dict[int, list[str]] = {}
        """The values of each ledger, also of those that were deleted."""
        self.open: dict[int, Any] = {}
        """Writers of ledgers that are open."""
        self.deleted: set[int] = set()
        self.read: list[str] = []
        self._number = 0
        given = {"ledgers": "*", "ledgerMetadata.team": self.team, "ledgerMetadata.!color": "red"}
        given |= {"failOnDataLoss": str(fails).lower(), "startingOffsets": "earliest"}
        given |= self.chance.choice([{}, {"maxEntriesPerTrigger": "3"}, {"maxBytesPerTrigger": "9"}])
        given |= self.chance.choice([{}, {"maxEntriesPerPartition": "2"}])
        self._options = SourceOptions.parse({"uri": cluster.uri, **given})
        self.restart()
        self._offset = json.dumps(self._reader.initialOffset())

    def restart(self) -> None:
        self._reader = LedgerStreamReader(VALUE, self._options)

    def step(self) -> None:
        act = self.chance.choice(ACTS)
        ids = sorted(self.open)
        one = self.chance.choice(ids) if ids else -1
        if act == "create":
            color = self.chance.choice([b"red", b"blue"])
            metadata = {"Team": self.team.encode(), "color": color}
            writer = self.client.create(ensemble=1, write_quorum=1, ack_quorum=1, metadata=metadata)
            if color == b"red":
                writer.append(b"not ours")
                return
            self.open[writer.ledger_id], self.written[writer.ledger_id] = writer, []
        elif act == "append" and ids:
            values = [f"{one}:{self._next()}" for _ in range(self.chance.randrange(1, 6))]
            self.open[one].append_many([value.encode() for value in values])
            self.written[one] += values
        elif act == "close" and ids:
            self.open.pop(one).close()
        elif act == "fence" and ids:
            self.client.recover(one)
            del self.open[one]
        elif act == "delete" and self.written.keys() - self.deleted:
            gone = self.chance.choice(sorted(self.written.keys() - self.deleted))
            self.client.delete(gone)
            self.deleted.add(gone)
            self.open.pop(gone, None)
        elif act == "batch":
            self.batch()
        elif act == "restart":
            self.restart()

    def _next(self) -> int:
        self._number += 1
        return self._number

    def batch(self) -> bool:
        start = json.loads(self._offset)
        end = self._reader.latestOffset(start, self._reader.getDefaultReadLimit())
        if json.dumps(end) == self._offset:
            return False
        if self.chance.random() < 0.3:
            self.restart()  # killed after the offset was recorded: the batch is planned again
        parts = self._reader.partitions(start, json.loads(json.dumps(end)))
        self.read += [
            value for part in parts for rows in self._reader.read(part) for value in rows["value"].to_pylist()
        ]
        self._offset = json.dumps(end)
        return True

    def noted(self) -> set[int]:
        """Return the ledgers that the offset says are not read to their end."""
        return {int(ledger_id) for ledger_id in json.loads(self._offset)["ledgers"]}

    def finish(self) -> None:
        while self.open:
            self.open.popitem()[1].close()
        while self.batch():
            pass

    def assert_read_once(self) -> None:
        """Each entry of ledgers that exist was read once, in order; of those that were deleted, their first ones."""
        assert len(self.read) == len(set(self.read))
        assert set(self.read) <= {value for values in self.written.values() for value in values}
        for ledger_id, values in self.written.items():
            found = self.values_of(ledger_id)
            assert found == (values[: len(found)] if ledger_id in self.deleted else values)

    def values_of(self, ledger_id: int) -> list[str]:
        return [value for value in self.read if value.startswith(f"{ledger_id}:")]


@pytest.mark.parametrize("seed", range(4))
def test_each_entry_is_read_once_or_lost_with_its_ledger(cluster: Cluster, client: Client, seed: int) -> None:
    lives = Lives(cluster, client, seed, fails=False)
    for _ in range(STEPS):
        lives.step()
    lives.finish()
    lives.assert_read_once()


@pytest.mark.parametrize("seed", range(4, 8))
def test_query_fails_if_a_ledger_that_it_has_noted_is_deleted_before_its_end_was_read(
    cluster: Cluster, client: Client, seed: int
) -> None:
    lives = Lives(cluster, client, seed, fails=True)
    for _ in range(STEPS_MAX):
        if gone := lives.noted() & lives.deleted:
            break
        lives.step()
    assert gone, "no ledger that was noted is deleted: choose other seeds"
    with pytest.raises(DataLoss, match=f"ledger ({'|'.join(map(str, gone))}) "):
        lives.finish()
    assert len(lives.read) == len(set(lives.read))
