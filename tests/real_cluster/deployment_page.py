"""The blocks of docs/deployment.md, which tests run as they are."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "deployment.md"
WITH_ARCHIVE = "With `--py-files` and an archive"


def blocks(heading: str, language: str) -> list[str]:
    """Return the blocks of a language below a heading of the page."""
    _, _, section = PAGE.read_text().partition(f"\n## {heading}\n")
    assert section, heading
    return re.findall(rf"```{language}\n(.*?)```", section.partition("\n## ")[0], re.DOTALL)
