"""What authorization costs a bookie in the steady state: processor time with a rules file, and without.

    python -m benchmarks.authorization_cost [--rounds 10]

As `statistics_cost`, but two services in this process get the same bursts by turns. One has 1,000 rules, of which the
last allows the client to use the ledgers of one log. Each ledger is looked up once, before the first burst is over.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

from benchmarks.statistics_cost import BURSTS, Client, Measured, compare
from bkspark.security.authorization import LedgerFacts, parse_rules
from bkspark.wire import v2
from bookie_service.engine.authorization import Authorization, Found
from bookie_service.operation.authorization import log_refusal
from tests.bookie.serving import KEY, Serving, adds, service_options

_RULES = "".join(f"certificate:CN=user{number} read,write log:log{number}\n" for number in range(999))
_LEDGERS = range(100, 164)


def _look_up(ledger_id: int, on_found: Callable[[Found], None], asker: str) -> None:
    asyncio.get_running_loop().call_soon(on_found, LedgerFacts(ledger_id, "mine", master_key=KEY))


def add_to_many_ledgers(client: Client) -> None:
    """Add one entry of 1 KiB to each of 64 ledgers at once, 50 times."""
    for _ in range(50):
        client.peer.send(b"".join(adds(ledger_id, client.next_entry, [b"x" * 1024]) for ledger_id in _LEDGERS))
        client.peer.replies(len(_LEDGERS))
        client.next_entry += 1


def read_from_many_ledgers(client: Client) -> None:
    """Read the last entry of each of 64 ledgers at once, 100 times."""
    request = b"".join(v2.encode_reads(ledger_id, np.array([v2.LAST_ENTRY]), 0, None) for ledger_id in _LEDGERS)
    for _ in range(100):
        client.peer.send(request)
        client.peer.replies(len(_LEDGERS))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=10)
    rounds = parser.parse_args().rounds
    rules = parse_rules(f"{_RULES}anonymous read,write,fence log:mine\n".encode())
    with tempfile.TemporaryDirectory() as name:
        without = Measured(Serving(service_options(Path(name) / "without")))
        authorization = Authorization(rules, _look_up, log_refusal)
        ruled = Measured(Serving(service_options(Path(name) / "with"), authorization=authorization))
        try:
            compare(without.cost, ruled.cost, rounds, (*BURSTS, add_to_many_ledgers, read_from_many_ledgers))
        finally:
            without.close()
            ruled.close()


if __name__ == "__main__":
    main()
