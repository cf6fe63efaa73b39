"""`bkspark cluster maintenance`, `quarantine` and `plans`: operators' plans for bookies.

The plan is stored in the metadata store; the bookie and the auditor follow it (`bkspark.metadata.bookie_plans`).
"""

from __future__ import annotations

import argparse
import time
from typing import TYPE_CHECKING, Any

from bkspark.cli.arguments import (
    Commands,
    add_cluster,
    age,
    bookie_id,
    client_net,
    client_zookeeper,
    cluster_uri,
    excluded,
)
from bkspark.cli.changes import record_by, this_operator
from bkspark.cli.health import DEGRADED, against_stopping, cluster_facts
from bkspark.cli.output import print_json, print_result, print_table, progress
from bkspark.errors import BookKeeperError, ConfigurationError, MetadataError
from bkspark.metadata.bookie_plans import FOLLOWED_S_MAX
from bkspark.one_line import one_line
from bkspark.wall_clock import wall_clock_ms

if TYPE_CHECKING:
    from collections.abc import Callable

    from bkspark.client import Client
    from bkspark.core.health import Reason
    from bkspark.metadata.bookie_plans import BookiePlan, BookiePlans, PlansInForce

POLL_S = 0.1
_COMPARED = 100
"""How many characters of a reason are compared with a plan: bookies cut long ones."""


def add_parsers(parsers: Commands) -> None:
    """Add the three commands."""
    description = "make a bookie read-only, and do not replace its copies while it is stopped"
    maintaining = _add(parsers, "maintenance", description)
    add_despite(maintaining)
    maintaining.add_argument(
        "--dry-run",
        action="store_true",
        help="print whether the bookie may be stopped, and change nothing; exit code 10: it may not",
    )
    maintaining.set_defaults(run=maintenance)
    description = "exclude a bookie from new ledgers; writers that use it already may continue"
    _add(parsers, "quarantine", description).set_defaults(run=quarantine)
    description = "list the plans for bookies, or end one"
    listing = parsers.add_parser("plans", help=description, description=f"{description[0].upper()}{description[1:]}.")
    listing.add_argument(
        "--end", type=bookie_id, metavar="ID", help="end the plan for this bookie, also a drain or a damaged one"
    )
    add_cluster(listing)
    listing.set_defaults(run=plans)


def _add(parsers: Commands, name: str, description: str) -> argparse.ArgumentParser:
    parser = parsers.add_parser(name, help=description, description=f"{description[0].upper()}{description[1:]}.")
    parser.add_argument("bookie", type=bookie_id, metavar="ID", help="id, as `bkspark cluster bookies` prints it")
    parser.add_argument(
        "--for", type=age, dest="for", metavar="TIME", help="end it after this time, such as 90s, 30m, 2h or 1d"
    )
    parser.add_argument("--reason", default="", help="why, for other operators and the audit log")
    parser.add_argument("--end", action="store_true", help="end it now")
    add_cluster(parser)
    return parser


def add_despite(parser: argparse.ArgumentParser) -> None:
    """Add --despite."""
    parser.add_argument(
        "--despite",
        action="append",
        type=_code,
        default=[],
        metavar="CODE",
        help="a reason of `cluster health` to accept",
    )


def _code(text: str) -> str:
    """An argparse type: the code of a reason."""
    from bkspark.core.health import STOP_CODES, UNHEALTHY_CODES

    codes = (*STOP_CODES, *UNHEALTHY_CODES)
    if text not in codes:
        raise argparse.ArgumentTypeError(f"{text!r:.100} is not the code of a reason; there are {', '.join(codes)}")
    return text


async def plans_of(client: Client) -> BookiePlans:
    """Return the plans of a client's cluster."""
    from bkspark.metadata.bookie_plans import BookiePlans

    return BookiePlans(await client.tree(), client.uri)


# ---- commands ----


