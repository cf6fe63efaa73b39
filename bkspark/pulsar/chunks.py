"""Chunks: joins the chunks of messages. A message has the position of its last chunk. PURE.

The rules are those of Pulsar's consumer: chunks of several messages may alternate; chunk 0 of a message begins it
again; a repeated chunk is ignored.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from bkspark.pulsar import entries as fields
from bkspark.pulsar.entries import Entries
from bkspark.pulsar.messages import Joined

INCOMPLETE_BYTES_MAX = 256 << 20
"""Limit of the bytes of incomplete messages. Above it, the oldest messages are dropped, as by Pulsar's consumer. If the
last chunk of a dropped message comes, the message is malformed, and so is a message that is larger than the limit."""
CHUNKS_MAX = 100_000
"""Limit of the number of chunks of one message."""
LATEST_MAX = 10_000
"""Limit of the remembered complete messages, and of the incomplete ones."""


class HeadMissing(ValueError):
    """The last chunk of a message was taken, and its first one was not found."""


@dataclass(slots=True)
class _Pending:
    count: int
    """How many chunks the message has. Constant."""
    size: int
    """Their bytes together, as the metadata say; -1 if they do not. Constant."""
    first: tuple[int, int] = (0, 0)
    """(ledger id, entry id) of the first chunk of the message."""
    parts: dict[int, bytes] = field(default_factory=dict)
    """The chunks that have been read, by chunk number."""
    byte_count: int = 0
    """The sum of the bytes of `parts`."""
    is_dropped: bool = False
    """Whether the bytes were dropped because there were too many; the message is incomplete. Set once."""

    @property
    def facts(self) -> tuple[int, int]:
        return self.count, self.size


class ChunkGatherer:
    """Chunks of one topic or partition, in order.

    Args:
        bytes_max: of the chunks of incomplete messages.
    """

    def __init__(self, bytes_max: int = INCOMPLETE_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._pending: dict[str, _Pending] = {}
        """Incomplete messages, by their id, oldest first; at most LATEST_MAX."""
        self._complete: dict[str, tuple[int, int]] = {}
        """The last messages that are complete: their number of chunks and bytes; at most LATEST_MAX."""
        self._byte_count = 0
        """Bytes of the chunks in `_pending`."""

    @property
    def held_bytes(self) -> int:
        """Bytes of the chunks of incomplete messages; at most `bytes_max`."""
        return self._byte_count

    def take(self, entries: Entries, row: int) -> str | None:
        """Take the chunk of one entry; return the message's uuid if it is its last one, None if others follow.

        Raises:
            ValueError: the metadata do not describe a chunk, or contradict those of the message's other chunks.
        """
        uuid, chunk, facts = _chunk_of(entries, row)
        if chunk and self._complete.get(uuid) == facts:
            return None  # a repetition
        self._complete.pop(uuid, None)
        if chunk == 0:
            self._forget(uuid)
        pending = self._pending.setdefault(uuid, _Pending(*facts))
        if facts != pending.facts:
            raise ValueError(
                f"its metadata say that message {uuid[:80]!r} has {facts[0]} chunks and {facts[1]} bytes, and those of "
                f"another chunk say {pending.count} chunks and {pending.size} bytes"
            )
        if chunk not in pending.parts:
            self._put(pending, entries, row, chunk)
        while len(self._pending) > LATEST_MAX:
            self._forget(next(iter(self._pending)))
        return uuid if chunk == pending.count - 1 and uuid in self._pending else None

    def take_earlier(self, entries: Entries, row: int, wanted: str) -> None:
        """Take a chunk that was stored before all chunks taken so far. Only chunks of the message `wanted` are taken.
        Malformed ones are ignored: the task that reads them reports them."""
        try:
            uuid, chunk, facts = _chunk_of(entries, row)
        except ValueError:
            return
        pending = self._pending.get(wanted)
        # Chunk 0 begins the message: earlier ones are of another message of that name.
        if uuid != wanted or pending is None or facts != pending.facts or 0 in pending.parts:
            return
        if chunk == pending.count - 1:
            # The message was complete before this point: its chunk taken last is a repetition.
            self._finish(uuid, facts)
        elif chunk not in pending.parts:
            self._put(pending, entries, row, chunk)

    def _put(self, pending: _Pending, entries: Entries, row: int, chunk: int) -> None:
        start, end = int(entries.payload_starts[row]), int(entries.payload_ends[row])
        if pending.is_dropped:
            return
        if pending.byte_count + end - start > self._bytes_max:
            self._drop(pending)
            return
        pending.parts[chunk] = entries.data[start:end].tobytes()
        pending.byte_count += end - start
        self._byte_count += end - start
        for oldest in list(self._pending.values()) if self._byte_count > self._bytes_max else ():
            if oldest is not pending and self._byte_count > self._bytes_max:
                self._drop(oldest)
        if chunk == 0:
            pending.first = (int(entries.ledger_ids[row]), int(entries.entry_ids[row]))

    def lacks(self, uuid: str) -> bool:
        """Return whether chunks are missing of a message whose last chunk was taken, and may be found earlier."""
        pending = self._pending.get(uuid)
        return pending is not None and not pending.is_dropped and 0 not in pending.parts

    def join(self, uuid: str) -> Joined | None:
        """Return a message whose last chunk was taken, and forget it; None if the chunk was a repetition.

        Raises:
            HeadMissing: the first chunk is missing.
            ValueError: other chunks are missing, or together they exceed the limit.
        """
        pending = self._pending.get(uuid)
        if pending is None:
            return None
        self._finish(uuid, pending.facts)
        if pending.is_dropped:
            raise ValueError(
                f"it is the last of {pending.count} chunks of a message that was dropped: incomplete messages were "
                f"above {self._bytes_max} bytes together"
            )
        if len(pending.parts) < pending.count:
            have = len(pending.parts)
            reason = f"it is the last of {pending.count} chunks of a message, and only {have} are stored"
            raise ValueError(reason) if 0 in pending.parts else HeadMissing(reason)
        whole = b"".join(pending.parts[chunk] for chunk in range(pending.count))
        if pending.size not in (-1, len(whole)):
            raise ValueError(f"its chunks have {len(whole)} bytes, and its metadata say {pending.size}")
        return Joined(memoryview(whole), *pending.first)

    def _finish(self, uuid: str, facts: tuple[int, int]) -> None:
        self._forget(uuid)
        self._complete[uuid] = facts
        if len(self._complete) > LATEST_MAX:
            del self._complete[next(iter(self._complete))]

    def _drop(self, pending: _Pending) -> None:
        """Drop the bytes of a message; its later chunks are ignored."""
        self._byte_count -= pending.byte_count
        pending.parts.clear()
        pending.byte_count, pending.is_dropped = 0, True

    def _forget(self, uuid: str) -> None:
        pending = self._pending.pop(uuid, None)
        if pending is not None:
            self._byte_count -= pending.byte_count


def _chunk_of(entries: Entries, row: int) -> tuple[str, int, tuple[int, int]]:
    """Return the message's uuid, the chunk's number, and (number of chunks, bytes of all) of the message."""
    count = int(entries.metadata.int32(fields.CHUNKS)[row])
    chunk = int(entries.metadata.int32(fields.CHUNK)[row])
    uuid = entries.text(fields.UUID, row)
    if not uuid or not 0 <= chunk < count <= CHUNKS_MAX:
        raise ValueError(f"its metadata name chunk {chunk} of {count} of message {uuid[:80]!r}, which cannot be")
    has_size = bool(entries.metadata.has(fields.CHUNKED_SIZE)[row])
    return uuid, chunk, (count, int(entries.metadata.int32(fields.CHUNKED_SIZE)[row]) if has_size else -1)
