"""Measures what floods do to an honest client, to a bookie's memory and to its log: a real bookie, by the clock.

Each round measures the honest client three times, one directly after the other: alone, beside the same flood against a
sink (what the machine itself loses to it), and beside the flood against the bookie. Ratios are taken inside a round,
and the median round counts: the machine may be shared.
"""

from __future__ import annotations

import contextlib
import os
import resource
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bkspark.tls.options import FACTORY_CLASS
from bookie_service.settings.authentication import KEY, SASL_CLASS
from tests.cluster import Cluster, ClusterBookie
from tests.floods.clients import MALFORMED, Child, Flood, Taken, child, flood, honest, prepare, sink
from tests.floods.requests import HALF
from tests.security.certificates import Authority
from tests.security.sasl_serving import jaas_file, jaas_text

P99_RATIO_MAX = 2.0
LOG_LINES_PER_S_MAX = 10.0
CACHES_BYTES = 2 * 64 * 1024 * 1024
"""Both halves of the write cache, as a local cluster has them by default."""
RECEIVED_BYTES, REPLY_BYTES = 128 * 1024 * 1024, 256 * 1024 * 1024
"""receiveBuffersMaxBytes and replyBuffersMaxBytes."""
_BESIDE_BUDGETS_BYTES = 64 * 1024 * 1024
"""What a flood may take beside the named budgets: connections, index pages, what the allocator keeps."""
_FILES_MAX = 65_536
_GROUP = Path("/proc/self/autogroup")
_AHEAD_S = 1.0
"""A flood is under way for this long before anything is measured."""


_STUCK: Any = {"connections": 2000, "addresses": 10, "reconnects": False}
"""200 of an address: the bookie holds all of them, with `_HELD_MAX`. It closes most of 2,000 that one address has."""
_HELD_MAX = 2100
"""Unfinished handshakes and logins that the bookie holds. Its limits for one address are the default ones."""

FLOODS: dict[str, Flood] = {
    "burst of V3 LAC reads of missing ledgers": Flood("V3 LAC reads of missing ledgers"),
    "burst of V3 reads of missing ledgers": Flood("V3 reads of missing ledgers"),
    "burst of V2 reads of missing ledgers": Flood("V2 reads of missing ledgers"),
    "burst of V2 batch reads of missing ledgers": Flood("V2 batch reads of missing ledgers"),
    "burst of V3 forces": Flood("V3 FORCE"),
    "burst of V3 requests for disk space": Flood("V3 disk space"),
    "burst of V2 AUTH": Flood("V2 AUTH"),
    "reads of missing ledgers, 4 connections": Flood("V3 reads of missing ledgers", connections=4),
    "LAC reads of missing ledgers, 4 connections": Flood("V3 LAC reads of missing ledgers", connections=4),
    "adds with a wrong key, 4 connections": Flood("V2 adds with a wrong key", connections=4),
    "reads whose replies are left": Flood("V2 reads of a held ledger", connections=50, takes_replies=False),
    "10,000 silent connections": Flood("", connections=10_000),
    "2,000 silent connections whose time ends together": Flood("", connections=2000, idle_s=2.0),
    "long polls": Flood("V3 long polls"),
    "lists of a sparse ledger": Flood("V3 lists of a sparse ledger", count=1000),
    "fences of unknown ledgers": Flood("V2 fences of unknown ledgers", connections=2, count=100_000, repeats=False),
    "malformed frames": Flood(MALFORMED, connections=4),
    "2,000 connections with malformed frames": Flood(MALFORMED, connections=2000),
    "2,000 connections without a handshake": Flood("START_TLS and no handshake", connections=2000, repeats=False),
    "2,000 half TLS handshakes": Flood(HALF, connections=2000, repeats=False),
    "2,000 connections without a login": Flood("", connections=2000, demands_login=True),
    "2,000 half logins": Flood("half logins", connections=2000, repeats=False, demands_login=True),
    "2,000 stuck handshakes of 10 addresses": Flood("START_TLS and no handshake", repeats=False, **_STUCK),
    "2,000 half TLS handshakes of 10 addresses": Flood(HALF, repeats=False, **_STUCK),
    "2,000 half logins of 10 addresses": Flood("half logins", repeats=False, demands_login=True, **_STUCK),
    "wrong logins, 4 connections": Flood("wrong logins", connections=4, repeats=False, demands_login=True),
}


