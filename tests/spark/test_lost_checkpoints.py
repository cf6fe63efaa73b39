"""Checkpoints that name what is not there any more, although nothing was deleted: the metadata store was restored from
older data, an id was given to another ledger, or an option selects less than before.

docs/spark.md: `failOnDataLoss` decides whether such a query fails or continues."""

from __future__ import annotations

import json
import uuid
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql.types import StructType

from bkspark.blocking import Client, run
from bkspark.errors import DataLoss
from bkspark.log.formats import decode_head, encode_head
from bkspark.metadata.tree import ANY_VERSION
from bkspark.spark.ledger_stream import LedgerStreamReader
from bkspark.spark.options import SourceOptions
from bkspark.spark.stream import BookKeeperStreamReader
from bkspark.spark.topics import TopicPlanner
from bkspark.spark.versions import ReadAllAvailable, ReadMaxRows
from tests.cli.console import Console
from tests.spark.read_rows import VALUE, append, rows

if TYPE_CHECKING:
    from tests.cluster import Cluster

pytestmark = [pytest.mark.cluster, pytest.mark.admission_control]


@pytest.fixture
def log() -> str:
    return f"lost-{uuid.uuid4().hex[:12]}"


def follow(cluster: Cluster, **options: str) -> BookKeeperStreamReader:
    return BookKeeperStreamReader(
        VALUE, SourceOptions.parse({"uri": cluster.uri, "startingOffsets": "earliest", **options})
    )


def lenient(cluster: Cluster, **options: str) -> BookKeeperStreamReader:
    return follow(cluster, failOnDataLoss="false", **options)


def rest(stream: BookKeeperStreamReader, start: dict[str, Any]) -> list[int]:
    """Return what one micro-batch from an offset reads."""
    return rows(stream, stream.partitions(start, stream.latestOffset(start)))


class Backup:
    """The list of a log as it is now, to restore later."""

    def __init__(self, client: Client, log: str) -> None:
        self._client = client
        self._path = f"/bkspark/logs/{log}"
        self._head = run(self._read)

    async def _read(self) -> bytes:
        return (await (await self._client.asynchronous.tree()).get(self._path))[0]

    def restore(self) -> None:
        run(self._write)

    async def _write(self) -> None:
        await (await self._client.asynchronous.tree()).set(self._path, self._head, ANY_VERSION)


def test_log_that_was_restored_without_the_last_ledger_that_was_read_is_a_loss(
    cluster: Cluster, client: Client, log: str
) -> None:
    append(client, log, 1, 2)
    backup = Backup(client, log)
    append(client, log, 3)
    read = (stream := follow(cluster, log=log)).latestOffset(stream.initialOffset())
    backup.restore()
    restored = f"log {log} was restored from an older state: what was unread, from position .* new checkpoint, or allow"
    with pytest.raises(DataLoss, match=restored):
        follow(cluster, log=log).latestOffset(read)
    assert rest(lenient(cluster, log=log), read) == [1, 2], "from its beginning: what was read is not known"


def test_log_that_grew_again_after_it_was_restored_is_a_loss(cluster: Cluster, client: Client, log: str) -> None:
    """The list has another ledger where the checkpoint's was: its entries would be left out, or others be read."""
    append(client, log, 1, 2)
    backup = Backup(client, log)
    append(client, log, 3)
    first = (stream := follow(cluster, log=log)).initialOffset()
    read = stream.latestOffset(first)
    backup.restore()
    append(client, log, 4, 5)
    strict = follow(cluster, log=log)
    for action in (lambda: strict.latestOffset(read), lambda: strict.partitions(first, read)):
        with pytest.raises(DataLoss, match=f"log {log} was restored from an older state"):
            action()
    allowed = lenient(cluster, log=log)
    assert rows(allowed, allowed.partitions(first, read)) == [1, 2], "nothing of the ledger that took the place"
    assert rest(allowed, read) == [1, 2, 4, 5]


def test_batch_that_was_planned_beyond_the_end_of_a_restored_log_is_a_loss(
    cluster: Cluster, client: Client, log: str
) -> None:
    """The query was killed after it had recorded the end of the batch, whose rows are gone."""
    append(client, log, 1, 2)
    backup = Backup(client, log)
    append(client, log, 3)
    append(client, log, 4)
    first = (stream := follow(cluster, log=log)).initialOffset()
    planned = stream.latestOffset(first)
    backup.restore()
    with pytest.raises(DataLoss, match=f"log {log} was restored from an older state"):
        follow(cluster, log=log).partitions(first, planned)
    allowed = lenient(cluster, log=log)
    assert rows(allowed, allowed.partitions(first, planned)) == [1, 2]


