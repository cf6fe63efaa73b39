"""Spark starts its workers with PYSPARK_PYTHON or the PATH's python3: our code on the driver fixes or explains it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from bkspark import interpreter
from bkspark.spark import python_workers
from tests.spark_settings import SHORT_JVM

if TYPE_CHECKING:
    from bkspark.blocking import Client
    from tests.cluster import Cluster

SESSION = """
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
"""
READ = """
spark.sparkContext.setLogLevel("OFF")
rows = spark.read.format("bookkeeper").options(uri={uri!r}, log={log!r}).load()
print("rows", rows.count())
"""


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a user who runs `path/to/python script.py`: the PATH's python3 has no packages."""
    other = tmp_path_factory.mktemp("bin") / "python3"
    other.write_text(f'#!/bin/sh\nexec "{sys.executable}" -I -S "$@"\n')
    other.chmod(0o755)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYSPARK_", "SPARK_"))}
    path = f"{other.parent}:/usr/bin:/bin"
    return {**kept, "PATH": path, "SPARK_LOCAL_IP": "127.0.0.1", "JDK_JAVA_OPTIONS": SHORT_JVM}


def run(environment: dict[str, str], program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=240, check=False
    )


@pytest.mark.long(reason="a JVM and workers of its own; below is what the import sets, and .ci/run has this one")
@pytest.mark.spark
@pytest.mark.cluster
@pytest.mark.slow
@pytest.mark.parametrize(
    "variables",
    [
        {},
        # As of a notebook that `pyspark` has started: Spark looks formats up with this program.
        {"PYSPARK_DRIVER_PYTHON": "/bin/false", "PYSPARK_PYTHON": sys.executable},
    ],
    ids=["none set", "driver's set"],
)
def test_importing_bkspark_before_the_session_lets_workers_find_the_source(
    cluster: Cluster, client: Client, environment: dict[str, str], variables: dict[str, str]
) -> None:
    log = f"interpreter-{len(variables)}"
    with client.log(log).open_for_writing() as writer:
        writer.append_many([b"a", b"b"])
    done = run(environment | variables, "import bkspark\n" + SESSION + READ.format(uri=cluster.uri, log=log))
    assert "rows 2" in done.stdout, done.stderr[-2000:]


