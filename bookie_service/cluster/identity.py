"""Checks which bookie the directories belong to, by cookies and locks, before anything is opened (B10, B11).

The cookie (`bkspark.metadata.cookies`) names the bookie, its directories and its cluster. It is in the file `VERSION`
of every directory, and in the metadata store. A bookie starts only if all of them agree, because a bookie that lost
data must never answer as if it had never had it.

A first boot stamps the directories, writes the first marks to the ledger directories, and then writes the metadata
cookie. A crash in between leaves stamps that agree, no metadata cookie, and no journal file (which is created later).
Only in this state the next start completes the first boot. The other order would leave a metadata cookie and empty
directories, which is also how a wiped disk looks. So if the metadata know the bookie and a ledger directory has no
marks, the directory was emptied.
"""

from __future__ import annotations

import contextlib
import enum
import logging
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from bkspark.errors import ConfigurationError, MetadataFormat
from bkspark.metadata import cookies
from bkspark.metadata.bookies import BookieRegistry
from bkspark.metadata.cookies import Cookie
from bookie_service.formats import entry_log, journal
from bookie_service.formats import marks as mark_format
from bookie_service.formats.marks import NO_JOURNAL
from bookie_service.storage import layout
from bookie_service.storage.io.files import DirectoryLock, LocalFiles, is_disk_failure, refuses_writes
from bookie_service.storage.journal.checkpoint import Marks

logger = logging.getLogger(__name__)

_NEW_ID = "or start a bookie with a new bookieId and empty directories"


class StartDecision(enum.Enum):
    """The steps that remain before the directories may be opened."""

    OURS = "nothing"
    STAMP = "stamp the directories without a cookie, then write the metadata cookie"


@dataclass(frozen=True, slots=True)
class DirectoryState:
    """The contents of one configured directory."""

    cookie: Cookie | None
    has_data: bool
    """Whether it has files of a bookie, apart from its stamp."""
    has_marks: bool = True
    """False: a ledger directory without the mark of every journal."""
    foreign: str | None = None
    """A file in this directory that Apache's bookie wrote and this bookie cannot read, or None."""
    place: str | None = None
    """The path of this directory when it was stamped; None: a crash came before the path was written."""


def check_cookie(expected: Cookie, stored: Cookie | None, found: Mapping[str, DirectoryState]) -> StartDecision:
    """Decide whether a bookie may use its directories.

    Args:
        expected: the cookie that follows from the configuration.
        stored: the cookie in the metadata store; None: there is none.
        found: the state of every configured directory, by path.

    Raises:
        ConfigurationError: the bookie must not start. The message says in one line what differs and what to do.
    """
    for path, state in found.items():
        _check_owner(expected, path, state)
    for path, state in found.items():
        # Before the checks that advise on lost contents, because nothing is lost here.
        _check_place(path, state)
    if stored is not None:
        _check_known(expected, stored, found)
        return StartDecision.OURS
    if any(state.has_data for state in found.values()):
        raise ConfigurationError(
            f"the cluster does not know bookie {expected.bookie_id}, whose directories hold data: was it "
            f"decommissioned, or is metadataServiceUri another cluster's? Correct it, {_NEW_ID}"
        )
    return StartDecision.STAMP


def _check_owner(expected: Cookie, path: str, state: DirectoryState) -> None:
    """Raise ConfigurationError if a directory belongs to another bookie, or if it is not known to which."""
    if state.cookie is not None and expected.differences(state.cookie):
        raise ConfigurationError(
            f"directory {path} belongs to another bookie or cluster: "
            f"{'; '.join(expected.differences(state.cookie))}. Name the right directories and address, {_NEW_ID}"
        )
    if state.cookie is None and state.has_data:
        raise ConfigurationError(
            f"directory {path} holds a bookie's files but no cookie {layout.COOKIE_NAME}: restore it, {_NEW_ID}"
        )


def _check_place(path: str, state: DirectoryState) -> None:
    """Raise ConfigurationError if Apache's bookie wrote a directory, or if it belongs at another path."""
    if state.foreign is not None:
        raise ConfigurationError(
            f"directory {path} is an Apache bookie's: this bookie cannot read its {state.foreign}. Start that "
            f"program on it, {_NEW_ID} and let the cluster copy what this one holds"
        )
    if state.place not in (None, path):
        raise ConfigurationError(
            f"directory {path} holds what belongs at {state.place}: mount or move each where it was, {_NEW_ID}"
        )


def _check_known(expected: Cookie, stored: Cookie, found: Mapping[str, DirectoryState]) -> None:
    """Raise ConfigurationError if the cluster knows the bookie with other facts, or a directory lost its contents."""
    if expected.differences(stored):
        raise ConfigurationError(
            f"the cluster knows bookie {expected.bookie_id} with other facts: "
            f"{'; '.join(expected.differences(stored))}. Configure it as it was, {_NEW_ID}"
        )
    unstamped = [path for path, state in found.items() if state.cookie is None]
    if unstamped:
        raise ConfigurationError(
            f"directory {unstamped[0]} of bookie {expected.bookie_id} has lost its contents (no cookie "
            f"{layout.COOKIE_NAME}): mount the right disk or restore it, {_NEW_ID}"
        )
    emptied = [path for path, state in found.items() if not state.has_marks]
    if emptied:
        raise ConfigurationError(
            f"directory {emptied[0]} of bookie {expected.bookie_id} has lost its contents (no "
            f"{mark_format.file_name(0)}): mount the right disk or restore it, {_NEW_ID}"
        )


