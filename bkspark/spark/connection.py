"""A process's connection to a cluster: one client and log store for each (process, cluster, authority).

Python workers of Spark live through many tasks and micro-batches and are made by fork. A connection is made on first
use in the process that uses it, and finds its way back by itself when the metadata session or a bookie went away.
"""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass

from bkspark.blocking import Client, run
from bkspark.errors import NoSuchLedger
from bkspark.log.store import LogStore
from bkspark.spark.options import SourceOptions


@dataclass(frozen=True)
class Connection:
    """A connected client and the logs of its cluster; `logs` is for coroutines on the client's loop (`run`)."""

    client: Client
    logs: LogStore

    async def delete_ledger(self, ledger_id: int) -> None:
        """Delete a ledger; one that does not exist is no error."""
        try:
            await self.client.asynchronous.delete(ledger_id)
        except NoSuchLedger:
            return  # somebody else deleted it first


_Key = tuple[int, str, str, bytes]
_lock = threading.Lock()
_connections: dict[_Key, Connection] = {}


def _after_fork() -> None:
    # The lock may have been held by a thread that does not exist in the child; the connections are the parent's.
    global _lock
    _lock = threading.Lock()
    _connections.clear()


os.register_at_fork(after_in_child=_after_fork)


def connect(options: SourceOptions) -> Connection:
    """Return this process's connection for `options.uri` with the options' digest and password.

    Raises:
        MetadataError: the metadata store cannot be reached; names the address.
    """
    key = (os.getpid(), options.uri, options.digest.name, options.password)
    with _lock:
        connection = _connections.get(key)
        if connection is None:
            client = Client(options.uri, digest=options.digest.name.lower(), password=options.password)
            tree = run(client.asynchronous.tree)
            connection = Connection(client, LogStore(tree, client.asynchronous.uri.root))
            _connections[key] = connection
    return connection
