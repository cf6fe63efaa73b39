"""`bkspark cluster health`: whether a cluster is healthy, why not, and whether a bookie may be stopped."""

from __future__ import annotations

import argparse
import dataclasses
import time
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from bkspark.cli.arguments import bookie_id, client_net, client_zookeeper, cluster_uri
from bkspark.cli.connecting import LEDGERS_AT_ONCE
from bkspark.cli.output import human_bytes, print_json
from bkspark.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from bkspark.client import Client
    from bkspark.core.health import BookieFacts, ClusterFacts, Reason
    from bkspark.errors import MetadataError

DEGRADED = 10
"""The exit code for a degraded cluster, or a bookie that may not be stopped."""
WATCH_S = 2.0
ANSWER_S_MAX = 5.0
"""A bookie that does not answer in this time is unreachable."""
BOOKIES_AT_ONCE = 256
"""If all of a large cluster were asked at once, this process might not get to the last answers in time."""
_T = TypeVar("_T")


class _Once(argparse.Action):
    """An option that is given once: the answer for the last of several bookies would look like one for all."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        if getattr(namespace, self.dest) is not None:
            parser.error(f"{option_string} takes one bookie, and is given twice: ask for one bookie at a time")
        setattr(namespace, self.dest, values)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    parser.add_argument("--watch", action="store_true", help="repeat the check until Ctrl-C")
    parser.add_argument(
        "--exit-when-healthy",
        action="store_true",
        help="with --watch: exit when the cluster is healthy, or with --can-stop when the bookie may be stopped",
    )
    parser.add_argument(
        "--can-stop",
        action=_Once,
        type=bookie_id,
        metavar="ID",
        help="print whether this bookie may be stopped now; reads the metadata of all ledgers",
    )
    parser.set_defaults(run=health)


def health(arguments: argparse.Namespace) -> int:
    """Print whether the cluster is healthy and why not; return 0 if it is, otherwise 10."""
    import asyncio

    if arguments.exit_when_healthy and not arguments.watch:
        raise ConfigurationError("--exit-when-healthy has an effect only with --watch: give both, or neither")
    codes: list[int] = []
    try:
        asyncio.run(_health(arguments, codes))
    except KeyboardInterrupt:
        # --watch ends by a signal; the last answer decides the exit code.
        if not arguments.watch or not codes:
            raise
    return codes[-1]


async def _health(arguments: argparse.Namespace, codes: list[int]) -> None:
    """Check once, or with --watch repeatedly; `codes` gets the exit code of the last answer."""
    import asyncio

    from bkspark.errors import MetadataError

    def is_enough(answer: _Answer) -> bool:
        codes[:] = [answer.code]
        _print(answer, arguments)
        return not arguments.watch or (arguments.exit_when_healthy and answer.code == 0)

    while True:
        try:
            await _ask(arguments, is_enough)
            return
        except MetadataError as error:
            # Other errors mean that the metadata are wrong, or that the URI is: they end the command.
            if not error.is_outage:
                raise
            if is_enough(_away(error, arguments)):
                return
        await asyncio.sleep(WATCH_S)


async def _ask(arguments: argparse.Namespace, is_enough: Callable[[_Answer], bool]) -> None:
    """Ask until it is enough. Raises MetadataError."""
    import asyncio

    from bkspark.client import Client

    net, zookeeper = client_net(arguments), client_zookeeper(arguments)
    async with Client(cluster_uri(arguments), net=net, zookeeper=zookeeper) as client:
        while not is_enough(await _look(client, arguments)):
            await asyncio.sleep(WATCH_S)


@dataclasses.dataclass(frozen=True, slots=True)
class _Answer:
    """One answer. facts: None if the metadata store does not answer; against: why the bookie may not be stopped, None
    if that was not requested; ledgers: how many ledgers it has entries of."""

    facts: ClusterFacts | None
    reasons: list[Reason]
    against: list[Reason] | None = None
    ledgers: int = 0

    @property
    def code(self) -> int:
        """The exit code of the command: 0, or DEGRADED if there are reasons."""
        return DEGRADED if (self.reasons if self.against is None else self.against) else 0


async def _look(client: Client, arguments: argparse.Namespace) -> _Answer:
    """Ask once. Raises MetadataError."""
    from bkspark.core.health import reasons

    facts = await cluster_facts(client)
    found = reasons(facts)
    if arguments.can_stop is None:
        return _Answer(facts, found)
    return _Answer(facts, found, *await against_stopping(client, arguments.can_stop, facts))


def _away(error: MetadataError, arguments: argparse.Namespace) -> _Answer:
    """Return the answer to give while the metadata store does not answer."""
    from bkspark.core.health import Reason

    found = [Reason("metadata_unavailable", str(error))]
    return _Answer(None, found, None if arguments.can_stop is None else found)


def _print(answer: _Answer, arguments: argparse.Namespace) -> None:
    if arguments.json:
        print_json(_record(answer, arguments))
        return
    verdict = "degraded" if answer.reasons else "healthy"
    when = f"{time.strftime('%H:%M:%S')} " if arguments.watch else ""
    what = "the metadata store does not answer" if answer.facts is None else _summary(answer.facts)
    print(f"{when}{verdict}: {what}", flush=True)
    for reason in answer.reasons:
        print(f"  {reason.code}: {reason.text}", flush=True)
    if answer.against is not None:
        print(f"  bookie {arguments.can_stop} {'may not' if answer.against else 'may'} be stopped", flush=True)
        for reason in answer.against if answer.facts is not None else ():
            print(f"    {reason.code}: {reason.text}", flush=True)


def _summary(facts: ClusterFacts) -> str:
    serving, free = sum(each.serves for each in facts.bookies), sum(each.free_bytes or 0 for each in facts.bookies)
    return f"{serving} of {len(facts.bookies)} bookies serve, {human_bytes(free)} free"


def _record(answer: _Answer, arguments: argparse.Namespace) -> dict[str, Any]:
    facts = answer.facts
    bookies = () if facts is None else facts.bookies
    record: dict[str, Any] = {
        "healthy": not answer.reasons,
        "reasons": [dataclasses.asdict(reason) for reason in answer.reasons],
        "bookies": [{**dataclasses.asdict(each), "reachable": each.serves} for each in bookies],
        "underreplicated": None if facts is None else facts.underreplicated,
    }
    if answer.against is not None:
        record["can_stop"] = {
            "bookie": arguments.can_stop,
            "safe": not answer.against,
            "ledgers": answer.ledgers,
            "reasons": [dataclasses.asdict(reason) for reason in answer.against],
        }
    return record


async def ask_all(states: Mapping[str, str], ask: Callable[[str, str], Awaitable[_T]]) -> list[_T]:
    """Return what `ask(bookie, state)` returns for each bookie; BOOKIES_AT_ONCE are asked at a time."""
    import asyncio

    limit = asyncio.Semaphore(BOOKIES_AT_ONCE)

    async def one(bookie: str, state: str) -> _T:
        async with limit:
            return await ask(bookie, state)

    return await asyncio.gather(*(one(bookie, state) for bookie, state in states.items()))


async def cluster_facts(client: Client) -> ClusterFacts:
    """Return the facts. Raises MetadataError."""
    from bkspark.core.health import ClusterFacts
    from bkspark.metadata.election import AuditorElection
    from bkspark.metadata.underreplication import UnderreplicationStore

    context, tree = await client.context(), await client.tree()
    store = UnderreplicationStore(tree, client.uri)
    states = await context.registry.states()
    bookies = await ask_all(states, partial(bookie_facts, client))
    listed = await store.count()
    auditor = await AuditorElection(tree, client.uri, "").auditor()
    return ClusterFacts(bookies, listed, await store.is_enabled(), auditor)


async def bookie_facts(client: Client, bookie: str, state: str) -> BookieFacts:
    """Query a bookie's disk space: a registered bookie may be dead until its session ends."""
    import asyncio

    from bkspark.core.health import DOWN, READ_ONLY, BookieFacts
    from bkspark.errors import BookKeeperError
    from bkspark.metadata.registration import INDEX_PROBLEM, REASON

    if state == DOWN:
        return BookieFacts(bookie, state)
    context = await client.context()
    address = await context.registry.registration(bookie)
    properties = {} if address is None else address.properties
    reason = properties.get(REASON, "") if state == READ_ONLY else ""
    try:
        async with asyncio.timeout(ANSWER_S_MAX):
            space = await (await context.pool.v3_channel(bookie)).disk_space()
    except TimeoutError:
        return BookieFacts(bookie, state, f"nothing came within {ANSWER_S_MAX:g} s")
    except BookKeeperError as error:
        return BookieFacts(bookie, state, str(error))
    problem = properties.get(INDEX_PROBLEM, "")
    return BookieFacts(bookie, state, "", space.free_bytes, space.total_bytes, reason, problem)


