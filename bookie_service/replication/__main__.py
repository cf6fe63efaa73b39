"""The entry point of repair, which `bkspark cluster` becomes: answers to signals before anything else is imported.

    python -m bookie_service.replication autorecovery|check|decommission ID|recover ID
        [--config FILE] [--set key=value]... [--json]

See `admin.repair_commands`.
"""

from __future__ import annotations

import sys

from bookie_service.admin.shutdown import ShutdownSignals

if __name__ == "__main__":
    signals = ShutdownSignals("bkspark cluster", is_command="autorecovery" not in sys.argv[1:2])
    signals.begin()
    # numpy and kazoo take a good part of a second, in which a signal must not find Python's own handlers.
    from bookie_service.admin.repair_commands import main

    sys.exit(main(sys.argv[1:], signals))
