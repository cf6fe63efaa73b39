"""Ledgers found by state, bookie, owner or age. The list is searched in order of ids, a page at a time."""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import dataclass

import numpy as np

from bkspark.core.metadata import LedgerMetadata
from bkspark.errors import BookKeeperError, NoSuchLedger
from bkspark.log.formats import APPLICATION_KEY, LOG_KEY
from bkspark.metadata.ledgers import Versioned
from bkspark.wall_clock import wall_clock_ms
from bkspark_console.cluster_view import ClusterView
from bkspark_console.payloads import visible

PAGE = 50
LOOKED_AT_MAX = 5_000
"""How many ledgers' metadata are read for one page. The page says if there are more ledgers."""
AT_ONCE = 64
VALUE_SHOWN_MAX = 120
NAMES_SHOWN_MAX = 100
"""How many names of a ledger's custom metadata are shown."""


@dataclass(frozen=True, slots=True)
class LedgerFilter:
    """What is searched. `owner`: part of a name or value of the custom metadata. `older_s`: the least age."""

    state: str = "any"
    """The name of a `LedgerState`, or "any"."""
    bookie: str = ""
    """A bookie of one of its fragments; "": any."""
    owner: str = ""
    older_s: int = 0

    @property
    def is_empty(self) -> bool:
        return self == LedgerFilter()

    def matches(self, stored: Versioned, now_ms: int) -> bool:
        """Return whether a ledger matches."""
        metadata = stored.metadata
        if self.state not in ("any", metadata.state.name):
            return False
        if self.bookie and not any(self.bookie in fragment.bookies for fragment in metadata.fragments):
            return False
        if self.older_s and now_ms - stored.ctime_ms < self.older_s * 1000:
            return False
        if not self.owner:
            return True
        texts = (text for pair in custom_of(metadata) for text in pair)
        return any(self.owner.lower() in text.lower() for text in texts)


@dataclass(frozen=True, slots=True)
class FoundLedger:
    """A ledger of the list. stored: its metadata; None: they cannot be read, and `problem` says why."""

    ledger_id: int
    stored: Versioned | None
    problem: str = ""

    @property
    def owner(self) -> str:
        """The owner of the ledger, as far as its custom metadata name one."""
        return "" if self.stored is None else owner_of(self.stored.metadata)

    @property
    def bookies(self) -> list[str]:
        """All bookies that have entries of the ledger."""
        if self.stored is None:
            return []
        return sorted({bookie for fragment in self.stored.metadata.fragments for bookie in fragment.bookies})


@dataclass(frozen=True, slots=True)
class LedgerPage:
    """A page of ledgers. total: of the cluster; looked_at: for this page; next_after: None at the end of the list."""

    rows: list[FoundLedger]
    """The ledgers of the page."""
    total: int
    looked_at: int
    next_after: int | None


async def find(view: ClusterView, wanted: LedgerFilter, after: int) -> LedgerPage:
    """Return the next ledgers after the id `after` that match. Raises MetadataError."""
    async with view.scans:
        return await _find(view, wanted, after)


async def _find(view: ClusterView, wanted: LedgerFilter, after: int) -> LedgerPage:
    ids = await view.ledger_ids()
    begin = int(np.searchsorted(ids, after, side="right"))
    rows: list[FoundLedger] = []
    at, end = begin, min(len(ids), begin + LOOKED_AT_MAX)
    now_ms = wall_clock_ms()
    while at < end and len(rows) < PAGE:
        some = ids[at : min(end, at + min(AT_ONCE, PAGE - len(rows) if wanted.is_empty else AT_ONCE))].tolist()
        for row in await asyncio.gather(*(_row(view, ledger_id) for ledger_id in some)):
            if len(rows) == PAGE:
                break
            at += 1
            if row is None:
                continue
            if row.stored is None:
                is_wanted = wanted.is_empty
            else:
                is_wanted = wanted.matches(row.stored, now_ms)
            if is_wanted:
                rows.append(row)
    return LedgerPage(rows, len(ids), at - begin, int(ids[at - 1]) if begin < at < len(ids) else None)


async def _row(view: ClusterView, ledger_id: int) -> FoundLedger | None:
    ledgers = (await view.client.context()).ledgers
    try:
        return FoundLedger(ledger_id, await ledgers.read(ledger_id))
    except NoSuchLedger:
        return None
    except BookKeeperError as error:
        return FoundLedger(ledger_id, None, str(error))


def custom_of(metadata: LedgerMetadata) -> list[tuple[str, str]]:
    """Return the custom metadata as text with visible characters only. Long names and values are cut."""
    return [
        (
            visible(name[:VALUE_SHOWN_MAX]),
            visible(value[: 4 * VALUE_SHOWN_MAX].decode("utf-8", "replace")[:VALUE_SHOWN_MAX]),
        )
        for name, value in itertools.islice(metadata.custom_metadata.items(), NAMES_SHOWN_MAX)
    ]


def owner_of(metadata: LedgerMetadata) -> str:
    """Return a ledger's owner: its log, Pulsar's topic, or the application."""
    custom = dict(custom_of(metadata))
    if custom.get(APPLICATION_KEY) == "bkspark" and custom.get(LOG_KEY):
        return f"log {custom[LOG_KEY]}"
    topic = custom.get("pulsar/managed-ledger")
    if topic:
        return f"topic {topic}"
    return custom.get(APPLICATION_KEY, "")
