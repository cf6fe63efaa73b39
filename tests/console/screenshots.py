"""Takes the pictures of docs/console: a cluster with some load and a dead bookie, and each page in Chromium.

python -m tests.console.screenshots [--seconds 150]
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
import time
from pathlib import Path

import pyarrow as pa

from bkspark.blocking import Client
from tests.cluster import Cluster
from tests.console.browser import PHONE, chromium
from tests.console.process import HTTP, ConsoleProcess, Visitor
from tests.polling import wait_until

FOLDER = Path(__file__).parent.parent.parent / "docs" / "console"
HEIGHT_MAX = 1500
_BOOKIES = 5


def main() -> None:
    """Take all pictures."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=150.0, help="how long there is load before (default: 150)")
    seconds = parser.parse_args().seconds
    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as directory:
        settings = {**HTTP, "prometheusStatsLatencyRolloverSeconds": "10"}
        with (
            Cluster(Path(directory), bookies=_BOOKIES, settings=settings) as cluster,
            ConsoleProcess("--uri", cluster.uri) as console,
        ):
            _take(cluster, console, seconds)


def _take(cluster: Cluster, console: ConsoleProcess, seconds: float) -> None:
    visitor = console.visitor()
    bookies = sorted(bookie.id for bookie in cluster.bookies)
    with (
        Client(cluster.uri) as client,
        client.log("clicks").open_for_writing(ensemble=3, write_quorum=2, ack_quorum=2, roll_seconds=30.0) as log,
    ):
        ledgers = [_arrow_ledger(client), _json_ledger(client)]
        _change_things(visitor, bookies)
        began = time.monotonic()
        while (passed := time.monotonic() - began) < seconds:
            burst = int(60 + 50 * math.sin(passed / 12))
            log.append_many([json.dumps({"user": i % 97, "page": f"/item/{i}"}).encode() for i in range(burst)])
            client.open(ledgers[0]).read(0, 2)
            time.sleep(0.1)
        with chromium(console.url) as browser:

            def picture(name: str, path: str, *, width: int = 1200, dark: bool = False) -> None:
                browser.show(width=width, dark=dark)
                browser.open(path)
                browser.picture(FOLDER / f"{name}.png", height_max=HEIGHT_MAX, width=width, dark=dark)

            picture("overview", "/")
            picture("overview-dark", "/", dark=True)
            picture("overview-phone", "/", width=PHONE)
            picture("bookies", "/bookies")
            picture("bookie", f"/bookies/{bookies[0]}")
            picture("ledgers", "/ledgers")
            browser.show(width=1200)
            browser.open(f"/ledgers/{ledgers[1]}")
            browser.press("Read the copies")
            browser.picture(FOLDER / "ledger.png", height_max=HEIGHT_MAX, width=1200)
            picture("entries", f"/ledgers/{ledgers[0]}/entries?count=3")
            picture("logs", "/logs")
            picture("log", "/logs/clicks")
            picture("slow", "/slow")
            picture("audit", "/audit")
            csrf = visitor.get("/repair").csrf
            visitor.post("/repair/switch", {"csrf": csrf, "enabled": "no"})
            _lose_a_bookie(client, cluster, visitor)
            picture("repair", "/repair")
            picture("overview-degraded", "/")
            picture("operations", "/operations")
            browser.open(f"/operations/{bookies[1]}")
            browser.press("Check now")
            browser.picture(FOLDER / "steps.png", height_max=HEIGHT_MAX, width=1200)
            visitor.post("/repair/switch", {"csrf": csrf, "enabled": "yes"})


def _arrow_ledger(client: Client) -> int:
    table = pa.table({"city": ["Bern", "Kyoto", "Lima"], "visitors": [134_000, 1_450_000, 980_000]})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    with client.create(ensemble=3, write_quorum=3, ack_quorum=2, metadata={"application": "reports"}) as ledger:
        ledger.append_many([b"plain text", b'{"json": [1, 2, 3]}', sink.getvalue().to_pybytes()])
    return ledger.ledger_id


def _json_ledger(client: Client) -> int:
    with client.create(ensemble=4, write_quorum=2, ack_quorum=2, metadata={"application": "orders"}) as ledger:
        ledger.append_many([b'{"order": %d}' % number for number in range(4000)])
    return ledger.ledger_id


def _change_things(visitor: Visitor, bookies: list[str]) -> None:
    csrf = visitor.get(f"/bookies/{bookies[0]}").csrf
    for path, form in (
        ("collect", {"level": "major"}),
        ("keys", {"key": "compactionRateByBytes", "value": "20000000"}),
        ("read-only", {"read_only": "yes", "reason": "new disk on Tuesday"}),
        ("read-only", {"read_only": "no"}),
        ("keys", {"key": "bookiePort", "value": "1"}),
    ):
        visitor.post(f"/bookies/{bookies[0]}/{path}", {"csrf": csrf, **form})


def _lose_a_bookie(client: Client, cluster: Cluster, visitor: Visitor) -> None:
    """Kill a bookie, and list some of its ledgers as an auditor does: autorecovery is disabled meanwhile."""
    from bkspark.metadata.underreplication import UnderreplicationStore
    from bkspark.metadata.uri import MetadataUri
    from bkspark.metadata.zookeeper import open_tree

    lost = cluster.bookies[-1]
    lost.kill()
    held = [
        ledger_id
        for ledger_id in client.ledgers()
        if any(lost.id in fragment.bookies for fragment in client.metadata(ledger_id).fragments)
    ]

    async def mark() -> None:
        uri = MetadataUri.parse(cluster.uri)
        tree = await open_tree(uri)
        try:
            for ledger_id in held[:20]:
                now_ms = time.time_ns() // 1_000_000
                await UnderreplicationStore(tree, uri).mark(ledger_id, [lost.id], now_ms)
        finally:
            await tree.close()

    import asyncio

    asyncio.run(mark())
    wait_until(lambda: "bookie_down" in visitor.get("/").text, "the session of the lost bookie to end", 60)


if __name__ == "__main__":
    main()
