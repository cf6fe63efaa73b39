"""The clients of a process: one for each cluster, password and set of client options.

Spark's Python workers are made by fork and run many tasks and micro-batches. A client is made on first use in the
process that uses it, and recovers by itself from the loss of the metadata session or a bookie.
"""

from __future__ import annotations

import os
import threading

from bkspark.blocking import Client
from bkspark.ledger.encryption import EncryptionOptions
from bkspark.spark.client_settings import ClientSettings
from bkspark.spark.options import SourceOptions

_Key = tuple[int, str, str, bytes, EncryptionOptions, ClientSettings]
_lock = threading.Lock()
_clients: dict[_Key, Client] = {}


def _after_fork() -> None:
    # The lock may have been held by a thread that does not exist in the child; the connections are the parent's.
    global _lock
    _lock = threading.Lock()
    _clients.clear()


os.register_at_fork(after_in_child=_after_fork)


def connect(options: SourceOptions) -> Client:
    """Return this process's client for `options.uri` with the options' digest, password, encryption keys and TLS.

    Raises:
        ConfigurationError: a file that an option names cannot be used.
        MetadataError: the metadata store cannot be reached; the message has its address.
    """
    settings = options.client or ClientSettings()
    password, encryption = options.password, options.encryption
    encryption.check_keys()  # also where no ledger is encrypted: the user relies on the file
    key = (os.getpid(), options.uri, options.digest, password, encryption, settings)
    with _lock:
        client = _clients.get(key)
        if client is None:
            client = Client(
                options.uri,
                digest=options.digest,
                password=password,
                net=settings.net,
                writer=settings.writer,
                placement=settings.placement,
                zookeeper=settings.zookeeper,
                encryption=encryption,
            )
            _clients[key] = client
    return client
