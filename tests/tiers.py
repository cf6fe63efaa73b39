"""The two tiers of tests: `make test` runs the ordinary ones, `make test-long` the long ones, `make test-all` both.

    @pytest.mark.long(reason="...")                  this test, or the parameter whose marks have it, is long
    @pytest.mark.long_except("a-1", reason="...")    it is long, except with the parameters of these ids

A test is long if it repeats with other parameters what an ordinary one shows from end to end, or if it needs more than
about ten seconds of processor time and another test guards the same path. A few whole runs that nothing else shows are
long, too, and `.ci/run` has them: their reason says so.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

import pytest


@dataclass
class Tiers:
    """The tests that were collected, before any was deselected: `path::function` and the ids of its parameters."""

    ordinary: defaultdict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    long: defaultdict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    excepted: dict[str, set[str]] = field(default_factory=dict)
    """The ids that a function's `long_except` names."""

    @property
    def files(self) -> set[str]:
        """The files in which tests were collected."""
        return {_file(function) for function in {*self.ordinary, *self.long}}

    @property
    def files_with_ordinary_tests(self) -> set[str]:
        return {_file(function) for function in self.ordinary}

    def unknown_exceptions(self) -> dict[str, set[str]]:
        """Return what `long_except` names and no parameter has as its id."""
        unknown = {
            function: ids - self.ordinary.get(function, set()) - self.long.get(function, set())
            for function, ids in self.excepted.items()
        }
        return {function: ids for function, ids in unknown.items() if ids}


COLLECTED = pytest.StashKey[Tiers]()
"""Where the configuration of a run has them."""


def sort(items: Iterable[pytest.Item]) -> Tiers:
    """Mark the tests of the long tier `long`, and `slow`, too. Return both tiers.

    Raises:
        pytest.UsageError: a marker states no reason.
    """
    tiers = Tiers()
    for item in items:
        function, _, parameters = item.nodeid.partition("[")
        parameters = parameters.removesuffix("]")
        exception = item.get_closest_marker("long_except")
        if exception is not None:
            tiers.excepted[function] = set(exception.args)
            if parameters not in exception.args:
                item.add_marker(pytest.mark.long(reason=_reason(item, exception)))
        marker = item.get_closest_marker("long")
        if marker is None:
            tiers.ordinary[function].add(parameters)
        else:
            _reason(item, marker)
            item.add_marker("slow")
            tiers.long[function].add(parameters)
    return tiers


def _reason(item: pytest.Item, marker: pytest.Mark) -> str:
    reason = marker.kwargs.get("reason")
    if not isinstance(reason, str) or not reason.strip():
        raise pytest.UsageError(f'{item.nodeid}: say why it is {marker.name}: @pytest.mark.{marker.name}(reason="...")')
    return reason


def _file(function: str) -> str:
    return function.partition("::")[0]
