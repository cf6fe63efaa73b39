"""`pip install .` gives all of it: the wheel holds every module and data file, and the commands start from it."""

from __future__ import annotations

import email
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import bkspark

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent
PACKAGES = ("bkspark", "bookie_service", "bkspark_console", "pyspark_bookkeeper")
LICENSE_FILES = ("LICENSE", "NOTICE")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from a copy of the sources: a build leaves files beside what it reads."""
    copy = tmp_path_factory.mktemp("sources")
    for package in PACKAGES:
        shutil.copytree(ROOT / package, copy / package, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("setup.cfg", "pyproject.toml", "README.md", *LICENSE_FILES):
        shutil.copy(ROOT / name, copy)
    target = tmp_path_factory.mktemp("wheel")
    build = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--no-deps",
        "--no-build-isolation",
        "--no-index",
        "-w",
        target,
        copy,
    ]
    done = subprocess.run(list(map(str, build)), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (built,) = target.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel unpacked: what pip would put among the site packages."""
    target = tmp_path_factory.mktemp("installed")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(target)
    return target


def test_every_source_file_is_in_the_wheel(installed: Path) -> None:
    sources = {
        path.relative_to(ROOT)
        for package in PACKAGES
        for path in (ROOT / package).rglob("*")
        if path.suffix in (".py", ".proto") or path.name == "py.typed"
    }
    assert not [path for path in sorted(sources) if not (installed / path).is_file()]


def test_type_checkers_take_the_annotations_of_the_wheel(installed: Path) -> None:
    """PEP 561: without this file they skip the package, so wrong typed options pass."""
    for package in PACKAGES:
        assert (installed / package / "py.typed").read_bytes() == b"", package


def test_nothing_else_is_in_the_wheel(installed: Path) -> None:
    folders = {path.name for path in installed.iterdir()}
    assert folders == {*PACKAGES, *(name for name in folders if name.endswith(".dist-info"))}


def test_the_wheel_says_its_version_and_carries_its_licence(installed: Path) -> None:
    """One version: that of the package, of the metadata that pip reads, and of the newest section of CHANGELOG.md."""
    (folder,) = installed.glob("*.dist-info")
    metadata = email.message_from_string((folder / "METADATA").read_text())
    assert metadata["Version"] == bkspark.__version__
    newest = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert newest is not None
    assert newest[1] == bkspark.__version__
    for name in LICENSE_FILES:
        (carried,) = folder.rglob(name)
        assert carried.read_text() == (ROOT / name).read_text()


@pytest.mark.parametrize("module", ["bkspark.cli", "bookie_service"])
def test_the_command_starts_from_the_wheel(installed: Path, tmp_path: Path, module: str) -> None:
    program = f"import runpy; sys.argv = ['x', '--help']; runpy.run_module({module!r}, run_name='__main__')"
    assert "usage" in _run(installed, tmp_path, program).lower()


def test_spark_can_import_the_format_from_the_wheel(installed: Path, tmp_path: Path) -> None:
    program = "import pyspark_bookkeeper; print(pyspark_bookkeeper.__file__, pyspark_bookkeeper.DefaultSource)"
    assert _run(installed, tmp_path, program).startswith(str(installed))


def _run(installed: Path, folder: Path, program: str) -> str:
    """Return what a program prints that finds the wheel's modules before the sources."""
    program = f"import sys; sys.path.insert(0, {str(installed)!r}); {program}"
    done = subprocess.run([sys.executable, "-P", "-c", program], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_generated_modules_load_with_the_oldest_protobuf_that_setup_allows() -> None:
    """protobuf refuses a module that a newer version generated (cross-version runtime guarantee)."""
    (oldest,) = re.findall(r"^ +protobuf>=([0-9.]+),", (ROOT / "setup.cfg").read_text(), re.MULTILINE)
    generated = [path for package in PACKAGES for path in (ROOT / package).rglob("*_pb2.py")]
    assert len(generated) >= 3
    for path in generated:
        versions = re.search(r"ValidateProtobufRuntimeVersion\(\s*\S+,\s*(\d+),\s*(\d+),\s*(\d+),", path.read_text())
        assert versions is not None, path
        assert ".".join(versions.groups()) == oldest, path
