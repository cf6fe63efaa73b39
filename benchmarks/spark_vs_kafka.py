"""Our Spark connector and Kafka's on the same rows, in one session, in turns; a table, JSON and a plot.

    python -m benchmarks.spark_vs_kafka [--only CASE]... [--rounds N] [--scale F] [--log FILE] [--plot FILE] [--dir DIR]
                                        [--network]

Spark, all servers and this program share the machine. One cluster of one bookie and one of three, with fsync; one
Kafka broker without, as it comes; Kafka's connector at its defaults and with `fetch.max.wait.ms=5`; beside them a
source of ready-made Arrow batches and a sink that drops them, which are what Spark's Python sources can do at most.
With --network the bookies offer no local reads, as if they were on another host.
Each round runs every contender of a case once, in another order; what is compared is of one round, results are
medians. Batch jobs have an untimed run of the same contender right before. The session has the settings of
`spark-conf/`. A case's figures go to stderr as they come, and with --log to a file of JSON lines, from which a run that
was broken off goes on. Without Kafka, which Maven fetches, it says why and measures nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import sys
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path

import pyspark
from pyspark.sql import SparkSession

import bkspark
from benchmarks.arguments import above_zero
from benchmarks.figures import results_of, table
from benchmarks.kafka_broker import KafkaBroker, KafkaUnavailable, connector_jars, kafka_jars
from benchmarks.servers import MeasuredBookie, Servers
from benchmarks.spark_cases import CASES, OURS, WARM_UP_SCALE, Case, Contenders, Sizes, over_network
from benchmarks.spark_jobs import SparkJobs
from bkspark.cli.arguments import positive

ROUNDS = 5
WARM_UP_ROUNDS = 4
"""Small rounds of everything. Whatever job runs then, the JVM's compiler takes a fifth of the processor for the first
twenty jobs of a session or so, and more of those that come first."""


def main(argv: Sequence[str] | None = None) -> None:
    arguments = _parser().parse_args(argv)
    try:
        _measure(arguments, kafka_jars())
    except KafkaUnavailable as missing:
        print(json.dumps({"skipped": str(missing)}))


def _measure(arguments: argparse.Namespace, jars: list[Path]) -> None:
    """Raises KafkaUnavailable where the broker does not start."""
    cases = {name: CASES[name] for name in arguments.only or CASES}
    if arguments.network:
        cases = {name: over_network(case) for name, case in cases.items()}
    load_before = os.getloadavg()[0]
    sizes = Sizes().scaled(arguments.scale)
    settings = {"localReadsEnabled": "false"} if arguments.network else {}
    with _contenders(jars, arguments.dir, sizes, cases, settings) as contenders:
        for number in range(WARM_UP_ROUNDS):
            for name, case in cases.items():
                print(f"warming up: {name} ...", file=sys.stderr, flush=True)
                case.one_round(contenders, sizes.scaled(WARM_UP_SCALE), number)
        journal = Journal(arguments.log, arguments.scale)
        rounds = [_one_round(cases, contenders, sizes, number, journal) for number in range(arguments.rounds)]
    results = results_of([figure for case in cases.values() for figure in case.figures()], rounds)
    machine = {
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "pyspark": pyspark.__version__,
        "load_before": round(load_before, 2),
    }
    print(json.dumps({"machine": machine, "sizes": vars(sizes), "figures": results}))
    print(table(results), file=sys.stderr)
    if arguments.plot:
        # An extra, so imported only when a plot is wanted.
        from benchmarks.plots import bars

        bars({name: case.bars(results) for name, case in cases.items()}, arguments.plot, OURS)


class Journal:
    """The figures of each round and case as they come, kept in a file of JSON lines if there is one."""

    def __init__(self, path: Path | None, scale: float) -> None:
        self._path = path
        self._scale = scale
        self._known: dict[tuple[int, str], dict[str, float]] = {}
        for line in path.read_text().splitlines() if path is not None and path.exists() else ():
            entry = json.loads(line)
            if entry["scale"] == scale:
                self._known[entry["round"], entry["case"]] = entry["figures"]

    def known(self, number: int, case: str) -> dict[str, float] | None:
        """Return the figures of a case that an earlier run with the same scale has measured in this round."""
        return self._known.get((number, case))

    def note(self, number: int, case: str, figures: Mapping[str, float]) -> None:
        entry = {"round": number, "case": case, "scale": self._scale, "figures": figures}
        print(json.dumps(entry), file=sys.stderr, flush=True)
        if self._path is not None:
            with self._path.open("a") as file:
                file.write(json.dumps(entry) + "\n")


def _one_round(
    cases: Mapping[str, Case], contenders: Contenders, sizes: Sizes, number: int, journal: Journal
) -> dict[str, float]:
    figures: dict[str, float] = {}
    for name, case in cases.items():
        found = journal.known(number, name)
        if found is None:
            found = case.one_round(contenders, sizes, number)
            journal.note(number, name, found)
        figures |= found
    return figures


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", action="append", choices=list(CASES), help="this case; may be repeated")
    parser.add_argument("--rounds", type=positive, default=ROUNDS, help=f"default: {ROUNDS}")
    parser.add_argument("--scale", type=above_zero, default=1.0, help="multiply all sizes by this")
    parser.add_argument("--log", type=Path, metavar="FILE", help="keep figures there as they come, and go on from it")
    parser.add_argument(
        "--plot", type=_picture, metavar="FILE", help="draw it, too: .png or .svg (needs bkspark[plot])"
    )
    parser.add_argument("--network", action="store_true", help="bookies offer no local reads")
    parser.add_argument("--dir", type=_folder, help="where to write (default: the temporary folder)")
    return parser


def _picture(text: str) -> Path:
    # Found out before the hour that measuring takes.
    path = Path(text)
    if path.suffix not in (".png", ".svg"):
        raise argparse.ArgumentTypeError(f"{text!r} does not end in .png or .svg")
    if find_spec("matplotlib") is None:
        raise argparse.ArgumentTypeError("there is no matplotlib to draw with: pip install 'bkspark[plot]'")
    _folder(str(path.parent))
    return path


def _folder(text: str) -> Path:
    if not Path(text).is_dir():
        raise argparse.ArgumentTypeError(f"{text!r} is not a folder")
    return Path(text)


@contextmanager
def _contenders(
    jars: list[Path], parent: Path | None, sizes: Sizes, cases: Collection[str], settings: Mapping[str, str]
) -> Iterator[Contenders]:
    """Start servers, bookies with some settings, and Spark; end and remove them afterwards."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bkspark-versus-", dir=parent)))
        one, three = (stack.enter_context(Servers(folder)) for _ in range(2))
        bookie = stack.enter_context(one.bookies(1, **settings))
        bookies = stack.enter_context(three.bookies(3, **settings))
        broker = stack.enter_context(KafkaBroker(jars, folder / "kafka"))
        spark = stack.enter_context(_session(folder, connector_jars(jars)))
        yield Contenders(
            SparkJobs(spark, folder), spark, broker, (one.uri, _pids(bookie)), (three.uri, _pids(bookies)), sizes, cases
        )


def _pids(bookies: Sequence[MeasuredBookie]) -> list[int]:
    return [bookie.pid for bookie in bookies]


@contextmanager
def _session(folder: Path, jars: Sequence[Path]) -> Iterator[SparkSession]:
    spark = bkspark.session(
        "spark_vs_kafka",
        master="local[2]",
        spark__driver__memory="2g",
        spark__driver__host="127.0.0.1",
        spark__driver__extraClassPath=":".join(map(str, jars)),
        spark__driver__extraJavaOptions=f"-Djava.io.tmpdir={folder} -XX:-UsePerfData",
        spark__local__dir=str(folder),
        spark__ui__enabled="false",
        spark__ui__showConsoleProgress="false",
        spark__sql__shuffle__partitions="2",
    )
    spark.sparkContext.setLogLevel("ERROR")
    try:
        yield spark
    finally:
        gateway = spark.sparkContext._gateway
        assert gateway is not None
        spark.stop()
        gateway.shutdown()
        gateway.proc.stdin.close()
        gateway.proc.wait()


if __name__ == "__main__":
    # Servers and folders go in any case.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    main()
