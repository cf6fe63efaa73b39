"""LedgerReader: reads or follows one ledger. SnapshotReader: reads one from a plan's metadata, without a store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass

from bkspark.core.last_confirmed import LastConfirmed, LastEntries
from bkspark.core.metadata import LedgerMetadata
from bkspark.core.tail import TailLimits
from bkspark.entries import EntryBatch
from bkspark.errors import BookieUnavailable, BookKeeperError, ClientClosed, NoSuchEntry, ReadFailed
from bkspark.ledger import arguments
from bkspark.ledger.context import ClientContext
from bkspark.ledger.encryption import NO_KEYS, EncryptionOptions
from bkspark.ledger.listed import ListedEntries
from bkspark.ledger.patience import PATIENCE_S, Patience
from bkspark.ledger.range_reader import BATCH_BYTES, RangeReader, planned_reader
from bkspark.ledger.replica_reads import read_error, report_damage
from bkspark.ledger.tail import TailWatch
from bkspark.metadata.ledgers import Versioned, require_same
from bkspark.net.pool import BookiePool, NetOptions, resolver
from bkspark.net.responses import joined
from bkspark.net.v3_channel import LacResponse
from bkspark.options import DAY_S
from bkspark.tasks import end_all
from bkspark.wire import v2
from bkspark.wire.digest import EntryDigest

NO_VERSION = -1
"""Below the version of every node."""


async def last_entries(pool: BookiePool, ledger_id: int, metadata: LedgerMetadata, digest: EntryDigest) -> LastEntries:
    """Return the LAC, LAP and length of an open ledger, without fencing it. Explicit LACs count.

    Raises:
        ReadFailed: the bookies that answered do not cover every write set.
    """
    fragment = metadata.last_fragment

    async def ask(slot: int, bookie: str) -> tuple[int, LacResponse | BookKeeperError]:
        try:
            return slot, await _ask_lac(pool, bookie, ledger_id, digest)
        except ClientClosed:
            raise
        except BookKeeperError as error:
            return slot, error

    tasks = [asyncio.ensure_future(ask(slot, bookie)) for slot, bookie in enumerate(fragment.bookies)]
    core = LastConfirmed(ledger_id, metadata)
    try:
        for finished in asyncio.as_completed(tasks):
            slot, answer = await finished
            if isinstance(answer, BookKeeperError):
                core.on_failure(answer)
                continue
            entry = answer.entry
            if answer.explicit_lac is not None:
                core.on_explicit_lac(answer.explicit_lac)
            if entry is not None:
                core.on_entry(slot, entry.entry_id, entry.lac, entry.length)
            elif answer.status == v2.EOK or answer.status in (v2.Status.ENOENTRY, v2.Status.ENOLEDGER):
                core.on_nothing(slot)
            else:
                refusal = read_error(answer.status, ledger_id, v2.LAST_ENTRY, fragment.bookies[slot])
                report_damage(refusal)
                core.on_failure(refusal)
            if core.is_covered:
                break
    finally:
        await end_all(tasks)
    return core.result()


async def _ask_lac(pool: BookiePool, bookie: str, ledger_id: int, digest: EntryDigest) -> LacResponse:
    """Ask one bookie for its explicit LAC and last entry; if it returns neither, for its last entry by a plain read.

    The first answer alone is not certain: Apache's bookies also answer "no entry" to a LAC read when a disk failed, and
    a bookie without V3 closes the connection.
    """
    channel = await pool.v3_channel(bookie)
    try:
        answer = await channel.read_lac(ledger_id, digest)
    except BookieUnavailable:
        answer = None
    if answer is not None and answer.lac is not None:
        return answer
    last = await (await pool.channel(bookie)).read_last_entry(ledger_id, digest)
    return LacResponse(last.status, None, last.entry)


@dataclass(frozen=True, slots=True)
class LedgerTimes:
    """When a ledger was created, and when its closed metadata were last written: ms since the epoch, by the metadata
    store's clock. `closed_ms` is None if the ledger was not closed when it was read."""

    created_ms: int
    closed_ms: int | None

    @classmethod
    def of(cls, stored: Versioned) -> LedgerTimes:
        created = stored.ctime_ms if stored.metadata.ctime is None else stored.metadata.ctime
        return cls(created, stored.mtime_ms if stored.metadata.is_closed else None)

    def is_closed_before(self, moment_ms: int) -> bool:
        """Return whether the ledger was closed before that time, so that it has no entries from that time on."""
        return self.closed_ms is not None and self.closed_ms < moment_ms


