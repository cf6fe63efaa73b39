"""A routed stream through kills: every row once, in its log, and no reader sees half of an epoch meanwhile."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from bkspark.blocking import Client, run
from bkspark.log.log import store_of
from bkspark.log.routing import RoutedCommits
from tests.cluster import Cluster
from tests.polling import wait_until
from tests.processes import of_session
from tests.spark.killing import FOLDER, PORT
from tests.spark.routed_job import ENTRIES_PER_TRIGGER, LOGS, start

pytestmark = [pytest.mark.spark, pytest.mark.cluster, pytest.mark.admission_control, pytest.mark.slow]

ROOT = Path(__file__).parents[2]
KILLS = (("commit.appended", "worker"), ("commit.published", "driver"))
SECONDS = 120
PAUSE_S = 0.02
"""Between two looks of the reader."""


class Watcher:
    """Reads how many rows each log has, as of one moment, again and again; a context manager."""

    def __init__(self, client: Client, prefix: str) -> None:
        self._client = client
        self._names = [f"{prefix}{number}" for number in range(LOGS)]
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self.halves: list[dict[str, int]] = []
        self.looks = 0

    async def _counts(self) -> dict[str, int]:
        commits = RoutedCommits(await store_of(self._client.asynchronous))

        async def names() -> list[str]:
            return self._names

        counts = dict.fromkeys(self._names, 0)
        for snapshot in await commits.snapshots(names):
            for listed in await snapshot.ledgers():
                assert listed.last_entry is not None
                counts[snapshot.name] += listed.last_entry + 1 - listed.first_entry
        return counts

    def counts(self) -> dict[str, int]:
        return run(self._counts)

    def _watch(self) -> None:
        # Without a pause it takes a processor from the stream that it watches.
        while not self._is_over.wait(PAUSE_S):
            counts = self.counts()
            self.looks += 1
            if len(set(counts.values())) > 1:
                self.halves.append(counts)

    def __enter__(self) -> Watcher:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()


@contextmanager
def driver(cluster: Cluster, source: str, prefix: str, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run the query in a driver of its own session, whose processes are ended."""
    kills = {"BKSPARK_STAGES": "tests.spark.killing:reached", FOLDER: str(folder / "kills"), PORT: "0"}
    with (folder / "driver.log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.spark.routed_job", cluster.uri, source, prefix, str(folder)],
            cwd=ROOT,
            stdout=log,
            stderr=log,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            env={**os.environ, **kills},
        )
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()
            process.wait()
            for pid in of_session(process.pid):
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue


@pytest.mark.long(reason="25 s of processor time; test_kill.py has kills, tests/log many logs, and .ci/run this one")
def test_a_routed_stream_through_kills_writes_every_row_once(spark, cluster, client, tmp_path) -> None:
    source, prefix = f"source-{uuid.uuid4().hex[:8]}", f"killed-{uuid.uuid4().hex[:8]}-"
    kills = tmp_path / "kills"
    kills.mkdir()
    count = 10 * ENTRIES_PER_TRIGGER
    with client.log(source).open_for_writing() as log:
        log.append_many([b"%d" % number for number in range(count)])
    for stage, victim in KILLS:
        (kills / f"{stage}.{victim}").touch()
    with Watcher(client, prefix) as watcher:
        with driver(cluster, source, prefix, tmp_path) as process:
            taken = [kills / f"{stage}.{victim}.done" for stage, victim in KILLS]
            wait_until(lambda: all(each.exists() for each in taken), "the kills", SECONDS)
            process.wait(SECONDS)
        # Another driver goes on: the session at hand, whose start costs nothing.
        query = start(spark, cluster.uri, source, prefix, tmp_path, availableNow=True)
        assert query.awaitTermination(SECONDS)
        wait_until(lambda: watcher.looks > 1, "the reader", SECONDS)
    assert watcher.halves == []
    for number in range(LOGS):
        found = [int(row) for batch in client.log(f"{prefix}{number}").read() for row in batch]
        assert found == list(range(number, count, LOGS))


@pytest.mark.long(reason="35 s of processor time; the stream through kills has epochs of five logs")
def test_a_thousand_logs_in_one_epoch(spark, cluster, client, tmp_path) -> None:
    """The second epoch finds the logs, and the ledgers that the first one left open."""
    source, prefix = f"source-{uuid.uuid4().hex[:8]}", f"many-{uuid.uuid4().hex[:8]}-"
    with client.log(source).open_for_writing() as log:
        log.append_many([b"%d" % number for number in range(2_000)])
    read = spark.readStream.format("bookkeeper").options(
        uri=cluster.uri, log=source, startingOffsets="earliest", maxEntriesPerTrigger="1000"
    )
    routed = read.schema("value string").load().selectExpr(f"concat('{prefix}', int(value) % 1000) log", "value")
    writer = routed.writeStream.format("bookkeeper").options(uri=cluster.uri, checkpointLocation=str(tmp_path / "c"))
    query = writer.trigger(availableNow=True).start()
    assert query.awaitTermination(SECONDS)
    assert len(query.recentProgress) == 2
    names = [name for name in client.logs() if name.startswith(prefix)]
    assert len(names) == 1_000
    for number in (0, 1, 500, 999):
        found = [int(row) for batch in client.log(f"{prefix}{number}").read() for row in batch]
        assert found == [number, number + 1_000]
