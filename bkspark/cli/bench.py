"""`bkspark bench`: how fast a cluster writes and reads entries, from Python and from Spark.

It runs on the cluster that --uri names, which may be Apache's; without it, on a throw-away cluster on this machine.
"""

from __future__ import annotations

import argparse
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from bkspark.cli.arguments import (
    Commands,
    add_cluster,
    add_credentials,
    add_quorums,
    client_encryption,
    client_net,
    client_zookeeper,
    cluster_uri,
    entry_size,
    ledger_password,
    not_negative,
    positive,
    quorums,
    seconds,
    secret_variables,
    value_size,
)
from bkspark.cli.cluster_process import BOOKIES, ClusterProcess
from bkspark.cli.output import print_facts, print_json, print_table, progress
from bkspark.cli.spark_job import SparkJob
from bkspark.errors import ConfigurationError

if TYPE_CHECKING:
    from bkspark.cli.load import WriteLoad
    from bkspark.client import Client

T = TypeVar("T")

WRITE_WINDOW, WRITE_WINDOW_BYTES = 8192, 16 << 20
WRITE_SECONDS = 10.0
READ_ENTRIES = 200_000


def add_parser(commands: Commands) -> None:
    """Add `bkspark bench` and its commands."""
    group = commands.add_parser("bench", help="measure writing, reading, Spark")
    benches = group.add_subparsers(metavar="WHAT", required=True, dest="bench_command")
    for name, run in (("write", write), ("read", read)):
        parser = benches.add_parser(name, help=f"{name} ledgers", description=f"Measure how fast to {name} ledgers.")
        _add_load(parser)
        add_cluster(parser)
        add_credentials(parser)
        parser.set_defaults(run=run)
        if name == "write":
            parser.add_argument("--keep", action="store_true", help="do not delete the ledgers afterwards")
        else:
            parser.add_argument(
                "--ledger",
                type=not_negative,
                action="append",
                default=[],
                metavar="ID",
                help="read this ledger instead of writing new ones first",
            )
    _add_spark(benches)


