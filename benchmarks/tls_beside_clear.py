"""TLS beside clear connections through our own client and bookies: adds and reads of 1 KiB, and what they cost.

python -m benchmarks.tls_beside_clear [--entries N] [--rounds N] [--protocol v2|v3]

Starts ZooKeeper and three bookies that have TLS and serve clear connections too, E3/Qw3/Qa2. Both clients read over the
network (`local_reads` is off) and take turns within a round, so their ratios mean something on a noisy machine. Clients
show certificates, which costs time for each connection only. `processor` is that of client and bookies together.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
from pathlib import Path

from benchmarks.v3_beside_v2 import PROTOCOLS, measure_round
from bkspark.blocking import Client
from bkspark.cli.cluster_process import ClusterProcess
from bkspark.net.pool import NetOptions
from bkspark.tls.options import FACTORY_CLASS, TlsOptions
from tests.security.certificates import Authority


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tls_beside_clear", description=__doc__.split("\n")[0])
    parser.add_argument("--entries", type=int, default=100_000, help="of each load (default 100,000)")
    parser.add_argument("--rounds", type=int, default=5, help="default 5; medians are shown")
    parser.add_argument("--protocol", choices=PROTOCOLS, default="v2", help="default v2")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory)
        authority = Authority(folder)
        key, chain = authority.issue("bookie").pem()
        client_key, client_chain = authority.issue("client").pem()
        settings = {
            "tlsProviderFactoryClass": FACTORY_CLASS,
            "tlsClientAuthentication": "true",
            "tlsKeyStore": key,
            "tlsCertificatePath": chain,
            "tlsTrustStore": authority.pem,
        }
        tls = TlsOptions(
            trust_store=authority.pem,
            key_store=client_key,
            certificate_path=client_chain,
            client_authentication=True,
        )
        with (
            ClusterProcess(3, folder / "cluster", settings=settings) as cluster,
            Client(cluster.uri, wire_protocol=options.protocol, net=NetOptions(local_reads=False)) as clear,
            Client(cluster.uri, wire_protocol=options.protocol, net=NetOptions(tls=tls)) as secure,
        ):
            pids = [os.getpid(), *(bookie.pid for bookie in cluster.bookies)]
            clients = {"clear": clear, "tls": secure}
            rounds = [measure_round(clients, pids, options.entries) for _ in range(options.rounds + 1)][1:]
    figures = {name: statistics.median(one[name] for one in rounds) for name in rounds[0]}
    facts = {"entries": options.entries, "rounds": options.rounds, "protocol": options.protocol}
    print(json.dumps(facts | {name: round(figure, 3) for name, figure in figures.items()}))


if __name__ == "__main__":
    main()
