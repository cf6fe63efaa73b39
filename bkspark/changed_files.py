"""A value that is made from files, such as a TLS context, and made again when one of them has changed."""

from __future__ import annotations

import contextlib
import logging
import os
import stat
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from bkspark.errors import ConfigurationError

T = TypeVar("T")
Clock = Callable[[], float]


@dataclass(frozen=True, slots=True)
class Says:
    """Texts of log lines.

    kept: the beginning of the warning that changed files cannot be used and the old value stays.
    changed: the line that says that changed files are used from now on.
    """

    kept: str
    changed: str


class ChangedFiles(Generic[T]):
    """The newest value that could be made from some files. For one thread.

    While changed files cannot be used, the old value stays, and one line is logged. They are tried again at each look,
    because a key may be replaced before its certificate. A pipe is read only for the first value, because reading it
    again would wait for a program that writes to it.
    """

    def __init__(
        self,
        paths: Sequence[str],
        make: Callable[[], T],
        refresh_s: float,
        says: Says,
        logger: logging.Logger,
        clock: Clock = time.monotonic,
    ) -> None:
        """Make the first value.

        Args:
            refresh_s: how long a look at the files stays valid; 0: they are never looked at again.

        Raises:
            ConfigurationError: `make` raised it.
        """
        self._paths = paths
        self._make = make
        self._refresh_s = refresh_s
        self._says = says
        self._logger = logger
        self._clock = clock
        self._stamps = self._look()
        """The state of the files that `_value` was made from. Changed together with it."""
        self._tried = self._stamps
        """The state of the files when making a value was last tried: the same failure is logged once."""
        self._value = make()
        """The newest value that could be made. Replaced by `current`."""
        self._looked_at = clock()
        """When the files were last looked at, by `clock`."""

    def current(self) -> T:
        """Return the newest value; look at the files first if the last look is older than `refresh_s`."""
        now = self._clock()
        if self._refresh_s and now - self._looked_at >= self._refresh_s:
            self._looked_at = now
            stamps = self._look()
            if stamps != self._stamps:
                self._make_again(stamps)
        return self._value

    def _make_again(self, stamps: tuple[object, ...]) -> None:
        try:
            pipe = next(filter(is_pipe, self._paths), None)
            if pipe is not None:
                raise ConfigurationError(f"{pipe} is a pipe, which is read only at the start")
            value = self._make()
        except ConfigurationError as error:
            if stamps != self._tried:
                self._logger.warning("%s: %s", self._says.kept, error)
            self._tried = stamps
            return
        except Exception:
            # The caller serves a client with what it has.
            if stamps != self._tried:
                self._logger.exception("%s: this is a defect", self._says.kept)
            self._tried = stamps
            return
        # The files may have changed again meanwhile: then the next look finds other stamps.
        self._value, self._stamps, self._tried = value, stamps, stamps
        self._logger.info(self._says.changed)

    def _look(self) -> tuple[object, ...]:
        return tuple(map(stamp_of, self._paths))


def is_pipe(path: str) -> bool:
    """Return whether a path names a pipe. Opening one waits for a program that writes to it."""
    with contextlib.suppress(OSError, ValueError):
        return stat.S_ISFIFO(os.stat(path).st_mode)
    return False


def stamp_of(path: str) -> tuple[int, int, int, int] | None:
    """Return values that change when a file is written, replaced or given other rights; None: it is missing."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    # The time of writing alone does not: programs that copy files set it to an earlier one.
    return found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino
