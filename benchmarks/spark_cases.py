"""The cases of `spark_vs_kafka.py`: who takes part in each, what is compared, and what is wanted of it."""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from pyspark.sql import SparkSession

from benchmarks.contenders import BookKeeper, Kafka, Limits
from benchmarks.figures import Figure
from benchmarks.kafka_broker import KafkaBroker
from benchmarks.spark_jobs import TRIGGERS_TO_WARM_UP, Connector, Measured, Options, SparkJobs, Streamed

KIB = 1024
SMALL = 100
FETCH_WAIT_MS = 5
"""What lets Kafka's connector read fastest: a broker answers a fetch that it cannot fill after so long."""

LATENCY_ROWS_PER_S = 100

WARM_UP_SCALE = 0.1
"""Rows that are written to warm up; reads use everything stored."""

RAW, ARROW, THREE, KAFKA, TUNED, LIMIT = "raw", "arrow", "raw_3_bookies", "kafka", "kafka_tuned", "limit"
KAFKAS = (KAFKA, TUNED)
READ_LARGE, READ_SMALL = "read_1KiB", "read_100B"
OURS = frozenset({RAW, ARROW, THREE})


@dataclass(frozen=True)
class Sizes:
    """How much each case does."""

    rows_1kib: int = 1_000_000
    rows_100b: int = 4_000_000
    written_rows: int = 500_000
    trigger_rows: int = 100_000
    triggers: int = 10
    small_trigger_rows: int = 10_000
    small_triggers: int = 40
    latency_rows: int = 1_000

    def scaled(self, scale: float) -> Sizes:
        """Return sizes multiplied by `scale`, as far as a case still works. Another size of micro-batches is another
        figure: good to see that all works, and to warm up."""
        return Sizes(
            rows_1kib=max(1000, int(self.rows_1kib * scale)),
            rows_100b=max(1000, int(self.rows_100b * scale)),
            written_rows=max(1000, int(self.written_rows * scale)),
            trigger_rows=max(1000, int(self.trigger_rows * scale)),
            triggers=max(3, int(self.triggers * scale)),
            small_trigger_rows=max(100, int(self.small_trigger_rows * scale)),
            small_triggers=max(3, int(self.small_triggers * scale)),
            latency_rows=max(50, int(self.latency_rows * scale)),
        )


class Contenders:
    """All who take part, with their stored rows in place, of those sizes that `cases` read.

    `one` and `three` are a cluster's URI and its bookies.
    """

    def __init__(
        self,
        jobs: SparkJobs,
        spark: SparkSession,
        broker: KafkaBroker,
        one: tuple[str, list[int]],
        three: tuple[str, list[int]],
        sizes: Sizes,
        cases: Collection[str],
    ) -> None:
        self.jobs = jobs
        self.values = {size: bytearray(os.urandom(size)) for size in (KIB, SMALL)}
        self.stored_rows = {KIB: _stored_rows(sizes)}
        if READ_SMALL in cases:
            self.stored_rows[SMALL] = sizes.rows_100b
        self.limits = Limits(spark, self.stored_rows)
        self.storages: dict[str, BookKeeper | Kafka] = {
            RAW: BookKeeper(*one, "raw"),
            ARROW: BookKeeper(*one, "arrow"),
            THREE: BookKeeper(*three, "raw", (3, 3, 2)),
            KAFKA: Kafka(spark, broker.address, broker.pid),
            TUNED: Kafka(spark, broker.address, broker.pid, **{"kafka.fetch.max.wait.ms": FETCH_WAIT_MS}),
        }
        for name in (RAW, ARROW, KAFKA):
            for size, rows in self.stored_rows.items():
                storage = self.storages[name]
                jobs.batch_write(storage.connector, storage.storing(size), rows, self.values[size])

    def clear(self) -> None:
        """Remove what was written, so that the disk does not fill."""
        for storage in self.storages.values():
            storage.clear()


def _stored_rows(sizes: Sizes) -> int:
    """Return how many rows of 1 KiB are stored: enough for the batch reads and every stream."""
    large = sizes.trigger_rows * (sizes.triggers + TRIGGERS_TO_WARM_UP)
    small = sizes.small_trigger_rows * (sizes.small_triggers + TRIGGERS_TO_WARM_UP)
    return max(sizes.rows_1kib, large, small)


@dataclass(frozen=True)
class Comparison:
    """A figure made of others in the same round: one contender's per the best of some, or its difference to it."""

    name: str
    of: str
    to: Sequence[str]
    at_least: float | None = None
    at_most: float | None = None
    is_difference: bool = False

    def value(self, values: Mapping[str, float], best: Callable[..., float]) -> float:
        other = best(values[name] for name in self.to)
        return values[self.of] - other if self.is_difference else values[self.of] / other


