"""`bkspark cluster health`: whether a cluster is well, why not, and whether a bookie may be stopped."""

from __future__ import annotations

import argparse
import dataclasses
import time
from typing import TYPE_CHECKING, Any

from bkspark.cli.arguments import client_net, client_zookeeper, cluster_uri
from bkspark.cli.output import human_bytes, print_json

if TYPE_CHECKING:
    from bkspark.client import Client
    from bkspark.core.health import BookieFacts, ClusterFacts, Reason

DEGRADED = 10
"""The exit code for a degraded cluster, or a bookie that may not be stopped."""
WATCH_S = 2.0
ANSWER_S_MAX = 5.0
"""A bookie that does not answer in this time is unreachable."""
LEDGERS_AT_ONCE = 64


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    parser.add_argument("--watch", action="store_true", help="ask again and again, until Ctrl-C")
    parser.add_argument("--exit-when-healthy", action="store_true", help="with --watch: end as soon as it is healthy")
    parser.add_argument(
        "--can-stop", metavar="ID", help="say whether this bookie may be stopped now; reads the metadata of all ledgers"
    )
    parser.set_defaults(run=health)


def health(arguments: argparse.Namespace) -> int:
    """Print whether the cluster is healthy and why not; return 0 if it is, else 10."""
    import asyncio

    codes: list[int] = []
    try:
        asyncio.run(_health(arguments, codes))
    except KeyboardInterrupt:
        # --watch ends so; the last answer counts.
        if not arguments.watch or not codes:
            raise
    return codes[-1]


async def _health(arguments: argparse.Namespace, codes: list[int]) -> None:
    """Ask once, or until it is enough; add the exit code of each answer to `codes`."""
    import asyncio

    from bkspark.client import Client

    net, zookeeper = client_net(arguments), client_zookeeper(arguments)

    async with Client(cluster_uri(arguments), net=net, zookeeper=zookeeper) as client:
        while True:
            codes.append(await _look(client, arguments))
            del codes[:-1]
            if not arguments.watch or (arguments.exit_when_healthy and codes[-1] == 0):
                return
            await asyncio.sleep(WATCH_S)


async def _look(client: Client, arguments: argparse.Namespace) -> int:
    """Ask once and print the answer; return its exit code."""
    from bkspark.core.health import reasons

    facts = await cluster_facts(client)
    found = reasons(facts)
    answer: dict[str, Any] = {
        "healthy": not found,
        "reasons": [dataclasses.asdict(reason) for reason in found],
        "bookies": [{**dataclasses.asdict(each), "reachable": each.serves} for each in facts.bookies],
        "underreplicated": facts.underreplicated,
    }
    is_good = not found
    if arguments.can_stop is not None:
        against, ledgers = await against_stopping(client, arguments.can_stop, facts)
        is_good = not against
        answer["can_stop"] = {
            "bookie": arguments.can_stop,
            "safe": is_good,
            "ledgers": ledgers,
            "reasons": [dataclasses.asdict(reason) for reason in against],
        }
        found = [*found, *against]
    if arguments.json:
        print_json(answer)
    else:
        _print(facts, found, arguments)
    return 0 if is_good else DEGRADED


def _print(facts: ClusterFacts, found: list[Reason], arguments: argparse.Namespace) -> None:
    serving = sum(each.serves for each in facts.bookies)
    free = sum(each.free_bytes or 0 for each in facts.bookies)
    verdict = "degraded" if any(each.code for each in found) else "healthy"
    when = f"{time.strftime('%H:%M:%S')} " if arguments.watch else ""
    print(f"{when}{verdict}: {serving} of {len(facts.bookies)} bookies serve, {human_bytes(free)} free", flush=True)
    for reason in found:
        print(f"  {reason.code}: {reason.text}", flush=True)
    if arguments.can_stop is not None and not any(each.subject == arguments.can_stop for each in found):
        print(f"  bookie {arguments.can_stop} may be stopped", flush=True)


async def cluster_facts(client: Client) -> ClusterFacts:
    """Return the facts. Raises MetadataError."""
    import asyncio

    from bkspark.core.health import ClusterFacts
    from bkspark.metadata.election import AuditorElection
    from bkspark.metadata.underreplication import UnderreplicationStore

    context, tree = await client.context(), await client.tree()
    store = UnderreplicationStore(tree, client.uri)
    states = await context.registry.states()
    bookies = await asyncio.gather(*(bookie_facts(client, bookie, state) for bookie, state in states.items()))
    listed = await store.count()
    auditor = await AuditorElection(tree, client.uri, "").auditor()
    return ClusterFacts(bookies, listed, await store.is_enabled(), auditor)


async def bookie_facts(client: Client, bookie: str, state: str) -> BookieFacts:
    """Ask a bookie for its disk space: one that is registered may be dead until its session ends."""
    import asyncio

    from bkspark.core.health import DOWN, BookieFacts
    from bkspark.errors import BookKeeperError

    if state == DOWN:
        return BookieFacts(bookie, state)
    context = await client.context()
    try:
        async with asyncio.timeout(ANSWER_S_MAX):
            space = await (await context.pool.v3_channel(bookie)).disk_space()
    except TimeoutError:
        return BookieFacts(bookie, state, f"nothing came within {ANSWER_S_MAX:g} s")
    except BookKeeperError as error:
        return BookieFacts(bookie, state, str(error))
    return BookieFacts(bookie, state, "", space.free_bytes, space.total_bytes)


async def against_stopping(client: Client, bookie: str, facts: ClusterFacts) -> tuple[list[Reason], int]:
    """Return (why a bookie may not be stopped, how many ledgers it has entries of)."""
    import asyncio

    from bkspark.core.health import StopCheck
    from bkspark.errors import NoSuchLedger

    check = StopCheck(bookie, facts.bookies)
    ledgers = (await client.context()).ledgers

    async def look(ledger_id: int) -> None:
        try:
            check.look(ledger_id, (await ledgers.read(ledger_id)).metadata)
        except NoSuchLedger:
            return

    group: list[int] = []
    async for ledger_id in ledgers.ids():
        group.append(ledger_id)
        if len(group) == LEDGERS_AT_ONCE:
            await asyncio.gather(*map(look, group))
            group = []
    await asyncio.gather(*map(look, group))
    return check.reasons(), check.ledgers
