"""Reads the small files of a ledger directory: last log marks and the last log id."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

from bookie_service.admin.inspection.findings import Damage, Fact, Finding
from bookie_service.formats import entry_log as log_format
from bookie_service.formats import marks as mark_format
from bookie_service.formats.marks import JournalPosition
from bookie_service.storage.io.files import ReadOnlyFiles

_MARK_NAME = mark_format.file_name(0)


def parse_file_name(name: str) -> int | None:
    """Return the number of the journal whose mark a file of this name holds; None: the name is not that of a mark."""
    stem, _, suffix = name.partition(".")
    index = 0 if name == _MARK_NAME else int(suffix) if suffix.isdecimal() else None
    return index if stem == _MARK_NAME and index is not None and mark_format.file_name(index) == name else None


def read_mark_file(files: ReadOnlyFiles, path: str) -> Iterator[Finding]:
    """Yield the contents of a `lastMark` or `lastId` file."""
    name = os.path.basename(path)
    data = files.read_all(path)
    if name == log_format.LAST_ID_NAME:
        yield _last_id(path, data)
    elif (journal_index := parse_file_name(name)) is None:
        yield Damage(path, 0, None, "the name is not that of a mark, lastMark or lastMark.<journal number>")
    else:
        yield _mark(path, data, journal_index)


def highest_mark(files: ReadOnlyFiles, directories: Sequence[str], journal_index: int) -> JournalPosition | None:
    """Return the mark of a journal that counts, which is the highest readable one; None: there is none."""
    paths = [os.path.join(directory, mark_format.file_name(journal_index)) for directory in directories]
    found = [_decoded(files.read_all(path)) for path in paths if files.exists(path)]
    return max((mark for mark in found if mark is not None), default=None)


def _decoded(data: bytes) -> JournalPosition | None:
    try:
        return mark_format.decode_mark(data)
    except ValueError:
        return None


def _mark(path: str, data: bytes, journal_index: int) -> Finding:
    try:
        position = mark_format.decode_mark(data)
    except ValueError as error:
        return Damage(path, 0, len(data), str(error))
    if position is None:
        reason = f"the mark fails its checksum or is not {mark_format.MARK_BYTES} bytes long"
        return Damage(path, 0, len(data), reason)
    values = {
        "journal_index": journal_index,
        "journal": position.file_id,
        "journal_file": f"{position.file_id:016x}.txn",
        "journal_offset": position.offset,
    }
    return Fact("mark", path, 0, len(data), True, values)


def _last_id(path: str, data: bytes) -> Finding:
    log_id = log_format.decode_last_id(data)
    if log_id is None:
        return Damage(path, 0, len(data), "not a hex number: the highest entry log that exists counts instead")
    return Fact("last-id", path, 0, len(data), None, {"log": log_id})
