"""What commands print: JSON objects and tables on stdout, progress and warnings on stderr.

stdout carries results only, so that `bkspark ... | other-program` never meets a progress line.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from bkspark.cli.text_columns import columns_of, padded
from bkspark.one_line import one_line


def print_json(record: Mapping[str, Any]) -> None:
    """Print one JSON object as one line on stdout and flush it: a program may be waiting for it."""
    print(json_text(record), flush=True)


def print_result(record: Mapping[str, Any], sentence: str, *, as_json: bool) -> None:
    """Print the result of a command: a JSON object for programs, or a sentence for people."""
    if as_json:
        print_json(record)
    else:
        print(sentence)


def json_text(value: object) -> str:
    """Return a value as commands print it: JSON on one line."""
    return json.dumps(value, separators=(", ", ": "), default=str)


def print_table(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Print rows in aligned columns on stdout; columns of numbers are right-aligned."""
    cells = [[_cell(value) for value in row] for row in rows]
    numeric = [bool(cells) and all(_is_number(row[i]) for row in cells) for i in range(len(header))]
    widths = [max([len(title), *(columns_of(row[i]) for row in cells)]) for i, title in enumerate(header)]
    for row in (list(header), *cells):
        columns = (padded(text, width, right=right) for text, width, right in zip(row, widths, numeric, strict=True))
        print("  ".join(columns).rstrip())
    sys.stdout.flush()


def print_facts(facts: Mapping[str, Any]) -> None:
    """Print `name  value` lines on stdout, names padded to one width."""
    width = max(map(len, facts), default=0)
    for name, value in facts.items():
        print(f"{name.ljust(width)}  {_cell(value)}")
    sys.stdout.flush()


def progress(text: str) -> None:
    """Print one line of progress on stderr."""
    print(text, file=sys.stderr, flush=True)


def human_bytes(count: int) -> str:
    """Return a byte count with a binary unit: `512 B`, `1.5 KiB`, `38.2 MiB`."""
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if size < 1024 or unit == "TiB":
            return f"{count} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    raise AssertionError("unreachable")


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:,.2f}"
    return one_line(", ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value))


def _is_number(text: str) -> bool:
    return text == "-" or text.replace(",", "").replace(".", "").lstrip("-").isdigit()
