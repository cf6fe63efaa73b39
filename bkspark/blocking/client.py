"""A connection to one cluster, blocking."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from bkspark import client as aio
from bkspark.blocking.ledgers import LedgerReader, LedgerWriter
from bkspark.blocking.logs import Log
from bkspark.blocking.loop import iterate, run
from bkspark.core.metadata import LedgerMetadata
from bkspark.core.relaxed import RelaxedDurability
from bkspark.core.writer_options import WriterOptions
from bkspark.ledger.bookies import PlacementOptions
from bkspark.net.pool import NetOptions


class Client:
    """A connection to one cluster; see `bkspark.client.Client`. Connects when made."""

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
    ) -> None:
        self._client = aio.Client(
            uri,
            digest=digest,
            password=password,
            wire_protocol=wire_protocol,
            net=net,
            writer=writer,
            placement=placement,
        )
        run(self._client.connect)

    @property
    def asynchronous(self) -> aio.Client:
        """The asyncio client behind this one; use it only on this module's loop (`run`, `iterate`)."""
        return self._client

    def log(self, name: str) -> Log:
        """Return the log of that name, whether or not it exists yet."""
        return Log(self._client.log(name))

    def logs(self) -> list[str]:
        """Return the names of all logs at the metadata store, sorted."""
        return run(self._client.logs)

    def create(
        self,
        *,
        ensemble: int = 3,
        write_quorum: int = 3,
        ack_quorum: int = 2,
        ledger_type: str = "PD_JOURNAL",
        relaxed: RelaxedDurability = RelaxedDurability(),
        metadata: Mapping[str, bytes | str] | None = None,
        ledger_id: int | None = None,
    ) -> LedgerWriter:
        """Create a ledger and return its writer."""
        return LedgerWriter(
            run(
                lambda: self._client.create(
                    ensemble=ensemble,
                    write_quorum=write_quorum,
                    ack_quorum=ack_quorum,
                    ledger_type=ledger_type,
                    relaxed=relaxed,
                    metadata=metadata,
                    ledger_id=ledger_id,
                )
            )
        )

    def open(self, ledger_id: int, *, recover: bool = False) -> LedgerReader:
        """Return a reader; `recover=True` fences and closes the ledger first."""
        return LedgerReader(run(lambda: self._client.open(ledger_id, recover=recover)))

    def recover(self, ledger_id: int) -> LedgerMetadata:
        """Fence, find the end of and close a ledger; return its metadata, closed."""
        return run(lambda: self._client.recover(ledger_id))

    def metadata(self, ledger_id: int) -> LedgerMetadata:
        """Return what the metadata store knows of a ledger."""
        return run(lambda: self._client.metadata(ledger_id))

    def ledgers(self) -> Iterator[int]:
        """Yield the id of every ledger, in no particular order."""
        return iterate(self._client.ledgers)

    def delete(self, ledger_id: int) -> None:
        """Delete a ledger's metadata; bookies drop its entries later."""
        run(lambda: self._client.delete(ledger_id))

    def close(self) -> None:
        """Drop every connection. Ledgers left open stay open."""
        run(self._client.close)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
