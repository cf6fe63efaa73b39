"""The commands of docs/deployment.md, as they are on the page, on a cluster whose hosts have no bkspark."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from tests.polling import wait_until
from tests.real_cluster.deployment_page import WITH_ARCHIVE, blocks
from tests.real_cluster.machines import COMMAND_S, ROOT, START_S, Machines

pytestmark = pytest.mark.long(reason="it installs packages, and starts Spark on five hosts")

INSTALL_S = 600
LOGS = """
import sys
from pyspark.sql import SparkSession

spark = SparkSession.builder.getOrCreate()
print(spark.read.format("bookkeeper").options(uri=sys.argv[1], inspect="logs").load().count())
assert "bkspark" not in sys.modules
"""
"""A client of Spark Connect that does not import bkspark: the server looks for the source."""


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a user has cloned."""
    copy = tmp_path_factory.mktemp("sources")
    for package in ("bkspark", "bookie_service", "bkspark_console", "pyspark_bookkeeper", "requirements"):
        shutil.copytree(ROOT / package, copy / package, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("setup.cfg", "pyproject.toml", "README.md", "LICENSE", "NOTICE"):
        shutil.copy(ROOT / name, copy)
    return copy


@pytest.fixture(scope="module")
def built(machines: Machines, sources: Path) -> Path:
    """The sources, after the page's commands that fetch packages: the hosts of the cluster cannot reach an index."""
    environment = {**os.environ, **machines.client_variables()}
    command = ["bash", "-euo", "pipefail", "-c", blocks(WITH_ARCHIVE, "sh")[0]]
    done = subprocess.run(
        command, cwd=sources, env=environment, capture_output=True, text=True, timeout=INSTALL_S, check=False
    )
    if "No matching distribution" in done.stderr:
        pytest.skip(f"pip finds no packages: {done.stderr.splitlines()[-1]}")
    assert done.returncode == 0, done.stderr[-4000:]
    return sources


def variables(machines: Machines, folder: Path, **more: object) -> dict[str, str]:
    """Return the environment that the page takes for granted; the driver's settings are files in `folder`."""
    configuration = folder / "conf"
    configuration.mkdir(exist_ok=True)
    lines = [f"{name} {value}\n" for name, value in machines.settings().items() if name != "spark.master"]
    (configuration / "spark-defaults.conf").write_text("".join(lines))
    given = {"MASTER": machines.master, "BKSPARK_URI": machines.uri, "SPARK_CONF_DIR": configuration, **more}
    return {name: str(value) for name, value in given.items()}


def commands(text: str) -> list[object]:
    """Return the command line that runs commands of the page, without the variables that it says not to set."""
    unset = ["env", "--unset=PYSPARK_PYTHON", "--unset=PYSPARK_DRIVER_PYTHON"]
    return [*unset, "timeout", COMMAND_S, "bash", "-euo", "pipefail", "-c", text]


def write_program(folder: Path) -> None:
    """Write the page's `job.py`, with logs of its own."""
    (program,) = blocks(WITH_ARCHIVE, "python")
    prefix = uuid.uuid4().hex[:12]
    for log in ("clicks", "copy"):
        assert f'log="{log}"' in program
        program = program.replace(f'log="{log}"', f'log="{prefix}-{log}"')
    (folder / "job.py").write_text(program)


def test_hosts_of_the_cluster_have_neither_bkspark_nor_its_packages(machines: Machines, tmp_path: Path) -> None:
    """Otherwise the tests below would show nothing."""
    program = "import importlib.util as u; print([n for n in ('bkspark', 'crc32c', 'kazoo') if u.find_spec(n)])"
    assert machines.run("client", ["python3", "-c", program], cwd=tmp_path).strip() == "[]"


def test_wheel_and_archive_take_bkspark_to_driver_and_executors(
    machines: Machines, built: Path, tmp_path: Path
) -> None:
    write_program(built)
    command = blocks(WITH_ARCHIVE, "sh")[1]
    given = variables(machines, built, CHECKPOINT=tmp_path / "checkpoint")
    said = machines.run("client", commands(command), given, built)
    assert said.splitlines()[-1] == "1000 1000"


def test_a_client_of_spark_connect_reads_writes_and_streams(machines: Machines, built: Path, tmp_path: Path) -> None:
    pytest.importorskip("grpc_status", reason="pip install '.[connect]'")
    write_program(tmp_path)
    start, run = blocks("Spark Connect", "sh")
    address = machines.host("client").address
    log = tmp_path / "server.log"
    given = variables(machines, built)
    with machines.start(commands(f"cd {built}; {start}"), log, given) as server:
        wait_until(lambda: "Spark Connect server started" in log.read_text() or server.exit_code, "the server", START_S)
        assert server.exit_code is None, log.read_text()[-4000:]
        # The client is another host, with an environment of its own.
        client = {
            "SERVER": address,
            "SPARK_REMOTE": f"sc://{address}:15002",
            "BKSPARK_URI": machines.uri,
            "CHECKPOINT": str(tmp_path / "checkpoint"),
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": os.environ.get("PYTHONPATH", ""),
        }
        said = machines.run("master", commands(run), client, tmp_path)
        without_bkspark = machines.run("master", [sys.executable, "-c", LOGS, machines.uri], client, tmp_path)
    assert said.splitlines()[-1] == "1000 1000"
    assert int(without_bkspark.splitlines()[-1]) >= 2
