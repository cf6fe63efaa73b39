"""The operating system's limit of open files, which applies in addition to `openFileLimit`. It is often 1,024, too few
for many connections."""

from __future__ import annotations

import resource

from bkspark.errors import ConfigurationError

_OTHERS = 256
"""Files that other parts of the process may have open: journals, logs and index files being written, libraries."""
_LEAST = 16


def allowed_open_files(wanted: int, connections_max: int) -> int:
    """Raise the process's limit as far as possible; return how many files the storage may keep open for reading.

    This is `wanted`, or less if the limit leaves less beside the connections.

    Raises:
        ConfigurationError: the limit leaves too few files.
    """
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    if most == resource.RLIM_INFINITY:
        return wanted
    # If the limit is small, connections may use all of their share, but never that of the storage.
    left = max(most - _OTHERS - connections_max, (most - _OTHERS) // 2)
    if left < _LEAST:
        raise ConfigurationError(
            f"this process may have {most} files open, which is too few for a bookie: raise the limit (ulimit -Hn)"
        )
    return min(wanted, left)
