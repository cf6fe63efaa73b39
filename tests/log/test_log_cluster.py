"""Logs end to end: real ZooKeeper, bookies as processes, the blocking client."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator

import pytest

from bkspark.blocking import Client, run
from bkspark.errors import LedgerFenced, NoSuchLog
from bkspark.log import LogStore, SegmentFacts, SegmentOwner
from tests.cluster import Cluster
from tests.polling import wait_until

pytestmark = pytest.mark.cluster

# Appends its number and a counter until it is killed; prints what was acknowledged.
WRITER = """
import sys
from bkspark.blocking import Client
uri, name = sys.argv[1:]
with Client(uri) as client, client.log(name).open_for_writing(roll_bytes=2_000) as log:
    for first in range(0, 1_000_000, 10):
        log.append_many([b"%07d" % number for number in range(first, first + 10)])
        print(first + 10, flush=True)
"""


@pytest.fixture
def client(cluster: Cluster) -> Iterator[Client]:
    with Client(cluster.uri) as client:
        yield client


@pytest.fixture
def name() -> str:
    """A log name of the test's own: the cluster is shared."""
    return f"log-{uuid.uuid4().hex[:12]}"


def test_a_log_is_written_rolled_read_truncated_and_deleted(client: Client, name: str) -> None:
    log = client.log(name)
    with log.open_for_writing(roll_bytes=50_000) as writer:
        positions = [writer.append_many([b"%06d" % i * 10 for i in range(n, n + 100)]) for n in range(0, 3_000, 100)]
    payloads = [b"%06d" % i * 10 for i in range(3_000)]
    assert [entry for batch in log.read() for entry in batch] == payloads
    assert name in client.logs()
    shown = log.show()
    assert len(shown["ledgers"]) == 4
    assert all(ledger["state"] == "CLOSED" for ledger in shown["ledgers"])
    assert log.truncate(positions[17][20]) == 1
    assert [entry for batch in log.read() for entry in batch] == payloads[1_720:]
    log.delete()
    assert name not in client.logs()
    with pytest.raises(NoSuchLog, match=name):
        log.show()


def test_a_writer_killed_at_any_moment_loses_nothing_acknowledged(cluster: Cluster, client: Client, name: str) -> None:
    process = subprocess.Popen([sys.executable, "-c", WRITER, cluster.uri, name], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        acknowledged = 0
        while acknowledged < 2_000:
            acknowledged = int(process.stdout.readline())
        process.kill()
        rest = process.stdout.read().split()
        acknowledged = int(rest[-1]) if rest else acknowledged
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()
    log = client.log(name)
    with log.open_for_writing() as writer:
        writer.append(b"after")
    stored = [entry for batch in log.read() for entry in batch]
    assert stored.pop() == b"after"
    assert stored == [b"%07d" % number for number in range(len(stored))]
    assert acknowledged <= len(stored) <= acknowledged + 20


def test_a_second_opener_fences_the_first(cluster: Cluster, client: Client, name: str) -> None:
    with Client(cluster.uri) as other:
        first = client.log(name).open_for_writing()
        first.append(b"one")
        with other.log(name).open_for_writing() as second:
            with pytest.raises(LedgerFenced):
                first.append(b"lost")
            second.append(b"two")
        first.abandon()
    assert [entry for batch in client.log(name).read() for entry in batch] == [b"one", b"two"]


def test_leaders_of_two_clients_write_one_after_the_other(cluster: Cluster, client: Client, name: str) -> None:
    with Client(cluster.uri) as other:
        with client.log(name).election("first") as first:
            second = other.log(name).election("second")
            waiting = threading.Thread(target=second.win)
            waiting.start()
            wait_until(lambda: first.contenders() == ["first", "second"] or None, "the second contender")
            with client.log(name).open_for_writing() as log:
                log.append(b"of the first")
            assert waiting.is_alive()
            assert not first.is_lost
        waiting.join(120)
        assert not waiting.is_alive()
        with other.log(name).open_for_writing() as log:
            log.append(b"of the second")
        second.resign()
        assert (first.is_lost, second.is_lost) == (True, True)
        entries = [entry for batch in other.log(name).read() for entry in batch]
        assert entries == [b"of the first", b"of the second"]


def test_a_job_that_publishes_lets_readers_pass_an_open_writer(client: Client, name: str) -> None:
    """The writer hears of the publication by ZooKeeper's watch and closes its ledger."""
    log = client.log(name)
    with log.open_for_writing() as writer:
        writer.append_many([b"a", b"b"])

        async def publish() -> None:
            ledger = await log.asynchronous.create_attempt(SegmentOwner("job", "j"))
            await ledger.append_many([b"c"])
            metadata = await ledger.close()
            facts = SegmentFacts(ledger.ledger_id, metadata.last_entry, metadata.length)
            await log.asynchronous.publish([facts])

        run(publish)
        wait_until(
            lambda: [entry for batch in log.read() for entry in batch] == [b"a", b"b", b"c"], "readers to get past"
        )


def test_a_follower_reads_on_while_the_log_grows(client: Client, name: str) -> None:
    log = client.log(name)
    seen: list[bytes] = []
    with log.open_for_writing(roll_bytes=20) as writer:
        writer.append_many([b"one", b"two"])
        writer.append_many([b"three" * 3])  # tells bookies that the entries before are confirmed
        following = log.follow()
        seen += next(following)
        assert seen == [b"one", b"two"]
        writer.append_many([b"four"])  # the next ledger: the one before is closed and can be read whole
        seen += next(following)
        assert seen == [b"one", b"two", b"three" * 3]
    seen += next(following)
    assert seen == [b"one", b"two", b"three" * 3, b"four"]
    following.close()


def test_racing_publishers_fill_pages_in_zookeeper(client: Client, name: str) -> None:
    """Lost transactions, checks, rewritten and removed pages, on the real server; the ledgers need not exist."""
    first_id = 10**15

    async def publish(number: int) -> None:
        store = LogStore(await client.asynchronous.tree(), client.asynchronous.uri.root)
        ids = range(first_id + number * 100, first_id + number * 100 + 100)
        await asyncio.gather(
            *(store.attempts.add(name, ledger_id, SegmentOwner("job", str(number))) for ledger_id in ids)
        )
        outcome = await store.append_ledgers(
            name, [SegmentFacts(ledger_id, 0, 1) for ledger_id in ids], publisher=(str(number), 0)
        )
        assert outcome.is_new
        assert not (await store.append_ledgers(name, [], publisher=(str(number), 0))).is_new

    async def publish_and_read() -> list[int]:
        await client.asynchronous.log(name).create()
        await asyncio.gather(*(publish(number) for number in range(7)))
        snapshot = await client.asynchronous.log(name).snapshot()
        assert len(snapshot.head.pages) == 1
        return [ledger.ledger_id for ledger in await snapshot.ledgers()]

    assert sorted(run(publish_and_read)) == list(range(first_id, first_id + 700))
    client.log(name).delete()
    assert name not in client.logs()
