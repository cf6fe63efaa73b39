"""The compare-and-set on ledger metadata that drivers perform for their cores, and which errors are temporary."""

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
from bkspark.metadata.ledgers import LedgerStore, require_same

_Effect = TypeVar("_Effect")


class MetadataWriting(Protocol[_Effect]):
    """A core that returns `WriteMetadata` effects: the methods that take the outcome."""

    def on_metadata_written(self, metadata: LedgerMetadata, version: int) -> list[_Effect]: ...

    def on_metadata_conflict(self, current: LedgerMetadata, version: int) -> list[_Effect]: ...

    def on_metadata_failed(self, error: BookKeeperError) -> list[_Effect]: ...


def is_away(error: BookKeeperError) -> bool:
    """Return whether the error only means that the metadata store could not be reached."""
    return isinstance(error, MetadataError) and error.is_outage


def may_pass(error: BookKeeperError) -> bool:
    """Return whether the error only means that the metadata store or bookies could not be reached now."""
    if isinstance(error, ReadFailed):
        return not error.is_refusal
    return is_away(error) or isinstance(error, (BookieUnavailable, RequestTimeout, TooManyRequests))


async def write_metadata(
    ledgers: LedgerStore,
    core: MetadataWriting[_Effect],
    ledger_id: int,
    effect: effects.WriteMetadata,
    has_patience: Callable[[], Awaitable[bool]] | None = None,
) -> list[_Effect]:
    """Perform a compare-and-set, pass the outcome to the core, and return the core's next effects.

    If the compare-and-set lost, the stored metadata are read and passed to the core.

    Args:
        has_patience: called when the store is unreachable: waits, and returns whether to try again. The next try writes
            the same bytes on the same version, so it does not matter whether an earlier write took effect.
    """
    while True:
        try:
            written = await ledgers.write(ledger_id, effect.metadata, effect.expected_version)
            return core.on_metadata_written(written.metadata, written.version)
        except MetadataVersion:
            try:
                current = await ledgers.read(ledger_id)
                require_same(ledger_id, effect.metadata, current.metadata.creation)
                return core.on_metadata_conflict(current.metadata, current.version)
            except BookKeeperError as error:
                failure = error
        except BookKeeperError as error:
            failure = error
        if has_patience is None or not is_away(failure) or not await has_patience():
            return core.on_metadata_failed(failure)
