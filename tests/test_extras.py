"""Each part of the product runs with the packages of its own extra alone: a bookie has neither pyspark nor pyarrow."""

from __future__ import annotations

import ast
import configparser
import re
import sys
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from bkspark.extras import EXTRAS, explain
from tests.missing_packages import run_module_without, run_without
from tests.sources import GROUP, nodes_of, python_files

ROOT = Path(__file__).parent.parent
PACKAGES = ("bkspark", "bookie_service", "bkspark_console", "pyspark_bookkeeper")
IMPORTED_AS = {"opentelemetry-api": "opentelemetry", "protobuf": "google"}
"""Distributions whose module has another name."""

SPARK = ["msgpack", "pyarrow", "pyspark"]


def required(extra: str | None) -> set[str]:
    """Return the modules that an extra needs by setup.cfg, or the ledger client."""
    options = configparser.ConfigParser(inline_comment_prefixes=("#",))
    options.read(ROOT / "setup.cfg")
    text = options["options"]["install_requires"] if extra is None else options["options.extras_require"][extra]
    names = (re.match(r"[\w.-]+", line) for line in text.split("\n") if line.strip())
    return {IMPORTED_AS.get(name[0], name[0]) for name in names if name is not None} - {"bkspark"}


def imported() -> set[str]:
    """Return the first names of all modules that the product imports, inside functions, too."""
    found: set[str] = set()
    for path in python_files(ROOT, PACKAGES):
        for node in nodes_of(path):
            if isinstance(node, ast.Import):
                found |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and not node.level:
                found.add((node.module or "").partition(".")[0])
    return found


@pytest.mark.xdist_group(GROUP)
def test_every_package_that_is_imported_is_required_by_exactly_one_extra_or_by_all() -> None:
    # pyspark brings py4j and pandas is what a Spark user may pass in; pkg_resources would be setuptools'.
    third_party = imported() - set(sys.stdlib_module_names) - {*PACKAGES, "py4j", "pandas"}
    assert third_party == required(None) | EXTRAS.keys()
    for module, extra in EXTRAS.items():
        assert module in required(extra)
        extras = ("avro", "bookie", "console", "kerberos", "spark", "tls", "tracing")
        assert [each for each in extras if module in required(each)] == [extra]


def test_a_bookie_requires_neither_spark_nor_arrow() -> None:
    assert required("bookie") == {"rocksdict", "h11"}
    assert not (required(None) | required("bookie")) & set(SPARK)


def test_a_client_of_spark_connect_requires_what_pyspark_asks_for() -> None:
    asked = [Requirement(text) for text in metadata.requires("pyspark") or ()]
    connect = {each.name for each in asked if each.marker is not None and each.marker.evaluate({"extra": "connect"})}
    assert "grpcio" in connect
    assert connect <= required(None) | required("spark") | required("connect")


def test_client_commands_bookie_and_repair_import_nothing_of_spark() -> None:
    modules = (
        "bkspark.client bkspark.blocking bkspark.cli.__main__ bkspark.cli.log bkspark.cli.cluster bkspark.cli.bench "
        "bookie_service.process bookie_service.admin.repair_commands bookie_service.admin.http.server "
        "bookie_service.storage.io.rocks bookie_service.admin.dump"
    )
    program = "import importlib, sys\nfor name in sys.argv[1].split(): importlib.import_module(name)"
    program = f"import sys; sys.argv = ['x', {modules!r}]\n{program}"
    done = run_without([*SPARK, "fastavro", "pandas", "setuptools", "pkg_resources"], program)
    assert done.returncode == 0, done.stderr


def test_a_name_that_needs_spark_says_which_extra_brings_it() -> None:
    done = run_without(SPARK, "import bkspark; bkspark.session()")
    last = done.stderr.strip().splitlines()[-1]
    assert last == (
        "ModuleNotFoundError: bkspark.session needs Spark; pyspark is not installed: pip install 'bkspark[spark]'"
    )


def test_a_local_cluster_without_pyspark_says_where_zookeeper_comes_from(tmp_path: Path) -> None:
    done = run_module_without(["pyspark"], "bkspark.cli", ["local", "--bookies", "1", "--dir", str(tmp_path / "local")])
    assert done.returncode == 2
    assert "pip install 'bkspark[spark]'" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_module_of_no_extra_is_not_explained() -> None:
    assert explain(ModuleNotFoundError("No module named 'x'", name="x")) is None
    assert explain(ModuleNotFoundError("No module named 'h11._x'", name="h11._x")) is not None