def _add_load(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--entry-size", type=entry_size, default=1024, metavar="B", help="bytes (default: %(default)s)")
    add_quorums(parser)
    parser.add_argument(
        "--window",
        type=positive,
        metavar="N",
        help="entries in flight per ledger; 1 measures latency (default of writes: 8192, 16 MiB at most)",
    )
    parser.add_argument("--seconds", type=seconds, metavar="S", help="stop after this time")
    parser.add_argument("--entries", type=positive, metavar="N", help="stop after this many entries")
    parser.add_argument(
        "--ledgers", type=positive, default=1, metavar="K", help="ledgers at once (default: %(default)s)"
    )


def _add_spark(benches: Commands) -> None:
    parser = benches.add_parser("spark", help="Spark jobs", description="Measure Spark jobs beside Spark's own limits.")
    parser.add_argument("--rows", type=positive, default=500_000, metavar="N", help="rows (default: %(default)s)")
    parser.add_argument(
        "--value-size", type=value_size, default=1024, metavar="B", help="bytes a row (default: %(default)s)"
    )
    add_quorums(parser)
    parser.add_argument(
        "--partitions", type=positive, default=2, metavar="P", help="Spark partitions (default: %(default)s)"
    )
    add_cluster(parser)
    add_credentials(parser)
    parser.set_defaults(run=spark)


@contextmanager
def _cluster(arguments: argparse.Namespace, bookies: int = BOOKIES) -> Iterator[str]:
    """Yield the URI of the named cluster, or of a throw-away one."""
    if arguments.uri:
        yield cluster_uri(arguments)
        return
    progress(f"no --uri: starting a throw-away cluster of {bookies} bookies ...")
    with ClusterProcess(bookies) as cluster:
        yield cluster.uri


def write(arguments: argparse.Namespace) -> int:
    """Measure writing."""
    import asyncio

    from bkspark.cli import load

    wanted = _write_load(arguments, arguments.entries, arguments.seconds)

    async def measure(client: Client) -> dict[str, Any]:
        progress(f"writing entries of {wanted.entry_size} bytes to {wanted.ledgers} ledger(s) ...")
        ledger_ids, result = await load.write(client, wanted)
        if arguments.keep:
            return result | {"ledgers": ledger_ids}
        await load.delete(client, ledger_ids)
        return result

    with _cluster(arguments, max(BOOKIES, arguments.ensemble)) as uri:
        result = asyncio.run(_with_client(arguments, uri, measure, wanted.window))
    _report(arguments, result)
    return 0


def read(arguments: argparse.Namespace) -> int:
    """Measure reading of existing ledgers, or of ledgers that are written first."""
    import asyncio

    from bkspark.cli import load

    if arguments.ledger and not arguments.uri:
        raise ConfigurationError(f"--ledger {arguments.ledger[0]} is on no cluster: name it with --uri")
    wanted = _write_load(arguments, arguments.entries or READ_ENTRIES, None)

    async def measure(client: Client) -> dict[str, Any]:
        ledger_ids = arguments.ledger
        if not ledger_ids:
            progress(f"writing {wanted.entries} entries of {wanted.entry_size} bytes to read ...")
            ledger_ids, _ = await load.write(client, wanted)
        try:
            progress("reading ...")
            reading = load.ReadLoad(ledger_ids, arguments.window, arguments.seconds, arguments.entries)
            return await load.read(client, reading)
        finally:
            if not arguments.ledger:
                await load.delete(client, ledger_ids)

    with _cluster(arguments, max(BOOKIES, arguments.ensemble)) as uri:
        result = asyncio.run(_with_client(arguments, uri, measure, wanted.window))
    _report(arguments, result)
    return 0


def _write_load(arguments: argparse.Namespace, entries: int | None, seconds_max: float | None) -> WriteLoad:
    from bkspark.cli.load import WriteLoad

    ensemble, write_quorum, ack_quorum = quorums(arguments)
    return WriteLoad(
        entry_size=arguments.entry_size,
        ensemble=ensemble,
        write_quorum=write_quorum,
        ack_quorum=ack_quorum,
        ledgers=arguments.ledgers,
        window=arguments.window or max(1, min(WRITE_WINDOW, WRITE_WINDOW_BYTES // max(1, arguments.entry_size))),
        seconds=WRITE_SECONDS if entries is None and seconds_max is None else seconds_max,
        entries=entries,
    )


async def _with_client(
    arguments: argparse.Namespace, uri: str, work: Callable[[Client], Awaitable[T]], window: int
) -> T:
    """Return what `work` returns, given a client whose writers have room for the window."""
    from bkspark.client import Client
    from bkspark.core.writer_options import WriterOptions
    from bkspark.metadata.zookeeper_options import ZooKeeperOptions
    from bkspark.net.pool import NetOptions

    options = WriterOptions()
    options = replace(
        options,
        pending_entries_max=max(options.pending_entries_max, window),
        pending_bytes_max=max(options.pending_bytes_max, window * arguments.entry_size),
    )
    password = ledger_password(arguments)
    # A throw-away cluster has no TLS.
    net = client_net(arguments) if arguments.uri else NetOptions()
    zookeeper = client_zookeeper(arguments) if arguments.uri else ZooKeeperOptions()
    async with Client(
        uri,
        digest=arguments.digest,
        password=password,
        net=net,
        writer=options,
        zookeeper=zookeeper,
        encryption=client_encryption(arguments),
    ) as client:
        return await work(client)


def _report(arguments: argparse.Namespace, result: dict[str, Any]) -> None:
    if arguments.json:
        print_json(result)
        return
    latency = result.pop("latency_ms")
    print_facts(result | {f"latency {name} (ms)": value for name, value in latency.items()})


def spark(arguments: argparse.Namespace) -> int:
    """Measure Spark jobs in a separate process: only the connector's package may load Spark."""
    written = quorums(arguments)
    with _cluster(arguments, max(BOOKIES, arguments.ensemble)) as uri, _spark_job(arguments, uri, written) as job:
        result = job.result()
    if arguments.json:
        print_json(result)
        return 0
    jobs = {name: figures for name, figures in result.items() if name != "limit"}
    print_table(("job", "rows/s", "MiB/s"), [(name, f["rows_per_s"], f["mib_per_s"]) for name, f in jobs.items()])
    print()
    print_facts(result["limit"])
    return 0


def _spark_job(arguments: argparse.Namespace, uri: str, written: tuple[int, int, int]) -> SparkJob:
    ensemble, write_quorum, ack_quorum = written
    options = {
        "rows": arguments.rows,
        "value-size": arguments.value_size,
        "partitions": arguments.partitions,
        "digest": arguments.digest,
        "ensemble": ensemble,
        "write-quorum": write_quorum,
        "ack-quorum": ack_quorum,
    }
    client_config = (arguments.client_config or "") if arguments.uri else ""
    return SparkJob(
        "bkspark.spark.bench",
        uri,
        options,
        secret_variables=secret_variables(arguments),
        client_config=client_config,
    )
