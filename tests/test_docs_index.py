"""docs/README.md leads to every page."""

from __future__ import annotations

import re
from pathlib import Path

DOCS = Path(__file__).parent.parent / "docs"


def test_every_page_is_in_the_index_once_and_numbered_in_order() -> None:
    lines = re.findall(r"^(\d+)\. \[([\w-]+\.md)\]\(\2\): ", (DOCS / "README.md").read_text(), re.MULTILINE)
    assert [int(number) for number, _ in lines] == list(range(1, len(lines) + 1))
    assert sorted(page for _, page in lines) == sorted(path.name for path in DOCS.glob("*.md") if path.stem != "README")
