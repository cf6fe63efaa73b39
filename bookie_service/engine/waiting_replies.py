"""Replies that wait until a record of their journal is durable, or at least written."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from bookie_service.engine.bookie_environment import BookieClient
from bookie_service.engine.reads import ReadClient, Reading
from bookie_service.engine.responses import Parts


@dataclass(frozen=True, slots=True)
class WaitingReply:
    """Replies that are sent once record `sequence` is durable: `parts`, with the replies to `adds` adds, or a `read`.

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


def clients_of(queues: Iterable[Iterable[WaitingReply]]) -> set[ReadClient]:
    """Return the clients that replies of these queues wait for."""
    return {reply.client for queue in queues for reply in queue}
