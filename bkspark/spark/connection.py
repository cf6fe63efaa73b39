"""A process's connections: a client for each (process, cluster, authority), and the bookie connections of reading
tasks.

Python workers of Spark live through many tasks and micro-batches and are made by fork. A connection is made on first
use in the process that uses it, and recovers by itself from the loss of the metadata session or a bookie.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from bkspark.blocking import Client
from bkspark.blocking.loop import run_unless_exiting
from bkspark.net.pool import BookiePool, NetOptions, resolver
from bkspark.spark.options import SourceOptions

KEPT_S = 10.0
"""Time after which connections to bookies are no longer reused from an earlier task: a silently dead connection is not
reported, and waiting for an answer on it takes longer than connecting."""

_Key = tuple[int, str, str, bytes]
_Addresses = Mapping[str, tuple[str, int]]
_lock = threading.Lock()
_clients: dict[_Key, Client] = {}
_kept: tuple[_Addresses, BookiePool, float] | None = None


def _after_fork() -> None:
    # The lock may have been held by a thread that does not exist in the child; the connections are the parent's.
    global _lock, _kept
    _lock = threading.Lock()
    _clients.clear()
    _kept = None


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


def new_pool(addresses: _Addresses) -> BookiePool:
    """Return a pool that has the addresses of bookies, (host, port) by id, without a metadata store."""
    # Entries on this host are read locally, not by the pool.
    return BookiePool(resolver(addresses), NetOptions(local_reads=False))


@contextmanager
def task_pool(addresses: _Addresses) -> Iterator[BookiePool]:
    """Lend a task a pool as from `new_pool`: that of the process's last task, if it was recent and had the same
    bookies. A task that ends early closes its connections."""
    pool = _take_kept(addresses) or new_pool(addresses)
    try:
        yield pool
    except BaseException:
        run_unless_exiting(pool.close)
        raise
    _keep(addresses, pool)


def _take_kept(addresses: _Addresses) -> BookiePool | None:
    global _kept
    with _lock:
        kept, _kept = _kept, None
    if kept is None:
        return None
    known, pool, since_s = kept
    if known == addresses and time.monotonic() - since_s < KEPT_S:
        return pool
    run_unless_exiting(pool.close)
    return None


def _keep(addresses: _Addresses, pool: BookiePool) -> None:
    global _kept
    with _lock:
        before, _kept = _kept, (addresses, pool, time.monotonic())
    if before is not None:
        run_unless_exiting(before[1].close)
