"""TopicView: the state of one topic or partition on the driver: its positions, and which entries to read."""

from __future__ import annotations

import logging
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Protocol

import numpy as np

from bkspark.client import Client
from bkspark.entries import EntryBatch
from bkspark.errors import (
    ConfigurationError,
    DataLoss,
    MalformedPayload,
    NoSuchEntry,
    NoSuchLedger,
    NoSuchLog,
    UnauthorizedAccess,
)
from bkspark.ledger.reader import LedgerReader
from bkspark.log.positions import EARLIEST, LATEST, Position
from bkspark.pulsar.entries import well_formed
from bkspark.pulsar.message_ids import EARLIEST_MESSAGE, LATEST_MESSAGE, MessageId
from bkspark.pulsar.metadata import SHADOW_SOURCE, EntryPosition
from bkspark.pulsar.names import TopicName
from bkspark.pulsar.topic import PulsarStore
from bkspark.pulsar.transactions import Transactions, UnreadEntry
from bkspark.spark.gaps import around_gaps
from bkspark.spark.options import SourceOptions
from bkspark.spark.ranges import EntryRange, ReadableSegment, between
from bkspark.spark.topic_ledgers import Extents, TopicList

_log = logging.getLogger(__name__)

_COUNT = re.compile(r"-[0-9]{1,18}")
_ENDS: Mapping[MessageId, str] = {EARLIEST_MESSAGE: EARLIEST, LATEST_MESSAGE: LATEST}
"""What Java's ids of no message mean, without their partition."""


class Looking(Protocol):
    """The part of a TopicPlanner that a TopicView uses."""

    client: Client
    options: SourceOptions
    now_ms: int
    """The time to which relative times refer, in ms since 1970."""

    async def store(self) -> PulsarStore: ...
    def owner_of(self, ledger_id: int) -> TopicName | None: ...


