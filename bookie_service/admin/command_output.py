"""What commands of an operator print: results on stdout, progress on stderr."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping


def print_result(record: Mapping[str, object], sentence: str, *, as_json: bool) -> None:
    """Print the result of a command: a JSON object for programs, or a sentence for people."""
    print(json.dumps(record) if as_json else sentence, flush=True)


def print_progress(text: str) -> None:
    """Print one line of progress."""
    print(text, file=sys.stderr, flush=True)
