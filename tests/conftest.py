"""Fixtures that many packages' tests share."""

from __future__ import annotations

import gc
import logging
import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests import arrangement, tiers, warm_starts

if TYPE_CHECKING:
    from bkspark.cli.zookeeper_process import ZooKeeperProcess
    from tests.cluster import Cluster


_PROCESSES_OF = {
    # What a fixture starts, as markers; all of it costs seconds.
    "spark": ("spark",),
    "machines": ("real_cluster", "spark", "cluster", "slow"),
    "shared_cluster": ("cluster",),
    "console_cluster": ("cluster",),
    "zookeeper": ("cluster",),
    "shared_apache_bookies": ("cluster", "interop"),
    "shared_peer": ("cluster", "interop"),
    "peer": ("cluster", "interop"),
}
_GROUPS = ("real_cluster", "spark", "interop", "cluster")
"""Tests that share such processes form groups (`_group`), by the first of these kinds that they need. The tests of a
group run in one of the test runner's processes."""
_COSTLY = (*_GROUPS, "slow")
"""Markers of tests that cost seconds. Each of them that is in no group is handed out alone."""
_CAMPAIGNS = ("chaos", "crash", "fuzzing", "histories", "mutation", "simulation", "soak")
"""Folders of statistical search and of long runs: all of their tests are slow."""
_PROGRAMS = {
    "bin/spark-submit": "spark",
    "org.apache.zookeeper": "cluster",
    "bkspark.interop": "interop",
}
"""Part of a command line, and the marker of a test that starts it."""

_LOGGERS_WITH_LEVELS = (None, "bookie_service.audit", "bkspark.kazoo")
"""The loggers whose levels programs set when they start; None: the root."""
_PARAMETER_CHARACTERS = 40
"""How many characters of a text or of bytes are in the name of a test."""

_running: list[pytest.Item] = []


def pytest_make_parametrize_id(val: object) -> str | None:
    """Name a long text by its beginning and length.

    Parameters have up to eight megabytes. Each process of a run collects the names of all tests and sends them.
    """
    if not isinstance(val, (str, bytes)) or len(val) <= _PARAMETER_CHARACTERS:
        return None
    beginning = val[:_PARAMETER_CHARACTERS]
    shown = beginning if isinstance(beginning, str) else beginning.decode("ascii", "backslashreplace")
    return f"{shown}...{len(val)}"


def pytest_configure(config: pytest.Config) -> None:
    """Let the processes of a run report less."""
    if hasattr(config, "workerinput"):
        from tests.distribution import send_less

        send_less(config)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Return what hands out the groups of tests; None: xdist chooses."""
    from tests.distribution import FastGroups

    return FastGroups(config, log) if config.getvalue("dist") == "loadgroup" else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Derive markers from fixtures and folders, so that deselecting a marker deselects all that it is about.

    Tests that share processes get a group; the rest may run anywhere, in any order.
    """
    for item in items:
        fixtures = set(_shared_fixtures(item))
        # A fixture with this parameter (`trees`) asks for the fixture of that name when it runs.
        fixtures |= {"zookeeper"} & {value for value in _parameters(item) if isinstance(value, str)}
        started = {marker for fixture in fixtures & set(_PROCESSES_OF) for marker in _PROCESSES_OF[fixture]}
        for marker in started:
            item.add_marker(marker)
        kind = next((kind for kind in _GROUPS if kind in started), None)
        if kind is not None:
            item.add_marker(pytest.mark.xdist_group(_group(kind, item.path, fixtures)))
        if item.path.parent.name in _CAMPAIGNS:
            item.add_marker("slow")
    config.stash[tiers.COLLECTED] = tiers.sort(items)
    if hasattr(config, "workerinput"):
        arrangement.arrange(items, _COSTLY)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[object]:
    """Search for no garbage while tests are collected: nearly all that is made then stays."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_finish() -> None:
    """Leave what was collected out of later searches for garbage: 14,000 tests make each of them 0.7 seconds long."""
    gc.collect()
    gc.freeze()


def _group(kind: str, path: Path, fixtures: set[str]) -> str:
    """Return the group of a test in a file that needs processes of a kind. The longest group bounds the whole run.

    A JVM with Spark takes ten seconds and a gigabyte: one for all tests. Apache's programs take seconds, and the
    console has a cluster of its own: one group for each folder. ZooKeeper and a cluster are cheap and last as long as
    the runner's process: one group for each file.
    """
    if kind == "spark":
        return kind
    is_for_a_folder = kind == "interop" or "console_cluster" in fixtures
    return f"{kind} {path.parent.name}" if is_for_a_folder else f"{kind} {path.parent.name}/{path.stem}"


def _shared_fixtures(item: pytest.Item) -> Iterable[str]:
    """Yield the names of the fixtures that a test uses, without those that only its own file defines."""
    found = getattr(item, "_fixtureinfo", None)
    for name, definitions in () if found is None else found.name2fixturedefs.items():
        if not all(each.baseid.endswith(".py") for each in definitions):
            yield name


def _parameters(item: pytest.Item) -> Iterable[object]:
    callspec = getattr(item, "callspec", None)
    return () if callspec is None else callspec.params.values()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Know which test runs, for `_check_program`."""
    _running.append(item)
    try:
        return (yield)
    finally:
        _running.remove(item)


