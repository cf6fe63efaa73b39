"""The program of repair commands, which `bkspark cluster` starts. It handles signals before it imports anything else.

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
    # Importing numpy and kazoo takes most of a second, in which a signal must not meet Python's own handlers.
    from bookie_service.admin.repair_commands import main

    sys.exit(main(sys.argv[1:], signals))
