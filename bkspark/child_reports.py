"""What the parent of a bookie's process learns from it: the line that it prints when it serves, and how it ended."""

from __future__ import annotations

import json
import signal
from typing import Any


def facts_in(line: bytes | str) -> dict[str, Any] | None:
    """Return the JSON object that a bookie prints with --json when it serves; None: the line is something else.

    Libraries may print, too, and the parent must not end because of that.
    """
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) and isinstance(found.get("id"), str) else None


def ending(code: int) -> str:
    """Return how a process ended in words: `ended with exit code 1`, `was killed by SIGKILL`.

    Args:
        code: the exit code; below 0: the negative number of the signal that killed the process.
    """
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        # Signals between SIGRTMIN and SIGRTMAX have numbers alone.
        return f"was killed by signal {-code}"
