"""Writers and readers of one ledger, blocking."""

from __future__ import annotations

from collections.abc import Mapping

from bkspark import client as aio
from bkspark.blocking.contexts import ClosingTwin, WriterTwin
from bkspark.blocking.loop import run
from bkspark.blocking.twins import Twin, blocking, iterating, reading, submitting
from bkspark.core.metadata import LedgerMetadata
from bkspark.ledger.encryption import NO_KEYS, EncryptionOptions
from bkspark.net.pool import NetOptions


class LedgerWriter(WriterTwin[aio.LedgerWriter]):
    """Appends to one open ledger; see `bkspark.client.LedgerWriter`."""

    ledger_id = reading(aio.LedgerWriter.ledger_id)
    last_entry = reading(aio.LedgerWriter.last_entry)
    length = reading(aio.LedgerWriter.length)
    metadata = reading(aio.LedgerWriter.metadata)
    append = blocking(aio.LedgerWriter.append)
    append_many = blocking(aio.LedgerWriter.append_many)
    submit = submitting(aio.LedgerWriter.submit)
    sync = blocking(aio.LedgerWriter.sync)
    close = blocking(aio.LedgerWriter.close)


class AdvancedLedgerWriter(WriterTwin[aio.AdvancedLedgerWriter]):
    """Appends under entry ids that the caller chooses; see `bkspark.client.AdvancedLedgerWriter`."""

    def __init__(self, writer: LedgerWriter) -> None:
        async def make() -> aio.AdvancedLedgerWriter:
            return aio.AdvancedLedgerWriter(writer.asynchronous)

        super().__init__(run(make))

    ledger_id = reading(aio.AdvancedLedgerWriter.ledger_id)
    last_entry = reading(aio.AdvancedLedgerWriter.last_entry)
    length = reading(aio.AdvancedLedgerWriter.length)
    metadata = reading(aio.AdvancedLedgerWriter.metadata)
    append = blocking(aio.AdvancedLedgerWriter.append)
    append_many = blocking(aio.AdvancedLedgerWriter.append_many)
    submit = submitting(aio.AdvancedLedgerWriter.submit)
    sync = blocking(aio.AdvancedLedgerWriter.sync)
    close = blocking(aio.AdvancedLedgerWriter.close)


class LedgerReader(Twin[aio.LedgerReader]):
    """Reads one ledger; see `bkspark.client.LedgerReader`."""

    ledger_id = reading(aio.LedgerReader.ledger_id)
    metadata = reading(aio.LedgerReader.metadata)
    is_closed = reading(aio.LedgerReader.is_closed)
    last_entry = reading(aio.LedgerReader.last_entry)
    last_unconfirmed = reading(aio.LedgerReader.last_unconfirmed)
    length = reading(aio.LedgerReader.length)
    refresh = blocking(aio.LedgerReader.refresh)
    read = blocking(aio.LedgerReader.read)
    batches = iterating(aio.LedgerReader.batches)
    follow = iterating(aio.LedgerReader.follow)


class SnapshotReader(ClosingTwin[aio.SnapshotReader]):
    """Reads a ledger from a plan's metadata, without a metadata store; see `bkspark.client.SnapshotReader`."""

    def __init__(
        self,
        *,
        ledger_id: int,
        metadata: LedgerMetadata,
        addresses: Mapping[str, tuple[str, int]],
        password: bytes = b"",
        net: NetOptions = NetOptions(),
        encryption: EncryptionOptions = NO_KEYS,
    ) -> None:
        async def make() -> aio.SnapshotReader:
            return aio.SnapshotReader(
                ledger_id=ledger_id,
                metadata=metadata,
                addresses=addresses,
                password=password,
                net=net,
                encryption=encryption,
            )

        super().__init__(run(make))

    batches = iterating(aio.SnapshotReader.batches)
    close = blocking(aio.SnapshotReader.close)
