"""Bookies that list the entries which they have."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

import numpy as np

from bkspark.wire import bookkeeper_protocol_pb2 as protocol
from bkspark.wire import v3
from bkspark.wire.entry_lists import EntryRuns, encode_entry_list
from tests.ledger.hostile import Asked, HostileBookie, V3Answer, no_entry_v3


def lists(entry_ids: Collection[int] | None) -> V3Answer:
    """Return the V3 answers of a bookie that lists these entries; None: it has no time for lists."""
    runs = EntryRuns.of(np.array(sorted(entry_ids or ()), np.int64))
    status = protocol.ETOOMANYREQUESTS if entry_ids is None else protocol.EOK

    def answer(request: protocol.Request) -> Iterable[protocol.Response]:
        if request.header.operation != protocol.GET_LIST_OF_ENTRIES_OF_LEDGER:
            return no_entry_v3(request)
        listed = protocol.GetListOfEntriesOfLedgerResponse(
            status=status,
            ledgerId=request.getListOfEntriesOfLedgerRequest.ledgerId,
            availabilityOfEntriesOfLedger=encode_entry_list(runs, 100),
        )
        head = v3.header(request.header.operation, request.header.txnId)
        return [protocol.Response(header=head, status=status, getListOfEntriesOfLedgerResponse=listed)]

    return answer


def listing(answer: Callable[[Asked], bytes | None], entry_ids: Collection[int] | None) -> HostileBookie:
    """Return a bookie that answers reads so, and lists these entries."""
    return HostileBookie(answer, lists(entry_ids))
