"""TLS beside clear connections: Apache's client on both kinds of bookies, and our client on ours, in one run.

    python -m benchmarks.apache_tls [--entries N] [--rounds N] [--protocol v2|v3]

It needs Java and Maven, as `benchmarks.apache_clients`, whose ledgers, JVMs and loads of 1 KiB it has. Bookies of both
kinds have TLS with client certificates and serve clear connections, too. A round starts Apache's bookies and then ours;
on each cluster a client in clear and one in TLS take turns, after a warm-up. The first round is not counted. Ratios are
taken within a round; medians are shown. Apache's side uses the TLS of the JDK, as there is no native library here.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
from pathlib import Path

from benchmarks.apache_clients import (
    APACHE_SETTINGS,
    BOOKIE_JVM,
    CALLS_IN_FLIGHT,
    CLIENT_JVM,
    ENTRY_BYTES,
    PER_CALL,
    WINDOW,
)
from benchmarks.v3_beside_v2 import PROTOCOLS, measure_round
from bkspark.blocking import Client
from bkspark.net.pool import NetOptions
from bkspark.tls.options import FACTORY_CLASS, TlsOptions
from tests.interop import build
from tests.interop.apache import ApacheCluster
from tests.interop.peer import JavaClient, Peer
from tests.security.certificates import Authority

_WARM_UP = 0.5
"""The share of a load that is done before it is measured."""


class Keys:
    """An authority, the keys of bookies and of Apache's client, and the options of ours."""

    def __init__(self, folder: Path) -> None:
        authority = Authority(folder)
        self.bookie = self._of(authority, "bookie")
        self.java_client = self._of(authority, "client")
        self.own_client = TlsOptions(
            trust_store=authority.pem,
            key_store=self.java_client["tlsKeyStore"],
            certificate_path=self.java_client["tlsCertificatePath"],
            client_authentication=True,
        )

    @staticmethod
    def _of(authority: Authority, name: str) -> dict[str, str]:
        key, chain = authority.issue(name).pem()
        return {
            "tlsProviderFactoryClass": FACTORY_CLASS,
            "tlsProvider": "JDK",
            "tlsClientAuthentication": "true",
            "tlsKeyStoreType": "PEM",
            "tlsKeyStore": key,
            "tlsCertificatePath": chain,
            "tlsTrustStoreType": "PEM",
            "tlsTrustStore": authority.pem,
        }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.apache_tls", description=__doc__.split("\n")[0])
    parser.add_argument("--entries", type=int, default=100_000, help="of each load (default 100,000)")
    parser.add_argument("--rounds", type=int, default=3, help="default 3; medians are shown")
    parser.add_argument("--protocol", choices=PROTOCOLS, default="v2", help="default v2")
    options = parser.parse_args()
    classpath = build.classpath(build.BOOKKEEPER)
    with tempfile.TemporaryDirectory(prefix="bkspark-apache-tls-") as directory:
        folder = Path(directory)
        keys = Keys(folder)
        peer = Peer(classpath, folder / "client.log", CLIENT_JVM)
        try:
            rounds = [
                _round(folder / f"round-{number}", classpath, peer, keys, options.protocol, options.entries)
                for number in range(options.rounds + 1)
            ][1:]
        finally:
            peer.kill()
    figures = {name: round(statistics.median(one[name] for one in rounds), 3) for name in rounds[0]}
    print(json.dumps({"entries": options.entries, "rounds": options.rounds, "protocol": options.protocol} | figures))


def _round(directory: Path, classpath: str, peer: Peer, keys: Keys, protocol: str, entries: int) -> dict[str, float]:
    """Return the ratios of TLS to clear for each client and kind of bookies, and the rates of Apache's client."""
    figures: dict[str, float] = {}
    for kind, counts in (("Apache's", {"apache": 3, "ours": 0}), ("our", {"apache": 0, "ours": 3})):
        place = directory / f"{counts['ours']}-of-ours"
        place.mkdir(parents=True)
        with ApacheCluster(
            classpath,
            place,
            peer,
            **counts,
            settings={**APACHE_SETTINGS, **keys.bookie},
            jvm_options=BOOKIE_JVM,
            our_settings=keys.bookie,
        ) as cluster:
            figures |= {
                f"Apache's client, {kind} bookies, {name}": value
                for name, value in _java_ratios(peer, cluster.uri, keys, protocol, entries).items()
            }
            if counts["ours"]:
                figures |= {
                    f"our client, {name}": value for name, value in _own(cluster, keys, protocol, entries).items()
                }
    return figures


def _java_ratios(peer: Peer, uri: str, keys: Keys, protocol: str, entries: int) -> dict[str, float]:
    rates = {}
    for name, settings in (("clear", {}), ("tls", keys.java_client)):
        with JavaClient(peer, uri, protocol, settings) as java:
            _java_rates(java, int(entries * _WARM_UP))
            rates[name] = _java_rates(java, entries)
    ratios = {f"{what}, tls to clear": rates["tls"][what] / rates["clear"][what] for what in rates["clear"]}
    return ratios | {f"{what} {name}/s": rate for name in rates for what, rate in rates[name].items()}


def _java_rates(java: JavaClient, entries: int) -> dict[str, float]:
    """Return how many entries a second Apache's client adds, and reads one by one."""
    added = java.call("load", what="add", entries=entries, size=ENTRY_BYTES, window=WINDOW)
    read = java.call(
        "load",
        what="read",
        ledgers=[added["ledger"]],
        entries=entries,
        per_call=PER_CALL,
        calls_in_flight=CALLS_IN_FLIGHT,
        how="single",
    )
    java.call("delete", ledger=added["ledger"])
    return {"add": entries / added["seconds"], "read": entries / read["seconds"]}


def _own(cluster: ApacheCluster, keys: Keys, protocol: str, entries: int) -> dict[str, float]:
    pids = [os.getpid(), *(bookie.pid for bookie in cluster.ours)]
    with (
        Client(cluster.uri, wire_protocol=protocol, net=NetOptions(local_reads=False)) as clear,
        Client(cluster.uri, wire_protocol=protocol, net=NetOptions(tls=keys.own_client)) as secure,
    ):
        clients = {"clear": clear, "tls": secure}
        measure_round(clients, pids, int(entries * _WARM_UP))
        return measure_round(clients, pids, entries)


if __name__ == "__main__":
    main()