class TopicView:
    """One topic or partition in the state that a TopicPlanner has read."""

    def __init__(self, planner: Looking, name: TopicName, listed: TopicList, extents: Extents) -> None:
        self._planner = planner
        """What this needs of the planner that made it."""
        self._options = planner.options
        self.name = name
        self.managed = listed.managed
        """The topic's ledgers according to Pulsar's metadata. Constant."""
        self.extents = extents
        """The readable entries of each ledger; only grows."""
        self.transactions: Transactions | None = None
        """The transactions that a scan found; None if the topic was not scanned. Set once."""
        self._listed = listed.by_id
        """The topic's ledgers, by id. Constant."""
        self._own_ends = listed.own_ends
        """The ends of closed ledgers by their own metadata, by id. Only grows."""
        self._read_out: set[int] = set()
        """Ledgers whose end was read here."""

    # ---- positions ----

    @property
    def start(self) -> Position:
        """The position of the first existing entry."""
        return _beginning(self.extents[0]) if self.extents else Position.beginning()

    @property
    def readable(self) -> Position:
        """The position after the last entry that is confirmed."""
        if not self.extents:
            return Position.beginning()
        last = self.extents[-1]
        return Position(last.ordinal, last.ledger_id, last.end_entry)

    @property
    def end(self) -> Position:
        """The position up to which it may be read now: the readable end, or the oldest open transaction."""
        stop = None if self.transactions is None else self.transactions.stop
        if stop is None:
            return self.readable
        return min(self.readable, Position(stop.ledger_id, stop.ledger_id, stop.entry_id))

    def normal(self, position: Position) -> Position:
        """Return the position with the end of a closed ledger as the beginning of the next one that is listed."""
        extent = self.extents.of_ledger(position.ledger_id)
        while extent is not None and extent.is_closed and position.entry_id >= extent.end_entry:
            extent = self.extents.first_from(extent.ledger_id + 1)
            if extent is not None:
                position = _beginning(extent)
        return position

    def first_after(self, noted: Position) -> Position | None:
        """Return where reading from a recorded position begins; None if the entries after it are gone."""
        if noted.ledger_id < 0:
            return self.start
        if self.extents.of_ledger(noted.ledger_id) is not None:
            return self.normal(noted)
        # Ledgers are trimmed from the front: one that is gone while an older one is there was dropped as empty.
        if noted.entry_id == 0 and self.extents and self.extents[0].ledger_id < noted.ledger_id:
            later = self.extents.first_from(noted.ledger_id)
            if later is not None:
                return _beginning(later)
            # Ids ascend: if the last ledger is being written, no newer one was dropped, and the position is of another
            # cluster.
            return self.readable if self.extents[-1].is_closed else None
        return None

    async def extend_to(self, noted: Position) -> None:
        """Extend the ledger of a recorded position, if what is known of it ends there or before.

        All entries before the position were confirmed once: bookies that restarted may have forgotten it. A ledger that
        was open then, and is closed now, is read to its own end, as `is_read_out` says.
        """
        extent = self.extents.of_ledger(noted.ledger_id)
        if extent is None or not 0 < noted.entry_id >= extent.end_entry:
            return
        end_entry = noted.entry_id
        if extent.end_entry == self._listed[extent.ledger_id].entries:
            # The plan of the tasks reports a ledger that cannot be opened.
            with suppress(NoSuchLedger, UnauthorizedAccess):
                end_entry = max(end_entry, await self._own_end(extent.ledger_id))
        if end_entry > extent.end_entry:
            self.extents = self.extents.with_end(extent.ledger_id, end_entry)

    async def _own_end(self, ledger_id: int) -> int:
        """Return the end of a ledger by its own metadata, which are final once it is closed."""
        known = self._own_ends.get(ledger_id)
        if known is not None:
            return known
        reader = await self._planner.client.open(ledger_id)
        end_entry = reader.last_entry + 1
        if reader.is_closed:
            self._own_ends[ledger_id] = end_entry
        return end_entry

    async def wanted_start(self) -> tuple[Position, MessageId | None]:
        """Return where the options let reading begin; with it, the message to begin with if that is within a batch.

        Raises:
            ConfigurationError, DataLoss: it is not a position of the topic, or the entries after it are gone.
        """
        options = self._options
        source = self.managed.properties.get(SHADOW_SOURCE)
        if source is not None:
            raise ConfigurationError(
                f"topic {self.name} is a shadow of {source}, whose ledgers hold its messages: read that topic"
            )
        if options.starting_subscription is not None:
            return await self._after_subscription(options.starting_subscription)
        if options.starting_timestamp is not None:
            return self._since(self.absolute(options.starting_timestamp)), None
        wanted = self._offset("startingOffsets", options.starting_offsets)
        if isinstance(wanted, int):
            return self._before(-wanted), None
        if isinstance(wanted, MessageId):
            located = self._located("startingOffsets", wanted)
            if _position_of(wanted) > self.readable:
                raise self._ends_before("startingOffsets", wanted)
            return located, wanted if wanted.batch_index > 0 else None
        if wanted is None:
            return self.start, None
        return (self.end if wanted == LATEST else self.start), None

    async def wanted_end(self) -> tuple[Position, MessageId | None]:
        """Return where the options let a batch read end; a message that they name is included. Raises as
        `wanted_start`, and as `check_transactions` if an open transaction lets it end earlier."""
        wanted = self._offset("endingOffsets", self._options.ending_offsets)
        if wanted != EARLIEST and not isinstance(wanted, MessageId):
            self._warn_of_transactions()
        if isinstance(wanted, int):
            return min(self.end, self._before(-wanted)), None
        if isinstance(wanted, MessageId):
            self._check_order(wanted)
            end, last = self._located("endingOffsets", wanted), None
            if end.ledger_id == wanted.ledger_id:
                end = Position(end.ordinal, end.ledger_id, wanted.entry_id + 1)
                last = wanted if wanted.batch_index >= 0 else None
                if end.ledger_id == self.readable.ledger_id and end > self.readable:
                    raise self._ends_before("endingOffsets", wanted)
            if end > self.end:
                self._warn_of_transactions()
            return min(self.end, end), last
        return (self.start if wanted == EARLIEST else self.end), None

    def _check_order(self, end: MessageId) -> None:
        """Raise ConfigurationError if `startingOffsets` is a message after `end`, that of `endingOffsets`."""
        start = self._offset("startingOffsets", self._options.starting_offsets)
        if not isinstance(start, MessageId):
            return
        if (start.ledger_id, start.entry_id) == (end.ledger_id, end.entry_id):
            # Without an index, `end` is the whole batch.
            is_after = start.batch_index > end.batch_index >= 0
        else:
            is_after = start > end
        if is_after:
            raise ConfigurationError(
                f"option 'startingOffsets' of topic {self.name} is message {start}, after {end} of 'endingOffsets', so "
                "nothing would be read: exchange them"
            )

    def absolute(self, moment_ms: int) -> int:
        return moment_ms if moment_ms >= 0 else self._planner.now_ms + moment_ms

    def _offset(self, option: str, wanted: object) -> str | int | MessageId | None:
        """Return the part of an option that is about this topic or partition; None if there is no such part."""
        if wanted is None:
            return None
        if isinstance(wanted, dict):
            named = [wanted[alias] for alias in aliases(self.name) if alias in wanted]
            if not named:
                return None
            wanted = named[0]
        try:
            found = parsed_offset(wanted)
        except ValueError as error:
            raise ConfigurationError(
                f"option '{option}': the offset of topic {self.name} is {str(wanted)[:100]!r}, which {error}"
            ) from None
        if not isinstance(found, MessageId):
            return found
        if found.partition not in (-1, self.name.partition):
            return None  # an id of another partition: this one is read as if it were not named
        return _ENDS.get(replace(found, partition=-1), found)

    def _located(self, option: str, wanted: MessageId) -> Position:
        later = self.extents.first_from(wanted.ledger_id)
        if later is not None and later.ledger_id == wanted.ledger_id:
            return _position_of(wanted)
        owner = self._planner.owner_of(wanted.ledger_id) if wanted.partition >= 0 else None
        if owner is not None:
            raise ConfigurationError(
                f"option '{option}' is message {wanted}, of partition {wanted.partition}, but ledger "
                f"{wanted.ledger_id} belongs to {owner}: give the id with its partition"
            )
        if later is None:
            raise self._ends_before(option, wanted)
        self._check_owner(option, wanted)
        if later is not self.extents[0]:
            if wanted.entry_id > 0:  # only a ledger without entries is dropped
                raise ConfigurationError(
                    f"option '{option}' is message {wanted}, but topic {self.name} has no ledger {wanted.ledger_id}: "
                    "correct the id"
                )
            return _beginning(later)
        gone = (
            f"option '{option}' is message {wanted}, but topic {self.name} now begins with ledger "
            f"{self.extents[0].ledger_id}"
        )
        if self._options.fail_on_data_loss:
            instead = "earliest" if option == "startingOffsets" else "latest"
            raise DataLoss(f"{gone}: use {instead}, or allow the loss (failOnDataLoss=false)")
        _log.warning("%s: what was before is lost", gone)
        return self.start

    def _check_owner(self, option: str, wanted: MessageId) -> None:
        """Raise ConfigurationError if a message without a partition is of another partition or topic that is read."""
        owner = self._planner.owner_of(wanted.ledger_id)
        if owner is not None:
            of_partition = f"the id with its partition ({wanted.entry}:{owner.partition}), or "
            raise ConfigurationError(
                f"option '{option}' is message {wanted}, which belongs to {owner}, not to {self.name}: give "
                f"{of_partition if owner.partition >= 0 else ''}JSON with an id for each of them"
            )

    def _ends_before(self, option: str, wanted: MessageId) -> ConfigurationError:
        others = ""
        if self.name.partition >= 0 > wanted.partition:
            others = f", the id with its partition ({wanted.entry}:PARTITION), or JSON with an id for each partition"
        return ConfigurationError(
            f"option '{option}' is message {wanted}, but topic {self.name} ends before: use latest{others}"
        )

    def _before(self, count: int) -> Position:
        """Return the position `count` entries before the end."""
        position, left = self.end, count
        for extent in self.extents.back_from(position.ledger_id):
            held = position.entry_id if extent.ordinal == position.ordinal else extent.end_entry
            if left <= held:
                return Position(extent.ordinal, extent.ledger_id, held - left)
            left -= held
        return self.start

    def _since(self, moment_ms: int) -> Position:
        """Return the first ledger that may hold a message published at a time or later.

        Publish times are by producers' clocks: a ledger was closed after it was written, but their clocks may be ahead.
        """
        closed = {listed.ledger_id: listed.closed_ms for listed in self.managed.ledgers}
        for extent in self.extents:
            closed_ms = closed.get(extent.ledger_id)
            if closed_ms is None or closed_ms + self._options.publish_time_slack_ms >= moment_ms:
                return _beginning(extent)
        return self.readable

    async def _after_subscription(self, name: str) -> tuple[Position, MessageId | None]:
        """Return the first message that a subscription has not acknowledged, in the form of `wanted_start`."""
        store = await self._planner.store()
        found = await store.subscription(self.name, name, self._planner.client)
        if found is None and self.name.partition >= 0 and not await store.exists(self.name):
            return self.start, None  # a partition that no broker has loaded yet
        if found is None:
            names = ", ".join(await store.subscription_names(self.name))
            raise NoSuchLog(
                f"option 'startingSubscription': topic {self.name} has no subscription {name!r}; there are "
                f"{names or 'none'}: correct the name, or begin with startingOffsets"
            )
        position = self.after(found.cursor.mark_delete)
        first = found.cursor.first_left_in(EntryPosition(position.ledger_id, position.entry_id))
        return position, MessageId(position.ledger_id, position.entry_id, first) if first else None

    def after(self, mark: EntryPosition) -> Position:
        """Return the position of the first existing entry after a mark-delete position."""
        if self.extents.of_ledger(mark.ledger_id) is not None:
            return self.normal(Position(mark.ledger_id, mark.ledger_id, mark.entry_id + 1))
        following = self.extents.first_from(mark.ledger_id)
        return self.readable if following is None else _beginning(following)

    # ---- what to read ----

    def has_ledger(self, ledger_id: int) -> bool:
        return ledger_id in self._listed

    def is_on_bookies(self, ledger_id: int) -> bool:
        return self._listed[ledger_id].is_on_bookies

    def offloaded_between(self, first: int, last: int) -> list[int]:
        """Return the ledgers between two ledgers that only tiered storage has, ascending."""
        extents = self.extents.between(Position(first, first, 0), Position(last, last, 0))
        return [each.ledger_id for each in extents if not self.is_on_bookies(each.ledger_id)]

    def ranges(self, start: Position, end: Position) -> list[EntryRange]:
        """Return the entries to read between two positions.

        Raises:
            DataLoss: some are in tiered storage only (failOnDataLoss).
        """
        found = self._on_bookies(start, end)
        self._read_out |= {
            entries.ledger_id
            for entries in found
            if entries.ordinal < end.ordinal and entries.end_entry == self._listed[entries.ledger_id].entries
        }
        return found

    def _on_bookies(self, start: Position, end: Position) -> list[EntryRange]:
        found = []
        for entries in between(self.extents.between(start, end), start, end):
            listed = self._listed[entries.ledger_id]
            if listed.is_on_bookies:
                found.append(entries)
                continue
            what = f"ledger {listed.ledger_id} of topic {self.name} was offloaded to {listed.offload}, and bookies"
            if self._options.fail_on_data_loss:
                raise DataLoss(
                    f"{what} deleted it: tiered storage cannot be read here; begin after it (startingOffsets), or "
                    "leave it out (failOnDataLoss=false)",
                    ledger_id=listed.ledger_id,
                )
            _log.warning("%s deleted it: it is left out", what)
        return found

    def is_read_out(self, ledger_id: int, end_entry: int) -> bool:
        """Return whether a read that ends here is to be extended to the ledger's own end: `ranges` continues with the
        next ledger.

        The topic's list may have an earlier end: a recovery at the time of the close may have found more entries, which
        brokers read, too.
        """
        return ledger_id in self._read_out and end_entry == self._listed[ledger_id].entries

    async def scan_transactions(self, found: Transactions, start: Position) -> None:
        """Scan the entries from `start` to the end for transactions; afterwards `end` respects open ones.

        Ledgers that bookies do not have are left out: reading may begin after them. If not, the plan reports them.
        """
        for entries in between(self.extents.between(start, self.readable), start, self.readable):
            end = await self._scan_ledger(found, entries) if self.is_on_bookies(entries.ledger_id) else 0
            if end < entries.end_entry:
                found.pass_over(UnreadEntry(EntryPosition(entries.ledger_id, entries.end_entry - 1), is_lost=True))
        self.transactions = found

    async def _scan_ledger(self, found: Transactions, entries: EntryRange) -> int:
        """Scan entries of a ledger; return where they end, 0 if there is no such ledger."""
        try:
            reader = await self._planner.client.open(entries.ledger_id)
        except NoSuchLedger:
            return 0
        # The plan of the tasks reports a closed ledger that ends before its list says.
        end = reader.last_entry + 1 if reader.is_closed else entries.end_entry
        async for batch in self._stored(found, reader, entries.first_entry, end):
            take_transactions(found, batch)
        return end

    def _warn_of_transactions(self) -> None:
        if warning := self.check_transactions():
            _log.warning("%s", warning)

    def unread_marker(self) -> str:
        """Return a warning, or an empty text: that the open transaction before which reading ends may have ended with
        an entry that the scan could not read."""
        unread = None if self.transactions is None else self.transactions.unread_after_stop
        if self.transactions is None or unread is None:
            return ""
        what = "lost" if unread.is_lost else "malformed"
        return (
            f"topic {self.name}, message {unread.place}: {what}, and it may be the marker that ended the transaction "
            f"which is open since message {self.transactions.stop}: nothing from there on is read; read the messages "
            "of all transactions with isolation=read_uncommitted"
        )

    def check_transactions(self) -> str:
        """Return `unread_marker`.

        Raises:
            MalformedPayload: the entry is malformed (FAILFAST).
            DataLoss: the entry is lost (failOnDataLoss).
        """
        text = self.unread_marker()
        unread = None if self.transactions is None else self.transactions.unread_after_stop
        if unread is None:
            return text
        ledger_id, entry_id = unread.place.ledger_id, unread.place.entry_id
        if unread.is_lost and self._options.fail_on_data_loss:
            lenient = "or allow the loss (failOnDataLoss=false)"
            raise DataLoss(f"{text}, {lenient}", ledger_id=ledger_id, entry_id=entry_id)
        if not unread.is_lost and self._options.malformed_mode == "FAILFAST":
            lenient = "or what is before it with mode DROPMALFORMED or PERMISSIVE"
            raise MalformedPayload(f"{text}, {lenient}", ledger_id=ledger_id, entry_id=entry_id)
        return text

    async def _stored(
        self, found: Transactions, reader: LedgerReader, first: int, end: int
    ) -> AsyncIterator[EntryBatch]:
        """Yield the entries of a ledger that bookies have; the tasks that read the others report them. All of them were
        readable when the topic was looked at: bookies that are asked now may know a lower LAC.

        Raises:
            DataLoss: bookies lost an entry (failOnDataLoss).
        """
        read = reader.acknowledged_batches
        if not self._options.fail_on_data_loss:
            async for batch in around_gaps(
                read,
                first,
                end,
                ensemble_size=reader.metadata.ensemble_size,
                next_listed=reader.listed().next_from,
                on_gap=lambda _, after: found.pass_over(
                    UnreadEntry(EntryPosition(reader.ledger_id, after - 1), is_lost=True)
                ),
            ):
                yield batch
            return
        try:
            async for batch in read(first, end):
                yield batch
                first = batch.end_entry
        except NoSuchEntry as error:
            gone = first if error.entry_id is None else error.entry_id
            raise DataLoss(
                f"topic {self.name}, message {reader.ledger_id}:{gone}: {error}: it is read to find the "
                "topic's transactions; allow the loss (failOnDataLoss=false)",
                ledger_id=reader.ledger_id,
                entry_id=gone,
            ) from None


