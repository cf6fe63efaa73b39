"""A process's connection to a cluster: one client for each (process, cluster, authority).

Python workers of Spark live through many tasks and micro-batches and are made by fork. A connection is made on first
use in the process that uses it, and finds its way back by itself when the metadata session or a bookie went away.
"""

from __future__ import annotations

import os
import threading

from bkspark.blocking import Client
from bkspark.spark.options import SourceOptions

_Key = tuple[int, str, str, bytes]
_lock = threading.Lock()
_clients: dict[_Key, Client] = {}


def _after_fork() -> None:
    # The lock may have been held by a thread that does not exist in the child; the connections are the parent's.
    global _lock
    _lock = threading.Lock()
    _clients.clear()


os.register_at_fork(after_in_child=_after_fork)


def connect(options: SourceOptions) -> Client:
    """Return this process's client for `options.uri` with the options' digest and password.

    Raises:
        MetadataError: the metadata store cannot be reached; names the address.
    """
    key = (os.getpid(), options.uri, options.digest, options.password)
    with _lock:
        client = _clients.get(key)
        if client is None:
            client = Client(options.uri, digest=options.digest, password=options.password)
            _clients[key] = client
    return client
