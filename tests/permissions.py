"""Looks for what other users of the host may reach."""

from __future__ import annotations

import os
import stat
from pathlib import Path


def open_to_others(folder: Path, *, group_id: int | None = None) -> list[str]:
    """Return `mode path` of what below a folder is not 0600 or 0700; with a group, not 0640 or 2750 and the group's."""
    wrong = []
    for parent, directories, files in os.walk(folder):
        for name in (*directories, *files):
            path = Path(parent, name)
            try:
                found = path.lstat()
            except FileNotFoundError:
                # The process that runs has given a new file its name, or removed one.
                continue
            mode = stat.S_IMODE(found.st_mode)
            if stat.S_ISDIR(found.st_mode):
                right = (0o700,) if group_id is None else (0o2750,)
            else:
                right = (0o600,) if group_id is None else (0o640, 0o600)
            if mode not in right or (group_id is not None and found.st_gid != group_id):
                wrong.append(f"{mode:04o} {found.st_gid} {path}")
    return wrong
