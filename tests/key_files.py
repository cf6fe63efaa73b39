"""Key files of encrypted ledgers for tests."""

from __future__ import annotations

import base64
import os
from pathlib import Path


def new_key_file(path: Path, *key_ids: str) -> str:
    """Append a random key for each id, and return the name of the file."""
    with path.open("a") as file:
        for key_id in key_ids or ("2026-11",):
            file.write(f"{key_id} {base64.b64encode(os.urandom(32)).decode()}\n")
    return str(path)
