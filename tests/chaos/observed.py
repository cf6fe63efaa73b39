"""What the simulator's checkers look at, made of a recorded history."""

from __future__ import annotations

from collections.abc import Sequence

from tests.histories.recording import Operation
from tests.simulation.history import Close, LedgerHistory


def ledger_history(operations: Sequence[Operation]) -> LedgerHistory:
    """Return one ledger's history. Entries are what `recording.value_of` makes of them; times are ns."""
    ledger = LedgerHistory(size_of=size_of)
    for operation in operations:
        facts = operation.facts
        if operation.op == "append" and operation.result != "failed":
            for entry_id, value in enumerate(facts["values"], facts["first"]):
                ledger.invoked[entry_id] = (value.encode(), operation.call)
        if operation.result == "denied":
            ledger.denied.append((operation.client, facts["entry"], _reported(ledger, operation.client)))
        if operation.result != "ok" or operation.returned is None:
            continue
        if operation.op == "append" and facts.get("relaxed"):
            continue  # promised once a sync or a LAC covers it
        if operation.op == "sync":
            ledger.acknowledged.append((facts["last_entry"], operation.returned))
        elif operation.op == "append":
            ledger.acknowledged.append((facts["first"] + len(facts["values"]) - 1, operation.returned))
        elif operation.op == "read":
            for entry_id, value in enumerate(facts["values"], facts["first"]):
                ledger.reads.append((operation.client, entry_id, value.encode()))
        elif operation.op == "lac":
            ledger.lacs.append((operation.client, facts["lac"], operation.returned))
        else:
            ledger.closes.append(Close(operation.client, facts["last_entry"], facts["length"], operation.returned))
    return ledger


def size_of(value: bytes) -> int:
    """Return the size that `recording.value_of` names."""
    return int(value.partition(b":")[0])


def _reported(ledger: LedgerHistory, reader: str) -> int:
    """Return how far a reader knew that entries are confirmed."""
    return max((lac for who, lac, _ in ledger.lacs if who == reader), default=-1)