def take_transactions(found: Transactions, batch: EntryBatch) -> None:
    """Record the transactions in a batch. Malformed entries are passed over: the tasks that read them report them."""
    is_malformed = np.ones(len(batch), bool)
    for entries in well_formed(batch):
        found.take(entries)
        is_malformed[entries.rows] = False
    if is_malformed.any():
        entry_id = batch.first_entry + int(np.flatnonzero(is_malformed)[-1])
        found.pass_over(UnreadEntry(EntryPosition(batch.ledger_id, entry_id), is_lost=False))


def aliases(name: TopicName) -> list[str]:
    """Return the names by which users may name a topic or partition, the most specific first."""
    return [alias for each in (name, name.whole) for alias in own_aliases(each)]


def own_aliases(name: TopicName) -> list[str]:
    """Return the names of a topic or partition that are not those of its whole topic, the most specific first."""
    return [str(name), f"{name.namespace_path}/{name.local}", name.local]


def parsed_offset(wanted: object) -> str | int | MessageId:
    """Return earliest, latest, -N or a message id. Raises ValueError if it is not one of these."""
    if isinstance(wanted, str) and wanted.lower() in (EARLIEST, LATEST):
        return wanted.lower()
    if isinstance(wanted, str) and _COUNT.fullmatch(wanted.strip()):
        wanted = int(wanted)
    if type(wanted) is int:
        if wanted >= 0:
            raise ValueError("is neither earliest, latest, -N (entries before the end) nor a message id")
        return wanted
    return MessageId.parse(wanted)


def _position_of(message: MessageId) -> Position:
    return Position(message.ledger_id, message.ledger_id, max(0, message.entry_id))


def _beginning(extent: ReadableSegment) -> Position:
    return Position(extent.ordinal, extent.ledger_id, 0)
