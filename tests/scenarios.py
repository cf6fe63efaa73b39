"""Which tests play which historic bug (docs/reliability.md): protocol and client (P), bookie (S), hazards (X).

A test's name begins with its scenario's number. `python -m tests.scenarios` prints them as a table.
"""

from __future__ import annotations

import re
from pathlib import Path

SCENARIOS = (
    *(f"P{number:02d}" for number in range(1, 39)),
    *(f"S{number:02d}" for number in range(1, 40)),
    *(f"X{number:02d}" for number in range(1, 7)),
)
NOT_PLAYED: dict[str, str] = {}
"""Scenarios without a test, and why."""
_TEST = re.compile(r"^(?:    )?(?:async )?def (test_([psx]\d\d)_\w+)", re.MULTILINE)


def named_tests() -> dict[str, list[str]]:
    """Return the tests of every scenario, each as `file::name`."""
    root = Path(__file__).parent
    found: dict[str, list[str]] = {scenario: [] for scenario in SCENARIOS}
    for path in sorted(root.rglob("test_*.py")):
        for name, scenario in _TEST.findall(path.read_text()):
            found.setdefault(scenario.upper(), []).append(f"{path.relative_to(root.parent)}::{name}")
    return found


def main() -> None:
    for scenario, names in sorted(named_tests().items()):
        for name in names or [NOT_PLAYED.get(scenario, "NO TEST")]:
            print(f"{scenario}  {name}")


if __name__ == "__main__":
    main()