def _check_program(event: str, arguments: tuple[Any, ...]) -> None:
    """Fail a test that starts a cluster, Spark or Apache's programs and is not marked so (a hook of sys.addaudithook).

    Otherwise `-m "not cluster"` would start clusters nevertheless.
    """
    if event != "subprocess.Popen" or not _running:
        return
    words = arguments[1] if isinstance(arguments[1], (list, tuple)) else [arguments[1]]
    command = " ".join(map(os.fsdecode, words))
    for part, marker in _PROGRAMS.items():
        if part in command and _running[-1].get_closest_marker(marker) is None:
            raise AssertionError(f"{_running[-1].nodeid} starts {part}: mark it @pytest.mark.{marker}")


sys.addaudithook(_check_program)
warm_starts.install()


@pytest.fixture(autouse=True)
def logging_as_it_was() -> Iterator[None]:
    """Commands that a test calls in this process turn logging off, or set levels: the next test may read it."""
    before = logging.root.manager.disable
    levels = [(logger, logger.level) for logger in map(logging.getLogger, _LOGGERS_WITH_LEVELS)]
    yield
    logging.disable(before)
    for logger, level in levels:
        logger.setLevel(level)


@pytest.fixture
def cold_starts() -> Iterator[None]:
    """Processes that the test starts have arguments and variables of their own in /proc."""
    with warm_starts.cold():
        yield


@pytest.fixture(scope="session")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperProcess]:
    """A ZooKeeper server for the whole run; it has no cluster in it."""
    from bkspark.cli.ports import free_ports
    from bkspark.cli.zookeeper_process import ZooKeeperProcess

    with ZooKeeperProcess(tmp_path_factory.mktemp("zookeeper"), port=free_ports(1)[0]) as server:
        yield server


@pytest.fixture(scope="session")
def short_spark(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Variables of the environment with which programs that start a Spark of their own cost less."""
    from tests.spark_settings import environment

    return environment(tmp_path_factory.mktemp("short-spark"))


@pytest.fixture(scope="session")
def shared_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """ZooKeeper and three of our bookies, for the whole run; tests take `cluster`."""
    from tests.cluster import Cluster

    with Cluster(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


@pytest.fixture
def cluster(shared_cluster: Cluster) -> Iterator[Cluster]:
    """Three of our bookies, all serving: `uri`, and `bookies` that a test may kill, pause and restart."""
    yield shared_cluster
    shared_cluster.revive()
