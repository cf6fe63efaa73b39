"""A cluster inside the test's event loop: real bookie services on real sockets and files, metadata in memory."""

from __future__ import annotations

import asyncio
import shutil
import socket
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from bkspark.client import Client, LedgerReader
from bkspark.metadata.bookies import BookieRegistry
from bkspark.metadata.memory import MemoryStore
from bkspark.metadata.registration import BookieAddress
from bkspark.metadata.uri import MetadataUri
from bookie_service.service import BookieService
from bookie_service.settings.service_options import ServiceOptions
from bookie_service.storage.io.files import LocalFiles
from tests.bookie.serving import no_suspects
from tests.disks import ROOMY, ROOMY_DISKS

URI = "zk://127.0.0.1:2181/ledgers"


async def read_all(reader: LedgerReader) -> list[bytes]:
    """Return all entries that a reader has."""
    return [entry async for batch in reader.batches() for entry in batch]


class InProcessBookie:
    """One bookie service that can be cut off and started again on its directories."""

    def __init__(self, directory: Path, store: MemoryStore, changes: Mapping[str, Any]) -> None:
        self.directory = directory
        options = ServiceOptions([str(directory / "journal")], [str(directory / "ledgers")], disks=ROOMY_DISKS)
        options = replace(options, store=replace(options.store, disks=ROOMY))
        self._options = replace(options, **changes)
        for path in (*self._options.journal_directories, *self._options.ledger_directories):
            Path(path, "current").mkdir(parents=True)
        self._store = store
        self._port = 0
        self.service: BookieService | None = None

    @property
    def id(self) -> str:
        return f"127.0.0.1:{self._port}"

    async def start(self) -> None:
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", self._port))
        self._port = listener.getsockname()[1]
        self.service = BookieService(LocalFiles(), self._options)
        await self.service.start(no_suspects)
        self.service.listen(listener)
        self.service.start_local_reads(self.id)
        self._tree = self._store.session()
        registry = BookieRegistry(self._tree, MetadataUri.parse(URI))
        await registry.register(self.id, BookieAddress("127.0.0.1", self._port))

    def forget_port(self) -> None:
        """Serve under another port, hence another id, when started again."""
        self._port = 0

    def wipe(self) -> None:
        """Lose everything that is on disk; it must have been stopped."""
        for path in (*self._options.journal_directories, *self._options.ledger_directories):
            shutil.rmtree(path)
            Path(path, "current").mkdir(parents=True)

    async def flush(self) -> None:
        """Move everything into entry logs: start again."""
        await self.stop()
        await self.start()

    async def stop(self) -> None:
        """Stop serving and unregister, as after a crash that ZooKeeper has noticed."""
        if self.service is not None:
            await self.service.stop()
            self.service = None
            await self._tree.close()


class InProcessCluster:
    """`bookies` and clients of them."""

    def __init__(self, directory: Path, count: int, **changes: Any) -> None:
        """`changes`: of the bookies' `ServiceOptions`."""
        self.store = MemoryStore()
        self.bookies = [InProcessBookie(directory / f"bookie{number}", self.store, changes) for number in range(count)]
        self._clients: list[Client] = []

    async def start(self) -> None:
        await BookieRegistry(self.store.session(), MetadataUri.parse(URI)).initialize_cluster()
        for bookie in self.bookies:
            await bookie.start()

    def client(self, **options: object) -> Client:
        """Return a client with a metadata session of its own; closed at the end."""
        client = Client(URI, tree=self.store.session(), **options)
        self._clients.append(client)
        return client

    def bookie(self, bookie_id: str) -> InProcessBookie:
        return next(bookie for bookie in self.bookies if bookie.id == bookie_id)

    async def stop(self) -> None:
        for client in self._clients:
            await client.close()
        for bookie in self.bookies:
            await bookie.stop()


def run(
    directory: Path, test: Callable[[InProcessCluster], Awaitable[None]], *, bookies: int = 3, **changes: Any
) -> None:
    """Run a test's coroutine with a cluster; `changes`: of its bookies' `ServiceOptions`."""

    async def call() -> None:
        cluster = InProcessCluster(directory, bookies, **changes)
        try:
            await cluster.start()
            await asyncio.wait_for(test(cluster), 180)
        finally:
            await cluster.stop()

    asyncio.run(call())
