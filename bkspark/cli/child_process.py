"""A child process that never outlives its parent: started, waited for, ended.

The child leads its own process group, so a Ctrl-C at the terminal reaches only the parent, which ends its children in
the right order. When a child is ended, the rest of its group is ended with it. On Linux the kernel kills the child if
the parent dies before it can do so. The child's stderr goes to a log file; its stdout is a pipe of lines to the parent.
Its files and its log are readable by its user only, whatever the parent's umask is.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from bkspark.child_reports import ending
from bkspark.cli import private_files
from bkspark.errors import RequestTimeout
from bkspark.parent_death import die_with_parent

_READ_BYTES = 1 << 16
_LOG_TAIL_BYTES = 1 << 16


class ChildProcess:
    """One running child; `stop` or `kill` it, or use it as a context manager."""

    def __init__(
        self, name: str, command: Sequence[str], log_path: Path, *, environment: Mapping[str, str] | None = None
    ) -> None:
        """Start `command`. `name` is what messages call it; `log_path` is appended to.

        `environment` is added to the parent's own variables.

        The starting thread must live as long as the child is wanted: the kernel ties the child to it.
        """
        self.name = name
        self.log_path = log_path
        self._unread = b""
        """Output after the last line that `lines` returned."""
        with open(log_path, "ab", opener=private_files.opener) as log:
            self._log_start = log.tell()
            """Where this run begins in the log: earlier lines are not quoted. Constant."""
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                bufsize=0,
                env={**os.environ, **(environment or {})},
                process_group=0,
                umask=0o077,
                preexec_fn=die_with_parent(os.getpid()),
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """The exit code, negative for a signal; None while it runs."""
        return self._process.poll()

    def lines(self, deadline: float | None = None) -> Iterator[str]:
        """Yield the lines it prints on stdout until it closes that.

        Args:
            deadline: `time.monotonic()` at which to give up, or None to wait for ever.

        Raises:
            RequestTimeout: the deadline passed.
        """
        pipe = self._process.stdout
        assert pipe is not None
        while True:
            line, newline, rest = self._unread.partition(b"\n")
            if newline:
                self._unread = rest
                yield line.decode("utf-8", "replace")
                continue
            wait_s = None if deadline is None else max(0.0, deadline - time.monotonic())
            if not select.select([pipe], [], [], wait_s)[0]:
                raise RequestTimeout(f"{self.name} (pid {self.pid}) said nothing in time; its log is {self.log_path}")
            received = os.read(pipe.fileno(), _READ_BYTES)
            if not received:
                return
            self._unread += received

    def last_log_line(self) -> str:
        """Return the last line that this process left in its log, or an empty string."""
        with self.log_path.open("rb") as log:
            end = log.seek(0, os.SEEK_END)
            log.seek(max(self._log_start, end - _LOG_TAIL_BYTES))
            lines = log.read().decode("utf-8", "replace").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "")

    def ending(self) -> str:
        """Return how it ended, in words: `ended with exit code 1`, `was killed by SIGKILL`."""
        code = self.exit_code
        return "is running" if code is None else ending(code)

    def signal(self, number: int) -> None:
        """Send a signal; does nothing if the process has ended."""
        self._process.send_signal(number)

    def wait(self, timeout_s: float) -> bool:
        """Return whether it ended within the time."""
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return False
        return True

    def stop(self, timeout_s: float) -> None:
        """End the process with SIGTERM, and with SIGKILL when the time is over. Returns when its group has ended."""
        if self.exit_code is None:
            self.signal(signal.SIGTERM)
            if not self.wait(timeout_s):
                self.signal(signal.SIGKILL)
            self._end_group()
        self._close()

    def kill(self) -> None:
        """End it and its process group with SIGKILL and wait for its end."""
        if self.exit_code is None:
            self.signal(signal.SIGKILL)
            self._end_group()
        self._close()

    def _end_group(self) -> None:
        # If a Spark job is ended before its JVM has called back, the job does not know the JVM, which waits for ever:
        # end the group. The number of the group is certainly the child's only if the child ran until now.
        self._process.wait()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)

    def _close(self) -> None:
        if self._process.stdout is not None:
            self._process.stdout.close()
