"""A ZooKeeper for all hosts of a test's network: `python -m tests.real_cluster.zookeeper FOLDER PORT`."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

from bkspark.cli.zookeeper_process import ZooKeeperProcess


def main(folder: str, port: str) -> None:
    """Print `serving` once it does; run until SIGTERM."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with ZooKeeperProcess(Path(folder), port=int(port), settings={"clientPortAddress": "0.0.0.0"}):
        print("serving", flush=True)
        signal.pause()


if __name__ == "__main__":
    main(*sys.argv[1:])