async def against_stopping(client: Client, bookie: str, facts: ClusterFacts) -> tuple[list[Reason], int]:
    """Return (why a bookie may not be stopped, how many ledgers it has entries of)."""
    import asyncio

    from bkspark.core.health import StopCheck
    from bkspark.errors import MetadataFormat, NoSuchLedger
    from bkspark.metadata.bookie_plans import MAINTENANCE, BookiePlans
    from bkspark.metadata.underreplication import UnderreplicationStore
    from bkspark.wall_clock import wall_clock_ms

    plans = await BookiePlans(await client.tree(), client.uri).in_force(wall_clock_ms())
    leaving = [plan.bookie for plan in plans.plans if plan.kind == MAINTENANCE]
    check = StopCheck(bookie, facts.bookies, leaving, [plan.bookie for plan in plans.damaged])
    ledgers, store = (await client.context()).ledgers, UnderreplicationStore(await client.tree(), client.uri)
    listed = {ledger_id async for ledger_id in store.ids()}

    async def look(ledger_id: int) -> None:
        try:
            found = await store.find(ledger_id) if ledger_id in listed else None
            check.add(ledger_id, (await ledgers.read(ledger_id)).metadata, () if found is None else found.missing)
        except NoSuchLedger:
            return
        except MetadataFormat:
            check.unreadable(ledger_id)

    group: list[int] = []
    async for ledger_id in ledgers.ids():
        group.append(ledger_id)
        if len(group) == LEDGERS_AT_ONCE:
            await asyncio.gather(*map(look, group))
            group = []
    await asyncio.gather(*map(look, group))
    return check.reasons(), check.ledgers