class LedgerReader:
    """Reads one ledger up to its last confirmed entry; `Cluster.open` makes it.

    The reader knows the metadata and the LAC of the time when it was opened; `refresh` and `follow` update both.
    """

    def __init__(
        self,
        context: ClientContext,
        ledger_id: int,
        metadata: LedgerMetadata,
        password: bytes,
        last: LastEntries,
        times: LedgerTimes,
        encryption: EncryptionOptions = NO_KEYS,
        version: int = NO_VERSION,
    ) -> None:
        self._context = context
        self.times = times
        """When the ledger was created and closed, as known when it was opened. Constant."""
        self._password = password
        """The cluster's, from which the keys for digests and fences are made."""
        self._ledger_id = ledger_id
        self.opener = encryption.opener(ledger_id, metadata.custom_metadata)
        """Decrypts entries, if the ledger is encrypted. Constant: whether it is encrypted never changes."""
        self._version = version
        """The version of the node that `_metadata` were read from; NO_VERSION: unknown, and older than all. Grows."""
        self._last = last
        """How far the ledger goes while it is open. Grows, also by `learn_lac`; of no use once it is closed."""
        self._use(metadata)

    def _adopt(self, stored: Versioned) -> None:
        """Take over metadata, unless another call has read later ones meanwhile: a closed ledger stays closed."""
        if stored.version > self._version:
            self._version = stored.version
            self._use(stored.metadata)

    def _use(self, metadata: LedgerMetadata) -> None:
        self._metadata = metadata
        """The ledger's metadata as last read. `_range` is replaced together with it."""
        preferred = self._context.random.choice(metadata.last_fragment.bookies)
        self._range = RangeReader(self._context.pool, self._ledger_id, metadata, self.digest, preferred)

    @property
    def ledger_id(self) -> int:
        return self._ledger_id

    @property
    def digest(self) -> EntryDigest:
        """The digest that checks the ledger's entries, with the bounds on LACs from its known metadata."""
        return self._digest_for(self._metadata)

    def _digest_for(self, metadata: LedgerMetadata) -> EntryDigest:
        return EntryDigest(metadata.digest, self._password, metadata.lac_bounds)

    def listed(self) -> ListedEntries:
        """Return the object that asks the ledger's bookies which entries they have."""
        return ListedEntries(self._context.pool, self._ledger_id, self._metadata)

    @property
    def metadata(self) -> LedgerMetadata:
        return self._metadata

    @property
    def is_closed(self) -> bool:
        """Whether the ledger is closed, as last read: then `last_entry` is final."""
        return self._metadata.is_closed

    @property
    def last_entry(self) -> int:
        """The last entry known to be confirmed (LAC); -1 when there is none. `refresh` reads it again."""
        return self._metadata.last_entry if self._metadata.is_closed else self._last.lac

    @property
    def last_unconfirmed(self) -> int:
        """The last entry that any bookie had when last asked (LAP); entries above `last_entry` may be lost again."""
        return self._metadata.last_entry if self._metadata.is_closed else self._last.lap

    @property
    def length(self) -> int:
        """Payload bytes up to `last_entry`. For an open ledger it is an estimate, from the length up to the LAP."""
        if self._metadata.is_closed:
            return self._metadata.length
        return self._last.length * (self._last.lac + 1) // (self._last.lap + 1) if self._last.lap >= 0 else 0

    async def refresh(self) -> int:
        """Read the metadata and the LAC again; return `last_entry`, which never decreases.

        Raises:
            NoSuchLedger: the ledger was deleted; there may be another one with its id.
        """
        if not self._metadata.is_closed:
            stored, heard = await self._read_metadata(), LastEntries()
            metadata = stored.metadata
            if not metadata.is_closed:
                heard = await last_entries(self._context.pool, self._ledger_id, metadata, self._digest_for(metadata))
            self._last = self._last.joined(heard)
            self._adopt(stored)
        return self.last_entry

    async def _read_metadata(self) -> Versioned:
        """Return the ledger's metadata as stored now. Raises NoSuchLedger, also if another ledger has its id."""
        stored = await self._context.ledgers.read(self._ledger_id)
        require_same(self._ledger_id, self._metadata, stored.metadata.creation)
        return stored

    async def read(self, first_entry: int, last_entry: int, *, unconfirmed: bool = False) -> EntryBatch:
        """Return entries first_entry .. last_entry, both included, as one batch.

        Raises:
            ValueError: the range is empty, or ends above `last_entry` (with `unconfirmed`: above `last_unconfirmed`).
            NoSuchEntry: no bookie has an entry.
            ReadFailed: no bookie returned an entry that may exist; this may be temporary.
            DecryptionFailed: the ledger is encrypted, and its key is missing or wrong, or an entry was altered.
        """
        first_entry = arguments.whole_number("first_entry", first_entry)
        last_entry = arguments.whole_number("last_entry", last_entry)
        limit = self._limit(unconfirmed)
        if not 0 <= first_entry <= last_entry or last_entry > limit:
            raise self._out_of_range(first_entry, last_entry, limit, unconfirmed)
        parts = [batch async for batch in self._batches(first_entry, last_entry + 1, BATCH_BYTES)]
        return joined(parts, self._ledger_id, first_entry)

    def _limit(self, unconfirmed: object) -> int:
        return self.last_unconfirmed if arguments.flag("unconfirmed", unconfirmed) else self.last_entry

    def _out_of_range(self, first_entry: int, last_entry: int, limit: int, unconfirmed: bool) -> ValueError:
        return ValueError(
            f"entries {first_entry} to {last_entry} of ledger {self._ledger_id} cannot be read: the range must lie "
            f"in 0 to {limit}, the last {'held' if unconfirmed else 'confirmed'} entry"
        )

    async def batches(
        self,
        first_entry: int = 0,
        end_entry: int | None = None,
        *,
        batch_bytes: int = BATCH_BYTES,
        unconfirmed: bool = False,
    ) -> AsyncGenerator[EntryBatch]:
        """Yield [first_entry, end_entry), without its end, in batches of roughly `batch_bytes` payload bytes.

        `end_entry` None means the end of the ledger: the last confirmed entry, or with `unconfirmed` the LAP. Raises as
        `read`.
        """
        first_entry = arguments.whole_number("first_entry", first_entry)
        batch_bytes = arguments.whole_number("batch_bytes", batch_bytes, 1)
        if end_entry is not None:
            end_entry = arguments.whole_number("end_entry", end_entry)
        limit = self._limit(unconfirmed)
        end = limit + 1 if end_entry is None else end_entry
        if end > limit + 1:
            raise self._out_of_range(first_entry, end - 1, limit, unconfirmed)
        async for batch in self._batches(first_entry, end, batch_bytes):
            yield batch

    async def acknowledged_batches(
        self, first_entry: int, end_entry: int, *, batch_bytes: int = BATCH_BYTES
    ) -> AsyncGenerator[EntryBatch]:
        """Yield all of [first_entry, end_entry): the caller knows that these entries were acknowledged.

        The LAC of an open ledger may be lower.

        Raises:
            NoSuchEntry: an entry is lost: no bookie has it, or the ledger was closed before it.
            ReadFailed: an entry could not be read; this may be temporary.
        """
        first_entry = arguments.whole_number("first_entry", first_entry)
        end_entry = arguments.whole_number("end_entry", end_entry)
        batch_bytes = arguments.whole_number("batch_bytes", batch_bytes, 1)
        async for batch in self._batches(first_entry, end_entry, batch_bytes):
            yield batch

    async def _batches(self, first_entry: int, end_entry: int, batch_bytes: int) -> AsyncIterator[EntryBatch]:
        """Yield all entries; if the known bookies do not have them, read the metadata again: they may have moved.

        Raises:
            NoSuchEntry: also if the ledger was closed before an entry, even if bookies have that entry.
        """
        position = first_entry
        while position < end_entry:
            known = self._metadata
            end = min(end_entry, known.last_entry + 1) if known.is_closed else end_entry
            if position >= end:
                raise NoSuchEntry(
                    f"ledger {self._ledger_id} entry {position}: the ledger is closed at entry {known.last_entry}",
                    ledger_id=self._ledger_id,
                    entry_id=position,
                )
            try:
                async for batch in self._range.batches(position, end, batch_bytes):
                    position = batch.end_entry
                    yield self.opener.open(batch)
            except (NoSuchEntry, ReadFailed):
                # Re-replication and ensemble changes move entries after a reader was opened. A ledger that was closed
                # meanwhile may end before this entry, or hold copies that an open one never holds (bkspark.wire.lac).
                self._adopt(await self._read_metadata())
                if (self._metadata.fragments, self._metadata.state) == (known.fragments, known.state):
                    raise

    async def follow(
        self, first_entry: int = 0, *, batch_bytes: int = BATCH_BYTES, patience_s: float = PATIENCE_S
    ) -> AsyncIterator[EntryBatch]:
        """Yield entries from `first_entry` on as they are confirmed; end when the ledger is closed and read to its end.

        It continues while the metadata store or too many bookies are unreachable, for up to `patience_s`.

        Args:
            patience_s: how long failures may last before one is raised.

        Raises:
            NoSuchLedger: the ledger was deleted.
            NoSuchEntry: an entry is lost.
            ReadFailed, MetadataError: bookies, or the metadata store, were unreachable for longer than `patience_s`; or
                the bookies do not let this client read, which is raised at once.
        """
        first_entry = arguments.whole_number("first_entry", first_entry)
        batch_bytes = arguments.whole_number("batch_bytes", batch_bytes, 1)
        patience_s = arguments.seconds("patience_s", patience_s, 0.0, DAY_S)
        patience = Patience(patience_s, asyncio.get_running_loop().time)
        async for batch in self.follow_patiently(first_entry, batch_bytes, patience):
            yield batch

    async def follow_patiently(self, position: int, batch_bytes: int, patience: Patience) -> AsyncIterator[EntryBatch]:
        """As `follow`, with a Patience that the caller shares with other parts of its call."""
        limits = TailLimits(patience_ns=int(patience.limit_s * 1e9))
        async with aclosing(TailWatch(self._context, self, limits)) as tail:
            while True:
                early = tail.take_entry(position)
                if early is not None:
                    position += 1
                    yield self.opener.open(early)
                try:
                    async for batch in self.batches(position, batch_bytes=batch_bytes):
                        position = batch.end_entry
                        patience.succeeded()
                        yield batch
                except BookKeeperError as error:
                    await patience.bear(error)
                    continue
                if position <= self.last_entry:
                    continue  # the LAC grew while the caller had the last batch
                if self._metadata.is_closed:
                    return
                try:
                    await tail.wait_beyond(position - 1)
                except BookKeeperError:
                    patience.exhaust()
                    raise

    def learn_lac(self, lac: int) -> None:
        """Record that entries up to `lac` are confirmed, as an entry with a right digest says."""
        self._last = self._last.joined(LastEntries(lac, lac))


