"""What all simulated clients are made of: a process, its metadata session, its requests. Nothing here decides."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

from bkspark.core.metadata import LedgerMetadata
from bkspark.errors import BookieUnavailable, BookKeeperError, RequestTimeout
from bkspark.metadata.ledgers import LedgerStore
from bkspark.wire.status import Status
from tests.simulation.bookies import ModelBookie
from tests.simulation.history import Close, History
from tests.simulation.metadata import URI, Metadata, SimulatedTree
from tests.simulation.network import Connection, Network
from tests.simulation.world import MILLISECOND, Node, World

READ_TIMEOUT_NS = 200 * MILLISECOND
NEGATIVE = (Status.ENOENTRY, Status.ENOLEDGER)


@dataclass(slots=True)
class Site:
    """What all clients of a schedule share."""

    world: World
    history: History
    network: Network
    metadata: Metadata
    ledger_id: int
    random: Random
    probe: Callable[[str, str, str], None]
    audit_acknowledged: Callable[[int, int], None]
    """Called with (first, last) entry when they are acknowledged."""


class Client:
    """A process with a metadata session and connections. It `is_done` when nothing that it began is under way."""

    is_done: bool

    def __init__(self, site: Site, name: str) -> None:
        self.site = site
        self.node = Node(name)
        self.tree = SimulatedTree(site.metadata, self.node)
        self.ledgers = LedgerStore(self.tree, URI)
        self._links: dict[str, Connection] = {}
        self._requests: dict[int, Callable[[BookKeeperError], None]] = {}
        self._requests_of: dict[Connection, list[int]] = {}
        self._count = 0

    @property
    def name(self) -> str:
        return self.node.name

    @property
    def now_ns(self) -> int:
        return self.site.world.clock(self.node)

    def later(self, delay: int, action: Callable[..., None], *arguments: Any) -> None:
        self.site.world.at(self.site.world.now + delay, self.node, action, *arguments)

    def learned_end(self, metadata: LedgerMetadata) -> None:
        ledger = self.site.history.ledger(self.site.ledger_id)
        ledger.closes.append(Close(self.name, metadata.last_entry, metadata.length, self.site.world.now))

    # ---- requests with one answer each ----

    def ask(
        self,
        bookie: str,
        request: Callable[..., tuple[Any, int]],
        arguments: tuple[Any, ...],
        answered: Callable[[Any], None],
        failed: Callable[[BookKeeperError], None],
    ) -> None:
        """Ask a bookie; exactly one of `answered` and `failed` is called, unless `drop_requests` is first."""
        link = self._links.get(bookie)
        if link is None or link.is_lost:
            link = self._links[bookie] = self.site.network.connect(self.node, bookie, self._lost)
            self._requests_of[link] = []
        self._count += 1
        number = self._count

        def on_reply(answer: Any) -> None:
            if self._requests.pop(number, None) is not None:
                answered(answer)

        self._requests[number] = failed
        self._requests_of[link].append(number)
        self.later(READ_TIMEOUT_NS, self._time_out, number, bookie)
        link.send(request, self.site, self.name, link.bookie, *arguments, reply=on_reply)

    def _time_out(self, number: int, bookie: str) -> None:
        failed = self._requests.pop(number, None)
        if failed is not None:
            failed(RequestTimeout("no answer", bookie=bookie))

    def _lost(self, link: Connection) -> None:
        if self._links.get(link.bookie.name) is link:
            del self._links[link.bookie.name]
        for number in self._requests_of.pop(link):
            failed = self._requests.pop(number, None)
            if failed is not None:
                failed(BookieUnavailable("lost", bookie=link.bookie.name))

    def drop_requests(self) -> None:
        """Forget what was asked, and the connections."""
        for link in self._links.values():
            link.close()
        self._links.clear()
        self._requests.clear()


def fencing_read_of_last_entry(site: Site, client: str, bookie: ModelBookie) -> tuple[Any, int]:
    """A recovery's first request."""
    status, entry_id, stored, leaves = bookie.on_last_entry(site.ledger_id, True)
    site.probe("fenced", client, bookie.name)
    return (status, entry_id, stored), leaves


def read_of_last_entry(site: Site, client: str, bookie: ModelBookie) -> tuple[Any, int]:
    """A reader's question for the LAC."""
    status, entry_id, stored, leaves = bookie.on_last_entry(site.ledger_id, False)
    return (status, entry_id, stored), leaves


def fencing_reads(site: Site, client: str, bookie: ModelBookie, ids: list[int]) -> tuple[Any, int]:
    """A recovery's read."""
    answers = bookie.on_reads(site.ledger_id, ids, True)
    site.probe("recovery reads", client, bookie.name)
    return answers


def plain_reads(site: Site, client: str, bookie: ModelBookie, ids: list[int]) -> tuple[Any, int]:
    """A reader's read, which fences nothing."""
    return bookie.on_reads(site.ledger_id, ids, False)
