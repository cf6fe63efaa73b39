"""`bkspark cluster underreplicated` and `autorecovery`: which ledgers lack copies and why; the switches of repairs."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from bkspark.cli.arguments import bookie_id, client_net, client_zookeeper, cluster_uri, excluded, positive
from bkspark.cli.changes import record_by
from bkspark.cli.connecting import LEDGERS_AT_ONCE
from bkspark.cli.output import human_bytes, print_facts, print_json, print_table, progress
from bkspark.cli.plans import check_known
from bkspark.errors import MetadataFormat, NoSuchLedger
from bkspark.wall_clock import wall_clock_ms

if TYPE_CHECKING:
    from bkspark.client import Client
    from bkspark.metadata.bookie_plans import BookiePlan
    from bkspark.metadata.repair_reports import Postponed, Repairing
    from bkspark.metadata.underreplication import Underreplicated, UnderreplicationStore
    from bkspark.metadata.zookeeper_options import ZooKeeperOptions

LIMIT = 1000
NO_LIMIT = "unlimited"
CONFIGURED = "configured"


def add_listing_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `underreplicated`."""
    parser.add_argument(
        "--missing", type=bookie_id, metavar="ID", help="only ledgers whose copies at this bookie are missing"
    )
    parser.add_argument("--limit", type=positive, default=LIMIT, metavar="N", help=f"at most N (default: {LIMIT})")
    parser.set_defaults(run=underreplicated)


def add_switches(parser: argparse.ArgumentParser) -> None:
    """Add the options of `autorecovery` that change or read something, and end."""
    switch = parser.add_mutually_exclusive_group()
    switch.add_argument("--enable", action="store_true", help="resume the audits and repairs of the cluster")
    switch.add_argument("--disable", action="store_true", help="pause all audits and repairs of the cluster")
    switch.add_argument(
        "--status",
        action="store_true",
        help="print whether autorecovery is enabled, which process is the auditor, and what is repaired",
    )
    switch.add_argument(
        "--rate",
        type=rate,
        metavar="BYTES",
        help=f"limit each process to this many bytes per second; {NO_LIMIT}: no limit; {CONFIGURED}: as configured",
    )


def rate(text: str) -> str | int:
    """An argparse type: bytes a second, or a word."""
    if text in (NO_LIMIT, CONFIGURED):
        return text
    if not text.isascii() or not text.isdigit() or len(text) > 15 or not int(text):
        wanted = f"a whole number of 1 to {10**15 - 1}, {NO_LIMIT!r} or {CONFIGURED!r}"
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is not {wanted}")
    return int(text)


# ---- the list ----


def underreplicated(arguments: argparse.Namespace) -> int:
    """List the under-replicated ledgers that auditors found: why, which process repairs them, and what is left."""
    import asyncio

    found, count = asyncio.run(
        listed(cluster_uri(arguments), client_zookeeper(arguments), arguments.missing, arguments.limit)
    )
    if arguments.json:
        print_json({"ledgers": found, "count": count})
        return 0
    rows = [
        (
            each["ledger"],
            each["missing"],
            _ago(each["since_ms"]),
            each["worker"],
            None if each["bytes_left"] is None else human_bytes(each["bytes_left"]),
            each["failures"] or None,
            _in(each["next_try_ms"]),
            each["last_error"] or each["why"],
        )
        for each in found
    ]
    header = ["ledger", "missing", "since", "worker", "left", "failures", "next try", "why"]
    print_table(header, rows)
    if count > len(found):
        print(f"{count - len(found)} more: --limit N", file=sys.stderr)
    return 0


