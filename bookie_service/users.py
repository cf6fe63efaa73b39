"""Users and groups of this host: who runs the bookie, and whom configuration keys name."""

from __future__ import annotations

import os
import pwd


def current_user() -> str:
    """Return the name of the user that this process runs as, its number where it has no name."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())