def test_checkpoint_beyond_the_end_of_a_listed_ledger_is_a_loss(
    cluster: Cluster, client: Client, log: str, caplog: pytest.LogCaptureFixture
) -> None:
    """As of a slice of a shared ledger, which has fewer entries in the older list."""
    append(client, log, 1, 2)
    append(client, log, 3)
    stream = follow(cluster, log=log)
    ledger = client.log(log).show()["ledgers"][0]["ledger"]
    beyond = {**stream.initialOffset(), "entry": 7, "ledger": ledger, "ordinal": 0}
    short = f"log {log} was cut short: its ledger {ledger} ends at entry 1: what was unread, from position .* is lost"
    with pytest.raises(DataLoss, match=short):
        stream.latestOffset(beyond)
    caplog.clear()
    assert rest(lenient(cluster, log=log), beyond) == [3], "it continues with the next ledger"
    assert "was cut short" in caplog.text
    at_its_end = {**beyond, "entry": 2}
    assert rest(follow(cluster, log=log), at_its_end) == [3]


def test_checkpoint_before_the_first_entry_of_a_listed_slice_is_a_loss(
    cluster: Cluster, client: Client, log: str
) -> None:
    """The restored list has another slice of the ledger: what follows the checkpoint there is not of the log."""
    append(client, log, 1, 2, 3, 4)
    start = follow(cluster, log=log).initialOffset()
    ledger = client.log(log).show()["ledgers"][0]["ledger"]
    path = f"/bkspark/logs/{log}"

    async def cut() -> None:
        tree = await client.asynchronous.tree()
        data, stat = await tree.get(path)
        head = decode_head(data, path)
        tail = (replace(head.tail[0], first_entry=2),)
        await tree.set(path, encode_head(replace(head, tail=tail, has_slices=True)), stat.version)

    run(cut)
    assert rest(follow(cluster, log=log), start) == [3, 4]
    for entry in (2, 3):
        within = {**start, "entry": entry, "ledger": ledger, "ordinal": 0}
        assert rest(follow(cluster, log=log), within) == [3, 4][entry - 2 :]
    before = {**start, "entry": 1, "ledger": ledger, "ordinal": 0}
    with pytest.raises(DataLoss, match=f"log {log} was restored from an older state"):
        follow(cluster, log=log).latestOffset(before)


def test_allowed_loss_of_truncated_entries_is_one_warning(
    cluster: Cluster, client: Client, log: str, caplog: pytest.LogCaptureFixture
) -> None:
    """docs/spark.md, failOnDataLoss: "a warning of the driver or of the task names what is missing"."""
    append(client, log, 1, 2)
    stream = lenient(cluster, log=log, maxEntriesPerTrigger="1")
    read = stream.latestOffset(stream.initialOffset(), stream.getDefaultReadLimit())
    append(client, log, 3)
    client.log(log).truncate("latest")
    append(client, log, 4)
    caplog.clear()
    for _ in range(2):
        assert rest(stream, read) == [4]
    (warned,) = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert warned.startswith(f"log {log} was truncated, expired or overwritten: what was unread, from position ")


def test_log_of_a_pattern_that_was_made_again_before_its_first_batch_was_read_is_a_loss(
    cluster: Cluster, client: Client, log: str
) -> None:
    """The batch's first offset does not have the log, its last one has it as it was."""
    append(client, f"{log}-a", 1)
    stream = follow(cluster, logsPattern=f"{log}-.*")
    first = stream.initialOffset()
    append(client, f"{log}-b", 2)
    planned = stream.latestOffset(stream.latestOffset(first))
    client.log(f"{log}-b").delete()
    append(client, f"{log}-b", 8, 9)
    with pytest.raises(DataLoss, match=f"log {log}-b was deleted and created again"):
        follow(cluster, logsPattern=f"{log}-.*").partitions(first, planned)
    allowed = lenient(cluster, logsPattern=f"{log}-.*")
    assert rows(allowed, allowed.partitions(first, planned)) == [1]
    assert rest(allowed, planned) == [8, 9]


def test_log_that_the_pattern_does_not_name_any_more_is_not_called_deleted(
    cluster: Cluster, client: Client, log: str, caplog: pytest.LogCaptureFixture
) -> None:
    append(client, f"{log}-a", 1)
    append(client, f"{log}-b", 2)
    first = follow(cluster, logsPattern=f"{log}-.*").initialOffset()
    left_out = f"log {log}-b is in the checkpoint, but option 'logsPattern' \\({log}-a\\) does not select it: it is not"
    with pytest.raises(DataLoss, match=f"{left_out} read from position .*; select it again, use a new checkpoint, or"):
        follow(cluster, logsPattern=f"{log}-a").latestOffset(first)
    caplog.clear()
    assert rest(lenient(cluster, logsPattern=f"{log}-a"), first) == [1]
    assert "deleted" not in caplog.text
    assert f"option 'logsPattern' ({log}-a) does not select it" in caplog.text


# ---- ledgers ----