async def listed(
    uri: str, zookeeper: ZooKeeperOptions, missing: str | None, limit: int
) -> tuple[list[dict[str, Any]], int]:
    """Return (the ledgers that lack copies, ascending, `limit` at most; how many there are).

    Raises:
        ConfigurationError: no ledger lacks copies at the bookie `missing`, and there is no such bookie.
    """
    import asyncio

    from bkspark.client import Client
    from bkspark.metadata.repair_reports import RepairReports
    from bkspark.metadata.underreplication import UnderreplicationStore

    async with Client(uri, zookeeper=zookeeper) as client:
        tree, context = await client.tree(), await client.context()
        store = UnderreplicationStore(tree, client.uri)
        await context.registry.writable_ids()  # raises if there is no cluster
        repairs = _Repairs(await context.registry.states(), await _plans(client), await store.is_enabled())
        for report in await RepairReports(tree, client.uri).all():
            repairs.running |= {each.ledger: (report.worker, each) for each in report.repairs}
            repairs.postponed |= {each.ledger: (report.worker, each) for each in report.postponements}
        repairs.locked = await store.locked()
        found: list[dict[str, Any]] = []
        count = 0
        async for ids in store.groups(LEDGERS_AT_ONCE):
            some = await asyncio.gather(*(_listing(store, ledger_id) for ledger_id in ids))
            chosen = [each for each in some if each is not None and (missing is None or missing in each.missing)]
            count += len(chosen)
            room = max(0, limit - len(found))
            found += await asyncio.gather(*(_explained(client, store, each, repairs) for each in chosen[:room]))
        if missing is not None and not count:
            await check_known(client, missing)
        return found, count


async def _plans(client: Client) -> dict[str, BookiePlan]:
    from bkspark.metadata.bookie_plans import BookiePlans

    now_ms = wall_clock_ms()
    plans = BookiePlans(await client.tree(), client.uri)
    return {plan.bookie: plan async for plan in plans.all() if not plan.is_over(now_ms)}


async def _listing(store: UnderreplicationStore, ledger_id: int) -> Underreplicated | None:
    """Return a ledger's listing, None if it is gone; for an unreadable one, a listing without bookies."""
    from bkspark.metadata.underreplication import Underreplicated

    try:
        return await store.find(ledger_id)
    except MetadataFormat as error:
        print(error, file=sys.stderr, flush=True)
        return Underreplicated(ledger_id, (), 0, None)


class _Repairs:
    """The states of bookies, and of the processes that repair."""

    def __init__(self, states: Mapping[str, str], plans: Mapping[str, BookiePlan], is_enabled: bool) -> None:
        self.states = states
        self.plans = plans
        self.is_enabled = is_enabled
        """Whether no operator has turned repair off."""
        self.running: dict[int, tuple[str, Repairing]] = {}
        """What each worker repairs, by ledger."""
        self.postponed: dict[int, tuple[str, Postponed]] = {}
        """What each worker has postponed, by ledger."""
        self.locked: set[int] = set()
        """Ledgers that some worker has locked."""

    def why(self, missing: tuple[str, ...]) -> str:
        """Return why the copies at these bookies are missing."""
        reasons = []
        for bookie in missing:
            state, plan = self.states.get(bookie), self.plans.get(bookie)
            if state == "down":
                planned = f" (in {plan.kind} by {plan.who})" if plan is not None else ""
                reasons.append(f"{bookie} does not run{planned}")
            elif state is None:
                reasons.append(f"{bookie} is no longer a bookie of the cluster")
            else:
                reasons.append(f"{bookie} runs, and lacks entries or has damaged ones")
        if not self.is_enabled:
            reasons.append("autorecovery is disabled")
        return "; ".join(reasons) or "the list does not say"


