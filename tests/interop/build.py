"""Builds Java programs with Maven and says where their classes and libraries are.

`python -m tests.interop.build` builds Apache's BookKeeper client and bookie, `python -m tests.interop.build pulsar` a
Pulsar broker; `make` runs the former once, so that later tests need no network. The former then archives the classes of
Apache's programs (`tests/interop/class_archive.py`).
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

BOOKKEEPER = Path(__file__).parent / "java"
PULSAR = Path(__file__).parent / "pulsar"
BUILD_SECONDS = 900
_LIST_LIBRARIES = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:build-classpath"


class BuildFailed(Exception):
    """Maven could not build the program; the message ends with what it printed."""


def maven() -> str | None:
    """Return the path of `mvn`, or None where there is no Maven."""
    return shutil.which("mvn")


def is_built(project: Path) -> bool:
    """Return whether the program's classes and libraries are there and its sources did not change since."""
    stamp = project / "target" / "built-from"
    libraries = _libraries(project)
    if not stamp.is_file() or stamp.read_text() != _fingerprint(project) or not libraries.is_file():
        return False
    # The jars lie in Maven's own repository, which may have been emptied since.
    return all(Path(jar).is_file() for jar in libraries.read_text().strip().split(":"))


def classpath(project: Path) -> str:
    """Return the Java classpath of a program, building it first if it is not built.

    Raises:
        BuildFailed: there is no Maven, or it failed with and without the network.
    """
    if not is_built(project):
        _build(project)
        (project / "target" / "built-from").write_text(_fingerprint(project))
    if not _jar(project).is_file():
        _pack(project)
    return f"{_jar(project)}:{_libraries(project).read_text().strip()}"


def bookkeeper_classpath(version: str) -> str:
    """Return the classpath of the BookKeeper program with the libraries of another version, such as 4.14.7.

    Its classes are those built for the usual version: what a command calls must exist in both.

    Raises:
        BuildFailed: see `classpath`.
    """
    own = classpath(BOOKKEEPER).partition(":")[0]
    libraries = BOOKKEEPER / "target" / f"classpath-{version}.txt"
    if not libraries.is_file():
        _run_maven(BOOKKEEPER, f"-Dbookkeeper.version={version}", f"-Dmdep.outputFile={libraries}", _LIST_LIBRARIES)
    return f"{own}:{libraries.read_text().strip()}"


def _jar(project: Path) -> Path:
    """Return where the program's own classes are: Java archives classes of jars only."""
    return project / "target" / f"{project.name}.jar"


def _libraries(project: Path) -> Path:
    return project / "target" / "classpath.txt"


def _fingerprint(project: Path) -> str:
    """Return a digest over the names and contents of everything the build reads."""
    digest = hashlib.sha256()
    for source in [project / "pom.xml", *sorted((project / "src").rglob("*.*"))]:
        digest.update(f"{source.relative_to(project)} {source.stat().st_size}\n".encode())
        digest.update(source.read_bytes())
    return digest.hexdigest()


def _build(project: Path) -> None:
    _run_maven(project, "clean", "process-classes")


def _pack(project: Path) -> None:
    classes = project / "target" / "classes"
    # A test's process that looks meanwhile sees no jar, or a whole one.
    part = _jar(project).with_suffix(f".{os.getpid()}")
    with zipfile.ZipFile(part, "w") as jar:
        for file in sorted(classes.rglob("*.*")):
            jar.write(file, file.relative_to(classes))
    part.rename(_jar(project))


def _run_maven(project: Path, *arguments: str) -> None:
    """Run Maven in a project, first without the network. Raises BuildFailed when both fail."""
    executable = maven()
    if executable is None:
        raise BuildFailed("there is no mvn on the PATH; install Maven to run the tests against Apache's client")
    command = [executable, "-q", "-B", *arguments]
    for mode in (["-o"], []):
        done = subprocess.run([*command, *mode], cwd=project, capture_output=True, text=True, timeout=BUILD_SECONDS)
        if done.returncode == 0:
            return
    raise BuildFailed(f"{' '.join(command)} in {project} failed:\n{(done.stdout + done.stderr)[-3000:]}")


def main(arguments: list[str]) -> None:
    """Build what the arguments name. Raises BuildFailed."""
    if maven() is None:
        print("no mvn on the PATH: the tests against Apache's Java programs will be skipped")
    elif arguments == ["pulsar"]:
        classpath(PULSAR)
    else:
        from tests.interop import class_archive

        class_archive.make(classpath(BOOKKEEPER))


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except BuildFailed as failure:
        sys.exit(str(failure))
