"""GET_LIST_OF_ENTRIES_OF_LEDGER: which entries of a ledger are held here (`bkspark.wire.entry_lists`).

A large ledger is gone through in steps, between which the event loop serves others.
"""

from __future__ import annotations

import logging

import numpy as np

from bkspark.wire import bookkeeper_protocol_pb2 as protocol
from bkspark.wire import v3
from bkspark.wire.entry_lists import GROUP_BYTES, HEAD_BYTES, EntryRuns, encode_entry_list
from bkspark.wire.v2 import Status
from bookie_service.answers import v3_status
from bookie_service.bookie import Bookie, Client
from bookie_service.v3_answers import answer

logger = logging.getLogger(__name__)

_ENTRIES_PER_STEP = 256 * 1024
_LIST_BYTES_MAX = 4 * 1024 * 1024
"""With its answer, less than any frame limit that is in use."""


class EntryList:
    """One such request, from `start` until it is answered."""

    def __init__(self, bookie: Bookie, client: Client, request: protocol.Request) -> None:
        self._bookie = bookie
        self._client = client
        self._request = request
        self._ledger_id = request.getListOfEntriesOfLedgerRequest.ledgerId
        self._next_entry = 0
        self._found: list[EntryRuns] = []

    def start(self) -> None:
        """Look at the first entries; answer now or later."""
        status, held, is_more = self._bookie.held_entries(self._ledger_id, self._next_entry, _ENTRIES_PER_STEP)
        self._found.append(EntryRuns.of(held))
        if status != Status.EOK:
            self._client.send((answer(self._request, v3_status(status)),))
        elif is_more and self._client.is_open:
            self._next_entry += _ENTRIES_PER_STEP
            self._client.call_later(0, self.start)
        else:
            self._client.send((self._answer(),))

    def _answer(self) -> bytes:
        runs = EntryRuns(*map(np.concatenate, zip(*((each.starts, each.sizes) for each in self._found))))
        data = encode_entry_list(runs.joined(), (_LIST_BYTES_MAX - HEAD_BYTES) // GROUP_BYTES)
        if data is None:
            logger.error("the list of ledger %d's entries would not fit into a frame", self._ledger_id)
            return answer(self._request, v3.Status.EIO)
        return answer(self._request, v3.Status.EOK, {"availabilityOfEntriesOfLedger": data})
