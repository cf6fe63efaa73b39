"""Reads the file of headers of ledgers without entries as it is on disk. The format is in `formats.ledger_headers`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from bkspark.errors import StorageDamaged
from bookie_service.admin.inspection.findings import Damage, Fact, Finding, Incomplete
from bookie_service.admin.inspection.index import ATTEMPTS, header_values
from bookie_service.formats import ledger_headers as file_format
from bookie_service.storage.index.ledger_headers import LedgerHeaders
from bookie_service.storage.index.manifest import IndexManifest
from bookie_service.storage.io.files import ReadOnlyFiles


def read_ledger_headers(files: ReadOnlyFiles, path: str, directories: Sequence[str]) -> Iterator[Finding]:
    """Yield the rows of such a file, including those that no longer count.

    Args:
        directories: the `current` directories of all ledger directories of the bookie.
    """
    data = files.read_all(path)
    try:
        found, end = file_format.decode(data)
        damage = _damage(files, path, directories)
    except (ValueError, StorageDamaged) as error:
        yield Damage(path, 0, len(data), str(error))
        return
    for row, offset in enumerate(file_format.row_offsets(data).tolist()):
        header = found.header(row)
        kind = "header-dropped" if header is None else "header"
        values = {"ledger": found.ledger_id(row)} if header is None else header_values(header)
        # Rows have no generation.
        values.pop("generation", None)
        yield Fact(kind, path, offset, file_format.ROW.itemsize, True, values)
    if damage:
        yield Damage(path, end, len(data) - end or None, damage)
    elif end < len(data):
        yield Incomplete(path, end, len(data) - end, "a record that is being written, or that a crash tore")


def _damage(files: ReadOnlyFiles, path: str, directories: Sequence[str]) -> str:
    """Return what is lost if this is the file that counts; "": nothing."""
    for _ in range(ATTEMPTS):
        headers = LedgerHeaders(files, directories, IndexManifest(files, directories).headers)
        if not headers.damage or headers.path != path:
            return ""
    return headers.damage