class Identity:
    """Verifies that directories belong to this bookie, and keeps other processes out of them until `release`."""

    def __init__(self, files: LocalFiles, journals: Sequence[str], ledgers: Sequence[str]) -> None:
        self._files = files
        self._journals = tuple(journals)
        """The directories as configured, in order."""
        self._ledgers = tuple(ledgers)
        self._locks: dict[str, DirectoryLock] = {}
        """Locks on directories, by path. Filled by `establish`, emptied by `release`."""
        self.unreadable: dict[str, OSError] = {}
        """Ledger directories whose disks cannot be read, with the error. Nothing may be read or written there. Filled
        by `establish`."""

    async def establish(self, registry: BookieRegistry, bookie_id: str) -> None:
        """Lock and check all directories; on a first boot, stamp them.

        If the cluster knows the bookie, ledger directories whose disks fail are left out (`unreadable`), but not all of
        them. An empty directory is not left out: it may be a disk that is not mounted.

        Raises:
            ConfigurationError: they belong to another bookie, are incomplete, or are in use. Nothing was changed.
            MetadataError: the metadata store failed.
            OSError: a disk cannot be read, and the bookie cannot start without it.
        """
        expected = Cookie(bookie_id, self._journals, self._ledgers, await registry.instance_id())
        # A journal directory and a ledger directory may be the same.
        directories = tuple(dict.fromkeys(self._journals + self._ledgers))
        for directory in directories:
            with self._leaving_out(directory):
                if self._files.exists(directory):
                    self._lock(directory)
        stored = await registry.read_cookie(bookie_id)
        found: dict[str, DirectoryState] = {}
        for directory in directories:
            with self._leaving_out(directory):
                found[directory] = self._state(directory)
        for directory in self.unreadable:
            found.pop(directory, None)
        decision = check_cookie(expected, stored.cookie if stored else None, found)
        for directory, error in self.unreadable.items():
            if stored is None or len(self.unreadable) == len(self._ledgers):
                raise error
            logger.error(
                "ledger directory %s cannot be read (%s): the bookie starts without it, and does not use it before the "
                "next start. Requests for what is stored there are answered with an error",
                directory,
                error.strerror,
            )
        if decision is StartDecision.OURS:
            self._complete(directory for directory, state in found.items() if state.place is None)
            return
        for directory in directories:
            self._files.make_directory(layout.current(directory))
            self._lock(directory)
        for directory in directories:
            self._files.replace(layout.cookie_path(directory), cookies.encode(expected))
        self._write_places(directories)
        Marks(self._files, list(map(layout.current, self._ledgers))).write([NO_JOURNAL] * len(self._journals))
        await registry.write_cookie(expected, None)

    @contextlib.contextmanager
    def _leaving_out(self, directory: str) -> Iterator[None]:
        """Note a ledger directory whose disk fails in the context."""
        try:
            yield
        except OSError as error:
            if not is_disk_failure(error) or directory in self._journals:
                raise
            self.unreadable.setdefault(directory, error)

    def release(self) -> None:
        """Release the directories for other processes."""
        for lock in self._locks.values():
            lock.release()
        self._locks.clear()

    def _complete(self, directories: Iterable[str]) -> None:
        """Write the places that an earlier version did not write. A ledger directory whose disk takes no writes gets
        its place at a later start."""
        for directory in directories:
            try:
                self._write_places([directory])
            except OSError as error:
                if not refuses_writes(error) or directory in self._journals:
                    raise

    def _write_places(self, directories: Iterable[str]) -> None:
        for directory in directories:
            self._files.replace(layout.place_path(directory), layout.encode_place(directory))

    def _lock(self, directory: str) -> None:
        if directory in self._locks:
            return
        try:
            self._locks[directory] = self._files.lock(directory)
        except BlockingIOError:
            raise ConfigurationError(
                f"directory {directory} is in use by another process: stop that bookie, or name another directory"
            ) from None

    def _state(self, directory: str) -> DirectoryState:
        current = layout.current(directory)
        if not self._files.exists(current):
            return DirectoryState(None, False, directory not in self._ledgers)
        path = layout.cookie_path(directory)
        cookie = self._cookie(path) if self._files.exists(path) else None
        names = self._files.names(current)
        marks = map(mark_format.file_name, range(len(self._journals)))
        has_marks = directory not in self._ledgers or set(marks) <= set(names)
        place = (
            layout.decode_place(self._files.read_all(layout.place_path(directory)))
            if layout.PLACE_NAME in names
            else None
        )
        return DirectoryState(cookie, any(map(_is_data, names)), has_marks, self._foreign(current, names), place)

    def _foreign(self, current: str, names: Iterable[str]) -> str | None:
        for name in sorted(names):
            if journal.is_apaches(name):
                return name
            is_mark = name == mark_format.file_name(0)
            if is_mark and mark_format.is_apaches(self._files.read_all(os.path.join(current, name))):
                return name
        return None

    def _cookie(self, path: str) -> Cookie:
        try:
            return cookies.decode(self._files.read_all(path), path)
        except MetadataFormat as error:
            raise ConfigurationError(
                f"{error}: restore it (the other directories of this bookie hold the same), {_NEW_ID}"
            ) from None


def _is_data(name: str) -> bool:
    return journal.parse_file_name(name) is not None or entry_log.parse_file_name(name) is not None
