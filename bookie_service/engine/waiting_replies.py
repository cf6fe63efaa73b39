"""Replies that wait until a record of their journal is durable, or at least written."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from bkspark.wire.status import Status
from bookie_service.engine.bookie_environment import BookieClient
from bookie_service.engine.reads import ReadClient, Reading
from bookie_service.engine.responses import Parts
from bookie_service.metrics.requests import JournalTimes
from bookie_service.storage.journal.journal_thread import JournalThread


class WaitingReply(NamedTuple):
    """Replies that are sent once record `sequence` is durable: `parts`, with the replies to `adds` adds, or a `read`.

    A tuple, because each single add makes one: a frozen dataclass takes three times as long.

    received_ns, given_ns: when the requests were received, and when the record was given to the journal.
    begun_by: the client, if the record begins a ledger that was unknown: it gets its place back (`BEGUN_LEDGERS`).
    """

    sequence: int
    client: ReadClient
    parts: Parts
    adds: int = 0
    read: Reading | None = None
    received_ns: int = 0
    given_ns: int = 0
    begun_by: BookieClient | None = None


@dataclass(frozen=True, slots=True)
class BegunFence:
    """The result of a fence request: refused, or durable once the journal with `journal_index` reports `sequence`."""

    status: Status
    journal_index: int = 0
    sequence: int = 0
    begun_by: BookieClient | None = None
    """The client, if the ledger was unknown: it has a place until then."""


@dataclass(eq=False, slots=True)
class JournalReplies:
    """One journal, and the replies that wait for its records."""

    thread: JournalThread
    """Writes the records. Constant."""
    times: JournalTimes
    """Times of its group commits. Constant."""
    waiting: deque[WaitingReply] = field(default_factory=deque)
    """Replies that wait until their record is durable, in order of the records."""
    deferred: deque[WaitingReply] = field(default_factory=deque)
    """Replies to adds that need only be written, not synced, in order of the records."""
    durable: int = 0
    """The highest sequence that is durable. It never decreases."""


def clients_of(journals: Iterable[JournalReplies]) -> set[ReadClient]:
    """Return the clients for which replies of these journals wait."""
    return {reply.client for journal in journals for queue in (journal.waiting, journal.deferred) for reply in queue}