Run = Callable[[Contenders, Sizes, str], Measured | float]


@dataclass(frozen=True)
class Case:
    """One kind of job: `run` does it for one contender, and gives rows/s with their cost, or milliseconds."""

    name: str
    run: Run
    names: Sequence[str]
    comparisons: Sequence[Comparison]
    unit: str = "rows/s"
    wanted: Sequence[Figure] = ()
    """Figures with targets of their own; their names follow the case's."""
    is_warmed_up: bool = False
    """Each contender has an untimed run right before its own: Spark ends Python workers that were idle for a minute,
    and others' turns last longer. Streams have micro-batches for that."""

    def one_round(self, contenders: Contenders, sizes: Sizes, number: int) -> dict[str, float]:
        """Run every contender once, beginning with another one each round."""
        turn = number % len(self.names)
        figures: dict[str, float] = {}
        values: dict[str, float] = {}
        python_s: dict[str, float] = {}
        for name in (*self.names[turn:], *self.names[:turn]):
            if self.is_warmed_up:
                self.run(contenders, sizes.scaled(WARM_UP_SCALE), name)
            result = self.run(contenders, sizes, name)
            contenders.clear()
            if isinstance(result, Measured):
                values[name] = result.rows_per_s
                python_s[name] = result.per_million(result.processor.python_s)
                figures |= {f"{self.name} {name} {what}": value for what, value in _costs(result).items()}
            else:
                values[name] = result
        figures |= {f"{self.name} {name}": value for name, value in values.items()}
        best = max if self.unit == "rows/s" else min
        figures |= {f"{self.name} {each.name}": each.value(values, best) for each in self.comparisons}
        if LIMIT in python_s:
            ours = [name for name in (RAW, ARROW) if name in python_s]
            figures |= {f"{self.name} {name} client": python_s[name] - python_s[LIMIT] for name in ours}
        return figures

    def figures(self) -> list[Figure]:
        """Return the figures that rounds give, with their targets."""
        plain = [Figure(f"{self.name} {name}", self.unit) for name in self.names]
        cost_names = ("processor", "jvm", "python", "client", "servers") if self.unit == "rows/s" else ()
        costs = [Figure(f"{self.name} {name} {what}", "s/million") for name in self.names for what in cost_names]
        compared = [
            Figure(f"{self.name} {each.name}", "ms" if each.is_difference else "", each.at_least, each.at_most)
            for each in self.comparisons
        ]
        wanted = {f"{self.name} {each.name}": each for each in self.wanted}
        return [
            replace(wanted[each.name], name=each.name) if each.name in wanted else each
            for each in (*plain, *compared, *costs)
        ]

    def bars(self, results: Mapping[str, Mapping[str, object]]) -> tuple[str, dict[str, float]]:
        """Return the unit and each contender's median."""
        return self.unit, {name: float(str(results[f"{self.name} {name}"]["median"])) for name in self.names}


def _costs(result: Measured) -> dict[str, float]:
    """Return processor seconds for each million rows: of all processes together, and of each kind."""
    cost = result.processor
    parts = {"processor": cost.total_s, "jvm": cost.jvm_s, "python": cost.python_s, "servers": cost.servers_s}
    return {what: result.per_million(seconds) for what, seconds in parts.items()}


def _batch_read(value_size: int, contenders: Contenders, sizes: Sizes, name: str) -> Measured:
    rows = contenders.stored_rows[value_size]
    source = contenders.limits if name == LIMIT else contenders.storages[name]
    return contenders.jobs.batch_read(source.connector, source.stored(value_size), rows)


def _batch_write(contenders: Contenders, sizes: Sizes, name: str) -> Measured:
    sink, options = _sink(contenders, name)
    return contenders.jobs.batch_write(sink, options, sizes.written_rows, contenders.values[KIB])


def _stream_read(contenders: Contenders, name: str, trigger_rows: int, triggers: int) -> Streamed:
    source = contenders.limits if name == LIMIT else contenders.storages[name]
    options = {**source.stored(KIB), **source.limit(trigger_rows)}
    return contenders.jobs.stream_read(source.connector, options, triggers)


def _large_triggers(contenders: Contenders, sizes: Sizes, name: str) -> Measured:
    return _stream_read(contenders, name, sizes.trigger_rows, sizes.triggers).measured


