"""A bookie of Apache's and one of ours in one cluster, with HTTP servers, and what they answer there."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from bkspark.blocking import Client
from bkspark.cli.cluster_process import HOST, BookieProcess
from bkspark.cli.ports import free_ports
from bkspark.cli.zookeeper_process import ZooKeeperProcess
from tests.cluster import ClusterBookie
from tests.interop.apache import SESSION_TIMEOUT_MS, ApacheBookie
from tests.interop.peer import Peer
from tests.polling import wait_until

HTTP = {
    "httpServerEnabled": "true",
    "httpServerClass": "org.apache.bookkeeper.http.vertx.VertxHttpServer",
    "statsProviderClass": "org.apache.bookkeeper.stats.prometheus.PrometheusMetricsProvider",
    "prometheusStatsLatencyRolloverSeconds": "1",
    "persistBookieStatusEnabled": "true",
}


@dataclass(frozen=True, slots=True)
class Pair:
    """A bookie of Apache's and one of ours: ids and HTTP ports."""

    uri: str
    apache: str
    ours: str
    apache_port: int
    our_port: int
    apache_dir: Path
    our_dir: Path


@contextlib.contextmanager
def running_pair(
    classpath: str, peer: Peer, directory: Path, settings: Mapping[str, str] | None = None
) -> Iterator[Pair]:
    """Run both bookies with `settings`, and with ledger 0, closed, and ledger 1, open, on both."""
    shared = {**HTTP, **(settings or {})}
    zookeeper_port, apache_http, our_http, apache_port, our_port, stats_port = free_ports(6)
    zookeeper = ZooKeeperProcess(directory / "zookeeper", port=zookeeper_port)
    uri = f"zk://{HOST}:{zookeeper_port}/ledgers"
    apache: ApacheBookie | None = None
    ours: ClusterBookie | None = None
    try:
        zookeeper.start()
        peer.call("initialize", uri=uri)
        apache = ApacheBookie(
            classpath,
            directory / "apache",
            apache_port,
            uri,
            {**shared, "httpServerPort": str(apache_http), "prometheusStatsHttpPort": str(stats_port)},
        )
        ours_settings = {
            **shared,
            "zkTimeout": SESSION_TIMEOUT_MS,
            "httpServerPort": str(our_http),
            "prometheusStatsHttpPort": "0",
        }
        ours = ClusterBookie(BookieProcess(1, our_port, directory / "ours", uri, ours_settings))
        ours.launch()
        ours.wait_until_serving()
        apache.wait_until_serving()
        wait_until(lambda: answers(apache_http), "Apache's HTTP server")
        # Both bookies hold all entries, and answer reads of both protocols.
        with Client(uri) as client:
            with client.create(ensemble=2, write_quorum=2, ack_quorum=2, metadata={"a": b"b"}) as writer:
                writer.append_many([b"entry %d" % number for number in range(200)])
            open_writer = client.create(ensemble=2, write_quorum=2, ack_quorum=2)
            open_writer.append(b"left open")
            reader = client.open(writer.ledger_id)
            for _ in range(20):
                assert len(reader.read(0, 199)) == 200
        yield Pair(uri, apache.id, ours.id, apache_http, our_http, directory / "apache", directory / "ours")
    finally:
        if ours is not None:
            ours.stop()
        if apache is not None:
            apache.close()
        zookeeper.stop()


def answers(port: int) -> bool:
    try:
        return ask(port, "GET", "/heartbeat")[0] == 200
    except OSError:
        return False


def ask(port: int, method: str, path: str, body: object = None) -> tuple[int, str]:
    data = None if body is None else json.dumps(body).encode()
    try:
        with urlopen(Request(f"http://127.0.0.1:{port}{path}", data, method=method), timeout=60) as reply:
            return reply.status, reply.read().decode()
    except HTTPError as error:
        return error.code, error.read().decode()


PAGE = Path(__file__).parent.parent.parent / "docs" / "operations.md"
LINE = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})? (\S+)")


def families(port: int) -> dict[str, tuple[str, set[str], set[str]]]:
    """Return (kind, names of samples, names of labels) of each family, from the text itself: a parser adds suffixes."""
    status, text = ask(port, "GET", "/metrics")
    assert status == 200
    found: dict[str, tuple[str, set[str], set[str]]] = {}
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split()
            found[name] = (kind, set(), set())
        elif not line.startswith("#") and (match := LINE.fullmatch(line)):
            owner = next((name for name in (match[1], *_without_suffix(match[1])) if name in found), None)
            if owner is not None:  # some samples about the JVM have no family
                found[owner][1].add(match[1])
                found[owner][2].update(re.findall(r'([a-zA-Z_]+)="', match[2] or ""))
    return found


def _without_suffix(name: str) -> Iterator[str]:
    for suffix in ("_count", "_sum", "_bucket"):
        if name.endswith(suffix):
            yield name.removesuffix(suffix)


def different_metrics(pair: Pair, names: Iterable[str]) -> list[str]:
    """Return those metrics that one bookie lacks, or whose kind, samples or labels are not the same."""
    apache, ours = families(pair.apache_port), families(pair.our_port)
    found = []
    for name in names:
        if name not in apache or name not in ours:
            found.append(f"{name}: Apache's {name in apache}, ours {name in ours}")
        elif apache[name] != ours[name]:
            found.append(f"{name}: Apache's {apache[name]}, ours {ours[name]}")
    return found


def unlisted_metrics(pair: Pair) -> list[str]:
    """Return the names of Apache's metrics that ours has not and docs/operations.md does not list; `*` is any text."""
    listed = PAGE.read_text().partition("These metrics of Apache's bookie are not here:")[2].partition("\n\n")[0]
    patterns = re.findall(r"`([^`]+)`", listed)
    absent = families(pair.apache_port).keys() - families(pair.our_port).keys()
    # A directory is in the name.
    absent = {name for name in absent if not re.fullmatch("bookie_(ledger|index)_dir_.*_usage", name)}
    return sorted(name for name in absent if not any(fnmatchcase(name, pattern) for pattern in patterns))
