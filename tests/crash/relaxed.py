"""Deferred adds in the crash campaigns: what `force` answered, and what a LastAddSynced said, survives every image.

An entry that was taken and not synced may be there or not; what is there has the bytes that were written.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import ClassVar

import numpy as np

from bkspark.wire import bookkeeper_protocol_pb2 as protocol
from bkspark.wire import v3
from bkspark.wire.framing import scan_frames
from bookie_service.network.send_buffer import Parts
from bookie_service.network.v3_requests import V3RequestStream
from tests.crash.audit import Violation
from tests.crash.history import History
from tests.crash.scripts import Script
from tests.crash.twins import BookieTwin, TakingClient, sealed

_JOURNALED, _BYPASSING = 0x500, 0x600


class DeferringClient(TakingClient):
    """A connection that notes what it may take for synced."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._taken: dict[int, dict[int, int]] = {}
        self.unanswered = 0
        """Forces that wait."""

    def send(self, parts: Parts) -> None:
        buffer = b"".join(parts)
        table = scan_frames(buffer, len(buffer))
        for start, end in zip(table.starts.tolist(), table.ends.tolist()):
            self._note(v3.decode_response(buffer[start:end]).addResponse)

    def _note(self, answer: protocol.AddResponse) -> None:
        ledger_id, entry_id = answer.ledgerId, answer.entryId
        if ledger_id in self._history.deleted:
            return
        if answer.status != v3.StatusCode.EOK:
            self._history.add_answered(ledger_id, entry_id, answer.status)
            return
        taken = self._taken.setdefault(ledger_id, {})
        self._promise(ledger_id, {known: version for known, version in taken.items() if known <= answer.lastAddSynced})
        taken[entry_id] = self._history.ledger(ledger_id).entries[entry_id].waiting.popleft()

    def asks_force(self, ledger_id: int) -> ForceClient:
        """Return the connection for the answer to a force: it covers what is taken now."""
        self.unanswered += 1
        return ForceClient(self, ledger_id, dict(self._taken.get(ledger_id, {})))

    def forced(self, ledger_id: int, taken: dict[int, int]) -> None:
        """Note the answer to a force."""
        self.unanswered -= 1
        self._promise(ledger_id, taken)

    def _promise(self, ledger_id: int, taken: dict[int, int]) -> None:
        if ledger_id not in self._history.ledgers:
            return
        entries = self._history.ledger(ledger_id).entries
        for entry_id, version in taken.items():
            if version > entries[entry_id].acknowledged:
                entries[entry_id].acknowledged = version
                self._history.promises += 1


class ForceClient(TakingClient):
    """A connection that waits for the answer to one force."""

    def __init__(self, client: DeferringClient, ledger_id: int, taken: dict[int, int]) -> None:
        self._client = client
        self._ledger_id = ledger_id
        self._taken = taken

    def send(self, parts: Parts) -> None:
        assert b"".join(parts) == b"forced"
        self._client.forced(self._ledger_id, self._taken)


class RelaxedScript(Script):
    """One whose adds are mostly deferred, and forced now and then."""

    weights: ClassVar[dict[str, int]] = {
        **dict.fromkeys(Script.weights, 0),
        "add": 40,
        "force": 6,
        "journal": 30,
        "quiet": 1,
        "checkpoint": 10,
        "fence": 1,
        "compact": 2,
        "kill": 1,
        "power cut": 1,
    }

    concurrency = (0.1, 0.3, 0.5)

    def run(self) -> None:
        """Run to the end; what was forced is answered then."""
        super().run()
        assert self.twin is not None
        for _ in range(3):
            self.twin.settle()
        if self.twin.checkpoints.has_stalled:
            # A flush in which a disk was late answers no force. The bookie's timer begins the next one.
            self.twin.store.disks.waits = True
            self.twin.store.disks.settle()
            self.twin.checkpoint()
        if self._client.unanswered:
            raise Violation(f"{self._client.unanswered} forces were never answered")

    def _open(self) -> None:
        super()._open()
        self._client = DeferringClient(self.history)
        if 2 in self._ledgers:
            # At the first start.
            self._ledgers = [1, _JOURNALED, _BYPASSING]

    def _do(self, kind: str) -> None:
        if kind == "force":
            self._force()
        else:
            super()._do(kind)

    def _ledger(self) -> int:
        return self.random.choices(self._ledgers, (1, 4, 3))[0]

    def _serve(self) -> None:
        self._force()

    def _force(self) -> None:
        assert self.twin is not None
        ledger_id = self._ledger()
        client = self._client.asks_force(ledger_id)
        with self.twin.loop.serving():
            self.twin.bookie.force(client, ledger_id, lambda status: (b"forced",))

    def _add_to(self, ledger_id: int) -> None:
        if ledger_id not in (_JOURNALED, _BYPASSING):
            super()._add_to(ledger_id)
            return
        assert self.twin is not None
        first = self._next_entry.get(ledger_id, 0)
        if first and self.random.random() < 0.2:
            # Sent again, as to a bookie that came back.
            first = self.random.randrange(first)
        count = self.random.randint(1, 4)
        if self._depth and self.twin.store.active.room < count * 1500:
            return
        self._next_entry[ledger_id] = max(self._next_entry.get(ledger_id, 0), first + count)
        self._defer(ledger_id, range(first, first + count))

    def _defer(self, ledger_id: int, entry_ids: range) -> None:
        assert self.twin is not None
        defer(self.twin, self._client, ledger_id, entry_ids, bypasses_journal=ledger_id == _BYPASSING)


def defer(
    twin: BookieTwin,
    client: DeferringClient,
    ledger_id: int,
    entry_ids: Iterable[int],
    *,
    bypasses_journal: bool = False,
) -> None:
    """Send adds with DEFERRED_SYNC; always the same bytes under an id."""
    twin.history.ledger(ledger_id).bypasses_journal = bypasses_journal
    frames = []
    for entry_id in entry_ids:
        # No LAC, as there is no other bookie.
        head = struct.pack(">qqq", ledger_id, entry_id, -1)
        content = sealed(head + b"%d" % entry_id * (entry_id % 7 * 20))
        twin.history.add_asked(ledger_id, entry_id, content)
        add = protocol.AddRequest(
            ledgerId=ledger_id,
            entryId=entry_id,
            masterKey=twin.history.ledger(ledger_id).master_key,
            body=content,
            writeFlags=v3.DEFERRED_SYNC,
            bypassJournal=bypasses_journal,
        )
        frames.append(v3.encode_message(protocol.Request(header=v3.header(protocol.ADD_ENTRY, 1), addRequest=add)))
    buffer = bytearray(b"".join(frames))
    runs = V3RequestStream(twin.bookie, client, scan_frames(buffer, len(buffer)))
    octets = np.frombuffer(buffer, np.uint8)
    is_served = False
    while not is_served:
        with twin.loop.serving():
            is_served = runs.serve(octets)
        if not is_served:
            twin.make_room()
