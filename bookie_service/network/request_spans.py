"""Trace spans of V3 requests that name their caller's span: one for each batch, as a child of the caller's span.

| Span | From and to | Attributes |
|---|---|---|
| `bookkeeper.bookie.add` | adds that came together, until they are answered | ledger, first entry, entries |
| `bookkeeper.bookie.read` | reads that came together, likewise | the same, and how many were found |
| `bookkeeper.bookie.force` | a sync that relaxed durability asks for | ledger |
| `bookkeeper.bookie.write_lac` | an explicit LAC | ledger |

The ledger and first entry are those of the batch's first request. A span is made together with its response: requests
that wait for room are decoded again, and have no span before. While tracing is off, a run of requests costs one
comparison.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field, replace

import numpy as np

from bkspark import tracing
from bkspark.tracing import CallerSpan
from bkspark.wire import bookkeeper_protocol_pb2 as protocol
from bkspark.wire.placed_entries import PlacedEntries
from bkspark.wire.status import EOK, Status
from bkspark.wire.v3_context import context_value
from bookie_service.engine.add_batch import AddBatch
from bookie_service.engine.bookie_environment import BookieClient
from bookie_service.engine.long_polls import PollTimer
from bookie_service.engine.responses import AddResponseEncoder, Parts, ReadResponseEncoder

_NAME = "bookkeeper.bookie."


def caller_of(pair: bytes) -> CallerSpan | None:
    """Return the caller that the context of requests names; None: no span is to be made."""
    return None if tracing.tracer is None else CallerSpan.of(context_value(pair, tracing.TRACEPARENT))


def caller_of_message(pairs: Iterable[protocol.ContextPair]) -> CallerSpan | None:
    """Do as `caller_of` for a request that protobuf's classes decoded."""
    if tracing.tracer is None:
        return None
    # A value that is not UTF-8 comes as bytes.
    return CallerSpan.of(next((str(pair.value) for pair in pairs if pair.key == tracing.TRACEPARENT), ""))


def _serve(caller: CallerSpan, what: str, attributes: dict[str, str | int], failed: int) -> None:
    caller.serve(_NAME + what, attributes, "" if failed == EOK else _status_name(failed))


class AddSpans:
    """A connection whose adds have spans: it recognises their responses when they are sent."""

    def __init__(self, client: BookieClient) -> None:
        self._client = client
        self._expected: dict[int, tuple[bytes, CallerSpan, dict[str, str | int], int]] = {}
        """The span of each expected response, by the response's identity. It also keeps the response alive, so that no
        other object gets the same identity. Filled by `expect`, emptied by `send`."""

    def traced(self, run: AddBatch, caller: CallerSpan) -> AddBatch:
        """Return adds whose responses will be recognised."""
        return replace(run, encoder=_TracedAdds(run.encoder, self, caller))

    def expect(self, answer: bytes, caller: CallerSpan, attributes: dict[str, str | int], failed: int) -> None:
        """Make a span when this response is sent."""
        self._expected[id(answer)] = answer, caller, attributes, failed

    def send(self, parts: Parts) -> None:
        self._client.send(parts)
        for part in parts:
            if id(part) in self._expected:
                _, caller, attributes, failed = self._expected.pop(id(part))
                _serve(caller, "add", attributes, failed)

    # The other methods are the connection's.

    @property
    def connection(self) -> Hashable:
        return self._client.connection

    @property
    def is_open(self) -> bool:
        return self._client.is_open

    @property
    def is_taking(self) -> bool:
        return self._client.is_taking

    @property
    def address(self) -> Hashable:
        return self._client.address

    def when_taking(self, callback: Callable[[], None]) -> None:
        self._client.when_taking(callback)

    def give_up(self, why: str) -> None:
        self._client.give_up(why)

    def call_later(self, seconds: float, callback: Callable[[], None]) -> PollTimer:
        return self._client.call_later(seconds, callback)

    def resume(self) -> None:
        self._client.resume()


