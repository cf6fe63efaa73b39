"""Random transactions: a stream gives what a broker would deliver at that time, each message once, wherever
micro-batches are cut, ledgers roll over and the query is restarted."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import pytest

from bkspark.blocking import Client
from tests.cluster import Cluster
from tests.pulsar.entries import Message, batch, chunked, framed, marker, metadata_of, single
from tests.pulsar.stored import StoredTopic, transaction_snapshots
from tests.spark.topic_queries import Query
from tests.spark.topic_reads import VALUE, rows_of, values

pytestmark = [pytest.mark.cluster, pytest.mark.admission_control]

COMMIT, ABORT, COMMITTING = 21, 22, 20


class TopicOfTransactions:
    """A topic with transactions, and what a broker shows of it."""

    def __init__(self, topic: StoredTopic, seed: int) -> None:
        self.topic = topic
        self.chance = random.Random(seed)
        self._number = 0
        """The number of the next message, or of the next transaction."""
        self._open: list[int] = []
        """Transactions that have not ended."""
        self._waiting: list[tuple[int | None, bytes, list[bytes]]] = []
        """Chunks of a message that is not whole yet, as items of `_entries` with their bytes."""
        self._entries: list[tuple[int | None, list[bytes]]] = []
        """The transaction of each entry, and the messages that it completes."""
        self._ends: dict[int, tuple[int, bool]] = {}
        """By transaction, the place of the marker that ended it, and whether it was committed."""
        topic.ledger([], is_open=True)

    def append(self, count: int) -> None:
        for _ in range(count):
            step = self.chance.choice(("message", "batch", "chunks", "end", "begin", "other"))
            txn = self.chance.choice([None, *self._open])
            if step == "begin" and len(self._open) < 4:
                self._open.append(self._number)
                self._number += 1
            elif step == "end" and self._open:
                self.end(self._open.pop(self.chance.randrange(len(self._open))))
            elif step == "other":
                self._add(marker(self.chance.choice((10, COMMITTING)), None if txn is None else (0, txn)), None, [])
            else:
                self._messages(step, txn)

    def end(self, txn: int) -> None:
        self._finish_chunks()
        is_committed = self.chance.random() < 0.5
        self._ends[txn] = len(self._entries), is_committed
        self._add(marker(COMMIT if is_committed else ABORT, (0, txn)), None, [])

    def end_all(self) -> None:
        self._finish_chunks()
        while self._open:
            self.end(self._open.pop())
        self._add(framed(metadata_of(), b"end"), None, [b"end"])

    def _messages(self, step: str, txn: int | None) -> None:
        of = {} if txn is None else {"txnid_most_bits": 0, "txnid_least_bits": txn}
        given = [b"m%d" % (self._number + place) for place in range(3 if step == "batch" else 1)]
        if step == "batch":
            self._add(batch([Message(value) for value in given], self._number, **of), txn, given)
        elif step == "chunks" and self._waiting:
            self._add_chunk()
            return
        elif step == "chunks":
            *others, last = chunked(Message(given[0], more=of), 1, self._number)
            self._waiting = [*((txn, entry, []) for entry in others), (txn, last, given)]
            self._add_chunk()
        else:
            self._add(single(Message(given[0]), self._number, **of), txn, given)
        self._number += len(given)

    def _add_chunk(self) -> None:
        txn, entry, given = self._waiting.pop(0)
        self._add(entry, txn, given)

    def _finish_chunks(self) -> None:
        while self._waiting:
            self._add_chunk()

    def _add(self, entry: bytes, txn: int | None, given: list[bytes]) -> None:
        assert self.topic.writer is not None
        self.topic.writer.append(entry)
        self._entries.append((txn, given))

    def shown(self, count: int) -> list[bytes]:
        """Return what a broker delivers that has the first `count` entries."""
        found: list[bytes] = []
        for txn, given in self._entries[:count]:
            place, is_committed = self._ends.get(txn, (count, False)) if txn is not None else (-1, True)
            if place >= count:
                break  # the first message of a transaction that is open
            if is_committed:
                found += given
        return found

    @property
    def count(self) -> int:
        """How many entries there are."""
        return len(self._entries)

    @property
    def confirmed(self) -> int:
        """How many entries are confirmed: an entry of the open ledger confirms the one before it."""
        assert self.topic.writer is not None
        return self.count - (1 if self.topic.writer.last_entry >= 0 else 0)


@pytest.fixture
def announced(client: Client) -> Iterator[Callable[[StoredTopic], None]]:
    """Adds a snapshot of transactions of a topic."""
    with transaction_snapshots(client) as snapshots:

        def announce(topic: StoredTopic) -> None:
            snapshots.ledger([single(Message(b"", str(topic.name)))])

        yield announce


def follow(cluster: Cluster, topic: StoredTopic, seed: int) -> None:
    found = TopicOfTransactions(topic, seed)
    chance = found.chance
    limit = {"maxEntriesPerTrigger": chance.choice((1, 2, 5))} if chance.random() < 0.7 else {}
    query = Query(cluster, topic, startingOffsets="earliest", **limit)
    given: list[bytes] = []

    def trigger() -> bool:
        more = query.next_values()
        given.extend(more or ())
        shown = found.shown(found.confirmed)
        assert given == shown[: len(given)], f"seed {seed}"
        return more is not None

    for step in chance.choices(("append", "roll", "trigger", "restart", "batch"), (5, 1, 5, 2, 1), k=40):
        if step == "append":
            found.append(chance.choice((1, 3, 10)))
        elif step == "roll":
            topic.roll()
        elif step == "trigger":
            trigger()
        elif step == "restart":
            query.restart()
        else:
            cut = {"maxEntriesPerPartition": chance.choice((1, 3, 100))}
            read = values(rows_of(cluster.uri, topic.name, VALUE, **cut))
            assert read == found.shown(found.confirmed), f"seed {seed}"
    found.end_all()
    topic.roll()
    while trigger():
        pass
    assert given == found.shown(found.count), f"seed {seed}"
    assert given[-1] == b"end"


def test_transactions_at_random_are_streamed_as_a_broker_shows_them(
    cluster: Cluster, topic: StoredTopic, announced: Callable[[StoredTopic], None]
) -> None:
    announced(topic)
    follow(cluster, topic, 3)


@pytest.mark.long(reason="more seeds of an ordinary test")
def test_many_transactions_at_random_are_streamed_as_a_broker_shows_them(
    cluster: Cluster, client: Client, announced: Callable[[StoredTopic], None]
) -> None:
    for seed in range(100, 150):
        topic = StoredTopic(client, f"public/default/transactions-{seed}")
        announced(topic)
        follow(cluster, topic, seed)
