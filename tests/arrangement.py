"""The order in which the processes of a run of tests get them (pytest-xdist with `--no-loadscope-reorder`)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest


def arrange(items: list[pytest.Item], costly: Sequence[str]) -> None:
    """Sort the tests. Give the cheap ones of each file a group, and those that share a set-up.

    A long group that comes last keeps one process busy while the others have ended. So groups of tests with a marker in
    `costly` come first, in the order of these markers, the largest of each first. Then comes each costly test without a
    group, alone. A costly test that uses a fixture of its file or folder which lasts longer than a test is not alone:
    each process that got such a test would set up the fixture again. The many cheap tests come last, a file at a time:
    handing each out alone takes milliseconds.
    """
    places = {}
    for item in items:
        kind = next((number for number, marker in enumerate(costly) if item.get_closest_marker(marker)), len(costly))
        if not _group(item) and (kind == len(costly) or _shares_set_up(item)):
            item.add_marker(pytest.mark.xdist_group(item.nodeid.partition("::")[0]))
        places[item] = (_group(item), kind)
    sizes = Counter(group for group, _ in places.values())

    def place(item: pytest.Item) -> tuple[bool, bool, int, int, str]:
        group, kind = places[item]
        return kind == len(costly), not group, kind, -sizes[group], group

    items.sort(key=place)


def _group(item: pytest.Item) -> str:
    marker = item.get_closest_marker("xdist_group")
    return "" if marker is None else str(marker.args[0])


def _shares_set_up(item: pytest.Item) -> bool:
    """Return whether the test uses a fixture of ours that several tests share."""
    found = getattr(item, "_fixtureinfo", None)
    definitions = () if found is None else (each for several in found.name2fixturedefs.values() for each in several)
    return any(each.scope != "function" and each.baseid for each in definitions)
