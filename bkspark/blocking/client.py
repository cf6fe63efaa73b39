"""Client: the public entry point of the blocking client."""

from __future__ import annotations

from bkspark import client as aio
from bkspark.blocking.contexts import ClosingTwin
from bkspark.blocking.ledgers import LedgerReader, LedgerWriter
from bkspark.blocking.logs import Log
from bkspark.blocking.loop import run
from bkspark.blocking.twins import blocking, iterating
from bkspark.core.writer_options import WriterOptions
from bkspark.ledger.bookies import PlacementOptions
from bkspark.ledger.encryption import NO_KEYS, EncryptionOptions
from bkspark.metadata.zookeeper_options import ZooKeeperOptions
from bkspark.net.pool import NetOptions


class Client(ClosingTwin[aio.Client]):
    """A connection to one cluster; see `bkspark.client.Client`. The constructor connects to the metadata store."""

    def __init__(
        self,
        uri: str,
        *,
        digest: str = "crc32c",
        password: bytes = b"",
        wire_protocol: str = "v2",
        net: NetOptions = NetOptions(),
        writer: WriterOptions = WriterOptions(),
        placement: PlacementOptions = PlacementOptions(),
        zookeeper: ZooKeeperOptions = ZooKeeperOptions(),
        encryption: EncryptionOptions = NO_KEYS,
    ) -> None:
        client = aio.Client(
            uri,
            digest=digest,
            password=password,
            wire_protocol=wire_protocol,
            net=net,
            writer=writer,
            placement=placement,
            zookeeper=zookeeper,
            encryption=encryption,
        )
        super().__init__(client)
        run(client.connect)

    def log(self, name: str) -> Log:
        """Return the log of that name, whether or not it exists yet.

        Raises:
            ConfigurationError: the name is not valid for a log.
        """
        return Log(self.asynchronous.log(name))

    logs = blocking(aio.Client.logs)
    create = blocking(aio.Client.create, LedgerWriter)
    open = blocking(aio.Client.open, LedgerReader)
    recover = blocking(aio.Client.recover)
    metadata = blocking(aio.Client.metadata)
    ledgers = iterating(aio.Client.ledgers)
    delete = blocking(aio.Client.delete)
    close = blocking(aio.Client.close)
