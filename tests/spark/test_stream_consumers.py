"""How a streaming query moves its registrations in logs, on a real ZooKeeper: when it writes, and when it need not."""

from __future__ import annotations

import uuid
from types import SimpleNamespace

import pytest
from pyspark.sql.types import StructType

from bkspark.blocking import Client, run
from bkspark.errors import ConfigurationError
from bkspark.log.consumer_nodes import Consumer
from bkspark.log.positions import Position
from bkspark.log.store import LogStore
from bkspark.spark import consumers
from bkspark.spark.connection import connect
from bkspark.spark.consumers import StreamConsumer
from bkspark.spark.options import SourceOptions
from bkspark.spark.stream import BookKeeperStreamReader
from tests.cluster import Cluster

pytestmark = pytest.mark.cluster

EXPIRY_S = 40.0


class Query:
    """The registrations of a query, by name `etl`."""

    def __init__(self, cluster: Cluster, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
        given = {"uri": cluster.uri, "log": "any", "consumer": "etl", "consumerExpiry": f"{EXPIRY_S:.0f}s"}
        options = SourceOptions.parse(given)
        connect(options)  # as the planner of a query does: the coroutines below need a client that is there
        self._consumer = StreamConsumer("etl", options)
        self._client = client
        self._monkeypatch = monkeypatch
        self.wait(0)

    def wait(self, seconds: float) -> None:
        """Let this many seconds pass since the query began."""
        clock = SimpleNamespace(monotonic=lambda: seconds)
        self._monkeypatch.setattr(consumers, "time", clock)

    def hold(self, **positions: Position) -> None:
        run(lambda: self._consumer.hold(positions))

    def note(self, **positions: Position) -> None:
        run(lambda: self._consumer.note(positions))

    def stored(self, log: str) -> list[Consumer]:
        """Return the registrations in a log, each with the version of its node."""

        async def read() -> list[Consumer]:
            return await LogStore(await self._client.asynchronous.tree(), "/ledgers").consumers.all(log)

        return run(read)


@pytest.fixture
def query(cluster: Cluster, client: Client, monkeypatch: pytest.MonkeyPatch) -> Query:
    return Query(cluster, client, monkeypatch)


def new_log(client: Client) -> tuple[str, list[Position]]:
    """Return the name of a log of three entries, and their positions."""
    name = f"log_{uuid.uuid4().hex[:12]}"
    with client.log(name).open_for_writing() as writer:
        return name, list(writer.append_many([b"0", b"1", b"2"]))


def test_registration_is_written_when_it_moves_and_four_times_within_its_expiry(client: Client, query: Query) -> None:
    log, at = new_log(client)
    for seconds, position, version in (
        (0.0, at[0], 0),
        (0.0, at[0], 0),
        (EXPIRY_S / 4 - 0.1, at[0], 0),
        (EXPIRY_S / 4, at[0], 1),
        (EXPIRY_S / 4, at[0], 1),
        (EXPIRY_S / 4, at[1], 2),
        (EXPIRY_S / 2 - 0.1, at[1], 2),
        (EXPIRY_S / 2, at[0], 3),
    ):
        query.wait(seconds)
        query.hold(**{log: position})
        (found,) = query.stored(log)
        assert (found.version, found.position) == (version, max(position, at[1] if version > 1 else at[0]))


def test_commit_registers_in_no_log_that_no_trigger_has_read(client: Client, query: Query) -> None:
    log, at = new_log(client)
    query.note(**{log: at[0]})
    assert query.stored(log) == []


@pytest.mark.parametrize("how", ["micro-batch", "renewal"])
def test_query_whose_name_another_one_has_taken_fails_when_it_has_read_something_or_renews(
    cluster: Cluster, client: Client, query: Query, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    log, at = new_log(client)
    query.hold(**{log: at[0]})
    Query(cluster, client, monkeypatch).hold(**{log: at[0]})
    query.hold(**{log: at[0]})
    if how == "renewal":
        query.wait(EXPIRY_S / 4)
    else:
        query.note(**{log: at[1]})
    with pytest.raises(ConfigurationError, match="another reader has registered under this name"):
        query.hold(**{log: at[0] if how == "renewal" else at[1]})


def test_registration_of_a_log_without_a_batch_is_renewed(client: Client, query: Query) -> None:
    log, at = new_log(client)
    query.hold(**{log: at[1]})
    query.wait(EXPIRY_S / 4)
    query.hold()
    (found,) = query.stored(log)
    assert (found.version, found.position) == (1, at[1])


def test_log_that_was_deleted_is_forgotten_though_one_of_its_name_is_made(client: Client, query: Query) -> None:
    log, at = new_log(client)
    query.hold(**{log: at[0]})
    client.log(log).delete()
    query.wait(EXPIRY_S / 4)
    query.hold()
    client.log(log).create()
    query.hold()
    assert query.stored(log) == []


@pytest.mark.admission_control
@pytest.mark.parametrize("selection", ["log", "logsPattern"])
@pytest.mark.parametrize("is_seen", [True, False])
def test_query_registers_in_a_log_that_was_created_again(
    cluster: Cluster, client: Client, selection: str, *, is_seen: bool
) -> None:
    """Its retention must keep what the query has not read, whether or not a trigger saw that the log was gone."""
    log, _ = new_log(client)
    with client.log(log).open_for_writing() as writer:
        writer.append_many([b"in the second ledger"])
    given = {"uri": cluster.uri, selection: log, "consumer": "etl", "startingOffsets": "earliest"}
    options = SourceOptions.parse({**given, "failOnDataLoss": "false"})
    stream = BookKeeperStreamReader(StructType().add("value", "string"), options)
    start = stream.initialOffset()
    read = stream.latestOffset(start, stream.getDefaultReadLimit())
    read = stream.latestOffset(read, stream.getDefaultReadLimit())
    client.log(log).delete()
    if is_seen:
        read = stream.latestOffset(read, stream.getDefaultReadLimit())
    with client.log(log).open_for_writing() as writer:
        (first,) = writer.append_many([b"new"])
    stream.latestOffset(read, stream.getDefaultReadLimit())
    (registered,) = client.log(log).consumers()
    assert registered.position <= first
