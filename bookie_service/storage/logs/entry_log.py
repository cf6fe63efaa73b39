"""Entry logs: the permanent place of entries. `log_appender` writes them, `log_reader` reads them.

Log ids ascend and are never used twice, even if `lastId` is wrong: the highest of it and of the existing files counts,
and a log is created only if no file has its name. A crash in the middle of an append leaves bytes that no index
position points to. Nothing is appended after them, because a new process begins a new log. A full log is closed with a
ledgers map. It is rotated once the index is durable for all its contents.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Collection, Iterable, Sequence

from bkspark.errors import StorageDamaged
from bookie_service.formats import entry_log as log_format
from bookie_service.storage.disks import (
    UNKNOWN_SPACE,
    DiskLimits,
    FileSystemSpace,
    directories_with_room,
    directory_for_log,
)
from bookie_service.storage.io.files import File, LocalFiles, ReadOnlyFiles, is_disk_failure, refuses_writes
from bookie_service.storage.logs.log_writer import EntryLogWriter

_UNSEEN_LOGS_MAX = 1 << 20
"""How many logs, with higher ids than all others, a directory that cannot be read may contain."""
ITEM_BYTES_MAX = 64 * 1024 * 1024
"""A length word above this is damage, and not the length of an entry."""


class StoredLogs:
    """Which entry logs are in the ledger directories, and where. It reads the directories once, and changes nothing."""

    files: ReadOnlyFiles

    def __init__(self, files: ReadOnlyFiles, directories: Sequence[str]) -> None:
        """`directories`: the `current` directories of all ledger directories.

        Raises:
            StorageDamaged: two directories have a log with the same id.
        """
        self.files = files
        self._directories = directories
        self._paths: dict[int, str] = {}
        """The path of each log."""
        self.path = self._paths.get
        """Returns the path of a log; None: there is no such log. Constant."""
        self.notices: list[str] = []
        """Lines for the operator about directories that cannot be read."""
        self._last_id = 0
        """The highest id that a log has or had, as far as the directories say."""
        for directory in directories:
            for name in self._names(directory):
                log_id = log_format.parse_file_name(name)
                if log_id is not None:
                    path = os.path.join(directory, name)
                    if log_id in self._paths:
                        raise StorageDamaged(
                            f"entry log {log_id:x} is in two ledger directories, {self._paths[log_id]} and {path}, and "
                            "entries are read from one of them: move the one away that does not belong there. If they "
                            "differ, `bkspark dump entry-log` shows what each holds"
                        )
                    self._paths[log_id] = path
                    self._last_id = max(self._last_id, log_id)
            self._last_id = max(self._last_id, self._noted_id(directory))

    def _names(self, directory: str) -> list[str]:
        try:
            return self.files.names(directory)
        except OSError as error:
            if not is_disk_failure(error) or len(self._directories) == 1:
                raise
            self.notices.append(
                f"{directory} cannot be read ({error.strerror}): requests for what is stored there are answered with "
                "an error, and new entries go to the other ledger directories"
            )
            return []

    def _noted_id(self, directory: str) -> int:
        """Return the log id in a directory's `lastId`; 0: it is unreadable."""
        path = os.path.join(directory, log_format.LAST_ID_NAME)
        try:
            return log_format.decode_last_id(self.files.read_all(path)) or 0 if self.files.exists(path) else 0
        except OSError as error:
            if not is_disk_failure(error) or len(self._directories) == 1:
                raise
            self.notices.append(
                f"{path} cannot be read ({error.strerror}): entry logs get much higher numbers from now on"
            )
            return 0


