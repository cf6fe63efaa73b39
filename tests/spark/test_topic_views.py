"""Positions and transactions of one topic as the driver sees them: which ones are of the topic, and what is read."""

from __future__ import annotations

import sys
from collections.abc import Callable, Coroutine, Iterable
from pathlib import Path

import pytest

from bkspark.client import Client
from bkspark.entries import EntryBatch
from bkspark.errors import ConfigurationError
from bkspark.log.positions import Position
from bkspark.pulsar.entries import decode_entries
from bkspark.pulsar.message_ids import MessageId
from bkspark.pulsar.metadata import EntryPosition, ListedLedger, ManagedLedger
from bkspark.pulsar.names import TopicName
from bkspark.pulsar.topic import PulsarStore
from bkspark.pulsar.transactions import Transactions
from bkspark.spark.options import SourceOptions
from bkspark.spark.ranges import ReadableSegment
from bkspark.spark.topic_ledgers import TopicList
from bkspark.spark.topic_rows import TopicRows
from bkspark.spark.topic_view import TopicView, take_transactions
from bkspark.spark.topics import TopicFacts
from tests.ledger.in_process import URI, InProcessCluster, run
from tests.log.world import CountingTree
from tests.pulsar.entries import Message, marker, single
from tests.spark.topic_reads import columns_of, numbered

TOPIC = TopicName.parse("clicks")
CLOSED_MS = 1_000_000


class Look:
    """A look at a topic by a client."""

    def __init__(self, client: Client, now_ms: int = 0, **given: object) -> None:
        self.client = client
        self.now_ms = now_ms
        options = {"uri": "zk://a:1/ledgers", "topic": str(TOPIC)} | {name: str(value) for name, value in given.items()}
        self.options = SourceOptions.parse(options)

    async def store(self) -> PulsarStore:
        return PulsarStore(await self.client.tree())

    def owner_of(self, ledger_id: int) -> TopicName | None:
        return None


def view(look: Look, counts: Iterable[tuple[int, int]], *, open_entries: int | None = None) -> TopicView:
    """Return a topic with closed ledgers (id, number of entries), and perhaps one after them that is open."""
    ledgers = [ListedLedger(ledger_id, count, count, CLOSED_MS) for ledger_id, count in counts]
    more = []
    if open_entries is not None:
        last = ledgers[-1].ledger_id + 1
        ledgers.append(ListedLedger(last, None, None, None))
        more.append(ReadableSegment(last, last, open_entries, open_entries, False, str(TOPIC)))
    listed = TopicList.of(TOPIC, ManagedLedger(tuple(ledgers)))
    return TopicView(look, TOPIC, listed, listed.closed.with_open(more))


def at(ledger_id: int, entry_id: int) -> Position:
    return Position(ledger_id, ledger_id, entry_id)


@pytest.fixture
def client() -> Client:
    """A client of no cluster: what is asked here is answered from lists."""
    return Client("zk://a:1/ledgers")


def test_unread_rest_of_a_ledger_that_is_gone_is_lost_though_an_older_one_is_there(client: Client) -> None:
    """Only an empty ledger is dropped from the middle, and a position in it is its beginning."""
    topic = view(Look(client), [(3, 2), (7, 2)])
    assert topic.first_after(at(5, 0)) == at(7, 0)
    assert topic.first_after(at(9, 0)) == at(7, 2)
    assert topic.first_after(at(5, 1)) is None
    assert topic.first_after(at(1, 0)) is None


def test_position_after_the_ledger_that_is_written_is_not_one_of_the_topic(client: Client) -> None:
    """Ids of ledgers ascend: no newer one was dropped. The checkpoint is of another cluster, and nothing that comes
    would be read."""
    topic = view(Look(client), [(3, 2)], open_entries=1)
    assert topic.first_after(at(9, 0)) is None
    assert topic.first_after(at(4, 1)) == at(4, 1)


def test_last_ledger_that_is_listed_as_empty_is_looked_at() -> None:
    """Entries may have come since it was listed; before others it stays empty."""
    ledgers = tuple(ListedLedger(ledger_id, count, count, CLOSED_MS) for ledger_id, count in [(3, 0), (4, 2), (5, 0)])
    listed = TopicList.of(TOPIC, ManagedLedger(ledgers))
    assert [each.ledger_id for each in listed.closed] == [3, 4]
    assert [each.ledger_id for each in listed.others] == [5]


