"""Fewer messages and searches in a run with several processes (pytest-xdist).

A process sends six messages for each test: it begins, three reports, it ends, and it is done. Four of them say nothing
that is shown, and cost as much as the others, both where they are made and where they are read. The process that hands
out the tests searches the list of all tests for each of them, and adds up all that it has handed out before.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, SupportsIndex

import pytest
from _pytest.runner import runtestprotocol
from xdist.scheduler import LoadGroupScheduling

_SHOWN_S = 0.005
"""`--durations` hides what takes less."""


class FewReports:
    """Runs the tests of one process. Set-ups and tear-downs that passed are reported only if they took time.

    With -v everything is reported, because each test gets a line when it begins.
    """

    @pytest.hookimpl
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
        if item.config.get_verbosity(pytest.Config.VERBOSITY_TEST_CASES) > 0:
            return None
        for report in runtestprotocol(item, log=False, nextitem=nextitem):
            if is_shown(report):
                item.ihook.pytest_runtest_logreport(report=report)
        return True


def is_shown(report: pytest.TestReport) -> bool:
    """Return whether a report says more than that a set-up or a tear-down has passed."""
    return report.when == "call" or not report.passed or report.duration >= _SHOWN_S or bool(report.sections)


class FastGroups(LoadGroupScheduling):
    """Hands out groups of tests as `--dist loadgroup` does. A step costs the same however many tests there are."""

    def add_node_collection(self, node: Any, collection: Sequence[str]) -> None:
        super().add_node_collection(node, collection)
        if node in self.registered_collections:
            self.registered_collections[node] = _Names(collection)

    def mark_test_complete(self, node: Any, item_index: int, duration: float = 0) -> None:
        group = self._split_scope(self.registered_collections[node][item_index])
        super().mark_test_complete(node, item_index, duration)
        if all(self.assigned_work[node][group].values()):
            del self.assigned_work[node][group]


class _Names(list[str]):
    """A list of different names that finds them by a dictionary."""

    def __init__(self, names: Iterable[str]) -> None:
        super().__init__(names)
        self._places = {name: place for place, name in enumerate(self)}

    def index(self, name: str, start: SupportsIndex = 0, stop: SupportsIndex = 0) -> int:
        return self._places[name]