def maintenance(arguments: argparse.Namespace) -> int:
    """Begin or end the maintenance of a bookie; return 10 if it may not be stopped."""
    import asyncio

    from bkspark.metadata.bookie_plans import MAINTENANCE

    return asyncio.run(_plan(arguments, MAINTENANCE, arguments.despite))


def quarantine(arguments: argparse.Namespace) -> int:
    """Begin or end the quarantine of a bookie."""
    import asyncio

    from bkspark.metadata.bookie_plans import QUARANTINE

    return asyncio.run(_plan(arguments, QUARANTINE, None))


async def _plan(arguments: argparse.Namespace, kind: str, despite: list[str] | None) -> int:
    from bkspark.client import Client

    bookie = arguments.bookie
    net, zookeeper = client_net(arguments), client_zookeeper(arguments)
    async with Client(cluster_uri(arguments), net=net, zookeeper=zookeeper) as client:
        stored = await plans_of(client)
        if arguments.end:
            excluded(arguments, "end", "for", "reason", "despite", "dry_run")
            ended = await end_plan(stored, bookie, kind)
            await record_by(client, f"end the {kind} of bookie {bookie}")
            await until_mode(client, bookie, "available", ended)
            facts = {"bookie": bookie, "kind": kind, "ended": True, "done": True}
            print_result(facts, f"{kind} of {bookie} is over", as_json=arguments.json)
            return 0
        return await begin(client, arguments, kind, despite)


async def begin(client: Client, arguments: argparse.Namespace, kind: str, despite: list[str] | None) -> int:
    """Begin a maintenance or a quarantine; return the exit code. `despite`: None if the plan stops no bookie."""
    bookie, stored = arguments.bookie, await plans_of(client)
    await check_known(client, bookie)
    there = await plan_in_force(stored, bookie, kind)
    if despite is not None:
        if against := await harm(client, bookie, despite):
            return refuse(arguments, bookie, against)
        if arguments.dry_run:
            facts = {"bookie": bookie, "kind": kind, "dry_run": True, "done": True}
            print_result(facts, f"{bookie} may be stopped; nothing was changed", as_json=arguments.json)
            return 0
    plan = new_plan(bookie, kind, arguments.reason, getattr(arguments, "for") or 0)
    if despite is None:
        await store_plan(stored, plan, lambda there: there.kind == kind)
    elif against := await store_maintenance(client, stored, plan, despite, there):
        return refuse(arguments, bookie, against)
    await record_by(client, f"{kind} of bookie {bookie}{f' ({plan.reason})' if plan.reason else ''}")
    followed = await until_mode(client, bookie, "readonly")
    facts = {"bookie": bookie, "kind": kind, "until_ms": plan.until_ms or None, "followed": followed, "done": True}
    sentence = f"{kind} of {bookie} began" if followed else f"{kind} of {bookie} is planned; the bookie is not running"
    print_result(facts, sentence, as_json=arguments.json)
    return 0


def new_plan(bookie: str, kind: str, reason: str, seconds: float, **facts: Any) -> BookiePlan:
    """Return a plan of this operator that begins now; `seconds` 0: it does not end by itself."""
    from bkspark.metadata.bookie_plans import TIME_MS_MAX, BookiePlan

    began = wall_clock_ms()
    until = min(began + int(seconds * 1000), TIME_MS_MAX) if seconds else 0
    return BookiePlan(bookie, kind, this_operator(), began, until, reason, **facts)


async def end_plan(stored: BookiePlans, bookie: str, kind: str) -> BookiePlan:
    """End a plan, and return it. Raises ConfigurationError: there is no plan, or it has another kind."""
    plan = await stored.find(bookie)
    if plan is None or plan.kind != kind:
        there = "there is no plan" if plan is None else f"the plan is {plan.kind}"
        raise ConfigurationError(f"no {kind} of {bookie} to end: {there}; `bkspark cluster plans` lists all")
    await stored.end(bookie)
    return plan