async def _bounds(topic: TopicView) -> tuple[Position, MessageId | None, Position, MessageId | None]:
    return *await topic.wanted_start(), *await topic.wanted_end()


def bounds(look: Look, *counts: tuple[int, int], open_entries: int | None = None) -> tuple[object, ...]:
    """Return where the options let a read begin and end."""
    return now(_bounds(view(look, counts, open_entries=open_entries)))


def now(coroutine: Coroutine[object, None, tuple[object, ...]]) -> tuple[object, ...]:
    """Return what a coroutine returns that waits for nothing."""
    try:
        coroutine.send(None)
    except StopIteration as done:
        found: tuple[object, ...] = done.value
        return found
    raise AssertionError("it waits for nothing")


def test_read_may_begin_at_the_end_and_not_after_it(client: Client) -> None:
    assert bounds(Look(client, startingOffsets="4:2"), (3, 2), open_entries=2)[0] == at(4, 2)
    with pytest.raises(ConfigurationError, match="ends before: use latest"):
        bounds(Look(client, startingOffsets="4:3"), (3, 2), open_entries=2)


@pytest.mark.parametrize("end", ["4:2", "4:2:-1:0", "4:7"])
def test_read_does_not_end_with_a_message_that_is_not_confirmed(client: Client, end: str) -> None:
    """As for logs: a read that leaves out the message named as its last one would look complete."""
    assert bounds(Look(client, endingOffsets="4:1"), (3, 2), open_entries=2)[2] == at(4, 2)
    with pytest.raises(ConfigurationError, match=f"'endingOffsets' is message {end}, but .* ends before: use latest"):
        bounds(Look(client, endingOffsets=end), (3, 2), open_entries=2)
    assert bounds(Look(client, endingOffsets="3:7"), (3, 2), open_entries=2)[2] == at(3, 8), "the next ledger follows"


def test_first_message_of_a_batch_ends_a_read_before_the_second(client: Client) -> None:
    found = bounds(Look(client, endingOffsets="3:1:-1:0"), (3, 2), (4, 2))
    assert found[2:] == (at(3, 2), MessageId(3, 1, 0))
    whole = bounds(Look(client, endingOffsets="3:1"), (3, 2), (4, 2))
    assert whole[2:] == (at(3, 2), None)


@pytest.mark.parametrize(("moment_ms", "first"), [(CLOSED_MS + 1000, 3), (CLOSED_MS + 1001, 4)])
def test_ledger_may_hold_a_message_as_late_as_the_slack_after_its_close(
    client: Client, moment_ms: int, first: int
) -> None:
    look = Look(client, startingTimestamp=moment_ms, publishTimeSlack="1s")
    assert bounds(look, (3, 2), open_entries=2)[0] == at(first, 0)


def test_ledger_in_which_a_read_ends_is_not_read_further_than_that(client: Client) -> None:
    """The list may have an earlier end than the ledger, but a position in it says where this read ends."""
    topic = view(Look(client), [(3, 2), (4, 2)])
    topic.ranges(at(3, 0), at(4, 2))
    assert topic.is_read_out(3, 2)
    assert not topic.is_read_out(3, 1)
    assert not topic.is_read_out(4, 2)


def test_first_ledger_is_where_a_subscription_begins_that_has_acknowledged_nothing_of_it(client: Client) -> None:
    topic = view(Look(client), [(3, 2), (5, 2)])
    assert topic.after(EntryPosition(3, -1)) == at(3, 0)
    assert topic.after(EntryPosition(3, 0)) == at(3, 1)
    assert topic.after(EntryPosition(3, 1)) == at(5, 0)
    assert topic.after(EntryPosition(2, 9)) == at(3, 0)
    assert topic.after(EntryPosition(4, 9)) == at(5, 0)


def of(number: int) -> bytes:
    """Return a message of a transaction."""
    return single(Message(b"t"), txnid_most_bits=0, txnid_least_bits=number)


