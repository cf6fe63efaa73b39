"""Decodes what Pulsar stores about topics in its metadata store. PURE.

    /managed-ledgers/…            ManagedLedgerInfo: a topic's ledgers
    /managed-ledgers/…/CURSOR     ManagedCursorInfo: what a subscription has acknowledged
    /admin/partitioned-topics/…   JSON: the number of partitions
    /schemas/…                    SchemaLocator: where each version of a topic's schema is stored

The first two may be compressed: u16 0x4778, i32 size, CompressedInfo of that size, then the data.
"""

from __future__ import annotations

import itertools
import json
import struct
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TypeVar

from google.protobuf.message import DecodeError, Message

from bkspark.errors import MetadataFormat
from bkspark.pulsar import pulsar_formats_pb2 as formats
from bkspark.pulsar.compression import decompress

COMPRESSED_MAGIC = 0x4778
"""No protobuf of these begins with it: it would be field 8 of a wire type that does not exist."""
UNCOMPRESSED_BYTES_MAX = 64 << 20
PARTITIONS_MAX = 100_000
CLOSED_MS_MAX = 253_402_300_799_999
"""The end of the year 9999, in ms since 1970: Python and Spark show no later time."""
SHADOW_SOURCE = "PULSAR.SHADOW_SOURCE"
COMPACTED_LEDGER = "CompactedTopicLedger"
_HEAD = struct.Struct(">Hi")

M = TypeVar("M", bound=Message)


@dataclass(frozen=True, slots=True, order=True)
class EntryPosition:
    """The position of an entry of a topic; ordered by ledger, then entry."""

    ledger_id: int
    entry_id: int

    def __str__(self) -> str:
        return f"{self.ledger_id}:{self.entry_id}"


@dataclass(frozen=True, slots=True)
class ListedLedger:
    """A ledger of a topic. `entries`, `size` and `closed_ms` are None if the ledger was open when it was listed.

    `offload` says where a copy is in tiered storage, None if none is complete; `is_on_bookies`: the ledger itself is
    still there.
    """

    ledger_id: int
    entries: int | None
    size: int | None
    closed_ms: int | None
    offload: str | None = None
    is_on_bookies: bool = True


@dataclass(frozen=True, slots=True)
class ManagedLedger:
    """The ledgers of a topic, by ascending id. `terminated`: the topic's final entry, None if it is not terminated."""

    ledgers: tuple[ListedLedger, ...] = ()
    terminated: EntryPosition | None = None
    properties: dict[str, str] = field(default_factory=dict)
    """What the broker stored with the topic, by name."""


@dataclass(frozen=True, slots=True)
class Cursor:
    """What a subscription has acknowledged: all up to `mark_delete`, and the entries of `ranges`, (lower, upper].

    `ledger_id` is the ledger whose last entry has a newer state than the node, -1 if the node is exact. `words` has a
    bit for each acknowledged entry of a ledger, if the broker stores them in this form. `partial` has the entries of
    which some messages are acknowledged, with a bit for each of their messages that is not.
    """

    ledger_id: int
    mark_delete: EntryPosition
    ranges: tuple[tuple[EntryPosition, EntryPosition], ...] = ()
    words: tuple[tuple[int, tuple[int, ...]], ...] = ()
    properties: dict[str, int] = field(default_factory=dict)
    """What the subscription's client stored with it, by name."""
    partial: tuple[tuple[EntryPosition, int], ...] = ()

    def first_left_in(self, place: EntryPosition) -> int:
        """Return the index in its batch of the first message of an entry that is not acknowledged; 0 if the cursor does
        not say so."""
        bits = dict(self.partial).get(place, 0)
        return (bits & -bits).bit_length() - 1 if bits else 0

    def acknowledged_in(self, ledger_id: int, entries: int) -> int:
        """Return how many of the first entries of a ledger are acknowledged, after the mark-delete position."""
        start = max(0, self.mark_delete.entry_id + 1) if ledger_id == self.mark_delete.ledger_id else 0
        found = 0
        for key, words in self.words:
            if key == ledger_id:
                bits = _bits(words)
                size = min(entries, 64 * len(words))
                found += (bits & ((1 << size) - 1)).bit_count() - (bits & ((1 << min(start, size)) - 1)).bit_count()
        for lower, upper in self.ranges:
            first = max(start, lower.entry_id + 1 if lower.ledger_id == ledger_id else 0)
            end = min(entries, upper.entry_id + 1 if upper.ledger_id == ledger_id else entries)
            if lower.ledger_id <= ledger_id <= upper.ledger_id:
                found += max(0, end - first)
        return found


