"""The file of authorization rules. It is read when the bookie starts, and again when it has changed.

If a changed file cannot be used, the rules stay as they are, and each change of the file is logged once. A file that
could not be opened or read is tried again: the process may have had too many open files, for example.
"""

from __future__ import annotations

import os
import stat

from bkspark.changed_files import stamp_of
from bkspark.errors import ConfigurationError
from bkspark.security.authorization import RULES_BYTES_MAX, Rules, RulesError, parse_rules

KEY = "authorizationRulesFile"


class RulesFile:
    """One file. Its methods wait for the disk."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._stamp: tuple[int, ...] | None = None
        """The state of the file when it was last read; None: it was missing, or was never read."""
        self._is_unread = False
        """Whether the system refused the last attempt to read the file."""

    def read(self) -> Rules:
        """Return the rules in the file. Raises ConfigurationError if it cannot be used."""
        self._stamp, self._is_unread = stamp_of(self.path), True
        try:
            with open(self.path, "rb", opener=_without_waiting) as file:
                mode = os.fstat(file.fileno()).st_mode
                data = file.read(RULES_BYTES_MAX + 1) if stat.S_ISREG(mode) else b""
        except OSError as error:
            raise ConfigurationError(f"{KEY}={self.path}: the file cannot be read: {error.strerror}") from None
        self._is_unread = False
        if not stat.S_ISREG(mode):
            raise ConfigurationError(f"{KEY}={self.path}: it is not a file")
        if mode & stat.S_IWOTH:
            raise ConfigurationError(
                f"{KEY}={self.path}: every user of this host can change it: run chmod o-w {self.path}"
            )
        try:
            return parse_rules(data)
        except RulesError as error:
            raise ConfigurationError(f"{KEY}={self.path}: {error}") from None

    def read_if_changed(self) -> Rules | None:
        """Return the rules if the file has changed since it was last read, else None. Raises ConfigurationError."""
        if stamp_of(self.path) != self._stamp:
            return self.read()
        if not self._is_unread:
            return None
        try:
            return self.read()
        except ConfigurationError:
            if self._is_unread:
                # The first attempt has reported it.
                return None
            raise


def _without_waiting(path: str, flags: int) -> int:
    """Open a file; a pipe without a writer, too, which is refused then."""
    return os.open(path, flags | os.O_NONBLOCK)
