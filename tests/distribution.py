"""Fewer messages and searches in a run with several processes (pytest-xdist).

A process sends six messages for each test: it begins, three reports, it ends, and it is done. Three of them say nothing
that is shown: that it begins, and that a set-up or a tear-down passed at once. All others are sent when pytest makes
them, so that a process which ends itself in a tear-down has reported how the test ended. The process that hands out the
tests searches the list of all tests for each of them, and adds up all that it has handed out before.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, SupportsIndex

import pytest
from xdist.scheduler import LoadGroupScheduling

_SHOWN_S = 0.005
"""`--durations` hides what takes less."""


def send_less(config: pytest.Config) -> None:
    """Leave out what is not shown, in a process that runs tests. With -v each test gets a line when it begins."""
    if config.get_verbosity(pytest.Config.VERBOSITY_TEST_CASES) > 0:
        return
    plugins: Iterable[Any] = config.pluginmanager.get_plugins()
    interactor = next((each for each in plugins if type(each).__name__ == "WorkerInteractor"), None)
    if interactor is None:
        return  # This xdist calls it something else: all is sent.
    send = interactor.sendevent

    def send_shown(name: str, **facts: Any) -> None:
        if is_shown(name, facts):
            send(name, **facts)

    interactor.sendevent = send_shown


def is_shown(name: str, facts: Mapping[str, Any]) -> bool:
    """Return whether a message says more than that a test begins, or that its set-up or tear-down passed at once."""
    if name == "logstart":
        return False
    report = facts.get("data")
    return (
        name != "testreport"
        or report is None
        or report["when"] == "call"
        or report["outcome"] != "passed"
        or report["duration"] >= _SHOWN_S
        or bool(report["sections"])
    )


class FastGroups(LoadGroupScheduling):
    """Hands out groups of tests as `--dist loadgroup` does. A step looks only at the tests of its process's groups.

    It neither searches the list of all tests nor counts the groups that are done.
    """

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
