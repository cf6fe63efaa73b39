"""The long tier leaves no file and no claim of compatibility without an ordinary test, and says why a test is long."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pytest

from tests import tiers
from tests.interop import conformance, traps
from tests.tiers import Tiers

PULSAR = "the broker is not fetched by make test: make test-pulsar runs these"
ONLY_LONG = {
    "tests/benchmarks/test_large_logs.py": "nothing but a benchmark uses what it runs",
    "tests/bookie/test_full_home.py": "it fills a real disk; tests/crash fills simulated ones",
    "tests/chaos/test_chaos.py": "each run of .ci/run does this for three minutes",
    "tests/real_cluster/test_deployment_page.py": "it installs packages, and starts Spark on five hosts",
    "tests/spark/test_routed_kill.py": "test_kill.py has kills, tests/log has many logs, and .ci/run has both together",
    "tests/spark/test_secret_scan.py": "it is one complete run of Spark and of the commands, which .ci/run has",
    **{f"tests/interop/test_pulsar{part}.py": PULSAR for part in ("", "_closed", "_segments", "_streams", "_topics")},
}
"""Files whose tests are all long, and why."""


@pytest.fixture
def collected(pytestconfig: pytest.Config) -> Tiers:
    """The tests of this run, in whole files."""
    if any("::" in argument for argument in pytestconfig.args) or pytestconfig.getoption("lf", False):
        pytest.skip("only parts of files were collected")
    return pytestconfig.stash[tiers.COLLECTED]


def made(request: pytest.FixtureRequest, *marks: pytest.MarkDecorator, parameters: str = "") -> pytest.Item:
    """Return a test that is not run."""
    test: pytest.Item = pytest.Function.from_parent(
        request.node.parent, name=f"test_made[{parameters}]" if parameters else "test_made", callobj=lambda: None
    )
    for mark in marks:
        test.add_marker(mark)
    return test


@pytest.mark.parametrize("name", ["long", "long_except"])
def test_marker_is_registered(pytestconfig: pytest.Config, name: str) -> None:
    assert [line for line in pytestconfig.getini("markers") if line.startswith(f"{name}(")]


@pytest.mark.parametrize("marker", [pytest.mark.long, pytest.mark.long(reason=" "), pytest.mark.long_except("a")])
def test_marker_without_a_reason_ends_the_collection(
    request: pytest.FixtureRequest, marker: pytest.MarkDecorator
) -> None:
    with pytest.raises(pytest.UsageError, match=r"test_tiers\.py::test_made.*: say why it is long"):
        tiers.sort([made(request, marker)])


def test_long_test_is_slow_too(request: pytest.FixtureRequest) -> None:
    test = made(request, pytest.mark.long(reason="a campaign"))
    tiers.sort([test])
    assert test.get_closest_marker("slow") is not None


def test_parameters_that_are_excepted_stay_ordinary(request: pytest.FixtureRequest) -> None:
    mark = pytest.mark.long_except("a-1", "c-3", reason="each pair")
    both = [made(request, mark, parameters=parameters) for parameters in ("a-1", "b-1")]
    sorted_ = tiers.sort(both)
    name = both[0].nodeid.partition("[")[0]
    assert [test.get_closest_marker("long") is not None for test in both] == [False, True]
    assert (sorted_.ordinary, sorted_.long) == ({name: {"a-1"}}, {name: {"b-1"}})
    assert sorted_.unknown_exceptions() == {name: {"c-3"}}


def test_every_exception_is_a_parameter(collected: Tiers) -> None:
    assert collected.unknown_exceptions() == {}


def test_every_file_has_an_ordinary_test(collected: Tiers) -> None:
    assert sorted(collected.files - collected.files_with_ordinary_tests - set(ONLY_LONG)) == []
    assert sorted(set(ONLY_LONG) & collected.files_with_ordinary_tests) == []


def test_every_claim_of_compatibility_has_an_ordinary_test(collected: Tiers) -> None:
    """Those whose tests are in the run."""
    ordinary, long = set(collected.ordinary), set(collected.long)
    lacking = {claim for claim, tests in _claims() if tests & long and not tests & ordinary}
    assert lacking <= {f"item 10, {conformance.COLUMNS[conformance.JAVA_V2]}"}, PULSAR


def _claims() -> Iterator[tuple[str, set[str]]]:
    for item, columns in conformance.CELLS.items():
        for column, patterns in columns.items():
            yield f"item {item}, {conformance.COLUMNS[column]}", _functions(patterns)
    for item, patterns in conformance.OURS_ALONE.items():
        yield f"item {item}, ours alone", _functions(patterns)
    for trap, (_, patterns) in traps.TRAPS.items():
        yield f"trap {trap}", _functions(patterns)


def _functions(patterns: Iterable[str]) -> set[str]:
    return {f"{pattern.partition('::')[0]}::{name}" for pattern in patterns for name in conformance.tests_of(pattern)}
