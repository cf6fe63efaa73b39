"""Cycles of imports among modules."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

Targets = Mapping[str, Sequence[str]]
"""What each module imports; modules that are not a key are passed over."""


def cycles(targets: Targets) -> Iterator[list[str]]:
    """Yield import cycles, each as its modules with the first one repeated at the end."""
    finished: set[str] = set()
    for start in targets:
        yield from _cycles_from(start, targets, [], finished)


def _cycles_from(name: str, targets: Targets, trail: list[str], finished: set[str]) -> Iterator[list[str]]:
    if name in trail:
        yield [*trail[trail.index(name) :], name]
        return
    if name in finished:
        return
    trail.append(name)
    for target in targets[name]:
        if target in targets:
            yield from _cycles_from(target, targets, trail, finished)
    trail.pop()
    finished.add(name)