async def check_known(client: Client, bookie: str) -> None:
    """Raise ConfigurationError unless a bookie is known."""
    states = await (await client.context()).registry.states()
    if bookie not in states:
        raise ConfigurationError(f"there is no bookie {bookie}; known are {', '.join(states) or 'none'}")


async def plan_in_force(stored: BookiePlans, bookie: str, kind: str) -> BookiePlan | None:
    """Return the plan of a kind that is in force. Raises ConfigurationError if there is one of another kind."""
    plan = await stored.find(bookie)
    if plan is None or plan.is_over(wall_clock_ms()):
        return None
    if plan.kind != kind:
        raise ConfigurationError(plan.refusal)
    return plan


async def store_maintenance(
    client: Client, stored: BookiePlans, plan: BookiePlan, despite: list[str], there: BookiePlan | None
) -> list[Reason]:
    """Store the plan of a maintenance as `store_harmless`, or in place of another maintenance of the bookie.

    Call it after `harm` has found nothing. The checks of other operators find a maintenance only while it is stored.
    So one is replaced only if it was stored before `harm` looked at the cluster, and has not ended since.

    Args:
        there: the maintenance that was in force before `harm` looked, or None.

    Raises:
        ConfigurationError: there is a plan of another kind.
    """
    while there is None or not await stored.replace(there, plan, wall_clock_ms()):
        there = await plan_in_force(stored, plan.bookie, plan.kind)
        if there is None:
            try:
                return await store_harmless(client, stored, plan, despite)
            except ConfigurationError:
                # Another command for this bookie may have stored its plan first.
                there = await plan_in_force(stored, plan.bookie, plan.kind)
                if there is None:
                    raise
        if against := await harm(client, plan.bookie, despite):
            return against
    return []


async def store_harmless(client: Client, stored: BookiePlans, plan: BookiePlan, despite: list[str]) -> list[Reason]:
    """Store a plan in which a bookie will be stopped, unless it may not be stopped now; return why not.

    Call it after `harm` has found nothing. Another operator may have checked another bookie at the same time. The plan
    that is stored last finds the other one: so at most one stays, unless both may be stopped.

    Raises:
        ConfigurationError: there is a plan already.
        MetadataError: the store failed. If the plan could not be ended then, the message says so.
    """
    await store_plan(stored, plan, lambda there: False)
    try:
        against = await harm(client, plan.bookie, despite)
    except BaseException:
        await _withdraw(stored, plan)
        raise
    if against:
        await _withdraw(stored, plan)
        await record_by(client, f"withdraw the {plan.kind} of bookie {plan.bookie}, which may not be stopped")
    return against


async def _withdraw(stored: BookiePlans, plan: BookiePlan) -> None:
    try:
        await stored.end_own(plan)
    except MetadataError as error:
        raise MetadataError(
            f"the {plan.kind} of bookie {plan.bookie} is stored, but no check showed that the bookie may be stopped: "
            f"do not stop it, and run `bkspark cluster {plan.kind} {plan.bookie} --end`: {error}"
        ) from error


async def store_plan(stored: BookiePlans, plan: BookiePlan, may_replace: Callable[[BookiePlan], bool]) -> None:
    """Store a plan. Raises ConfigurationError if there is one in force that must not be replaced."""

    def may(there: BookiePlan) -> bool:
        return there.is_over(wall_clock_ms()) or may_replace(there)

    if (there := await stored.set(plan, may)) is not None:
        raise ConfigurationError(there.refusal)


async def harm(client: Client, bookie: str, despite: list[str]) -> list[Reason]:
    """Return why a bookie may not be stopped, except for reasons that the operator accepts."""
    against, _ = await against_stopping(client, bookie, await cluster_facts(client))
    return [reason for reason in against if reason.code not in despite]


