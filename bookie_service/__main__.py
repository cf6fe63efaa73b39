"""The entry point of a bookie: answers to signals before anything else is imported.

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
"""How --check and --collect begin, and other commands that run no bookie. Arguments are not parsed yet."""

if __name__ == "__main__":
    signals = ShutdownSignals(is_command=any(argument.startswith(_COMMANDS) for argument in sys.argv[1:]))
    signals.begin()
    # numpy and kazoo take a good part of a second to import; a signal in that time must not find Python's own handlers.
    from bookie_service.process import main

    sys.exit(main(sys.argv[1:], signals))