@dataclass(frozen=True, slots=True)
class _TracedAdds:
    """The encoder of adds whose responses `AddSpans` recognises."""

    encoder: AddResponseEncoder
    spans: AddSpans
    caller: CallerSpan

    def added(
        self,
        statuses: int | np.ndarray,
        ledger_ids: np.ndarray,
        entry_ids: np.ndarray,
        last_synced: np.ndarray | None,
    ) -> bytes:
        answer = self.encoder.added(statuses, ledger_ids, entry_ids, last_synced)
        each = np.atleast_1d(statuses)
        self.spans.expect(answer, self.caller, _facts(ledger_ids, entry_ids), each[np.argmax(each != EOK)].item())
        return answer

    def take(self, rows: slice | np.ndarray) -> _TracedAdds:
        return replace(self, encoder=self.encoder.take(rows))


@dataclass(slots=True)
class _Progress:
    """How far reads that came together are answered. Changed by `TracedReads`."""

    wanted: int
    """How many reads came together."""
    answered: int = 0
    """How many of them are answered."""
    found: int = 0
    """How many found their entry."""
    failed: int = EOK
    """The last status other than EOK; EOK: there was no other."""


@dataclass(frozen=True, slots=True)
class TracedReads:
    """The encoder of reads that came together. Their span is made with the last response."""

    encoder: ReadResponseEncoder
    caller: CallerSpan
    facts: dict[str, str | int]
    """The attributes of the span, by name."""
    progress: _Progress = field(default_factory=lambda: _Progress(0))

    @classmethod
    def of(
        cls, encoder: ReadResponseEncoder, caller: CallerSpan, ledger_ids: np.ndarray, entry_ids: np.ndarray
    ) -> TracedReads:
        """Return the encoder of these reads."""
        return cls(encoder, caller, _facts(ledger_ids, entry_ids), _Progress(len(entry_ids)))

    @property
    def wants_lac(self) -> bool:
        return self.encoder.wants_lac

    def found(
        self, row: int, ledger_ids: np.ndarray, entries: PlacedEntries, lacs: np.ndarray | None
    ) -> bytes | memoryview:
        answer = self.encoder.found(row, ledger_ids, entries, lacs)
        self._answered(len(entries), len(entries), EOK)
        return answer

    def not_found(self, row: int, status: int, ledger_ids: np.ndarray, entry_ids: np.ndarray) -> bytes:
        answer = self.encoder.not_found(row, status, ledger_ids, entry_ids)
        self._answered(len(entry_ids), 0, status)
        return answer

    def take(self, rows: slice) -> TracedReads:
        if not self.progress.answered:
            # The other reads come again, as reads of their own. Once some are answered, those left out were refused.
            self.progress.wanted = min(self.progress.wanted, rows.stop - rows.start)
        return replace(self, encoder=self.encoder.take(rows))

    def arrange(self, row: int, order: np.ndarray) -> None:
        self.encoder.arrange(row, order)

    def _answered(self, count: int, found: int, status: int) -> None:
        progress = self.progress
        progress.answered += count
        progress.found += found
        if status not in (EOK, Status.ENOENTRY, Status.ENOLEDGER):
            progress.failed = status
        if progress.answered >= progress.wanted:
            facts = {**self.facts, "entries": progress.answered, "found": progress.found}
            _serve(self.caller, "read", facts, progress.failed)


def traced_answer(
    answer: Callable[[int], bytes], caller: CallerSpan | None, what: str, ledger_id: int
) -> Callable[[int], bytes]:
    """Return a function that encodes the response of one change, and makes its span."""
    if caller is None:
        return answer

    def encode(status: int) -> bytes:
        _serve(caller, what, {"ledger": ledger_id}, status)
        return answer(status)

    return encode


def _facts(ledger_ids: np.ndarray, entry_ids: np.ndarray) -> dict[str, str | int]:
    return {"ledger": ledger_ids.item(0), "first_entry": entry_ids.item(0), "entries": len(entry_ids)}


def _status_name(status: int) -> str:
    try:
        return Status(status).name
    except ValueError:
        return f"status {status}"