def test_transactions_are_scanned_to_a_ledgers_own_end_and_after_one_that_is_gone(tmp_path: Path) -> None:
    """A list may have an earlier end than the ledger: readers go on to its own end, where the marker may be."""

    async def test(cluster: InProcessCluster) -> None:
        client = cluster.client()
        counts = []
        for entries in ([of(1), of(2), marker(22, (0, 1))], numbered(0), [of(3), marker(22, (0, 2))]):
            writer = await client.create(ensemble=1, write_quorum=1, ack_quorum=1)
            await writer.append_many(entries)
            await writer.close()
            counts.append((writer.ledger_id, len(entries)))
        await client.delete(counts[1][0])
        first, *others = counts
        topic = view(Look(client), [(first[0], first[1] - 1), *others])
        found = Transactions()
        await topic.scan_transactions(found, topic.start)
        assert sorted(found.aborted) == [(0, 1), (0, 2)]
        assert topic.end == at(others[1][0], 0)

    run(tmp_path, test, bookies=1)


def test_closed_ledger_that_was_read_is_opened_by_one_of_two_triggers_while_the_list_is_the_same(
    tmp_path: Path,
) -> None:
    """Its own end does not change. Each trigger looks at it where it begins, and where the last micro-batch ends."""

    async def test(cluster: InProcessCluster) -> None:
        writer = await cluster.client().create(ensemble=1, write_quorum=1, ack_quorum=1)
        await writer.append_many(numbered(0, 1, 2))
        await writer.close()
        tree = CountingTree(cluster.store)
        async with Client(URI, tree=tree) as client:
            ledgers = (ListedLedger(writer.ledger_id, 3, 3, CLOSED_MS),)
            listed = TopicList.of(TOPIC, ManagedLedger(ledgers))
            reads = []
            for _ in range(2):
                topic = TopicView(Look(client), TOPIC, listed, listed.closed)
                for _ in range(2):
                    await topic.extend_to(at(writer.ledger_id, 3))
                assert topic.readable == at(writer.ledger_id, 3)
                reads.append(len(tree.reads))
        # No node is read twice, and the second trigger reads none.
        assert reads == [len(set(tree.reads))] * 2

    run(tmp_path, test, bookies=1)


def test_ledger_that_the_list_calls_closed_too_early_is_opened_again_until_it_is_closed(tmp_path: Path) -> None:
    """The end that it has while it is written is not its own end: the entries after it would never be read."""

    async def test(cluster: InProcessCluster) -> None:
        client = cluster.client()
        writer = await client.create(ensemble=1, write_quorum=1, ack_quorum=1)
        for entry in numbered(0, 1, 2):
            await writer.append(entry)
        listed = TopicList.of(TOPIC, ManagedLedger((ListedLedger(writer.ledger_id, 1, 1, CLOSED_MS),)))
        for noted, end in ((1, 2), (2, 4)):
            topic = TopicView(Look(client), TOPIC, listed, listed.closed)
            await topic.extend_to(at(writer.ledger_id, noted))
            assert topic.readable == at(writer.ledger_id, end)
            if end == 2:
                await writer.append(numbered(3)[0])
                await writer.close()

    run(tmp_path, test, bookies=1)


def test_position_at_the_end_of_a_ledger_is_that_of_the_next_one_with_entries(client: Client) -> None:
    topic = view(Look(client), [(3, 2), (4, 0), (5, 2)])
    assert topic.normal(at(3, 2)) == at(5, 0)
    assert topic.normal(at(3, 1)) == at(3, 1)
    assert topic.normal(at(5, 2)) == at(5, 2)


def test_end_of_an_open_ledger_is_not_left_though_a_later_one_is_listed(client: Client) -> None:
    """It may get more entries until it is closed, and an offset after it would never read them."""
    listed = TopicList.of(TOPIC, ManagedLedger((ListedLedger(3, None, None, None), ListedLedger(5, 2, 2, CLOSED_MS))))
    topic = TopicView(Look(client), TOPIC, listed, listed.closed.with_open([ReadableSegment(3, 3, 2, 2, False)]))
    assert topic.normal(at(3, 2)) == at(3, 2)
    assert topic.first_after(at(3, 2)) == at(3, 2)


def test_read_begins_after_a_ledger_that_was_dropped_as_empty(client: Client) -> None:
    assert bounds(Look(client, startingOffsets="4:0"), (3, 2), (5, 2))[0] == at(5, 0)