@dataclass
class Round:
    """p99 of the honest client's adds and reads, in ms: alone, beside a flood of a sink, beside one of the bookie."""

    quiet: Mapping[str, float]
    sink: Mapping[str, float]
    flood: Mapping[str, float]

    def ratio(self, operation: str) -> float:
        """Return by how much the bookie's share of the flood slows an operation down."""
        return self.flood[operation] / max(self.quiet[operation], self.sink[operation])


@dataclass
class Result:
    """What one flood did. Bytes are of the bookie, over its memory before the flood."""

    name: str
    rounds: list[Round] = field(default_factory=list)
    rss_bytes: int = 0
    log_lines_per_s: float = 0.0
    sent_bytes: int = 0
    signed: int = 0
    """How many connections of the flood were sent more than `SIGNED_BYTES`: a ServerHello, with half handshakes."""
    processor_s: float = 0.0
    """Processor time of the bookie beside the flood."""

    def median(self, which: str, operation: str) -> float:
        """Return the median p99 of the rounds, in ms."""
        return statistics.median(getattr(each, which)[operation] for each in self.rounds)

    def ratio(self, operation: str) -> float:
        """Return the median of the rounds' ratios."""
        return statistics.median(each.ratio(operation) for each in self.rounds)

    @property
    def broken(self) -> list[str]:
        """What is above its limit."""
        found = [
            f"p99 of {operation}s is {self.ratio(operation):.1f} times the quiet one"
            for operation in ("add", "read")
            if self.ratio(operation) > P99_RATIO_MAX
        ]
        if FLOODS[self.name].name == HALF and not self.signed:
            found.append("no handshake was answered")
        if self.rss_bytes > CACHES_BYTES + RECEIVED_BYTES + REPLY_BYTES + _BESIDE_BUDGETS_BYTES:
            found.append(f"the bookie grew by {self.rss_bytes >> 20} MiB")
        if self.log_lines_per_s > LOG_LINES_PER_S_MAX:
            found.append(f"{self.log_lines_per_s:.1f} lines of log a second")
        return found


