"""deploy/Dockerfile and its entry point, which runs here as it does in the image, on a real ZooKeeper."""

from __future__ import annotations

import contextlib
import fnmatch
import json
import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from bkspark.cli.child_process import ChildProcess
from bkspark.cli.ports import free_ports
from bkspark.cli.zookeeper_process import ZooKeeperProcess
from tests.bookie.child import START_S, STOP_S, ports_in_a_row

ROOT = Path(__file__).parents[2]
DOCKERFILE = (ROOT / "deploy" / "Dockerfile").read_text().replace("\\\n", " ")
ENTRY_POINT = ROOT / "deploy" / "entrypoint.sh"


def instructions(name: str) -> list[list[str]]:
    return [shlex.split(line)[1:] for line in DOCKERFILE.splitlines() if line.startswith(f"{name} ")]


def environment(**more: object) -> dict[str, str]:
    """What the image sets: bkspark's commands are on the PATH."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {"PATH": path, **{key: str(value) for key, value in more.items()}}


def run(*arguments: str, **variables: object) -> subprocess.CompletedProcess[str]:
    command = ["sh", str(ENTRY_POINT), *arguments]
    merged = {**os.environ, **environment(**variables)}
    return subprocess.run(command, capture_output=True, text=True, timeout=START_S, env=merged)


# ---- the Dockerfile ----


def test_files_that_are_copied_exist_and_are_in_the_build_context() -> None:
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    allowed = [line[1:] for line in ignored if line.startswith("!")]
    copied = [source for words in instructions("COPY") if "--from=build" not in words for source in words[:-1]]
    sources = [source for source in copied if not source.startswith("--")]
    assert sources
    for source in sources:
        assert (ROOT / source).exists(), source
        assert any(fnmatch.fnmatch(source, name) or source.startswith(f"{name}/") for name in allowed), source
    assert all((ROOT / name).exists() for name in allowed)


def test_the_image_runs_as_apaches_user_and_has_its_ports_and_a_health_check() -> None:
    assert instructions("USER") == [["10000"]]
    assert instructions("EXPOSE") == [["3181", "8080"]]
    assert re.search(r"^HEALTHCHECK .*entrypoint", DOCKERFILE, re.MULTILINE)
    assert ENTRY_POINT.stat().st_mode & 0o111


def test_nothing_of_spark_and_no_secret_is_put_into_the_image() -> None:
    assert "pyspark " not in DOCKERFILE.replace("pyspark_bookkeeper", "")
    assert not re.search(r"(?i)passw|token|secret", DOCKERFILE)


# ---- the entry point ----


@contextlib.contextmanager
def bookie(folder: Path, zookeeper: ZooKeeperProcess, root: str) -> Iterator[dict[str, str]]:
    """Run `entrypoint bookie` with Apache's variables; yield them."""
    (port,) = free_ports(1)
    variables = environment(
        # With spaces, as in a list that a person writes: the bookie did not start.
        BK_zkServers=f" {zookeeper.connect_string}, {zookeeper.connect_string} ",
        BK_CLUSTER_ROOT_PATH=root,
        BK_DATA_DIR=folder,
        PORT0=port,
        BK_advertisedAddress="127.0.0.1",
        BK_allowLoopback="true",
    )
    folder.mkdir()
    process = ChildProcess("bookie", ["sh", str(ENTRY_POINT), "bookie"], folder / "log", environment=variables)
    try:
        lines = process.lines(time.monotonic() + START_S)
        assert json.loads(next(lines))["created"] is True
        assert f"127.0.0.1:{port} serves" in next(lines)
        yield variables
    finally:
        process.stop(STOP_S)


@pytest.mark.cluster
def test_a_bookie_starts_with_the_variables_of_apaches_image(tmp_path: Path, zookeeper: ZooKeeperProcess) -> None:
    """It makes the cluster, stores below BK_DATA_DIR, and takes Apache's other name of the port."""
    root = f"/{tmp_path.name}"
    with bookie(tmp_path / "data", zookeeper, root) as variables:
        assert (tmp_path / "data" / "journal" / "current" / "VERSION").exists()
        assert (tmp_path / "data" / "ledgers" / "current" / "VERSION").exists()
        healthy = run("healthy", **variables)
        assert healthy.returncode == 0, healthy.stderr
        listed = run("cluster", "bookies", "--json", **variables)
        (found,) = json.loads(listed.stdout)["bookies"]
        assert found["id"] == f"127.0.0.1:{variables['PORT0']}"
        # `docker exec` in the running container.
        assert json.loads(run("bookie", "state", "--json", **variables).stdout)["phase"] == "serving"
        # Verbs about a bookie's files find its keys, as with Apache's image.
        files = run("shell", "listfilesondisc", "-txn", **variables)
        assert (files.returncode, ".txn" in files.stdout) == (0, True), files.stderr
        # A line end in a value began another key.
        odd = {**variables, "BK_passwd": "x\nBK_journalDirectories=/nowhere\\"}
        assert ".txn" in run("shell", "listfilesondisc", "-txn", **odd).stdout
        assert run("shell", "-ledgeridformat", "hex", "listledgers", **variables).returncode == 0
        assert run("shell", "nonsense", **variables).returncode == 255
        # Another start finds the cluster as it is.
        assert json.loads(run("init", **variables).stdout)["created"] is False
    assert run("healthy", **variables).returncode == 1
    assert run("healthy", HEALTH_CHECK_CMD="exit 7", **variables).returncode == 7
    assert "without effect" not in (tmp_path / "data" / "log").read_text()


