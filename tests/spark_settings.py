"""Settings with which a Spark of a test is cheap: it runs seconds, on two cores."""

from __future__ import annotations

import tempfile
from pathlib import Path

SHORT_JVM = (
    "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData "
    "-XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
)
"""For short jobs: much compiling and parallel collection do not pay off on two cores, nor does verifying the classes of
released jars."""
INTERPRETED = {
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.shuffle.partitions": "2",
}
"""Plans are interpreted: compiling each costs more than a few thousand rows."""


def spark_home(folder: Path) -> Path:
    """Return a Spark whose Python processes import pyspark from where it is installed.

    They look into `python/lib/pyspark.zip` first, which has no compiled modules: each process would compile what it
    imports, 1.3 s of processor time, and one of a stream has ten seconds, by the clock, to start.
    """
    import pyspark

    # Each process has its own folder: a driver that was killed may have left half of one.
    home = Path(tempfile.mkdtemp(prefix="home-", dir=folder))
    for entry in Path(pyspark.__file__).parent.iterdir():
        if entry.name != "python":
            (home / entry.name).symlink_to(entry)
    return home


def environment(folder: Path) -> dict[str, str]:
    """Return the variables that make a program cheap which starts a Spark of its own; their files are in `folder`.

    What the program itself sets wins, so that the program is tested as users run it.
    """
    home = spark_home(folder)
    (home / "conf").mkdir(exist_ok=True)
    (home / "conf" / "spark-defaults.conf").write_text(
        "".join(f"{name} {value}\n" for name, value in INTERPRETED.items())
    )
    return {
        "SPARK_HOME": str(home),
        "SPARK_CONF_DIR": str(home / "conf"),
        "JDK_JAVA_OPTIONS": SHORT_JVM,
    }