class EntryLogs(StoredLogs):
    """Which entry logs exist, and in which directory. All threads of the storage share it.

    A new log goes to the directory that the caller names, or to the one with the most free space
    (`disks.directory_for_log`).
    """

    files: LocalFiles

    def __init__(
        self,
        files: LocalFiles,
        directories: Sequence[str],
        limits: DiskLimits | None = None,
        *,
        reserves: bool = False,
    ) -> None:
        """`directories`: the `current` directories of all ledger directories. `reserves`: see `EntryLogWriter`."""
        super().__init__(files, directories)
        self._reserves = reserves
        self._limits = limits or DiskLimits()
        self._numbering = threading.Lock()
        """Held while a new log gets its id."""
        self._creating = {directory: threading.Lock() for directory in directories}
        """For each directory, a lock that is held while a log is created in it."""
        self._appended: set[int] = set()
        """Logs that were written and are not rotated yet. Reduced by `rotate_appended`."""
        self._adopted: set[int] = set()
        """Logs that compaction wrote, until `rotate_adopted`."""
        self._full: frozenset[str] = frozenset()
        """Directories that were full at the last check. Replaced by `note_full`."""
        self._avoided: frozenset[str] = frozenset()
        """Directories that refused writes since the last `note_full`."""
        self._last_id = min(self._last_id + (_UNSEEN_LOGS_MAX if self.notices else 0), log_format.LOG_ID_MAX)
        """The highest id that a log has or had. No id is used twice, including ids of logs that cannot be seen now. It
        never decreases."""

    # ---- full disks ----

    def note_full(self, directories: frozenset[str]) -> None:
        """Record which directories were full at a check. Directories that refused writes may be tried again."""
        self._full = directories
        self._avoided = frozenset()

    def avoid(self, directory: str) -> None:
        """Record that a directory took no writes."""
        self._avoided |= {directory}

    def with_room(self, directories: Collection[str]) -> list[str]:
        """Return those of the directories that may get new entries, in configured order."""
        asked = [each for each in self._directories if each in directories]
        left = [each for each in asked if each not in self._avoided] or asked
        return directories_with_room(self._limits, self._spaces(left), self._full) if left else []

    def should_leave(self, log_id: int) -> bool:
        """Return whether entries must go to another log, because this one's directory is full and another is not."""
        return os.path.dirname(self._paths.get(log_id, "")) in self._full and len(self._full) < len(self._directories)

    # ---- creating ----

    @property
    def is_creating(self) -> bool:
        """Whether a log is being created."""
        return any(lock.locked() for lock in self._creating.values())

    def create(self, directory: str | None = None) -> EntryLogWriter:
        """Create the next log, with its header. It counts as not rotated until `rotate_appended`.

        Args:
            directory: the directory; None: the best one, or the next best if that has no space.

        Raises:
            OSError: nothing was created.
        """
        if directory is None:
            return self._create_somewhere("")
        return self._create_in(directory, self._next_id(), "", self._spaces([directory])[directory])

    def create_temporary(self, suffix: str) -> EntryLogWriter:
        """Create a log whose name has `suffix`. It does not count as a log before `adopt`.

        Raises:
            OSError: nothing was created.
        """
        return self._create_somewhere(suffix)

    def file_path(self, log_id: int, suffix: str) -> str:
        """Return the path of a file that is not a log yet, or no longer one; if it is found nowhere, a path at which a
        failing disk may hide it."""
        name = log_format.file_name(log_id) + suffix
        paths = [os.path.join(directory, name) for directory in self._directories]
        hidden: list[str] = []
        for path in paths:
            try:
                if self.files.exists(path):
                    return path
            except OSError as error:
                if not is_disk_failure(error):
                    raise
                hidden.append(path)
        return next(iter(hidden), paths[0])

    def adopt(self, log_id: int, suffix: str) -> None:
        """Give a temporary log its final name, durably. The file must be durable. The log counts as not rotated until
        `rotate_adopted`."""
        self._adopted.add(log_id)
        # A crash may have lost `lastId`, and a temporary log does not count.
        with self._numbering:
            self._last_id = max(self._last_id, log_id)
        path = self.file_path(log_id, suffix)
        directory = os.path.dirname(path)
        adopted = os.path.join(directory, log_format.file_name(log_id))
        self.files.rename(path, adopted)
        self.files.sync_directory(directory)
        self._paths[log_id] = adopted

    def discard(self, log_id: int) -> None:
        """Remove a log that no position points to yet."""
        path = self.path(log_id)
        if path is not None:
            with self._numbering:
                self.forget(log_id)
                self._appended.discard(log_id)
            self.files.remove(path)

    def rotate_appended(self, except_for: set[int], busy: Collection[str] = ()) -> None:
        """Record that the index is durable for all created logs except those that are still appended to.

        `busy`: directories in which logs may be created and appended to meanwhile.
        """
        with self._numbering:
            self._appended = {
                log_id
                for log_id in self._appended
                if log_id in except_for or os.path.dirname(self._paths.get(log_id, "")) in busy
            }

    def rotate_adopted(self, log_id: int) -> None:
        """Record that the index is durable for an adopted log."""
        self._adopted.discard(log_id)

    def rotated(self) -> list[int]:
        """Return the logs that only compaction may still change, because the index has all their positions."""
        return sorted(set(self._paths) - self._appended - self._adopted)

    def forget(self, log_id: int) -> None:
        """Remove a log from the list. Its file stays."""
        del self._paths[log_id]

    def _next_id(self) -> int:
        """Return the id of the next log. It is used only once, even if creating the file fails in the middle."""
        with self._numbering:
            if self._last_id == log_format.LOG_ID_MAX:
                raise StorageDamaged(
                    f"entry log {self._last_id:x} has the highest possible id, so no other can follow: stop this "
                    "bookie, and remove lastId from its ledger directories if it has a wrong number"
                )
            self._last_id += 1
            return self._last_id

    def _create_somewhere(self, suffix: str) -> EntryLogWriter:
        """Create the next log in the best directory, or in the next best if that has no space."""
        left = [directory for directory in self._directories if directory not in self._avoided] or self._directories
        spaces = self._spaces(left)
        while True:
            # Each attempt has an id of its own, because an attempt that fails may leave its file.
            log_id = self._next_id()
            directory = directory_for_log(self._limits, spaces, log_id, self._full)
            try:
                return self._create_in(directory, log_id, suffix, spaces[directory])
            except OSError as error:
                del spaces[directory]
                if not refuses_writes(error) or not spaces:
                    raise

    def _spaces(self, directories: Iterable[str]) -> dict[str, FileSystemSpace]:
        """Return the space of the directories whose disks answer, or of all if no disk answers."""
        spaces = {}
        for directory in directories:
            try:
                spaces[directory] = self.files.space(directory)
            except OSError as error:
                if not is_disk_failure(error):
                    raise
                spaces[directory] = UNKNOWN_SPACE
        return spaces

    def _create_in(self, directory: str, log_id: int, suffix: str, space: FileSystemSpace) -> EntryLogWriter:
        """Create a log in a directory. Without a suffix it counts as a log from then on."""
        with self._creating[directory]:
            file = self._create_file(directory, log_id, suffix)
            if not suffix:
                with self._numbering:
                    self._appended.add(log_id)
                    self._paths[log_id] = file.path
        # On a small or nearly full disk, reserved space would be missing for acknowledged entries.
        reserves = self._reserves and space.free_bytes >= self._limits.log_bytes_max
        return EntryLogWriter(log_id, file, reserves=reserves)

    def _create_file(self, directory: str, log_id: int, suffix: str) -> File:
        """Return a new file with the header of a log. Its name is durable.

        The header becomes durable with the first entries; nothing points here before them. If a crash tears `lastId`,
        the existing logs determine the highest id.
        """
        path = os.path.join(directory, log_format.file_name(log_id) + suffix)
        file = self.files.create(path)
        try:
            file.write([log_format.encode_header(log_id)], 0)
            last_id = os.path.join(directory, log_format.LAST_ID_NAME)
            # Another thread may have taken a higher id, and have written it here.
            self.files.replace(last_id, log_format.encode_last_id(self._last_id), durably=False)
            self.files.sync_directory(directory)
        except OSError:
            file.close()
            # If the disk refuses this, too, the file is a log without entries, which garbage collection removes.
            with contextlib.suppress(OSError):
                self.files.remove(path)
            raise
        return file
