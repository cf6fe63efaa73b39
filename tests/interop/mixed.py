"""A cluster of both kinds of bookies, and autorecovery of both kinds in parts."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar

from bkspark.cli.child_process import ChildProcess
from bkspark.client import Client
from bkspark.metadata.election import AuditorElection
from bookie_service.replication.autorecovery import RepairedCluster
from bookie_service.replication.options import AuditOptions, AutoRecoveryOptions, RepairOptions
from tests.interop.apache import SESSION_TIMEOUT_MS, ApacheCluster
from tests.interop.peer import JVM_OPTIONS, Peer
from tests.polling import wait_until

T = TypeVar("T")
WAIT_S = 120.0
GRACE_MS = 500

OPTIONS = AutoRecoveryOptions(AuditOptions(ledger_check_interval_s=0), RepairOptions(grace_s=GRACE_MS / 1000))
JAVA_SETTINGS = {
    "openLedgerRereplicationGracePeriod": GRACE_MS,
    "zkTimeout": SESSION_TIMEOUT_MS,
    "useV2WireProtocol": "true",
    "auditorPeriodicCheckInterval": "0",
    # Longer, a ledger that cannot be repaired yet keeps its lock when the test is over.
    "lockReleaseOfFailedLedgerGracePeriod": "1000",
    "rwRereplicateBackoffMs": "100",
}


class MixedCluster(ApacheCluster):
    """Two of Apache's bookies and two of ours."""

    def __init__(self, classpath: str, directory: Path, peer: Peer) -> None:
        super().__init__(classpath, directory, peer, apache=2, ours=2)


class Observer:
    """A session of ours in a thread of its own: what tests ask the metadata store, many times a second."""

    def __init__(self, uri: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self._client = self._call(self._connected(uri))
        self._cluster = self._call(RepairedCluster.of(self._client))

    @staticmethod
    async def _connected(uri: str) -> Client:
        return await Client(uri).connect()

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(WAIT_S)

    def close(self) -> None:
        self._call(self._client.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def ask(self, question: Callable[[RepairedCluster], Coroutine[Any, Any, T]]) -> T:
        """Return what a coroutine finds out about the cluster, or does to it."""
        return self._call(question(self._cluster))

    @contextlib.contextmanager
    def running(self, part: Callable[[RepairedCluster], Coroutine[Any, Any, None]]) -> Iterator[None]:
        """Run a part of our autorecovery, in this session, while inside."""
        task = asyncio.run_coroutine_threadsafe(part(self._cluster), self._loop)
        try:
            yield
            assert not task.done(), "it runs for ever"
        finally:
            task.cancel()

    def listed(self) -> set[int]:
        """Return the ledgers that are listed as under-replicated."""

        async def ids(cluster: RepairedCluster) -> set[int]:
            return {ledger_id async for ledger_id in cluster.store.ids()}

        return self.ask(ids)

    def locked(self) -> set[int]:
        """Return the locked ledgers."""
        return self.ask(lambda cluster: cluster.store.locked())

    def elected(self) -> str | None:
        """Return who audits."""
        return self.ask(lambda cluster: AuditorElection(cluster.tree, cluster.uri, "").auditor())

    def votes(self) -> int:
        """Return how many stand for election."""

        async def names(cluster: RepairedCluster) -> int:
            root = f"{cluster.uri.root}/underreplication/auditorelection"
            return len(await cluster.tree.children(root)) if await cluster.tree.exists(root) else 0

        return self.ask(names)

    def delay_s(self) -> int | None:
        """Return the lostBookieRecoveryDelay in the metadata."""
        found = self.ask(lambda cluster: cluster.store.lost_bookie_recovery_delay())
        return None if found is None else found.seconds

    def is_registered(self, bookie: str) -> bool:
        """Whether a bookie's registration is there, that of a killed one until its session has expired."""
        return bookie in self.ask(lambda cluster: cluster.context.registry.writable_ids())


@contextlib.contextmanager
def our_auditor(uri: str) -> Iterator[Observer]:
    """Our auditor without our worker, elected; the session is its own."""
    with (
        contextlib.closing(Observer(uri)) as session,
        session.running(lambda cluster: cluster.auditor("our-auditor", OPTIONS).run()),
    ):
        wait_until(lambda: session.elected() == "our-auditor", "our auditor to be elected", WAIT_S)
        yield session


@contextlib.contextmanager
def our_worker(uri: str) -> Iterator[Observer]:
    """Our worker without our auditor."""
    with (
        contextlib.closing(Observer(uri)) as session,
        session.running(lambda cluster: cluster.worker("our-worker", OPTIONS).run()),
    ):
        yield session


@contextlib.contextmanager
def javas_auditor(peer: Peer, uri: str, observer: Observer) -> Iterator[None]:
    """Apache's auditor without its worker, elected."""
    peer.call("start_auditor", uri=uri, name="javas-auditor", settings=JAVA_SETTINGS)
    try:
        wait_until(lambda: observer.elected() == "javas-auditor", "Java's auditor to be elected", WAIT_S)
        yield
    finally:
        peer.call("stop", uri=uri, name="javas-auditor")


@contextlib.contextmanager
def javas_worker(peer: Peer, uri: str, observer: Observer) -> Iterator[None]:
    """Apache's worker without its auditor, until it has nothing to do."""
    peer.call("start_worker", uri=uri, name="javas-worker", settings=JAVA_SETTINGS)
    try:
        yield
        # Stopped while it has a ledger locked, Apache's worker waits for ever for the session that it closed itself.
        wait_until(lambda: not observer.listed() and not observer.locked(), "Java's worker to have ended its work")
    finally:
        peer.call("stop", uri=uri, name="javas-worker")


@contextlib.contextmanager
def javas_process(classpath: str, uri: str, name: str, directory: Path) -> Iterator[ChildProcess]:
    """Apache's autorecovery as the process that its operators run; SIGKILL at the end."""
    settings = {**JAVA_SETTINGS, "metadataServiceUri": uri, "bookieId": name, "allowLoopback": "true"}
    file = directory / f"{name}.conf"
    file.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    program = ["java", *JVM_OPTIONS, "-cp", classpath, "org.apache.bookkeeper.replication.AutoRecoveryMain"]
    process = ChildProcess(f"Apache's autorecovery {name}", [*program, "--conf", str(file)], directory / f"{name}.log")
    try:
        yield process
    finally:
        process.kill()
