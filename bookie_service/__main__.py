"""The program of a bookie. It handles signals before it imports anything else.

    python -m bookie_service [--config FILE] [--set key=value]... [--json] [--check | --collect | COMMAND]

See `process`.
"""

from __future__ import annotations

import sys

from bookie_service.admin.shutdown import ShutdownSignals

_COMMANDS = (
    "--ch",
    "--coll",
    "state",
    "read-only",
    "writable",
    "suspend",
    "resume",
    "set",
    "reload",
    "limbo",
    "restart",
)
"""How --check, --collect and other commands that run no bookie begin. Arguments are not parsed yet."""

if __name__ == "__main__":
    signals = ShutdownSignals(is_command=any(argument.startswith(_COMMANDS) for argument in sys.argv[1:]))
    signals.begin()
    # Importing numpy and kazoo takes most of a second, in which a signal must not meet Python's own handlers.
    from bookie_service.process import main

    sys.exit(main(sys.argv[1:], signals))
