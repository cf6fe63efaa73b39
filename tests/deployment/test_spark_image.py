"""deploy/spark.Dockerfile agrees with the sources, the lock file and docs/deployment.md. `images` runs it."""

from __future__ import annotations

import fnmatch
import re
import shlex
from pathlib import Path

import pyspark

from tests.real_cluster.machines import MASTER_MAIN, WORKER_MAIN
from tests.supply_chain import locks

ROOT = Path(__file__).parents[2]
DOCKERFILE = (ROOT / "deploy" / "spark.Dockerfile").read_text().replace("\\\n", " ")
PAGE = (ROOT / "docs" / "deployment.md").read_text()


def instructions(name: str) -> list[list[str]]:
    return [shlex.split(line)[1:] for line in DOCKERFILE.splitlines() if line.startswith(f"{name} ")]


def test_files_that_are_copied_exist_and_are_in_the_build_context() -> None:
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    allowed = [line[1:] for line in ignored if line.startswith("!")]
    copied = [source for words in instructions("COPY") if "--from=build" not in words for source in words[:-1]]
    assert copied
    for source in copied:
        assert (ROOT / source).exists(), source
        assert any(fnmatch.fnmatch(source, name) or source.startswith(f"{name}/") for name in allowed), source


def test_the_lock_file_has_spark_and_bkspark_is_installed_without_asking_an_index() -> None:
    assert "pyspark" in {locked.name for locked in locks.read("spark.txt")}
    installed = re.findall(r"pip (?:wheel|install|--python \S+ install) (.*?)(?:&&|\n)", DOCKERFILE)
    assert len(installed) == 4
    for options in installed:
        assert "--require-hashes" in options or "--no-deps" in options


def test_programs_that_the_image_names_are_in_pyspark() -> None:
    home = Path(pyspark.__file__).parent
    named = set(re.findall(r"/opt/spark/(\S+?)[\"\s]", DOCKERFILE + PAGE))
    assert named == {"bin/spark-class", "bin/spark-submit"}
    for program in named:
        assert (home / program).exists()


def test_master_and_worker_are_started_by_the_classes_that_the_tests_run() -> None:
    """tests/real_cluster starts them on every host."""
    assert instructions("CMD") == [[f"[{MASTER_MAIN}]"]]
    assert re.findall(r"bkspark-spark:0\.1\.0 (org\.\S+)", PAGE) == [MASTER_MAIN, WORKER_MAIN]


def test_the_image_runs_as_apaches_user() -> None:
    assert instructions("USER") == [["185"]]


def test_a_worker_keeps_its_applications_where_the_image_s_user_can_write() -> None:
    """Spark's default is a folder below SPARK_HOME: a worker started as docs/deployment.md does ended at once."""
    variables = dict(word.split("=", 1) for words in instructions("ENV") for word in words)
    made = re.search(r"install --directory --owner (\d+) .*?(\S+)\n", DOCKERFILE)
    assert made is not None
    assert made.groups() == (instructions("USER")[0][0], variables["SPARK_WORKER_DIR"])
