"""The blocking client that commands about ledgers and logs use."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from bkspark.cli.arguments import client_encryption, client_net, client_zookeeper, cluster_uri, ledger_password

if TYPE_CHECKING:
    from bkspark.blocking import Client

LEDGERS_AT_ONCE = 64
"""How many ledgers a command asks about at the same time."""


def connect(arguments: argparse.Namespace, *, explicit_lac_interval_s: float | None = None) -> Client:
    """Return a blocking client for the cluster and the credentials that the arguments name."""
    from bkspark.blocking import Client
    from bkspark.core.writer_options import WriterOptions

    writer = WriterOptions(explicit_lac_interval_s=explicit_lac_interval_s or 0.0)
    return Client(
        cluster_uri(arguments),
        digest=arguments.digest,
        password=ledger_password(arguments),
        net=client_net(arguments),
        zookeeper=client_zookeeper(arguments),
        writer=writer,
        encryption=client_encryption(arguments),
    )