async def _explained(
    client: Client, store: UnderreplicationStore, listed: Underreplicated, repairs: _Repairs
) -> dict[str, Any]:
    from bkspark.core.copies import share_of

    ledger_id = listed.ledger_id
    worker, running = repairs.running.get(ledger_id, (None, None))
    by, postponed = repairs.postponed.get(ledger_id, (None, None))
    if worker is None and ledger_id in repairs.locked:
        worker = await store.lock_owner(ledger_id)
    left: int | None
    if running is not None:
        left = max(0, running.bytes - running.copied_bytes)
    else:
        try:
            metadata = (await (await client.context()).ledgers.read(ledger_id)).metadata
            left = share_of(metadata, listed.missing).bytes
        except (NoSuchLedger, MetadataFormat):
            left = None
    return {
        "ledger": ledger_id,
        "missing": list(listed.missing),
        "since_ms": listed.ctime_ms,
        "locked": ledger_id in repairs.locked,
        "why": repairs.why(listed.missing),
        "worker": worker,
        "bytes_left": left,
        "copied_bytes": None if running is None else running.copied_bytes,
        "tried_by": by,
        "failures": 0 if postponed is None else postponed.failures,
        "last_error": "" if postponed is None else postponed.error,
        "next_try_ms": None if postponed is None else postponed.next_try_ms,
    }


def _ago(at_ms: int | None) -> str | None:
    return None if at_ms is None else _short((wall_clock_ms() - at_ms) / 1000)


def _in(at_ms: int | None) -> str | None:
    return None if at_ms is None else f"in {_short(max(0.0, (at_ms - wall_clock_ms()) / 1000))}"


def _short(seconds: float) -> str:
    for unit, size in (("d", 86_400), ("h", 3600), ("m", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f}{unit}"
    return f"{max(0.0, seconds):.0f}s"


# ---- switches ----


def switch(arguments: argparse.Namespace) -> int:
    """Change or read the switches of all autorecovery processes of a cluster."""
    import asyncio

    given = next(
        name for name in ("enable", "disable", "status", "rate") if getattr(arguments, name) not in (False, None)
    )
    excluded(arguments, given, "config", "environment", "set", "log_level", "log_format")
    facts = asyncio.run(_switch(arguments))
    if arguments.json:
        print_json(facts)
        return 0
    workers = facts.pop("workers")
    print_facts(facts)
    if workers:
        print()
        rows = [
            (
                each["worker"],
                len(each["repairs"]),
                each["postponed"],
                each["repaired"],
                human_bytes(each["copied_bytes"]),
            )
            for each in workers
        ]
        print_table(["worker", "repairs", "postponed", "repaired", "copied"], rows)
        causes = [(each["worker"], cause, count) for each in workers for cause, count in each["causes"].items()]
        if causes:
            print()
            print_table(["worker", "why ledgers wait, one of each kind", "ledgers"], causes)
    return 0


async def _switch(arguments: argparse.Namespace) -> dict[str, Any]:
    from bkspark.client import Client
    from bkspark.metadata.election import AuditorElection
    from bkspark.metadata.repair_reports import NO_LIMIT as UNLIMITED
    from bkspark.metadata.repair_reports import RepairReports
    from bkspark.metadata.underreplication import UnderreplicationStore

    net, zookeeper = client_net(arguments), client_zookeeper(arguments)

    async with Client(cluster_uri(arguments), net=net, zookeeper=zookeeper) as client:
        tree = await client.tree()
        store, reports = UnderreplicationStore(tree, client.uri), RepairReports(tree, client.uri)
        if arguments.enable or arguments.disable:
            await store.prepare()
            await store.set_enabled(arguments.enable)
            await record_by(client, f"{'enable' if arguments.enable else 'disable'} autorecovery")
        if arguments.rate is not None:
            await store.prepare()
            words = {NO_LIMIT: UNLIMITED, CONFIGURED: None}
            await reports.set_bytes_per_s(words.get(arguments.rate, arguments.rate))
            await record_by(client, f"set the rate of all repairs to {arguments.rate}")
        try:
            rate = await reports.bytes_per_s()
        except MetadataFormat as error:
            # Processes that repair use their own configuration then. `--rate` replaces it.
            progress(str(error))
            rate = None
        return {
            "enabled": await store.is_enabled(),
            "auditor": await AuditorElection(tree, client.uri, "").auditor(),
            "bytes_per_s": rate,
            "workers": [dataclasses.asdict(each) for each in await reports.all()],
        }
