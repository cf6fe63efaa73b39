"""Operators' changes to a running process, and the one rule for an unexpected error of theirs.

The rule holds however a change was requested: by the control socket, HTTP, a signal, a file that is followed. Only an
error that may have left state half changed ends the process. Other errors, such as that of a check before the change or
of the answer after it, fail the request alone.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from bkspark.errors import BookKeeperError, ConfigurationError


class Changes:
    """Knows how to end the process."""

    def __init__(self, fail: Callable[[BaseException], None]) -> None:
        """`fail(error)` ends the process because of an error."""
        self._fail = fail

    @contextlib.contextmanager
    def half_done(self) -> Iterator[None]:
        """Between the beginning of the context and its end, state may be half changed.

        An unexpected error in it ends the process, and is raised again. Errors that the change documents do not.
        """
        try:
            yield
        except (BookKeeperError, ConfigurationError, OSError):
            raise
        except Exception as error:
            self._fail(error)
            raise
