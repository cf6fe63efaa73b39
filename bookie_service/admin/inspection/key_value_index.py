"""Reads the index of a `DbLedgerStorage` as it is on disk. The format is in `formats.key_value_index`.

The store checks its own checksums. It has no offsets to report, so findings name its directory, the ledger and the
entry.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import numpy as np

from bkspark.errors import StorageDamaged
from bookie_service.admin.inspection.findings import Damage, Fact, Finding
from bookie_service.admin.inspection.index import ATTEMPTS, LogLookup, PositionSource, header_values, judged
from bookie_service.storage.index.key_value_index import KeyValueView, open_view
from bookie_service.storage.io.files import ReadOnlyFiles


def read_key_value_index(
    files: ReadOnlyFiles, path: str, lookup: LogLookup, ledger_id: int | None = None, entry_id: int | None = None
) -> Iterator[Finding]:
    """Yield the contents of the store: for each ledger its header, then runs of positions.

    Args:
        path: the directory of the store.
        ledger_id, entry_id: only this ledger, only the position of this entry; None: all.
    """
    try:
        view = _opened(files, os.path.dirname(path))
        ledger_ids = view.ledger_ids().tolist() if ledger_id is None else [ledger_id] * view.has(ledger_id)
        for each in ledger_ids:
            yield from _ledger(files, view, each, lookup, entry_id)
        view.close_store()
    except StorageDamaged as error:
        yield Damage(path, None, None, str(error), error.ledger_id, error.entry_id)


def _opened(files: ReadOnlyFiles, directory: str) -> KeyValueView:
    for _ in range(ATTEMPTS - 1):
        try:
            return open_view(files, directory)
        except (StorageDamaged, FileNotFoundError):
            continue
    return open_view(files, directory)


def _ledger(
    files: ReadOnlyFiles, view: KeyValueView, ledger_id: int, lookup: LogLookup, entry_id: int | None
) -> Iterator[Finding]:
    try:
        header = view.header(ledger_id)
    except StorageDamaged as error:
        yield Damage(view.path, None, None, str(error), ledger_id)
    else:
        if header is not None:
            yield Fact("index", view.path, None, None, True, header_values(header))

    def read_again(first_entry: int, count: int) -> np.ndarray:
        newer = _opened(files, os.path.dirname(view.path))
        try:
            return newer.positions(ledger_id, first_entry, count)
        finally:
            newer.close_store()

    source = PositionSource(view.path, ledger_id, read_again, None)
    if entry_id is not None:
        yield from judged(source, entry_id, view.positions(ledger_id, entry_id, 1), lookup)
        return
    for first_entry, positions in view.extents(ledger_id):
        yield from judged(source, first_entry, positions, lookup)