def test_a_wrong_uri_ends_the_entry_point_and_is_not_tried_again() -> None:
    done = run("bookie", BK_metadataServiceUri="nonsense://x")
    assert done.returncode == 2
    assert "nonsense" in done.stderr


def test_without_a_cluster_the_entry_point_says_what_is_missing() -> None:
    done = run("bookie", BKSPARK_URI="", BK_metadataServiceUri="", BK_zkServers="")
    assert done.returncode == 2
    assert "no cluster is named" in done.stderr


@pytest.mark.parametrize(
    "words",
    [
        ("state",),
        ("--instances", "2", "--instance", "1", "state"),
        ("--instances=2", "state"),
        ("--set", "journalDirectories=/nowhere", "--log-level", "error", "--check"),
    ],
)
def test_commands_to_a_bookie_that_runs_do_not_wait_for_the_cluster(tmp_path: Path, words: tuple[str, ...]) -> None:
    """They are needed most when ZooKeeper is down, where the cluster is waited for without end."""
    done = run("bookie", *words, BKSPARK_URI="", BK_metadataServiceUri="", BK_zkServers="", BK_DATA_DIR=tmp_path)
    assert "no cluster is named" not in done.stderr
    assert done.returncode == 1, done.stderr


def test_other_commands_are_those_of_bkspark() -> None:
    assert run("--version").stdout.startswith("bkspark ")


# ---- several bookies in one container ----


class Container:
    """The entry point as process 1 of a namespace of its own, as in a container; commands run beside it."""

    def __init__(self, command: list[str], variables: dict[str, str], log: Path) -> None:
        self._variables = {**os.environ, **variables}
        self._lines: Iterator[str] = iter(())
        """What the entry point prints."""
        unshared = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
        self._process = ChildProcess("container", [*unshared, *command], log, environment=variables)

    def __enter__(self) -> Container:
        self._lines = self._process.lines(time.monotonic() + START_S)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()

    def printed(self) -> str:
        """Return the next line that the entry point prints."""
        return next(self._lines)

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        """`docker exec NAME entrypoint WORDS`."""
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text()
        inside = ["nsenter", "--target", children.split()[0], "--pid", "--mount", "--wd"]
        command = [*inside, "sh", str(ENTRY_POINT), *words]
        return subprocess.run(command, capture_output=True, text=True, timeout=START_S, env=self._variables)


@pytest.mark.cluster
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a namespace of processes")
def test_health_of_a_container_is_that_of_the_bookies_that_it_runs(tmp_path: Path, zookeeper: ZooKeeperProcess) -> None:
    """`healthy`: "exit code 0 if the bookie serves". With --instances, the directories are those of the instances."""
    first = ports_in_a_row(2)
    keys = tmp_path / "bookie.conf"
    keys.write_text(f"allowLoopback=true\nbookiePort={first}\nledgerDirectories={tmp_path}/ledgers\n")
    variables = environment(
        BK_zkServers=zookeeper.connect_string,
        BK_CLUSTER_ROOT_PATH=f"/{tmp_path.name}",
        BK_DATA_DIR=tmp_path,
        BK_bookiePort=first,
        BK_ledgerDirectories=tmp_path / "ledgers",
        BK_advertisedAddress="127.0.0.1",
    )
    command = ["sh", str(ENTRY_POINT), "bookie", "--config", str(keys), "--instances", "2", "--json"]
    with Container(command, variables, tmp_path / "log") as container:
        assert json.loads(container.printed())["created"] is True
        instances = json.loads(container.printed())["instances"]
        assert [each["instance"] for each in instances] == [1, 2]
        healthy = container.run("healthy")
        assert healthy.returncode == 0, healthy.stderr
        states = json.loads(healthy.stdout)["instances"]
        assert [(each["instance"], each["phase"]) for each in states] == [(1, "serving"), (2, "serving")]
        named = container.run("healthy", "--config", str(keys), "--instances", "2", "--instance", "2")
        assert named.returncode == 0, named.stderr
