"""The files that an argument names: one file, a directory of a bookie, or everything in a bookie's folder."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from bkspark.errors import ConfigurationError, MetadataFormat
from bkspark.metadata import cookies
from bookie_service.admin.inspection import garbage, marks
from bookie_service.formats import entry_log, index, journal, key_value_index, ledger_headers
from bookie_service.storage import layout
from bookie_service.storage.io.files import ReadOnlyFiles

KINDS: dict[str, Callable[[str], bool]] = {
    "journal": lambda name: journal.parse_file_name(name) is not None,
    "entry-log": lambda name: entry_log.parse_file_name(name) is not None,
    "index": lambda name: index.parse_file_name(name) is not None or name == ledger_headers.FILE_NAME,
    "marks": lambda name: marks.parse_file_name(name) is not None or name == entry_log.LAST_ID_NAME,
    "garbage": lambda name: name in garbage.NAMES,
}
"""How the files of each kind are named."""
SOMETIMES = frozenset({"garbage"})
"""Kinds of files that a bookie need not have."""


def directories_below(files: ReadOnlyFiles, path: str) -> list[str]:
    """Return the directories at a path that may hold a bookie's files: the path itself if it is a `current` directory,
    otherwise the `current` directories in it and in the directories directly below it.

    Raises:
        ConfigurationError: it is neither a file nor a directory.
    """
    if not files.exists(path):
        raise ConfigurationError(f"{path} does not exist; name a file of a bookie, its directory, or use --config")
    if os.path.basename(path) == layout.CURRENT:
        return [path]
    candidates = [path, *(os.path.join(path, name) for name in files.names(path))]
    found = [layout.current(each) for each in candidates if files.is_directory(layout.current(each))]
    return found or [path]


def files_of(files: ReadOnlyFiles, directories: Sequence[str], kind: str, ledger_id: int | None) -> Iterator[str]:
    """Yield the paths of all files of a kind in `current` directories. `ledger_id`: only index files of this ledger."""
    is_one = KINDS[kind]
    for directory in directories:
        if kind != "index":
            yield from (os.path.join(directory, name) for name in files.names(directory) if is_one(name))
            continue
        store = key_value_index_in(files, directory)
        if store is not None:
            yield store
        headers = os.path.join(directory, ledger_headers.FILE_NAME)
        if files.exists(headers) and (ledger_id is None or _has_header(files, headers, ledger_id)):
            yield headers
        if ledger_id is not None:
            path = os.path.join(directory, *index.relative_path(ledger_id))
            if files.exists(path):
                yield path
        else:
            yield from _index_files(files, directory)


def key_value_index_in(files: ReadOnlyFiles, directory: str) -> str | None:
    """Return the path of the key-value store in a `current` directory; None: there is none."""
    path = os.path.join(directory, key_value_index.DIRECTORY_NAME)
    return path if files.is_directory(path) else None


def is_ledger_headers(path: str) -> bool:
    """Return whether a path of kind index is the file of headers of ledgers without entries."""
    return os.path.basename(path) == ledger_headers.FILE_NAME


def _has_header(files: ReadOnlyFiles, path: str, ledger_id: int) -> bool:
    try:
        return ledger_id in ledger_headers.decode(files.read_all(path))[0].rows["ledger_id"]
    except ValueError:
        return True  # reading it will report what is wrong


def is_key_value_index(path: str) -> bool:
    """Return whether a path of kind index is a key-value store, not an index file."""
    return os.path.basename(path) == key_value_index.DIRECTORY_NAME


@dataclass(frozen=True, slots=True)
class BookieFiles:
    """The `current` directories of one bookie, as far as known, in configured order."""

    journals: tuple[str, ...]
    """Those of the journals; `ledgers`: those of the ledger directories."""
    ledgers: tuple[str, ...]

    def journal_index(self, directory: str) -> int | None:
        """Return the number of the journal that is in a directory; None: no journal of the bookie is."""
        return self.journals.index(directory) if directory in self.journals else None


def bookie_of(files: ReadOnlyFiles, directory: str, siblings: Sequence[str]) -> BookieFiles:
    """Return the bookie that a `current` directory belongs to, according to its cookie.

    Without a readable cookie, or in a copy at another place, `siblings` count as its ledger directories.
    """
    alone = BookieFiles((), tuple(siblings))
    path = os.path.join(directory, layout.COOKIE_NAME)
    if not files.exists(path):
        return alone
    try:
        cookie = cookies.decode(files.read_all(path), path)
    except MetadataFormat:
        return alone
    named = BookieFiles(
        tuple(map(layout.current, cookie.journal_directories)), tuple(map(layout.current, cookie.ledger_directories))
    )
    every = (*named.journals, *named.ledgers)
    return named if directory in every and all(map(files.is_directory, every)) else alone


def _index_files(files: ReadOnlyFiles, directory: str) -> Iterator[str]:
    for middle in _hex_directories(files, directory):
        for inner in _hex_directories(files, middle):
            yield from (
                os.path.join(inner, name) for name in files.names(inner) if index.parse_file_name(name) is not None
            )


def _hex_directories(files: ReadOnlyFiles, directory: str) -> Iterator[str]:
    for name in files.names(directory):
        path = os.path.join(directory, name)
        if len(name) <= 2 and set(name) <= set("0123456789abcdef") and files.is_directory(path):
            yield path
