"""Requests whose answer does not depend on the bookie's state, and the request for its disk space."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import ClassVar

from bkspark.security.authorization import ANY_RIGHT, NOTHING
from bkspark.wire import bookkeeper_protocol_pb2 as protocol
from bkspark.wire import v3
from bkspark.wire.status import Status
from bookie_service.engine.reads import ReadClient, Reading, View
from bookie_service.engine.turns import Turn
from bookie_service.metrics.requests import GET_BOOKIE_INFO
from bookie_service.network import v3_responses
from bookie_service.storage.io.byte_source import Fetched, FileRange

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class KnownResponse(Reading):
    """Requests whose responses are known already."""

    needed: ClassVar[int] = NOTHING

    client: ReadClient
    responses: bytes
    is_answered: bool = False
    """Whether the responses were sent. Set once."""

    def __len__(self) -> int:
        return 0 if self.is_answered else 1

    def refuse(self, status: int) -> None:
        """Close the connection, because these requests have no other answer."""
        self.is_answered = True
        self.client.give_up("one of its requests cannot be answered")

    def proceed(self, view: View, fetched: Fetched | None, turn: Turn) -> FileRange | None:
        self.is_answered = True
        self.client.send((self.responses,))
        return None


@dataclass(slots=True)
class SpaceRead(Reading):
    """GET_BOOKIE_INFO: the space of the ledger directories."""

    operation: ClassVar[int] = GET_BOOKIE_INFO
    needed: ClassVar[int] = ANY_RIGHT

    client: ReadClient
    request: protocol.Request
    is_answered: bool = False
    """Whether the response was sent. Set once."""

    def __len__(self) -> int:
        return 0 if self.is_answered else 1

    def refuse(self, status: int) -> None:
        self.failures = 1
        self.is_answered = True
        self.client.send((v3_responses.refusal(self.request, status),))

    def proceed(self, view: View, fetched: Fetched | None, turn: Turn) -> FileRange | None:
        flags = protocol.GetBookieInfoRequest
        asked = self.request.getBookieInfoRequest.requested
        try:
            space = view.space()
        except OSError as error:
            logger.error("the space of the ledger directories cannot be measured: %s", error)
            self.refuse(Status.EIO)
            return None
        found = {}
        if asked & flags.TOTAL_DISK_CAPACITY:
            found["totalDiskCapacity"] = space.total_bytes
        if asked & flags.FREE_DISK_SPACE:
            found["freeDiskSpace"] = space.free_bytes
        self.is_answered = True
        self.client.send((v3_responses.response(self.request, v3.StatusCode.EOK, found),))
        return None
