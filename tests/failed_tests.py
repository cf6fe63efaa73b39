"""The tests that failed in the last run, from pytest's cache: `python -m tests.failed_tests` prints their names.

`.ci/run` runs a few failed tests once more, alone. A test that waits for a process or a browser can miss its limit
when the machine stalls. The first failure stays in the output, and the test is named, so its cause can be removed. Exit
code 1: no test failed, so the run ended for another reason; or more failed than a stall of the machine explains.

pytest-xdist adds the group of a test to its name in the cache, after an "@". `--last-failed` does not know such a
name and would run every test, so the cache is written again without groups.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

CACHE = Path(".pytest_cache/v/cache/lastfailed")

REPEATED_MAX = 3
"""How many failed tests are run once more."""


def failed_tests(cache: Path = CACHE) -> list[str]:
    """Return the names of the tests that failed in the last run, sorted; none if the cache has no such list."""
    return sorted(map(_without_group, json.loads(cache.read_text()))) if cache.exists() else []


def _without_group(name: str) -> str:
    test, at, group = name.rpartition("@")
    # An "@" of a parameter is followed by the "]" that ends the parameters.
    return test if at and "]" not in group else name


def main() -> int:
    failed = failed_tests()
    if failed:
        CACHE.write_text(json.dumps(dict.fromkeys(failed, True)))
    print("\n".join(failed))
    return 0 if 1 <= len(failed) <= REPEATED_MAX else 1


if __name__ == "__main__":
    sys.exit(main())
