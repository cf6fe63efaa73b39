"""A blocking V3 client over one socket."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from bkspark.wire import bookkeeper_protocol_pb2 as protocol
from bkspark.wire import v3
from tests.bookie.serving import KEY, Peer, stored

FENCE, PIGGYBACK = protocol.ReadRequest.FENCE_LEDGER, protocol.ReadRequest.ENTRY_PIGGYBACK
RECOVERY = protocol.AddRequest.RECOVERY_ADD

_MESSAGES = {
    protocol.READ_ENTRY: ("readRequest", "readResponse"),
    protocol.ADD_ENTRY: ("addRequest", "addResponse"),
    protocol.WRITE_LAC: ("writeLacRequest", "writeLacResponse"),
    protocol.READ_LAC: ("readLacRequest", "readLacResponse"),
    protocol.GET_BOOKIE_INFO: ("getBookieInfoRequest", "getBookieInfoResponse"),
    protocol.FORCE_LEDGER: ("forceLedgerRequest", "forceLedgerResponse"),
    protocol.GET_LIST_OF_ENTRIES_OF_LEDGER: ("getListOfEntriesOfLedgerRequest", "getListOfEntriesOfLedgerResponse"),
}


def request(operation: int, txn_id: int, priority: int = 0, **message: Any) -> protocol.Request:
    """Return a request; `message`: the fields of its operation's message."""
    made = protocol.Request(header=v3.header(operation, txn_id, priority))
    if operation in _MESSAGES:
        inner = getattr(made, _MESSAGES[operation][0])
        inner.SetInParent()
        for name, value in message.items():
            setattr(inner, name, value)
    return made


def add_frames(
    ledger_id: int, first_entry: int, payloads: Sequence[bytes], first_txn_id: int, priority: int = 0, **others: Any
) -> bytes:
    """Return frames of adds of consecutive entries, whose bytes are those that `serving.adds` sends."""
    return b"".join(
        v3.encode_message(
            request(
                protocol.ADD_ENTRY,
                first_txn_id + i,
                priority,
                **{
                    "ledgerId": ledger_id,
                    "entryId": first_entry + i,
                    "masterKey": KEY,
                    "body": stored(ledger_id, first_entry + i, payload),
                    **others,
                },
            )
        )
        for i, payload in enumerate(payloads)
    )


class V3Peer(Peer):
    """Speaks V3; every answer is checked to have one status, outside and inside."""

    def __init__(self, port: int) -> None:
        super().__init__(port)
        self.txn_ids = itertools.count(1000)

    def answer(self) -> protocol.Response:
        """Return the next answer."""
        body = self.frame()
        assert body is not None, "the bookie closed the connection"
        response = protocol.Response.FromString(body)
        assert response.header.version == protocol.VERSION_THREE
        names = _MESSAGES.get(response.header.operation)
        if names is not None and response.HasField(names[1]):
            assert getattr(response, names[1]).status == response.status
        return response

    def ask(self, operation: int, priority: int = 0, **message: Any) -> int:
        """Send a request; return its txnId."""
        txn_id = next(self.txn_ids)
        self.send(v3.encode_message(request(operation, txn_id, priority, **message)))
        return txn_id

    def call(self, operation: int, priority: int = 0, **message: Any) -> Any:
        """Return the operation's message in the answer to a request."""
        txn_id = self.ask(operation, priority, **message)
        response = self.answer()
        assert (response.header.operation, response.header.txnId) == (operation, txn_id)
        return getattr(response, _MESSAGES[operation][1])

    def add_all(self, ledger_id: int, first_entry: int, payloads: Sequence[bytes], **others: Any) -> list[int]:
        """Add entries and return their statuses, in order."""
        first = next(self.txn_ids)
        self.txn_ids = itertools.count(first + len(payloads))
        self.send(add_frames(ledger_id, first_entry, payloads, first, **others))
        answers = {response.header.txnId: response for response in (self.answer() for _ in payloads)}
        assert sorted(answers) == list(range(first, first + len(payloads)))
        for i in range(len(payloads)):
            added = answers[first + i].addResponse
            assert (added.ledgerId, added.entryId) == (ledger_id, others.get("entryId", first_entry + i))
        return [answers[first + i].status for i in range(len(payloads))]

    def read_entry(self, ledger_id: int, entry_id: int, **others: Any) -> Any:
        return self.call(protocol.READ_ENTRY, ledgerId=ledger_id, entryId=entry_id, **others)
