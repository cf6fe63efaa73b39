"""`make typecheck` checks the whole product strictly, and users' type checkers take its annotations."""

from __future__ import annotations

import configparser
import re
from pathlib import Path

from setuptools import find_packages

ROOT = Path(__file__).parent.parent
NOT_PRODUCT = {"tests", "benchmarks"}
"""Packages beside the product's; none of them is installed."""
GENERATED = re.compile(r"_pb2\.py$")

UNTYPED = {"pyarrow", "kazoo", "google", "msgpack", "py4j", "tests"}
"""Libraries without types, what comes from them is Any; and helpers of benchmarks, which are not checked."""

WEAKENING = {
    "ignore_errors",
    "follow_imports",
    "disable_error_code",
    "disallow_untyped_defs",
    "disallow_any_generics",
    "check_untyped_defs",
    "strict_optional",
    "warn_unused_ignores",
}
"""Settings that hide errors of a module."""


def _configuration() -> configparser.ConfigParser:
    parsed = configparser.ConfigParser()
    parsed.read(ROOT / "setup.cfg")
    return parsed


def _lines(text: str) -> list[str]:
    return [line.strip().rstrip(",") for line in text.splitlines() if line.strip()]


def _installed_packages() -> set[str]:
    patterns = _lines(_configuration()["options.packages.find"]["include"])
    return {name for name in find_packages(str(ROOT), include=patterns) if "." not in name}


def test_every_package_is_installed_or_named_as_no_part_of_the_product() -> None:
    """A new package beside bkspark is neither left out of the wheel nor of the checks below."""
    packages = {path.parent.name for path in ROOT.glob("*/__init__.py")}
    assert _installed_packages() == packages - NOT_PRODUCT


def test_the_type_checker_reads_each_package_that_is_installed_and_the_benchmarks() -> None:
    settings = _configuration()["mypy"]
    assert settings.getboolean("strict")
    # setup.cfg says why not these two. None of strict's others may join them.
    assert {key for key in settings if settings[key].lower() == "false"} == {"warn_return_any", "strict_equality"}
    assert "disable_error_code" not in settings
    assert set(_lines(settings["files"])) == {*_installed_packages(), "benchmarks"}


def test_the_type_checker_leaves_out_generated_modules_alone() -> None:
    excluded = re.compile(_configuration()["mypy"]["exclude"])
    sources = [path for name in _installed_packages() for path in (ROOT / name).rglob("*.py")]
    left_out = [path for path in sources if excluded.search(path.relative_to(ROOT).as_posix())]
    assert left_out
    by_hand = [path for path in left_out if not GENERATED.search(path.name) or "DESCRIPTOR" not in path.read_text()]
    assert not by_hand


def test_no_module_of_the_product_is_checked_less_strictly() -> None:
    parsed = _configuration()
    product = _installed_packages()
    for section in (name for name in parsed.sections() if name.startswith("mypy-")):
        if not WEAKENING & set(parsed[section]):
            continue
        for module in section.removeprefix("mypy-").split(","):
            is_generated = GENERATED.search(f"{module}.py") is not None
            assert is_generated or module.split(".")[0] not in product, f"{module}: [{section}]"
            assert is_generated or module.split(".")[0] in UNTYPED, f"{module}: [{section}]: say there why"


def test_the_types_of_spark_are_used() -> None:
    """Without them, a reader or writer that Spark cannot call is not an error."""
    sections = [name for name in _configuration().sections() if name.startswith("mypy-")]
    assert not [name for name in sections if "pyspark" in name]


def test_no_source_file_switches_the_type_checker_off() -> None:
    """`# type: ignore` names the error that it is for, and `# mypy:` changes settings that setup.cfg does not show."""
    blanket = re.compile(r"#\s*type:\s*ignore(?!\[)|#\s*mypy:|@no_type_check")
    sources = [path for name in _installed_packages() for path in (ROOT / name).rglob("*.py")]
    found = [str(path) for path in sources if not GENERATED.search(path.name) and blanket.search(path.read_text())]
    assert not found


def test_every_package_ships_its_annotations() -> None:
    """PEP 561: without py.typed a user's type checker skips the package."""
    assert "py.typed" in _configuration()["options.package_data"]["*"]
    lacking = [name for name in sorted(_installed_packages()) if not (ROOT / name / "py.typed").is_file()]
    assert not lacking