def refuse(arguments: argparse.Namespace, bookie: str, against: list[Reason]) -> int:
    """Print why a bookie may not be stopped; return the exit code."""
    if arguments.json:
        print_json({"bookie": bookie, "refused": [{"code": each.code, "text": each.text} for each in against]})
    else:
        for each in against:
            progress(f"bookie {bookie} may not be stopped: {each.code}: {each.text}")
        progress("--despite CODE accepts a reason")
    return DEGRADED


async def until_mode(client: Client, bookie: str, state: str, ended: BookiePlan | None = None) -> bool:
    """Wait until a running bookie is registered as available or readonly; return whether it is.

    Args:
        ended: the plan that is over. A bookie that is read-only for another reason is not waited for.

    Raises:
        BookKeeperError: it runs, but does not follow the plan.
    """
    import asyncio

    registry = (await client.context()).registry
    deadline = time.monotonic() + FOLLOWED_S_MAX
    while (found := (await registry.states()).get(bookie)) != state:
        if found in (None, "down"):
            return False
        if ended is not None and not await _is_in(client, bookie, ended):
            return False
        if time.monotonic() > deadline:
            raise BookKeeperError(
                f"bookie {bookie} did not follow within {FOLLOWED_S_MAX:g} s, it is still registered as {found}; "
                "Apache's bookies do not follow plans: use PUT /api/v1/bookie/state/readonly"
            )
        await asyncio.sleep(POLL_S)
    return True


async def _is_in(client: Client, bookie: str, plan: BookiePlan) -> bool:
    """Return whether a plan is the reason that a bookie gives for being read-only, or no reason is given."""
    reason = (await bookie_properties(client, bookie)).get("bkspark.reason", "")
    return not reason or reason.startswith(f"{plan.kind} by {one_line(plan.who)}"[:_COMPARED])


async def bookie_properties(client: Client, bookie: str) -> dict[str, str]:
    """Return the properties in a bookie's registration; {} if it is not registered."""
    try:
        address = await (await client.context()).registry.registration(bookie)
    except MetadataError:
        return {}
    return {} if address is None else address.properties


def plans(arguments: argparse.Namespace) -> int:
    """List all plans, or end one of any kind."""
    import asyncio

    if arguments.end is not None:
        return asyncio.run(_end_any(arguments))
    found = asyncio.run(_in_force(arguments))
    if arguments.json:
        print_json(found.as_json())
    else:
        rows = [(each.bookie, each.kind, each.who, _when(each.until_ms), each.reason) for each in found.plans]
        damaged = [(each.bookie, "damaged", None, None, each.problem) for each in found.damaged]
        print_table(["bookie", "plan", "by", "until", "reason"], [*rows, *damaged])
    return 0


async def _in_force(arguments: argparse.Namespace) -> PlansInForce:
    from bkspark.client import Client

    async with Client(cluster_uri(arguments), zookeeper=client_zookeeper(arguments)) as client:
        return await (await plans_of(client)).in_force(wall_clock_ms())


async def _end_any(arguments: argparse.Namespace) -> int:
    """End the plan for a bookie, whatever it is, also one that cannot be read."""
    from bkspark.client import Client
    from bkspark.errors import MetadataFormat

    bookie = arguments.end
    async with Client(cluster_uri(arguments), zookeeper=client_zookeeper(arguments)) as client:
        stored = await plans_of(client)
        try:
            plan = await stored.find(bookie)
        except MetadataFormat:
            plan = None
        if not await stored.end(bookie):
            raise ConfigurationError(f"there is no plan for bookie {bookie}; `bkspark cluster plans` lists all")
        await record_by(client, f"end the plan for bookie {bookie}")
        if plan is not None:
            await until_mode(client, bookie, "available", plan)
    facts = {"bookie": bookie, "kind": None if plan is None else plan.kind, "ended": True, "done": True}
    print_result(facts, f"the plan for bookie {bookie} is over", as_json=arguments.json)
    return 0


def _when(at_ms: int) -> str | None:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at_ms / 1000)) if at_ms else None