def _small_triggers(contenders: Contenders, sizes: Sizes, name: str) -> float:
    return _stream_read(contenders, name, sizes.small_trigger_rows, sizes.small_triggers).trigger_ms


def _stream_write(contenders: Contenders, sizes: Sizes, name: str) -> Measured:
    sink, options = _sink(contenders, name)
    value = contenders.values[KIB]
    return contenders.jobs.stream_write(sink, options, sizes.trigger_rows, sizes.triggers, value).measured


def _sink(contenders: Contenders, name: str) -> tuple[Connector, Options]:
    if name == LIMIT:
        return contenders.limits.sink, {}
    return contenders.storages[name].connector, contenders.storages[name].fresh()


def _latency(contenders: Contenders, sizes: Sizes, name: str) -> float:
    storage = contenders.storages[name]
    place = storage.followed()
    storage.create(place)
    producer = partial(storage.producer, place)
    return statistics.median(
        contenders.jobs.latencies_ms(storage.connector, place, producer, sizes.latency_rows, LATENCY_ROWS_PER_S)
    )


def _at_least(name: str, unit: str, target: float) -> Figure:
    return Figure(name, unit, at_least=target)


def _at_most(name: str, unit: str, target: float) -> Figure:
    return Figure(name, unit, at_most=target)


_CASES = (
    Case(
        READ_LARGE,
        partial(_batch_read, KIB),
        (RAW, ARROW, KAFKA, TUNED, LIMIT),
        (
            Comparison("raw per Kafka", RAW, KAFKAS, at_least=1.4),
            Comparison("raw per limit", RAW, (LIMIT,), at_least=0.55),
            Comparison("arrow per limit", ARROW, (LIMIT,), at_least=0.75),
        ),
        wanted=(
            _at_most("raw processor", "s/million", 3.0),
            _at_most("raw client", "s/million", 0.7),
            _at_most("raw servers", "s/million", 0.5),
        ),
        is_warmed_up=True,
    ),
    Case(
        READ_SMALL,
        partial(_batch_read, SMALL),
        (RAW, ARROW, KAFKA, TUNED, LIMIT),
        (Comparison("arrow per Kafka", ARROW, KAFKAS, at_least=2.0),),
        wanted=(_at_least("raw", "rows/s", 1_000_000),),
        is_warmed_up=True,
    ),
    Case(
        "write_1KiB",
        _batch_write,
        (RAW, ARROW, THREE, KAFKA, LIMIT),
        (
            Comparison("arrow per Kafka", ARROW, (KAFKA,), at_least=2.0),
            Comparison("raw_3_bookies per Kafka", THREE, (KAFKA,), at_least=1.0),
            Comparison("raw per Kafka", RAW, (KAFKA,), at_least=1.5),
        ),
        is_warmed_up=True,
    ),
    Case(
        "stream_read",
        _large_triggers,
        (RAW, KAFKA, TUNED, LIMIT),
        (
            Comparison("raw per limit", RAW, (LIMIT,), at_least=0.8),
            Comparison("raw per Kafka", RAW, KAFKAS, at_least=1.0),
        ),
    ),
    Case(
        "stream_write",
        _stream_write,
        (RAW, ARROW, THREE, KAFKA, LIMIT),
        (
            Comparison("raw_3_bookies per Kafka", THREE, (KAFKA,), at_least=1.0),
            Comparison("raw per Kafka", RAW, (KAFKA,), at_least=1.5),
            Comparison("arrow per Kafka", ARROW, (KAFKA,), at_least=1.5),
        ),
    ),
    Case(
        "small_triggers",
        _small_triggers,
        (RAW, KAFKA, TUNED, LIMIT),
        (
            Comparison("raw per Kafka", RAW, KAFKAS, at_most=1.1),
            Comparison("raw above limit", RAW, (LIMIT,), at_most=30.0, is_difference=True),
        ),
        unit="ms",
    ),
    Case(
        "append_to_sink",
        _latency,
        (RAW, KAFKA, TUNED),
        (Comparison("raw per Kafka", RAW, KAFKAS, at_most=1.1),),
        unit="ms",
    ),
)
CASES = {case.name: case for case in _CASES}
_OVER_NETWORK = (
    Comparison("raw per Kafka", RAW, KAFKAS, at_least=2.5),
    Comparison("raw per limit", RAW, (LIMIT,), at_least=0.45),
    Comparison("arrow per limit", ARROW, (LIMIT,), at_least=0.45),
)


def over_network(case: Case) -> Case:
    """Return a case with its targets for bookies that offer no local reads."""
    return replace(case, comparisons=_OVER_NETWORK, wanted=()) if case.name == READ_LARGE else case
