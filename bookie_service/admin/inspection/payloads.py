"""Payloads of the entries in a bookie's files, for operators who ask for them.

The payload begins after the digest, whose type is in the ledger's metadata, not on disk. The type that matches the
entry shows where. If none matches, the bytes of the digest are shown as well, as by Apache's shell.
"""

from __future__ import annotations

import base64
from types import TracebackType

from bkspark.errors import DigestMismatch
from bkspark.one_line import one_line
from bkspark.wire.digest import DigestType, EntryDigest
from bkspark.wire.framing import LENGTH_BYTES
from bkspark.wire.lac import ANY_COPY
from bkspark.wire.layout import ENTRY_ID_AT, HEADER_BYTES
from bookie_service.admin.inspection.output import Row
from bookie_service.storage.io.files import File, ReadOnlyFiles

STRING, HEX = FORMS = ("string", "hex")
_TYPES = (DigestType.CRC32C, DigestType.CRC32, DigestType.MAC)


class Payloads:
    """Reads payloads. A context, whose end closes the file."""

    def __init__(self, files: ReadOnlyFiles, password: bytes, form: str) -> None:
        """`password`: that of ledgers with a MAC. `form`: how a line shows a payload, one of `FORMS`."""
        self._files = files
        self._form = form
        self._digests = [EntryDigest(digest_type, password, ANY_COPY) for digest_type in _TYPES]
        self._file: File | None = None
        """The file that was read last; None: none was."""

    def __enter__(self) -> Payloads:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is not None:
            self._file.close()

    def added(self, row: Row) -> Row:
        """Return a row with the payload in base64 as `value`, if it is that of an entry."""
        return {**row, "value": base64.b64encode(self._of(row)).decode()} if row["kind"] == "entry" else row

    def line(self, row: Row) -> str | None:
        """Return the payload of a row as a line; None: the row is not that of an entry."""
        if row["kind"] != "entry":
            return None
        payload = self._of(row)
        return payload.hex() if self._form == HEX else one_line(payload.decode(errors="backslashreplace"))

    def _of(self, row: Row) -> bytes:
        path, offset, length = row["file"], row["offset"], row["length"]
        assert isinstance(path, str)
        assert isinstance(offset, int)
        assert isinstance(length, int)
        if self._file is None or self._file.path != path:
            if self._file is not None:
                self._file.close()
            self._file = self._files.open(path)
        entry = self._file.read(length - LENGTH_BYTES, offset + LENGTH_BYTES)
        ledger_id, entry_id = (int.from_bytes(entry[at : at + 8], "big", signed=True) for at in (0, ENTRY_ID_AT))
        for digest in self._digests:
            try:
                return digest.open_entry(entry, ledger_id, entry_id).payload
            except DigestMismatch:
                continue
        return entry[HEADER_BYTES:]
