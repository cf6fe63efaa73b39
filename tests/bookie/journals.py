"""A journal in a directory, its records, and what replay finds in it."""

from __future__ import annotations

from pathlib import Path

from bookie_service.formats import journal as journal_format
from bookie_service.formats.journal import RecordKind
from bookie_service.formats.marks import JournalPosition
from bookie_service.storage.io.files import LocalFiles
from bookie_service.storage.journal.journal import Journal, JournalOptions, Record
from bookie_service.storage.journal.replay import ReplayedJournal, replay_journal

START = JournalPosition(0, 0)

OPTIONS = JournalOptions(preallocate_bytes=4096, alignment_bytes=1, backups_max=0)
"""Consecutive groups: a test sees where each ends."""

FILES = LocalFiles()


def record(body: bytes) -> Record:
    return Record.of(RecordKind.FENCE, 1, body)


def open_journal(directory: Path, end: JournalPosition = START, options: JournalOptions = OPTIONS) -> Journal:
    return Journal(FILES, str(directory), options, end)


def replayed(directory: Path, mark: JournalPosition | None = None) -> tuple[list[bytes], ReplayedJournal]:
    """Return the bodies of all records from `mark` on, without padding, and how replay ended."""
    bodies: list[bytes] = []

    def apply(kind: int, count: int, body: bytes) -> None:
        if kind != RecordKind.PADDING:
            bodies.append(body)

    return bodies, replay_journal(FILES, str(directory), mark, apply)


def path_of(directory: Path, file_id: int = 1) -> Path:
    return directory / journal_format.file_name(file_id)