@dataclass(frozen=True, slots=True)
class SchemaVersion:
    """Where one version of a schema is stored."""

    version: int
    place: EntryPosition
    """The entry that has the schema, in a ledger of schemas."""


def decode_managed_ledger(data: bytes, path: str) -> ManagedLedger:
    """Return the ledgers of a topic; an empty node has no ledgers.

    Raises:
        MetadataFormat: the node has other contents; the message names it.
    """
    info = _parsed(formats.ManagedLedgerInfo, _plain(data, path), path)
    ledgers = [_listed(each) for each in info.ledgerInfo]
    if any(each.ledger_id < 0 for each in ledgers) or not _ascend(each.ledger_id for each in ledgers):
        raise MetadataFormat(f"{path}: its ledgers do not ascend")
    late = next((each for each in ledgers if (each.closed_ms or 0) > CLOSED_MS_MAX), None)
    if late is not None:
        raise MetadataFormat(f"{path}: {late.closed_ms} is not a time at which ledger {late.ledger_id} was closed")
    terminated = _place(info.terminatedPosition) if info.HasField("terminatedPosition") else None
    return ManagedLedger(tuple(ledgers), terminated, {each.key: each.value for each in info.properties})


def _ascend(ids: Iterable[int]) -> bool:
    listed = list(ids)
    return all(before < after for before, after in itertools.pairwise(listed))


def _listed(info: formats.ManagedLedgerInfo.LedgerInfo) -> ListedLedger:
    offload = info.offloadContext
    where = None
    if offload.complete:
        driver = offload.driverMetadata
        named = ", ".join(f"{each.key}={each.value}" for each in driver.properties)
        where = f"{driver.name or 'tiered storage'}{f' ({named})' if named else ''}"
    is_closed = info.timestamp > 0
    return ListedLedger(
        info.ledgerId if info.HasField("ledgerId") else -1,
        max(0, info.entries) if is_closed else None,
        max(0, info.size) if is_closed else None,
        info.timestamp if is_closed else None,
        where,
        not (offload.complete and offload.bookkeeperDeleted),
    )


def decode_cursor(data: bytes, path: str) -> Cursor:
    """Return the node of a subscription's cursor. Raises MetadataFormat as `decode_managed_ledger`."""
    info = _parsed(formats.ManagedCursorInfo, _plain(data, path), path)
    if not info.HasField("cursorsLedgerId"):
        raise MetadataFormat(f"{path}: it is not a cursor of Pulsar: cursorsLedgerId is missing")
    return Cursor(
        info.cursorsLedgerId,
        EntryPosition(info.markDeleteLedgerId, info.markDeleteEntryId),
        _ranges(info.individualDeletedMessages),
        (),
        {each.name: each.value for each in info.properties},
        _partial(info.batchedEntryDeletionIndexInfo),
    )


def decode_cursor_entry(data: bytes, ledger_id: int, source: str) -> Cursor:
    """Return the cursor state in an entry of a cursor's ledger. Raises MetadataFormat as `decode_managed_ledger`."""
    info = _parsed(formats.PositionInfo, data, source)
    if not info.HasField("ledgerId") or not info.HasField("entryId"):
        raise MetadataFormat(f"{source}: it is not a position of a cursor")
    return Cursor(
        ledger_id,
        EntryPosition(info.ledgerId, info.entryId),
        _ranges(info.individualDeletedMessages),
        tuple((each.key, tuple(each.values)) for each in info.individualDeletedMessageRanges),
        {each.name: each.value for each in info.properties},
        _partial(info.batchedEntryDeletionIndexInfo),
    )


def _partial(infos: Iterable[formats.BatchedEntryDeletionIndexInfo]) -> tuple[tuple[EntryPosition, int], ...]:
    return tuple((_place(each.position), _bits(each.deleteSet)) for each in infos)