class SnapshotReader:
    """Reads a ledger with the metadata of a plan: it asks only bookies, never the metadata store. For Spark tasks.

    Args:
        metadata: as of the plan; entries up to the plan's end must be confirmed.
        addresses: (host, port) by bookie id, for all bookies of the metadata that were registered when the plan was
            made.
        password: the ledger's.
        net: time-outs, limits and TLS of connections.
        encryption: the keys of encrypted ledgers.
    """

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
        ledger_id = arguments.whole_number("ledger_id", ledger_id)
        arguments.instance("metadata", metadata, LedgerMetadata)
        arguments.instance("addresses", addresses, Mapping)
        arguments.instance("password", password, bytes)
        arguments.instance("net", net, NetOptions)
        arguments.instance("encryption", encryption, EncryptionOptions)
        self._opener = encryption.opener(ledger_id, metadata.custom_metadata)
        self._pool = BookiePool(resolver(addresses), net)
        self._range = planned_reader(self._pool, ledger_id, metadata, password)

    async def batches(
        self, first_entry: int, end_entry: int, *, batch_bytes: int = BATCH_BYTES
    ) -> AsyncGenerator[EntryBatch]:
        """Yield [first_entry, end_entry) in batches of roughly `batch_bytes`. Raises as `LedgerReader.read`."""
        first_entry = arguments.whole_number("first_entry", first_entry)
        end_entry = arguments.whole_number("end_entry", end_entry)
        batch_bytes = arguments.whole_number("batch_bytes", batch_bytes, 1)
        async for batch in self._range.batches(first_entry, end_entry, batch_bytes):
            yield self._opener.open(batch)

    async def close(self) -> None:
        """Drop the connections."""
        await self._pool.close()
