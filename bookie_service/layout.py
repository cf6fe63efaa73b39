"""Every directory and file name of a bookie, as Apache's bookies lay them out.

<journal directory>/current/   VERSION (cookie), <id>.txn
<ledger directory>/current/    VERSION, lastMark, lastMark.<i>, lastId, <hex>.log, <hex>/<hex>/<hex>.idx;
                               in the first one fencedDeleted, and compaction while one runs
"""

from __future__ import annotations

import os

CURRENT = "current"
COOKIE_NAME = "VERSION"


def current(directory: str) -> str:
    """Return where the files of a configured directory lie."""
    return os.path.join(directory, CURRENT)


def cookie_path(directory: str) -> str:
    return os.path.join(directory, CURRENT, COOKIE_NAME)
