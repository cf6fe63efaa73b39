"""A real terminal for tests: a window of tmux."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

needs_tmux = pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed")


class Terminal:
    """A tmux server of its own with one window, in which a command runs."""

    def __init__(self, directory: Path, width: int, height: int, command: str) -> None:
        self._socket = str(directory / "tmux")
        self("new-session", "-d", "-s", "top", "-x", str(width), "-y", str(height), command)

    def __call__(self, *words: str) -> str:
        # Curses takes LINES and COLUMNS for the size of the window, whatever that is: a test runner may set them.
        inherited = {name: value for name, value in os.environ.items() if name not in ("LINES", "COLUMNS")}
        environment = {**inherited, "TERM": "xterm-256color", "LC_ALL": "C.UTF-8"}
        line = ["tmux", "-f", "/dev/null", "-S", self._socket, *words]
        done = subprocess.run(line, capture_output=True, text=True, timeout=60, env=environment, check=False)
        return done.stdout

    def screen(self) -> str:
        return self("capture-pane", "-p", "-t", "top")

    def end(self) -> None:
        self("kill-server")