@pytest.mark.parametrize("option", ["startingOffsets", "endingOffsets"])
def test_message_of_a_ledger_that_the_topic_never_had_is_not_one_of_its_positions(client: Client, option: str) -> None:
    """Ledgers are trimmed from the front, and only empty ones are dropped elsewhere: one that had such a message is of
    another topic. Its messages, or those of ledgers before it, would be left out silently."""
    for entry in (1, 5):
        refused = f"'{option}' is message 4:{entry}, but topic .* has no ledger 4: correct"
        with pytest.raises(ConfigurationError, match=refused):
            bounds(Look(client, **{option: f"4:{entry}"}), (3, 2), (5, 2))
    assert bounds(Look(client, endingOffsets="4:0"), (3, 2), (5, 2))[2] == at(5, 0)


def test_entries_before_the_end_are_counted_from_the_oldest_open_transaction(client: Client) -> None:
    topic = view(Look(client, startingOffsets="-2", endingOffsets="-1"), [(3, 3), (4, 4)])
    found = Transactions()
    found.take(decode_entries(EntryBatch.of([*numbered(0), of(1), *numbered(2, 3)], 4)))
    topic.transactions = found
    assert topic.end == at(4, 1)
    assert now(_bounds(topic)) == (at(3, 2), None, at(4, 0), None)


def test_open_transaction_after_the_end_does_not_move_it(client: Client) -> None:
    """A scan reads a closed ledger to its own end, which may be after that of the topic's list."""
    topic = view(Look(client), [(3, 3), (4, 4)])
    found = Transactions()
    found.take(decode_entries(EntryBatch.of([*numbered(*range(5)), of(1)], 4)))
    topic.transactions = found
    assert (found.stop, topic.end) == (EntryPosition(4, 5), at(4, 4))


def test_many_malformed_entries_in_a_row_do_not_end_the_search_for_transactions() -> None:
    """Each was a call within the one before."""
    found = Transactions()
    take_transactions(found, EntryBatch.of([*[b"?"] * 3000, of(1), *[b"?"] * 10, of(2)], 5))
    assert found.stop == EntryPosition(5, 3000)
    take_transactions(found, EntryBatch.of([marker(22, (0, 1)), b"?"], 6))
    assert found.stop == EntryPosition(5, 3011)


@pytest.mark.parametrize("many", [b"?", numbered(0)[0][:-1] + b"?"], ids=["short", "checksum"])
def test_malformed_entries_cost_no_more_steps_where_there_are_more_of_them(many: bytes) -> None:
    def steps(count: int) -> int:
        found = Transactions()
        batch = EntryBatch.of([*[*numbered(1), many] * count, *[many] * count, of(2)], 5)
        calls = calls_of(lambda: take_transactions(found, batch))
        assert found.stop == EntryPosition(5, 3 * count)
        return calls

    steps(1)  # the first call does more
    assert steps(500) <= steps(50) + 100


@pytest.mark.parametrize("many", [b"?", numbered(0)[0][:-1] + b"?"], ids=["short", "checksum"])
def test_malformed_entries_that_are_dropped_cost_no_more_steps_where_there_are_more_of_them(many: bytes) -> None:
    options = SourceOptions.parse({"uri": "zk://a:1/ledgers", "topic": str(TOPIC), "mode": "DROPMALFORMED"})
    rows = TopicRows(columns_of("value binary, __entryId bigint"), options)

    def steps(count: int) -> int:
        batch = EntryBatch.of([*[*numbered(7), many] * count, *[many] * count], 5, 100)
        decoder = rows.for_topic(str(TOPIC), TopicFacts(), lambda _: iter(()))
        found = []
        calls = calls_of(lambda: found.extend(decoder.batches(batch)))
        ids = [entry_id for some in found for entry_id in some["__entryId"].to_pylist()]
        assert ids == list(range(100, 100 + 2 * count, 2))
        return calls

    steps(1)  # the first call does more
    assert steps(500) <= steps(50) + 100


def calls_of(work: Callable[[], None]) -> int:
    """Return how many calls of functions a piece of work makes."""
    calls = 0

    def count_call(_frame: object, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event == "call"

    sys.setprofile(count_call)
    try:
        work()
    finally:
        sys.setprofile(None)
    return calls
