"""What is made of some files, and made again when one of them has changed."""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from bkspark.errors import ConfigurationError

T = TypeVar("T")
Clock = Callable[[], float]


@dataclass(frozen=True, slots=True)
class Says:
    """Log lines. kept: the beginning of the one for changed files that cannot be used; changed: of used ones."""

    kept: str
    changed: str


class ChangedFiles(Generic[T]):
    """The newest value that could be made of some files. For one thread.

    While changed files cannot be used the value stays, with one log line, and they are tried again at each look: a key
    may be replaced before its certificate.
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
        """Make the first value; `refresh_s`: the files are looked at again after this time, 0: never.

        Raises:
            ConfigurationError: `make` raised it.
        """
        self._paths = paths
        self._make = make
        self._refresh_s = refresh_s
        self._says = says
        self._logger = logger
        self._clock = clock
        self._stamps = self._tried = self._look()
        """The state of the files when a value was last tried: the same failure is logged once."""
        """The state of the files that `_value` was made of."""
        self._value = make()
        """The newest value that could be made."""
        self._looked_at = clock()
        """When the files were last looked at."""

    def current(self) -> T:
        """Return the value for something that begins now."""
        now = self._clock()
        if self._refresh_s and now - self._looked_at >= self._refresh_s:
            self._looked_at = now
            stamps = self._look()
            if stamps != self._stamps:
                self._make_again(stamps)
        return self._value

    def _make_again(self, stamps: tuple[object, ...]) -> None:
        try:
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
        return tuple(map(_stamp, self._paths))


def _stamp(path: str) -> tuple[int, int, int]:
    """Return what changes when a file is written or replaced; a file that is missing has a stamp, too."""
    with contextlib.suppress(OSError):
        found = os.stat(path)
        return found.st_mtime_ns, found.st_size, found.st_ino
    return 0, 0, 0
