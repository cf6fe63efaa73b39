"""An archive of the classes that Apache's client and bookie load, which each of their JVMs then shares.

Loading them from jars is two fifths of what the start of a bookie costs. `make` runs each program once, and lets Java
write what they loaded into one file. A JVM goes without the archive where there is none, or where it was made by
another version of Java or from other jars: Java compares them itself.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from tests.interop.apache import ApacheCluster
from tests.interop.build import BOOKKEEPER
from tests.interop.peer import ARCHIVE, SMALL_JVM, JavaClient, Peer

_DUMP_SECONDS = 300
_MADE_FROM = BOOKKEEPER / "target" / "archived-from"


def make(classpath: str) -> None:
    """Make the archive, unless there is one of this classpath by this version of Java. A failure is only printed."""
    version = subprocess.run(["java", "-version"], capture_output=True, text=True, check=True).stderr
    made_from = f"{classpath}\n{version}{' '.join(SMALL_JVM)}"
    if ARCHIVE.is_file() and _MADE_FROM.is_file() and _MADE_FROM.read_text() == made_from:
        return
    with tempfile.TemporaryDirectory() as folder:
        classes = Path(folder) / "classes"
        classes.write_text("\n".join(_loaded_classes(classpath, Path(folder))))
        ARCHIVE.unlink(missing_ok=True)
        flags = ["-Xshare:dump", f"-XX:SharedClassListFile={classes}", f"-XX:SharedArchiveFile={ARCHIVE}"]
        done = subprocess.run(
            ["java", *SMALL_JVM, *flags, "-cp", classpath], capture_output=True, text=True, timeout=_DUMP_SECONDS
        )
    if done.returncode == 0 and ARCHIVE.is_file():
        _MADE_FROM.write_text(made_from)
    else:
        print(
            f"no archive of Java classes, each JVM loads its own: {done.stdout[-1000:]}{done.stderr}", file=sys.stderr
        )


def _loaded_classes(classpath: str, folder: Path) -> list[str]:
    """Return what client and bookie load when they start, write a ledger and read it, in that order."""
    lists = [folder / "client.classes", folder / "bookie.classes"]
    for_client, for_bookie = ((*SMALL_JVM, f"-XX:DumpLoadedClassList={path}") for path in lists)
    peer = Peer(classpath, folder / "client.log", for_client)
    try:
        with (
            ApacheCluster(classpath, folder / "cluster", peer, apache=1, jvm_options=for_bookie) as cluster,
            JavaClient(peer, cluster.uri) as client,
        ):
            ledger = client.write((1, 1, 1), "crc32c", "", [10, 20])
            client.read(ledger, "crc32c", "")
    finally:
        # Not killed: the end of its list would be missing.
        peer.end()
    return list(dict.fromkeys(line for path in lists for line in path.read_text().splitlines()))
