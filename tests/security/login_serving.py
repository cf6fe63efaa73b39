"""Every request that a bookie refuses before a login, and a server that notes what it is asked."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

from bkspark.wire import bookkeeper_protocol_pb2 as protocol
from bkspark.wire import v2
from tests.bookie.serving import KEY, Serving, adds, stored
from tests.security.tls_serving import v3_request

PROTOCOLS = pytest.mark.parametrize("is_v3", [False, True], ids=["v2", "v3"])
FENCING = v2.encode_reads(1, np.array([0]), v2.DO_FENCING, KEY)
V3_REQUESTS = {
    "add": v3_request(
        protocol.ADD_ENTRY,
        addRequest=protocol.AddRequest(ledgerId=1, entryId=0, masterKey=KEY, body=stored(1, 0, b"one")),
    ),
    "read": v3_request(protocol.READ_ENTRY, readRequest=protocol.ReadRequest(ledgerId=1, entryId=0)),
    "fencing read": v3_request(
        protocol.READ_ENTRY,
        readRequest=protocol.ReadRequest(ledgerId=1, entryId=0, masterKey=KEY, flag=protocol.ReadRequest.FENCE_LEDGER),
    ),
    "write LAC": v3_request(
        protocol.WRITE_LAC, writeLacRequest=protocol.WriteLacRequest(ledgerId=1, lac=0, masterKey=KEY, body=b"x")
    ),
    "read LAC": v3_request(protocol.READ_LAC, readLacRequest=protocol.ReadLacRequest(ledgerId=1)),
    "force": v3_request(protocol.FORCE_LEDGER, forceLedgerRequest=protocol.ForceLedgerRequest(ledgerId=1)),
    "space": v3_request(protocol.GET_BOOKIE_INFO, getBookieInfoRequest=protocol.GetBookieInfoRequest(requested=3)),
    "list": v3_request(
        protocol.GET_LIST_OF_ENTRIES_OF_LEDGER,
        getListOfEntriesOfLedgerRequest=protocol.GetListOfEntriesOfLedgerRequest(ledgerId=1),
    ),
}
V2_REQUESTS = {
    "add": adds(1, 0, [b"one"]),
    "recovery add": adds(1, 0, [b"one"], v2.RECOVERY_ADD),
    "read": v2.encode_reads(1, np.array([0]), 0, None),
    "fencing read": FENCING,
    "batch read": v2.encode_batch_read(1, 0, 99, 0, 1 << 20, 0, None),
    "fencing batch read": v2.encode_batch_read(1, 0, 99, 0, 1 << 20, v2.DO_FENCING, KEY),
}
EVERY_REQUEST = {f"V2 {name}": frame for name, frame in V2_REQUESTS.items()} | {
    f"V3 {name}": frame for name, frame in V3_REQUESTS.items()
}
STORE_CALLS = (
    *("ledger", "absent", "known_header", "create_ledger", "fence", "advance_lac", "insert", "add_single"),
    *("read", "read_each", "locate", "waiting_entries", "in_doubt"),
)


class Spy:
    """Notes which methods of a bookie's storage requests call."""

    def __init__(self, bookie: Serving) -> None:
        self._bookie = bookie
        self._calls: list[str] = []
        bookie.call(self._watch)

    def _watch(self) -> None:
        store = self._bookie.service.storage.store
        for name in STORE_CALLS:
            setattr(store, name, partial(self._call, name, getattr(store, name)))

    def _call(self, name: str, method: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        self._calls.append(name)
        return method(*arguments, **named)

    def calls(self) -> list[str]:
        """Return the calls up to now: what was received before is served."""
        return self._bookie.call(lambda: list(self._calls))