@pytest.fixture(scope="module")
def late(environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """A program that makes its session before it imports bkspark, and then uses it in two ways."""
    calls = (
        "import bkspark, sys\n"
        "for call in (lambda: bkspark.register(spark), bkspark.session):\n"
        "    try: call()\n"
        "    except Exception as error: print(type(error).__name__, error, file=sys.stdout)\n"
    )
    done = run(environment, SESSION + calls)
    assert done.returncode == 0, done.stderr[-2000:]
    return done


@pytest.mark.spark
@pytest.mark.slow
def test_a_session_with_another_interpreter_is_refused_with_the_remedy(
    late: subprocess.CompletedProcess[str],
) -> None:
    lines = late.stdout.strip().splitlines()
    assert len(lines) == 2
    for line in lines:
        assert line.startswith("ConfigurationError Spark starts its Python workers with")
        assert "which cannot import bkspark (ModuleNotFoundError: No module named 'pyspark')" in line
        assert f"set PYSPARK_PYTHON={sys.executable} before the session is made" in line


@pytest.mark.spark
@pytest.mark.slow
def test_importing_bkspark_after_the_session_warns_of_what_will_happen(
    late: subprocess.CompletedProcess[str],
) -> None:
    """Spark's own error comes later, in more than a hundred lines, and names no remedy."""
    (line,) = (line for line in late.stderr.splitlines() if "RuntimeWarning" in line)
    assert "DATA_SOURCE_NOT_FOUND" in line
    assert "Import bkspark before the session is made" in line


@pytest.mark.long(reason="a JVM of its own; the test below has the same remedy on one host")
@pytest.mark.spark
@pytest.mark.slow
def test_executors_look_for_python_in_their_own_path_where_the_drivers_has_it(environment: dict[str, str]) -> None:
    """The folder of the driver's environment is not on the hosts of a cluster."""
    path = f"{os.path.dirname(sys.executable)}:/usr/bin:/bin"
    program = (
        "import bkspark, os\n"
        "spark = bkspark.session(master='local[1]', spark__ui__enabled='false')\n"
        "print('python', spark.sparkContext.pythonExec, os.environ.get('PYSPARK_PYTHON'))\n"
    )
    done = run({**environment, "PATH": path}, program)
    assert "python python3 None" in done.stdout, done.stderr[-2000:]


def test_the_interpreter_is_named_only_where_spark_would_start_another(environment: dict[str, str]) -> None:
    assert interpreter.name_interpreter(environment)
    assert environment["PYSPARK_PYTHON"] == sys.executable
    own = os.path.dirname(sys.executable)
    for kept in (
        {"PATH": environment["PATH"], "PYSPARK_PYTHON": "/usr/bin/python3"},
        {"PATH": environment["PATH"], "PYSPARK_GATEWAY_PORT": "1"},
        {"PATH": f"{own}:/usr/bin"},
        {"PATH": f"{own}:/usr/bin", "PYSPARK_DRIVER_PYTHON": "python3"},
        {"PATH": environment["PATH"], "PYSPARK_PYTHON": "python3", "PYSPARK_DRIVER_PYTHON": sys.executable},
    ):
        before = dict(kept)
        assert not interpreter.name_interpreter(kept)
        assert kept == before


def test_remedy_is_one_that_helps_where_the_jvm_runs_already() -> None:
    assert python_workers._moment({"PYSPARK_GATEWAY_PORT": "1"}).startswith("for spark-submit")
    assert "import bkspark before" in python_workers._moment({})


@pytest.mark.parametrize("program", ["jupyter", "/bin/false", "/no/such/file", "python3"])
def test_driver_program_that_is_not_this_interpreter_is_replaced(environment: dict[str, str], program: str) -> None:
    """Spark looks formats up with it. The driver itself runs already."""
    given = {"PATH": environment["PATH"], "PYSPARK_PYTHON": "kept", "PYSPARK_DRIVER_PYTHON": program}
    assert interpreter.name_interpreter(given)
    assert (given["PYSPARK_PYTHON"], given["PYSPARK_DRIVER_PYTHON"]) == ("kept", sys.executable)


@pytest.mark.parametrize(("python3", "is_named"), [("python3.11", False), ("other", True)])
def test_python_of_another_version_in_the_same_folder_is_another_interpreter(
    tmp_path: Path, python3: str, is_named: bool
) -> None:
    """As in /usr/bin: `python3` is the system's version, which lacks what was installed for the one that runs."""
    (tmp_path / "python3.11").symlink_to(Path(sys.executable).resolve())
    (tmp_path / "other").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "other").chmod(0o755)
    (tmp_path / "python3").symlink_to(python3)
    program = (
        "from bkspark.interpreter import name_interpreter; found = {'PATH': %r};"
        "print(name_interpreter(found), found.get('PYSPARK_PYTHON'))"
    )
    done = subprocess.run(
        [tmp_path / "python3.11", "-S", "-c", program % str(tmp_path)],
        env={"PATH": str(tmp_path), "PYTHONPATH": str(Path(__file__).parents[2]), "PYSPARK_PYTHON": "set"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == [str(is_named), str(tmp_path / "python3.11") if is_named else "None"]


def test_looking_for_sources_imports_little() -> None:
    """A worker that looks for sources has ten seconds to start: it imports pyspark's classes and no more."""
    program = (
        "import sys, pyspark.sql.datasource as _; before = set(sys.modules); import pyspark_bookkeeper as found;"
        "assert found.DefaultSource.name() == 'bookkeeper';"
        "added = set(sys.modules) - before; print(len(added), sorted(added & {'numpy', 'pyarrow', 'kazoo'}))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    count, _, heavy = done.stdout.strip().partition(" ")
    assert int(count) <= 20
    assert heavy == "[]"
