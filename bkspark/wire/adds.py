"""AddSealer: makes a writer's ADD frames in V2 or V3; a writer does not depend on the protocol otherwise."""

from __future__ import annotations

import enum

from bkspark.entries import EntryBatch
from bkspark.errors import ConfigurationError
from bkspark.ids import NO_ENTRY
from bkspark.wire import v2, v3
from bkspark.wire.digest import EntryDigest, SealedEntries
from bkspark.wire.encrypted_entries import TAG_BYTES, EntrySealer
from bkspark.wire.flags import AddFlags
from bkspark.wire.v3_context import CONTEXT_BYTES_MAX

_V3_HEAD_BYTES_MAX = 100 + CONTEXT_BYTES_MAX
"""Upper bound of the bytes of a V3 ADD request, or of a READ response, without the entry."""


class WireProtocol(enum.Enum):
    """A client's protocol for adds and reads; everything else is always V3."""

    V2 = "v2"
    V3 = "v3"

    @classmethod
    def parse(cls, name: str) -> WireProtocol:
        """Return the protocol named `v2` or `v3`, in any case.

        Raises:
            ConfigurationError: another name.
        """
        try:
            return cls(name.lower())
        except (ValueError, AttributeError):
            raise ConfigurationError(f"wire protocol {name!r} is not one of v2, v3") from None


class AddSealer:
    """Makes the ADD frames of one writer, in one protocol: V3 if the flags need it, otherwise the given one."""

    def __init__(
        self,
        protocol: WireProtocol,
        digest: EntryDigest,
        master_key: bytes,
        txn_ids: v3.TxnIds,
        flags: AddFlags = AddFlags(),
        encryption: EntrySealer | None = None,
    ) -> None:
        """`encryption` encrypts payloads before they are sealed into envelopes; None: they stay clear."""
        self.protocol = WireProtocol.V3 if flags.is_deferred else protocol
        self._digest = digest
        self._master_key = master_key
        self._txn_ids = txn_ids
        self._flags = flags
        self._encryption = encryption
        self.added_bytes = 0 if encryption is None else TAG_BYTES
        """How many bytes encryption adds to each payload. Constant."""
        v2_flags = (v2.RECOVERY_ADD if flags.is_recovery else 0) | (v2.HIGH_PRIORITY if flags.is_urgent else 0)
        self._head = v2.add_head(master_key, v2_flags) if self.protocol is WireProtocol.V2 else b""
        """The bytes between the length of a V2 frame and its entry; b"" in V3, where they differ by entry. Constant."""
        self.lac = NO_ENTRY
        """The LAC in the newest frame. Set by `seal` and `seal_single`."""

    def entry_bytes_max(self, frame_bytes_max: int) -> int:
        """Return the size of the largest payload whose frames fit, in add requests and in read responses."""
        head = v2.ADD_HEAD_BYTES if self.protocol is WireProtocol.V2 else _V3_HEAD_BYTES_MAX
        return frame_bytes_max - head - self._digest.overhead_bytes - self.added_bytes

    def seal(self, batch: EntryBatch, lac: int, length_before: int, context: bytes = b"") -> SealedEntries:
        """Return one frame per entry of the batch, back to back in one buffer; see `EntryDigest.seal`.

        With encryption every id may be sealed once: it must be sent afterwards.
        `context`, a field of each request (`v3_context`), is left out in V2, which has no place for it.
        """
        self.lac = lac
        if self._encryption is not None:
            batch = self._encryption.seal(batch)
        sealed = self._digest.seal(batch, lac, length_before, self._head)
        return sealed if self._head else self._v3_frames(sealed, batch.ledger_id, context)

    def seal_single(
        self, payload: bytes, ledger_id: int, entry_id: int, lac: int, length_before: int, context: bytes = b""
    ) -> SealedEntries:
        """Return the frame of one entry; see `EntryDigest.seal_single`, and `seal`."""
        self.lac = lac
        if self._encryption is not None:
            payload = self._encryption.seal_single(payload, entry_id)
        sealed = self._digest.seal_single(payload, ledger_id, entry_id, lac, length_before, self._head)
        return sealed if self._head else self._v3_frames(sealed, ledger_id, context)

    def _v3_frames(self, sealed: SealedEntries, ledger_id: int, context: bytes) -> SealedEntries:
        first_txn_id = self._txn_ids.reserve(len(sealed))
        return v3.encode_adds(sealed, ledger_id, first_txn_id, self._master_key, self._flags, context)