def ledgers(cluster: Cluster, ledger_id: int, **options: str) -> LedgerStreamReader:
    given = {"uri": cluster.uri, "ledgers": str(ledger_id), "startingOffsets": "earliest", **options}
    return LedgerStreamReader(StructType().add("value", "string"), SourceOptions.parse(given))


def latest(stream: LedgerStreamReader, start: dict[str, Any]) -> dict[str, Any]:
    return stream.latestOffset(json.loads(json.dumps(start)), ReadAllAvailable())


def test_another_ledger_that_has_the_id_of_a_deleted_one_is_a_loss(cluster: Cluster, client: Client) -> None:
    """It is longer than the deleted one was read: its first entries would be left out silently."""
    writer = client.create(ensemble=1, write_quorum=1, ack_quorum=1)
    writer.append_many([b"1", b"2"])
    writer.append(b"3")  # tells of those before it
    stream = ledgers(cluster, writer.ledger_id)
    start = stream.initialOffset()
    read = latest(stream, start)
    assert rows(stream, stream.partitions(start, read)) == [1, 2]
    writer.close()
    client.delete(writer.ledger_id)
    with client.create(ledger_id=writer.ledger_id, ensemble=1, write_quorum=1, ack_quorum=1) as another:
        another.append_many([b"%d" % value for value in range(10, 20)])
    again = f"ledger {writer.ledger_id} was deleted and created again: what was unread, from entry {{}} on, is lost"
    strict = ledgers(cluster, writer.ledger_id)
    with pytest.raises(DataLoss, match=again.format(2)):
        latest(strict, read)
    with pytest.raises(DataLoss, match=again.format(0)):
        ledgers(cluster, writer.ledger_id).partitions(start, read)
    allowed = ledgers(cluster, writer.ledger_id, failOnDataLoss="false")
    assert rows(allowed, allowed.partitions(start, read)) == [], "the batch was of the deleted ledger"
    end = latest(allowed, read)
    assert rows(allowed, allowed.partitions(read, end)) == list(range(10, 20))
    assert end["ledgers"] == {}


def test_ledger_whose_metadata_were_dumped_and_restored_is_the_same_ledger(
    cluster: Cluster,
    client: Client,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """docs/operations.md: a dump has the time of creation, which the metadata's field `ctime` keeps."""
    console = Console(cluster.uri, monkeypatch, capfd)
    with client.create(ensemble=1, write_quorum=1, ack_quorum=1) as writer:
        writer.append_many([b"1", b"2", b"3"])
    stream = ledgers(cluster, writer.ledger_id, maxEntriesPerTrigger="2")
    start = stream.initialOffset()
    read = stream.latestOffset(json.loads(json.dumps(start)), ReadMaxRows(2))
    assert rows(stream, stream.partitions(start, read)) == [1, 2]
    created = console.json("ledger", "show", writer.ledger_id)["ctime"]
    console.json("ledger", "dump", writer.ledger_id, tmp_path / "metadata")
    client.delete(writer.ledger_id)
    console.json("ledger", "restore", writer.ledger_id, tmp_path / "metadata")
    assert console.json("ledger", "show", writer.ledger_id)["ctime"] == created
    again = ledgers(cluster, writer.ledger_id)
    assert rows(again, again.partitions(read, latest(again, read))) == [3]


def test_checkpoint_of_an_earlier_version_without_times_of_creation_is_continued(
    cluster: Cluster, client: Client
) -> None:
    with client.create(ensemble=1, write_quorum=1, ack_quorum=1) as writer:
        writer.append_many([b"1", b"2"])
    stream = ledgers(cluster, writer.ledger_id)
    old = {**stream.initialOffset(), "ledgers": {str(writer.ledger_id): 1}}
    del old["created"]
    assert rows(stream, stream.partitions(old, latest(stream, old))) == [2]


# ---- topics ----


@pytest.mark.parametrize(
    ("given", "selected", "left_out"),
    [
        ({"topic": "a"}, ["a", "a-partition-3"], ["b", "other/ns/a"]),
        ({"topics": "a,t/n/b-partition-1"}, ["a", "t/n/b-partition-1"], ["t/n/b-partition-2", "t/n/b"]),
        ({"topicsPattern": "t/n/a.*"}, ["t/n/ab", "t/n/a-partition-2"], ["t/n/b", "public/default/a"]),
    ],
)
def test_topic_that_the_options_do_not_name_any_more_is_not_called_deleted(
    cluster: Cluster, given: dict[str, str], selected: list[str], left_out: list[str]
) -> None:
    planner = TopicPlanner(SourceOptions.parse({"uri": cluster.uri, **given}), is_stream=True)
    full = [f"persistent://{name if '/' in name else f'public/default/{name}'}" for name in (*selected, *left_out)]
    without = [planner.option_without(name) for name in full]
    assert without[: len(selected)] == [None] * len(selected)
    (option,) = given
    assert all(found is not None and f"option '{option}'" in found for found in without[len(selected) :])
