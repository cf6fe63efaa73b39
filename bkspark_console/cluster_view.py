"""What the console knows of its cluster. Facts are read on demand and kept for a moment, for all pages."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Generic, TypeVar

import numpy as np

from bkspark.cli.bookie_answers import STATE, usable
from bkspark.cli.health import against_stopping, cluster_facts
from bkspark.client import Client
from bkspark.core.health import ClusterFacts, Reason, reasons
from bkspark.errors import BookKeeperError, MetadataError, MetadataFormat
from bkspark.metadata.bookie_plans import BookiePlans, PlansInForce
from bkspark.metadata.change_records import ChangeRecord, ChangeRecords
from bkspark.metadata.cookies import Cookie
from bkspark.metadata.registration import BookieAddress
from bkspark.metadata.underreplication import UnderreplicationStore
from bkspark.tasks import SharedAttempts
from bkspark.wall_clock import wall_clock_ms
from bkspark_console.bookie_http import BookieHttp, BookieHttpError, origin_of
from bkspark_console.history import WANTED, BookieSample, History, sample_of
from bkspark_console.prometheus_text import Scrape

FACTS_S = 3.0
LEDGER_IDS_S = 1.0
SCANS_MAX = 4
"""How many searches and checks may read the metadata of many ledgers at the same time. Others wait."""
API = "/api/v2"
OURS, APACHES, SILENT = "bkspark", "apache", "silent"
"""The kind of a bookie's HTTP: ours with `/api/v2`, Apache's, or none that answers."""
NO_ORIGIN = (
    "it has no HTTP server that this host can ask: set httpServerEnabled=true, and httpServerAccessFile for other hosts"
)

_T = TypeVar("_T")


class Kept(Generic[_T]):
    """A value that is read again when it is older than some seconds. Callers at the same time share one reading, and
    its failure.

    A value that takes long to read is kept longer, so that reading it takes at most a tenth of the time.
    """

    def __init__(self, read: Callable[[], Awaitable[_T]], seconds: float) -> None:
        self._read = read
        self._seconds = seconds
        self._readings = SharedAttempts()
        self._value: tuple[float, _T] | None = None
        """Until when the value is used, by the monotonic clock, and the value; None: it must be read."""
        self._changes = 0
        """How often `forget` was called. A value whose reading began before the last call is not kept."""

    async def get(self) -> _T:
        """Return the value. It is not older than these seconds, and not from before the last `forget`."""
        async with self._readings.attempt():
            while True:
                began, changes = time.monotonic(), self._changes
                if self._value is not None and began <= self._value[0]:
                    return self._value[1]
                value = await self._read()
                took = time.monotonic() - began
                if changes == self._changes:
                    self._value = began + took + max(self._seconds, 10 * took), value
                    return value

    def forget(self) -> None:
        """Read the value again at the next call, because something was changed. A current reading may not know it."""
        self._value = None
        self._changes += 1


@dataclass(frozen=True, slots=True)
class BookieHttpFacts:
    """What a bookie's HTTP says. kind: OURS, APACHES or SILENT. problem: why it is silent. state: of `/api/v2/bookie`.

    origin: of its HTTP server; None: its registration names none that this host can reach. is_of_another: another
        bookie answers there.
    """

    kind: str
    origin: str | None
    problem: str = ""
    state: Mapping[str, Any] = field(default_factory=dict)
    is_of_another: bool = False


NOT_REGISTERED = BookieHttpFacts(SILENT, None, "it is not registered")


async def unless_damaged(reading: Awaitable[_T], problems: list[str]) -> _T | None:
    """Return what is read from the metadata store; None, with the error among `problems`, if its node is damaged.

    Raises:
        MetadataError: the store failed.
    """
    try:
        return await reading
    except MetadataFormat as error:
        problems.append(str(error))
        return None


class ClusterView:
    """The cluster at one URI. For one event loop."""

    def __init__(self, client: Client, http: BookieHttp) -> None:
        self.client = client
        self.http = http
        self.history = History()
        self.scans = asyncio.Semaphore(SCANS_MAX)
        self._facts = Kept(lambda: cluster_facts(client), FACTS_S)
        self._http_facts = Kept(self._read_http_facts, FACTS_S)
        self._lacking = Kept(self._read_lacking, FACTS_S)
        self._ledger_ids = Kept(self._read_ledger_ids, LEDGER_IDS_S)

    # ---- the cluster ----

    async def facts(self) -> ClusterFacts:
        """Return the facts of `bkspark cluster health`. Raises MetadataError."""
        return await self._facts.get()

    async def health(self) -> tuple[ClusterFacts, list[Reason]]:
        """Return the facts, and the reasons why the cluster is degraded. Raises MetadataError."""
        facts = await self.facts()
        return facts, reasons(facts)

    def changed(self) -> None:
        """Read the cluster's facts again, because something was changed."""
        self._facts.forget()
        self._http_facts.forget()

    async def against_stopping(self, bookie: str) -> tuple[list[Reason], int]:
        """Return (why a bookie may not be stopped, number of ledgers at it). Reads the metadata of all ledgers."""
        facts = await self.facts()
        async with self.scans:
            return await against_stopping(self.client, bookie, facts)

    async def underreplication(self) -> UnderreplicationStore:
        """Return the list of ledgers that lack copies."""
        return UnderreplicationStore(await self.client.tree(), self.client.uri)

    async def changes(self, count_max: int) -> list[ChangeRecord]:
        """Return the last changes that commands recorded in the metadata store. Raises MetadataError."""
        return await ChangeRecords(await self.client.tree(), self.client.uri).latest(count_max)

    async def lacking(self) -> list[int]:
        """Return the ids of ledgers that lack copies, ascending, as read some seconds ago. Raises MetadataError."""
        return await self._lacking.get()

    async def _read_lacking(self) -> list[int]:
        store = await self.underreplication()
        return sorted([ledger_id async for ledger_id in store.ids()])

    async def ledger_ids(self) -> np.ndarray:
        """Return the ids of all ledgers, ascending, as read some seconds ago. Raises MetadataError."""
        return await self._ledger_ids.get()

    async def _read_ledger_ids(self) -> np.ndarray:
        pages = [page async for page in (await self.client.context()).ledgers.pages()]
        return np.concatenate([np.empty(0, np.int64), *pages])

    # ---- bookies ----

    async def addresses(self) -> dict[str, BookieAddress | None]:
        """Return the registered address data of each registered bookie. Raises MetadataError."""
        registry = (await self.client.context()).registry
        return {**await registry.read_only(), **await registry.writable()}

    async def origins(self) -> dict[str, str]:
        """Return the origin of each bookie's HTTP server, if this host can reach it. Raises MetadataError."""
        found = {
            bookie: origin_of(address) for bookie, address in (await self.addresses()).items() if address is not None
        }
        return {bookie: origin for bookie, origin in found.items() if origin is not None}

    async def origin(self, bookie: str) -> str | None:
        """Return the currently registered origin of a bookie's HTTP server; None: there is none."""
        registry = (await self.client.context()).registry
        try:
            # The registration is read again, because a bookie may have started with another port.
            await registry.resolve(bookie)
        except BookKeeperError:
            return None
        return (await self.origins()).get(bookie)

    async def racks(self) -> dict[str, str]:
        """Return the rack of each bookie that has one. If the map is unreadable, there are no racks."""
        try:
            return (await (await self.client.context()).registry.racks()).racks
        except MetadataError:
            return {}

    async def cookie(self, bookie: str) -> Cookie | None:
        """Return a bookie's cookie; None: there is none. Raises MetadataError."""
        stored = await (await self.client.context()).registry.read_cookie(bookie)
        return None if stored is None else stored.cookie

    async def http_facts(self, bookie: str) -> BookieHttpFacts:
        """Return what a bookie's HTTP says. It does not raise for a bookie that does not answer."""
        return (await self.all_http_facts()).get(bookie) or NOT_REGISTERED

    async def all_http_facts(self) -> dict[str, BookieHttpFacts]:
        """Return what the HTTP of each registered bookie says. Raises MetadataError."""
        return await self._http_facts.get()

    async def _read_http_facts(self) -> dict[str, BookieHttpFacts]:
        bookies, origins = sorted(await self.addresses()), await self.origins()
        found = await asyncio.gather(*(self._ask_state(bookie, origins.get(bookie)) for bookie in bookies))
        return dict(zip(bookies, found))

    async def _ask_state(self, bookie: str, origin: str | None) -> BookieHttpFacts:
        facts = await self._state_at(bookie, origin)
        if facts.kind == SILENT and (again := await self.origin(bookie)) != origin:
            facts = await self._state_at(bookie, again)
        return facts

    async def _state_at(self, bookie: str, origin: str | None) -> BookieHttpFacts:
        if origin is None:
            return BookieHttpFacts(SILENT, None, NO_ORIGIN)
        try:
            state = await self.http.get(origin, f"{API}/bookie")
        except BookieHttpError as error:
            # Apache's bookies answer 404 at every path that they do not know.
            kind = APACHES if error.status == HTTPStatus.NOT_FOUND else SILENT
            return BookieHttpFacts(kind, origin, "" if kind == APACHES else str(error))
        if not isinstance(state, dict):
            return BookieHttpFacts(SILENT, origin, f"{origin} is not the HTTP server of a bookie")
        if state.get("id") != bookie:
            other = str(state.get("id"))[:100]
            return BookieHttpFacts(SILENT, origin, f"{origin} is the HTTP server of bookie {other}", is_of_another=True)
        return BookieHttpFacts(OURS, origin, "", usable(state, STATE))

    async def our_origins(self) -> dict[str, str]:
        """Return the origin of each bookie that has `/api/v2`."""
        facts = await self.all_http_facts()
        return {bookie: each.origin for bookie, each in facts.items() if each.kind == OURS and each.origin is not None}

    async def plans(self) -> PlansInForce | None:
        """Return the plans for bookies (maintenance, drain, quarantine); None: no bookie with `/api/v2` answers.

        They are read from the metadata store: while it is away, each bookie that was asked would wait for it.

        Raises:
            MetadataError: the store failed.
        """
        if not await self.our_origins():
            return None
        return await BookiePlans(await self.client.tree(), self.client.uri).in_force(wall_clock_ms())

    # ---- samples ----

    async def sample(self) -> None:
        """Scrape all bookies once. Raises MetadataError."""
        registry = (await self.client.context()).registry
        origins = await self.origins()
        if len(set(origins.values())) < len(origins):
            # A bookie that died may still be registered with an address that another one has now.
            facts = await self.all_http_facts()
            others = {bookie for bookie, each in facts.items() if each.is_of_another}
            origins = {bookie: origin for bookie, origin in origins.items() if bookie not in others}

        async def scrape(bookie: str, origin: str) -> BookieSample | None:
            try:
                return sample_of(Scrape(await self.http.text(origin, "/metrics"), WANTED))
            except BookieHttpError:
                with suppress(BookKeeperError):
                    await registry.resolve(bookie)
                return None

        samples = await asyncio.gather(*(scrape(*each) for each in origins.items()))
        known = dict.fromkeys(await self.addresses())
        self.history.add(wall_clock_ms() / 1000, {**known, **dict(zip(origins, samples))})
