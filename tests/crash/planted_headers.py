"""Defects of the file of headers of ledgers without entries; see `planted`."""

from __future__ import annotations

from typing import Any

import numpy as np

from bookie_service.formats import ledger_headers as file_format
from bookie_service.formats.index import LedgerHeader
from bookie_service.storage.index.index_writer import IndexWriter
from bookie_service.storage.index.ledger_headers import LedgerHeaders, LedgerHeadersWriter
from bookie_service.storage.index.manifest import IndexManifestWriter
from bookie_service.storage.io.placed_file import PlacedFile
from bookie_service.storage.io.placed_log import PlacedLog
from tests.crash.planting import skipping
from tests.planting import Plant, around, both, replaced


def unsynced_row() -> Plant:
    return skipping(PlacedLog, "_append", "sync_data")


def unsynced_file() -> Plant:
    return both(skipping(PlacedFile, "replace", "sync_data"), skipping(PlacedFile, "replace", "sync_directory"))


def found_name_not_synced() -> Plant:
    """The file that a killed process wrote counts as durable, and is noted."""
    return skipping(PlacedLog, "__init__", "sync_directory")


def dropped_before_its_file() -> Plant:
    """The row goes before the index file is durable."""

    def sync(old: Any, self: IndexWriter, *arguments: Any) -> None:
        self._fileless.write([], list(self._unsynced))
        old(self, *arguments)

    return around(IndexWriter, "sync", sync)


def never_dropped() -> Plant:
    """A ledger that is dropped keeps its row."""
    return replaced(LedgerHeaders, "remove", lambda self, ledger_id: None)


def unfenced_file() -> Plant:
    """The new index file of a ledger has its key only."""

    def need_file(self: IndexWriter, ledger_id: int) -> None:
        kept = self._fileless.header(ledger_id)
        if ledger_id not in self._headers and kept is not None:
            self._headers[ledger_id] = LedgerHeader(ledger_id, 1, False, kept.master_key)

    return replaced(IndexWriter, "_need_file", need_file)


def unnoted() -> Plant:
    """The manifest does not learn of the file: its loss goes unnoticed."""
    return replaced(IndexManifestWriter, "note_headers", lambda self, generation, least_bytes: None)


def noted_before_durable() -> Plant:
    """It is noted how long the file is before it is."""

    def write(old: Any, self: LedgerHeadersWriter, *arguments: Any, **named: Any) -> None:
        if self._log.end and self._known.headers is not None:
            self._known.note_headers(self._file.generation, self._log.end + 1)
        old(self, *arguments, **named)

    return around(LedgerHeadersWriter, "_write", write)


def appended_to_an_unnoted_file() -> Plant:
    """Records follow in a file of whose generation the manifest does not know: a torn one counts as a loss."""

    def write(old: Any, self: LedgerHeadersWriter, *arguments: Any, **named: Any) -> None:
        self._noted_generation = self._file.generation
        old(self, *arguments, **named)

    return around(LedgerHeadersWriter, "_write", write)


def found_file_noted() -> Plant:
    """After a loss of the manifest each index file is noted, also one that a crash left without a header."""

    def learn(old: Any, self: IndexWriter, *arguments: Any) -> None:
        with replaced(LedgerHeaders, "ledger_ids", lambda self: np.empty(0, np.int64)):
            old(self, *arguments)

    return around(IndexWriter, "learn_files", learn)


def unverified_rows() -> Plant:
    """A checksum that is the same for everything, both when it is written and when it is checked."""
    return replaced(file_format, "crc32c", lambda data: 0)


def torn_record_refused() -> Plant:
    """A torn record counts as a loss."""

    def damage(old: Any, self: LedgerHeaders, end: int, noted: tuple[int, int]) -> str:
        found = str(old(self, end, noted))
        return found or ("" if end == len(self._file.data or b"") else "torn")

    return around(LedgerHeaders, "_damage", damage)
