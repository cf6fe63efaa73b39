"""Finds out whether the newest journal file was truncated after a crash or a stop, as far as the file itself says."""

from __future__ import annotations

from bookie_service.formats import journal as journal_format
from bookie_service.formats.journal import FILE_HEADER_BYTES, RECORD_HEADER_BYTES, FileHeader, RecordHeader, RecordKind
from bookie_service.storage.io.files import File


def length_before(file: File, header: FileHeader, end: int, durable_end: int) -> int | None:
    """Return the length that a file had before it was truncated; None: it does not say that it was.

    Args:
        header: the header of the file.
        end: where its last whole record ends.
        durable_end: everything before this offset is known to have been durable; 0: not even the header is.
    """
    size = file.size()
    following = _header_at(file, header, end)
    if end + RECORD_HEADER_BYTES + (0 if following is None else following.body_bytes) <= size:
        # The file goes on after its last whole record. What follows was torn by a crash, or never written.
        return None
    length = _durable_length(file, header, end, durable_end)
    return length if size < length else None


def _header_at(file: File, header: FileHeader, offset: int) -> RecordHeader | None:
    data = file.read(RECORD_HEADER_BYTES, offset)
    return journal_format.decode_record_header(data, 0, file_id=header.file_id, offset=offset)


def _durable_length(file: File, file_header: FileHeader, end: int, durable_end: int) -> int:
    """Return the length that a file certainly had, as its records before `end` say; 0: unknown, or cut in order."""
    lengths = [(FILE_HEADER_BYTES, file_header.allocated)]
    offset = FILE_HEADER_BYTES
    while offset < end and (header := _header_at(file, file_header, offset)) is not None:
        durable_end = max(durable_end, header.synced)
        following = offset + RECORD_HEADER_BYTES + header.body_bytes
        if header.kind == RecordKind.FOLLOWED:
            return 0
        if header.kind == RecordKind.PADDING:
            if not header.count and header.synced == offset and following == file.size():
                return 0
            lengths.append((following, header.count * journal_format.LENGTH_UNIT_BYTES))
        offset = following
    return max((length for said_at, length in lengths if said_at <= durable_end), default=0)
