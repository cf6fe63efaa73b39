"""A recorder of clients' requests and results: the histories of docs/histories.md, one JSON line per operation.

All times are of one monotonic clock, so every client of a history lives in the recording process.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FORMAT_VERSION = 1
_DIGEST_BYTES = 8


def value_of(payload: bytes | memoryview) -> str:
    """Return what a history says of an entry: its size and a digest, as `BYTES:DIGEST`."""
    return f"{len(payload)}:{hashlib.blake2b(payload, digest_size=_DIGEST_BYTES).hexdigest()}"


@dataclass(slots=True, eq=False)
class Operation:
    """One operation of one client. It is under way until `ok`, `denied`, `failed` or `unknown` ends it, once."""

    op: str
    client: str
    call: int
    ledger: int | None = None
    log: str | None = None
    facts: dict[str, Any] = field(default_factory=dict)
    returned: int | None = None
    result: str | None = None
    _end: Callable[[Operation], None] | None = field(default=None, repr=False)

    def ok(self, **facts: Any) -> None:
        """The operation succeeded; `facts` are its result."""
        self._ended("ok", facts)

    def denied(self, **facts: Any) -> None:
        """The client got the answer that the object does not exist."""
        self._ended("denied", facts)

    def failed(self, error: BaseException | None = None) -> None:
        """It certainly had no effect."""
        self._ended("failed", _said(error))

    def unknown(self, error: BaseException | None = None) -> None:
        """It may have had its effect, or may have it at any time from now on."""
        self._ended("unknown", _said(error))

    def _ended(self, result: str, facts: dict[str, Any]) -> None:
        assert self.result is None, f"{self} has ended before"
        assert self._end is not None
        self.result = result
        self.facts |= facts
        self._end(self)

    def to_json(self) -> dict[str, Any]:
        """Return the members of the operation's line."""
        which = {"ledger": self.ledger} if self.log is None else {"log": self.log}
        times = {"call": self.call, "return": self.returned}
        return {"op": self.op, "client": self.client, **which, **times, "result": self.result, **self.facts}


def _said(error: BaseException | None) -> dict[str, Any]:
    return {} if error is None else {"error": f"{type(error).__name__}: {error}"}


class Recorder:
    """Collects the operations of one run and writes each to a file when it ends. A context manager.

    Args:
        path: the file, which is replaced; None keeps the history in memory only.
        about: facts of the run for the header line.
        clock: ns, monotonic.
    """

    def __init__(
        self,
        path: Path | None = None,
        about: dict[str, Any] | None = None,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._clock = clock
        self._under_way: dict[Operation, None] = {}
        self._file = None if path is None else path.open("w")
        self.operations: list[Operation] = []
        """Those that have ended, in the order of their ends."""
        self._write({"history": FORMAT_VERSION, "clock": "ns, monotonic", **(about or {})})

    def __enter__(self) -> Recorder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def begin(
        self, op: str, client: str, *, ledger: int | None = None, log: str | None = None, **facts: Any
    ) -> Operation:
        """Record that a client asks for something now; exactly one of `ledger` and `log` is given."""
        assert (ledger is None) != (log is None), "an operation is one on a ledger or on a log"
        operation = Operation(op, client, self._clock(), ledger, log, facts)
        operation._end = self._ended
        self._under_way[operation] = None
        return operation

    def close(self) -> None:
        """End what is under way: its outcome is unknown."""
        for operation in list(self._under_way):
            operation.unknown()
        if self._file is not None:
            self._file.close()
            self._file = None

    def of_ledgers(self) -> Iterator[tuple[int, list[Operation]]]:
        """Yield each ledger with its operations."""
        groups: dict[int, list[Operation]] = {}
        for operation in self.operations:
            if operation.ledger is not None:
                groups.setdefault(operation.ledger, []).append(operation)
        yield from groups.items()

    def _ended(self, operation: Operation) -> None:
        if operation.result != "unknown":
            operation.returned = self._clock()
        del self._under_way[operation]
        self.operations.append(operation)
        self._write(operation.to_json())

    def _write(self, line: dict[str, Any]) -> None:
        if self._file is not None:
            self._file.write(json.dumps(line, separators=(",", ":")) + "\n")
