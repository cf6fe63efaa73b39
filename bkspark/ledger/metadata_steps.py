"""The metadata operations of the drivers of cores, and which errors are temporary; for any event loop."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

from bkspark.core import effects
from bkspark.core.metadata import LedgerMetadata
from bkspark.errors import (
    BookieUnavailable,
    BookKeeperError,
    MetadataError,
    MetadataVersion,
    ReadFailed,
    RequestTimeout,
    TooManyRequests,
)
from bkspark.metadata.ledgers import LedgerStore

_Effect = TypeVar("_Effect")


class MetadataWriting(Protocol[_Effect]):
    """A core whose `WriteMetadata` effects are performed here."""

    def on_metadata_written(self, metadata: LedgerMetadata, version: int) -> list[_Effect]: ...

    def on_metadata_conflict(self, current: LedgerMetadata, version: int) -> list[_Effect]: ...

    def on_metadata_failed(self, error: BookKeeperError) -> list[_Effect]: ...


def is_away(error: BookKeeperError) -> bool:
    """Whether the error only means that the metadata store could not be reached."""
    return isinstance(error, MetadataError) and error.is_outage


def may_pass(error: BookKeeperError) -> bool:
    """Whether the error only means that the metadata store, or too many bookies, could not be reached now."""
    return is_away(error) or isinstance(error, (ReadFailed, BookieUnavailable, RequestTimeout, TooManyRequests))


async def write_metadata(
    ledgers: LedgerStore,
    core: MetadataWriting[_Effect],
    ledger_id: int,
    effect: effects.WriteMetadata,
    has_patience: Callable[[], Awaitable[bool]] | None = None,
) -> list[_Effect]:
    """Perform a compare-and-set, read the stored metadata if it lost, and call the core; return its effects.

    Args:
        has_patience: waits a while when the store is unreachable, and returns whether to try again: with the same bytes
            on the same version, so that it does not matter whether an earlier write took effect.
    """
    while True:
        try:
            written = await ledgers.write(ledger_id, effect.metadata, effect.expected_version)
            return core.on_metadata_written(written.metadata, written.version)
        except MetadataVersion:
            try:
                current = await ledgers.read(ledger_id)
                return core.on_metadata_conflict(current.metadata, current.version)
            except BookKeeperError as error:
                failure = error
        except BookKeeperError as error:
            failure = error
        if has_patience is None or not is_away(failure) or not await has_patience():
            return core.on_metadata_failed(failure)
