"""The order in which the processes of a run of tests get them (pytest-xdist with `--no-loadscope-reorder`)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest


def arrange(items: list[pytest.Item], costly: Sequence[str]) -> None:
    """Sort the tests, and give the cheap ones of each file a group.

    A long group that comes last keeps one process busy while the others have ended. So groups of tests with a marker in
    `costly` come first, in the order of these markers, the largest of each first. Then comes each costly test without a
    group, alone. The many cheap tests come last, a file at a time: handing each out alone takes milliseconds, and the
    fixtures of its file would be set up several times.
    """
    places = {}
    for item in items:
        kind = next((number for number, marker in enumerate(costly) if item.get_closest_marker(marker)), len(costly))
        if not _group(item) and kind == len(costly):
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
