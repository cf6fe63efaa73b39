"""A file of keys for options of Spark."""

from __future__ import annotations

import base64
from pathlib import Path


def key_file(path: Path, *key_ids: str, octet: int = 7) -> str:
    lines = [f"{name} {base64.b64encode(bytes([octet]) * 31 + name.encode()[-1:]).decode()}\n" for name in key_ids]
    path.write_text("".join(lines))
    return str(path)