def _bits(words: Iterable[int]) -> int:
    """Return the number whose bits are those of words of 64 bits, the lowest first."""
    return int.from_bytes(b"".join((word & 0xFFFF_FFFF_FFFF_FFFF).to_bytes(8, "little") for word in words), "little")


def _ranges(ranges: Iterable[formats.MessageRange]) -> tuple[tuple[EntryPosition, EntryPosition], ...]:
    return tuple((_place(each.lowerEndpoint), _place(each.upperEndpoint)) for each in ranges)


def _place(info: formats.NestedPositionInfo) -> EntryPosition:
    return EntryPosition(info.ledgerId, info.entryId)


def decode_partitions(data: bytes, path: str) -> int:
    """Return the number of a topic's partitions; 0 if it is not partitioned, or deleted.

    Raises:
        MetadataFormat: the node holds something else.
    """
    try:
        found = json.loads(data)
        count = found["partitions"]
        is_deleted = found.get("deleted", False)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise MetadataFormat(f"{path}: it holds no number of partitions: {error!r}") from None
    if type(count) is not int or not 0 <= count <= PARTITIONS_MAX:
        raise MetadataFormat(f"{path}: {str(count)[:40]} is not a number of partitions of 0 to {PARTITIONS_MAX}")
    return 0 if is_deleted is True else count


def has_retention(data: bytes, path: str) -> bool:
    """Return whether the policies of a namespace keep what was acknowledged. Brokers delete what is beyond one of the
    two limits, and a limit of 0 keeps nothing. Raises MetadataFormat."""
    try:
        retention = json.loads(data).get("retention_policies") or {}
        return bool(retention.get("retentionTimeInMinutes")) and bool(retention.get("retentionSizeInMB"))
    except (ValueError, AttributeError, RecursionError) as error:
        raise MetadataFormat(f"{path}: it holds no policies of a namespace: {error!r}") from None


def decode_schema_locator(data: bytes, path: str) -> tuple[SchemaVersion, ...]:
    """Return where the versions of a schema are stored that the node names. Raises MetadataFormat."""
    locator = _parsed(formats.SchemaLocator, data, path)
    found = {each.version: each for each in map(_version, [*locator.index, locator.info]) if each.place.ledger_id >= 0}
    return tuple(found[version] for version in sorted(found))


def decode_schema_entry(data: bytes, source: str) -> tuple[formats.SchemaInfo, tuple[SchemaVersion, ...]]:
    """Return a stored schema, and where versions before it are stored. Raises MetadataFormat."""
    entry = _parsed(formats.SchemaEntry, data, source)
    if not entry.HasField("schema_data"):
        raise MetadataFormat(f"{source}: it is not a schema: schema_data is missing")
    info = _parsed(formats.SchemaInfo, entry.schema_data, source)
    return info, tuple(each for each in map(_version, entry.index) if each.place.ledger_id >= 0)


def _version(entry: formats.IndexEntry) -> SchemaVersion:
    return SchemaVersion(entry.version, EntryPosition(entry.position.ledgerId, entry.position.entryId))


def _plain(data: bytes, path: str) -> bytes:
    """Return a node's protobuf, decompressed."""
    if len(data) < _HEAD.size or _HEAD.unpack_from(data)[0] != COMPRESSED_MAGIC:
        return data
    size = _HEAD.unpack_from(data)[1]
    if not 0 <= size <= len(data) - _HEAD.size:
        raise MetadataFormat(f"{path}: it is compressed, and ends within its header")
    info = _parsed(formats.CompressedInfo, data[_HEAD.size : _HEAD.size + size], path)
    if not 0 <= info.uncompressedSize <= UNCOMPRESSED_BYTES_MAX:
        raise MetadataFormat(
            f"{path}: it says to have {info.uncompressedSize} bytes, not 0 to {UNCOMPRESSED_BYTES_MAX}"
        )
    try:
        return bytes(decompress(info.compressionType, memoryview(data)[_HEAD.size + size :], info.uncompressedSize))
    except ValueError as error:
        raise MetadataFormat(f"{path}: {error}") from None


def _parsed(kind: type[M], data: bytes, source: str) -> M:
    try:
        return kind.FromString(data)
    except DecodeError as error:
        raise MetadataFormat(f"{source}: it is not a {kind.DESCRIPTOR.name} of Pulsar: {error}") from None
