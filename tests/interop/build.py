"""Builds the Java program with Maven and says where its classes and libraries are.

`python -m tests.interop.build` does it by hand; `make` runs that once, so that later tests need no network.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

PROJECT = Path(__file__).parent / "java"
TARGET = PROJECT / "target"
BUILD_SECONDS = 900


class BuildFailed(Exception):
    """Maven could not build the program; the message ends with what it printed."""


def maven() -> str | None:
    """Return the path of `mvn`, or None where there is no Maven."""
    return shutil.which("mvn")


def classpath() -> str:
    """Return the Java classpath, building first if the sources changed since the last build.

    Raises:
        BuildFailed: there is no Maven, or it failed with and without the network.
    """
    stamp = TARGET / "built-from"
    libraries = TARGET / "classpath.txt"
    wanted = _fingerprint()
    if not _is_built(stamp, libraries, wanted):
        _build()
        stamp.write_text(wanted)
    return f"{TARGET / 'classes'}:{libraries.read_text().strip()}"


def _fingerprint() -> str:
    """Return a digest over the names and contents of everything the build reads."""
    digest = hashlib.sha256()
    for source in [PROJECT / "pom.xml", *sorted((PROJECT / "src").rglob("*.*"))]:
        digest.update(f"{source.relative_to(PROJECT)} {source.stat().st_size}\n".encode())
        digest.update(source.read_bytes())
    return digest.hexdigest()


def _is_built(stamp: Path, libraries: Path, wanted: str) -> bool:
    if not stamp.is_file() or stamp.read_text() != wanted or not libraries.is_file():
        return False
    # The jars lie in Maven's own repository, which may have been emptied since.
    return all(Path(jar).is_file() for jar in libraries.read_text().strip().split(":"))


def _build() -> None:
    executable = maven()
    if executable is None:
        raise BuildFailed("there is no mvn on the PATH; install Maven to run the tests against Apache's client")
    command = [executable, "-q", "-B", "clean", "process-classes"]
    for mode in (["-o"], []):
        done = subprocess.run([*command, *mode], cwd=PROJECT, capture_output=True, text=True, timeout=BUILD_SECONDS)
        if done.returncode == 0:
            return
    raise BuildFailed(f"{' '.join(command)} in {PROJECT} failed:\n{(done.stdout + done.stderr)[-3000:]}")


if __name__ == "__main__":
    try:
        if maven() is None:
            print("no mvn on the PATH: the tests against Apache's Java client will be skipped")
        else:
            classpath()
    except BuildFailed as failure:
        sys.exit(str(failure))
