"""`bkspark local`: a cluster on this machine, in the foreground."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from bkspark.cli.arguments import Commands, add_json, key_value, port, positive
from bkspark.cli.cluster_process import BookieProcess, ClusterProcess
from bkspark.cli.output import print_facts, print_json, print_table, progress
from bkspark.errors import BookKeeperError, MetadataError

_WATCH_INTERVAL_S = 0.2


def add_parser(commands: Commands) -> None:
    """Add `bkspark local`."""
    parser = commands.add_parser(
        "local",
        help="run ZooKeeper and bookies on this machine",
        description="Run ZooKeeper and bookies on this machine until Ctrl-C or SIGTERM.",
    )
    parser.add_argument(
        "--bookies", type=positive, metavar="N", help="number of bookies (default: as before in --dir, otherwise 3)"
    )
    parser.add_argument(
        "--dir", type=Path, help="directory of the data, which is kept (default: a temporary one, which is removed)"
    )
    parser.add_argument(
        "--zk-port", type=port, metavar="P", help="ZooKeeper port (default: as before in --dir, otherwise a free one)"
    )
    parser.add_argument(
        "--set", type=key_value, action="append", default=[], metavar="KEY=VALUE", help="a key for every bookie"
    )
    parser.add_argument(
        "--zookeeper-set", type=key_value, action="append", default=[], metavar="KEY=VALUE", help="a key for ZooKeeper"
    )
    parser.add_argument(
        "--zookeeper-jaas", type=Path, metavar="FILE", help="a JAAS file; its section Server has ZooKeeper's users"
    )
    parser.add_argument("--restart", action="store_true", help="start a bookie again when it dies")
    add_json(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Run the cluster until a signal ends it."""
    cluster = ClusterProcess(
        arguments.bookies,
        arguments.dir,
        zookeeper_port=arguments.zk_port,
        settings=dict(arguments.set),
        zookeeper_settings=dict(arguments.zookeeper_set),
        zookeeper_jaas=arguments.zookeeper_jaas,
    )
    progress("starting ZooKeeper and bookies ...")
    with cluster:
        # The program that reads the description may send a signal before the next line runs.
        try:
            if arguments.json:
                print_json(cluster.description())
            else:
                _print_cluster(cluster)
            _watch(cluster, restart=arguments.restart)
        except KeyboardInterrupt:
            progress("stopping ...")
    return 0


def _print_cluster(cluster: ClusterProcess) -> None:
    facts = cluster.description()
    print_facts(
        {
            "metadata URI": facts["uri"],
            "directory": facts["dir"],
            "ZooKeeper": f"port {facts['zookeeper']['port']}, pid {facts['zookeeper']['pid']}",
        }
    )
    print()
    print_table(("bookie", "pid", "directory"), [(b["id"], b["pid"], b["dir"]) for b in facts["bookies"]])
    print("\nserving; Ctrl-C stops all", flush=True)


def _watch(cluster: ClusterProcess, *, restart: bool) -> None:
    """Report bookies that die, and with --restart start them again; never returns while ZooKeeper runs.

    Raises:
        MetadataError: ZooKeeper ended; without it no bookie serves.
    """
    assert cluster.zookeeper is not None
    down: set[int] = set()
    while True:
        time.sleep(_WATCH_INTERVAL_S)
        if cluster.zookeeper.exit_code is not None:
            raise MetadataError(
                f"ZooKeeper (pid {cluster.zookeeper.pid}) ended; the cluster stops. "
                f"Its log is in {str(cluster.directory / 'zookeeper')!r}"
            )
        for bookie in cluster.bookies:
            if not bookie.is_running and bookie.number not in down:
                down.add(bookie.number)
                progress(f"bookie {bookie.id} (pid {bookie.pid}) {bookie.ending()}; its data is in {bookie.directory}")
                if restart and _started_again(bookie):
                    down.discard(bookie.number)


def _started_again(bookie: BookieProcess) -> bool:
    try:
        bookie.restart()
    except BookKeeperError as error:
        progress(f"{error}; it is not tried again")
        return False
    progress(f"bookie {bookie.id} serves again (pid {bookie.pid})")
    return True