def measure(
    names: Sequence[str], seconds: float, rounds: int, directory: Path | None = None, *, goes_first: bool = False
) -> Iterator[Result]:
    """Measure floods by their names, one after the other on one bookie, `seconds` each time.

    Args:
        goes_first: the bookie, the honest client and the sink go before all other work of the machine: a flood keeps
            a bookie busy, and a busy process waits for its turn where others have work, which is not the flood's doing.

    Raises:
        AssertionError: an honest request failed.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, _FILES_MAX), hard))
    try:
        needs = dict.fromkeys((FLOODS[name].demands_login, FLOODS[name].idle_s) for name in names)
        for demands_login, idle_s in sorted(needs):
            chosen = [n for n in names if (FLOODS[n].demands_login, FLOODS[n].idle_s) == (demands_login, idle_s)]
            yield from _measure_on_one(chosen, seconds, rounds, directory, goes_first, demands_login, idle_s)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def _measure_on_one(
    names: Sequence[str],
    seconds: float,
    rounds: int,
    directory: Path | None,
    goes_first: bool,
    demands_login: bool,
    idle_s: float,
) -> Iterator[Result]:
    """Measure floods on one bookie."""
    with ExitStack() as held:
        place = Path(held.enter_context(tempfile.TemporaryDirectory(prefix="bkspark-floods-", dir=directory)))
        settings = _sasl(place) if demands_login else _tls(place)
        if idle_s:
            settings["connectionIdleTimeoutMs"] = str(round(1000 * idle_s))
        (bookie,) = held.enter_context(Cluster(place / "cluster", bookies=1, settings=settings)).bookies
        port = int(bookie.id.rpartition(":")[2])
        prepare(port, logs_in=demands_login)
        client = held.enter_context(child(honest, port, demands_login))
        target = held.enter_context(child(sink))
        if goes_first:
            held.enter_context(_session_first())
            for pid in (bookie.pid, client.pid, target.pid):
                _go_first(pid)
        _p99(client, seconds)
        for name in names:
            yield _measure_one(name, seconds, rounds, bookie, client, target)


def _tls(folder: Path) -> dict[str, str]:
    """Return the keys of a bookie that has TLS and serves clear connections, too."""
    key, chain = Authority(folder).issue("bookie").pem()
    return {
        "tlsProviderFactoryClass": FACTORY_CLASS,
        "tlsKeyStore": key,
        "tlsCertificatePath": chain,
        "maxTlsHandshakes": str(_HELD_MAX),
    }


def _sasl(folder: Path) -> dict[str, str]:
    """Return the keys of a bookie that authenticates its clients."""
    return {
        KEY: SASL_CLASS,
        "authenticationRequired": "true",
        "maxUnauthenticatedConnections": str(_HELD_MAX),
        "saslJaasConfig": jaas_file(folder / "bookie.jaas", jaas_text()),
    }


def _measure_one(name: str, seconds: float, rounds: int, bookie: ClusterBookie, client: Child, target: Child) -> Result:
    result = Result(name)
    before = _resident_bytes(bookie)
    port = int(bookie.id.rpartition(":")[2])
    with child(flood, port, FLOODS[name]) as floods, child(flood, target.ready, FLOODS[name]) as control:
        for _ in range(rounds):
            quiet = _p99(client, seconds)
            beside_sink = _beside(control, client, seconds)[0]
            lines = _log_lines(bookie)
            processor_s = _processor_s(bookie)
            under_flood, taken, most = _beside(floods, client, seconds, bookie)
            result.processor_s += _processor_s(bookie) - processor_s
            lines_per_s = (_log_lines(bookie) - lines) / (_AHEAD_S + seconds)
            result.rounds.append(Round(quiet, beside_sink, under_flood))
            result.log_lines_per_s = max(result.log_lines_per_s, lines_per_s)
            result.sent_bytes += taken.sent_bytes
            result.signed += taken.signed
            result.rss_bytes = max(result.rss_bytes, most - before)
    return result


def _go_first(pid: int) -> None:
    """Have a process scheduled before others. Not as real-time: Linux stops that for 50 ms of a busy second.

    Raises:
        PermissionError: it takes a right that this process lacks.
    """
    for thread in Path(f"/proc/{pid}/task").iterdir():
        os.setpriority(os.PRIO_PROCESS, int(thread.name), -20)


@contextlib.contextmanager
def _session_first() -> Iterator[None]:
    """Have this session scheduled before others: where Linux groups processes by session, it compares their nice
    values only within one.

    Raises:
        PermissionError: it takes a right that this process lacks.
    """
    group = _GROUP.read_text() if _GROUP.exists() else ""
    if not group:
        yield
        return
    before = group.split()[-1]
    _GROUP.write_text("-20")
    try:
        yield
    finally:
        _GROUP.write_text(before)


def _beside(
    floods: Child, client: Child, seconds: float, bookie: ClusterBookie | None = None
) -> tuple[Mapping[str, float], Taken, int]:
    """Return (p99 beside a flood, what was taken of the flood, the bookie's memory)."""
    floods.begin()
    time.sleep(_AHEAD_S)
    found = _p99(client, seconds)
    resident = _resident_bytes(bookie) if bookie is not None else 0
    return found, floods.end(), resident


def _p99(client: Child, seconds: float) -> Mapping[str, float]:
    client.begin()
    time.sleep(seconds)
    taken: Mapping[str, list[float]] = client.end()
    return {operation: 1000 * percentile(each, 0.99) for operation, each in taken.items()}


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value that `share` of all do not exceed."""
    return sorted(values)[int(share * (len(values) - 1))]


def _resident_bytes(bookie: ClusterBookie) -> int:
    pages = int(Path(f"/proc/{bookie.pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def _processor_s(bookie: ClusterBookie) -> float:
    """Return the processor time that a bookie has used."""
    user, system = Path(f"/proc/{bookie.pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def _log_lines(bookie: ClusterBookie) -> int:
    return (bookie.dir / "bookie.log").read_bytes().count(b"\n")


def as_json(result: Result) -> dict[str, Any]:
    """Return what one flood did, for JSON: ms, ratios, MiB, lines a second."""
    figures: dict[str, Any] = {"flood": result.name}
    for operation in ("add", "read"):
        figures[f"{operation}_p99_ms"] = {
            which: round(result.median(which, operation), 2) for which in ("quiet", "sink", "flood")
        }
        figures[f"{operation}_ratio"] = round(result.ratio(operation), 2)
    return figures | {
        "rss_growth_mib": result.rss_bytes >> 20,
        "log_lines_per_s": round(result.log_lines_per_s, 1),
        "sent_mib": result.sent_bytes >> 20,
        "bookie_processor_s": round(result.processor_s, 2),
        "signed": result.signed,
        "broken": result.broken,
    }
