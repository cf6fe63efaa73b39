"""`bkspark cluster id`, `info`, `endpoints`, `audit`, `delay`, `skip-ids`, `sanity`, `format`, `remove`, `rename`."""

from __future__ import annotations

import argparse
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from bkspark.cli.arguments import (
    Commands,
    add_command,
    bookie_id,
    client_net,
    client_zookeeper,
    cluster_uri,
    positive,
    seconds,
)
from bkspark.cli.changes import record_by
from bkspark.cli.connecting import LEDGERS_AT_ONCE
from bkspark.cli.output import print_facts, print_json, print_table, progress
from bkspark.cli.plans import check_known
from bkspark.errors import (
    BookKeeperError,
    ConfigurationError,
    MetadataError,
    MetadataFormat,
    NoSuchLedger,
    NoSuchNode,
)
from bkspark.ids import LEDGER_ID_MAX
from bkspark.metadata import paths
from bkspark.metadata.tree import Delete
from bkspark.wall_clock import wall_clock_ms

if TYPE_CHECKING:
    from bkspark.client import Client
    from bkspark.metadata.tree import Tree

_T = TypeVar("_T")

SANITY_ENTRIES = 10
SANITY_S = 10.0

_OF_EMPTY: dict[str, set[str]] = {
    paths.AVAILABLE: {paths.READ_ONLY.rpartition("/")[2]},
    paths.COOKIES: set(),
    paths.UNDERREPLICATION: {"changes"},
}
"""Nodes of a cluster that was just formatted, beside the instance id and the layout; and what may be below each."""


def add_parsers(parsers: Commands) -> None:
    """Add the commands."""
    for name, run, description in (
        ("id", instance_id, "print the cluster's instance id"),
        ("info", info, "print the number of bookies, the auditor, and whether ledgers lack copies"),
        ("endpoints", endpoints, "show the registration of a bookie"),
        ("audit", audit, "ask the auditor to look for lost bookies now"),
        ("delay", delay, "print or set how long autorecovery waits for a lost bookie"),
        (
            "skip-ids",
            skip_ids,
            "let all new ledgers get ids above a number, after metadata were restored",
        ),
        ("sanity", sanity, "write a small ledger to one bookie, read it back and delete it"),
        ("format", format_cluster, "delete all metadata of the cluster, and initialise it again"),
        ("remove", remove, "delete all metadata of the cluster"),
        ("rename", rename, "change the id of a bookie in the metadata of all ledgers"),
    ):
        parser = add_command(parsers, name, run, description)
        if name in ("endpoints", "sanity"):
            parser.add_argument("bookie", type=bookie_id, metavar="ID", help="the bookie")
        if name == "sanity":
            parser.add_argument(
                "--entries",
                type=positive,
                default=SANITY_ENTRIES,
                metavar="N",
                help="how many entries to write (default: %(default)s)",
            )
            parser.add_argument(
                "--timeout",
                type=seconds,
                default=SANITY_S,
                metavar="SECONDS",
                help="how long it may take (default: %(default)g)",
            )
        if name == "delay":
            parser.add_argument("seconds", nargs="?", type=_delay_s, metavar="SECONDS", help="the new value")
        if name == "skip-ids":
            parser.add_argument(
                "--above", type=ledger_id, required=True, metavar="ID", help="the largest id that is not assigned again"
            )
        if name in ("format", "remove"):
            parser.add_argument("--instance", metavar="ID", help="the cluster's instance id, to confirm")
            parser.add_argument(
                "--force", action="store_true", help="do it without --instance, and even if bookies run"
            )
        if name == "rename":
            parser.add_argument(
                "source", type=bookie_id, metavar="ID", help="the id that is in the metadata of ledgers"
            )
            parser.add_argument("target", type=bookie_id, metavar="NEW", help="the id that replaces it")
            parser.add_argument("--limit", type=positive, metavar="N", help="change at most N ledgers")
            parser.add_argument(
                "--if-exists",
                action="store_true",
                help="exit code 0 also if no ledger names ID and the cluster has no such bookie",
            )


def _delay_s(text: str) -> int:
    """An argparse type: a delay that auditors can read, Apache's too."""
    from bkspark.metadata.underreplication import DELAY_S_MAX

    if text.isascii() and text.isdigit() and len(text) < 20 and int(text) <= DELAY_S_MAX:
        return int(text)
    raise argparse.ArgumentTypeError(f"{text[:40]!r} is not a whole number of seconds of 0 to {DELAY_S_MAX}")


def ledger_id(text: str) -> int:
    """An argparse type: the id of a ledger."""
    if text.isascii() and text.isdigit() and len(text) < 20 and int(text) <= LEDGER_ID_MAX:
        return int(text)
    raise argparse.ArgumentTypeError(f"{text[:40]!r} is not the id of a ledger, of 0 to {LEDGER_ID_MAX}")


def _with_client(arguments: argparse.Namespace, act: Callable[[Client], Awaitable[_T]]) -> _T:
    """Return what `act` returns, called with a client of the cluster."""
    import asyncio

    from bkspark.client import Client

    net, zookeeper = client_net(arguments), client_zookeeper(arguments)

    async def run() -> _T:
        async with Client(cluster_uri(arguments), net=net, zookeeper=zookeeper) as client:
            return await act(client)

    return asyncio.run(run())


def _print_facts(arguments: argparse.Namespace, facts: dict[str, Any]) -> int:
    """Print the result of a command; return its exit code."""
    if arguments.json:
        print_json(facts)
    else:
        print_facts(facts)
    return 0


# ---- what is known ----


def instance_id(arguments: argparse.Namespace) -> int:
    """Print the instance id."""

    async def read(client: Client) -> str | None:
        return await (await client.context()).registry.instance_id()

    found = _with_client(arguments, read)
    if found is None:
        raise MetadataError("the cluster has no instance id")
    return _print_facts(arguments, {"instance_id": found})


def info(arguments: argparse.Namespace) -> int:
    """Print the facts of Apache's `clusterinfo`, by the same names."""

    async def read(client: Client) -> dict[str, Any]:
        from bkspark.metadata.election import AuditorElection
        from bkspark.metadata.underreplication import UnderreplicationStore

        tree, registry = await client.tree(), (await client.context()).registry
        store = UnderreplicationStore(tree, client.uri)
        auditor = await AuditorElection(tree, client.uri, "").auditor()
        states = list((await registry.states()).values())
        return {
            "auditorElected": auditor is not None,
            "auditorId": auditor or "",
            "clusterUnderReplicated": not await store.is_empty(),
            "ledgerReplicationEnabled": await store.is_enabled(),
            "totalBookiesCount": len(states),
            "writableBookiesCount": states.count("available"),
            "readonlyBookiesCount": states.count("readonly"),
            "unavailableBookiesCount": states.count("down"),
        }

    return _print_facts(arguments, _with_client(arguments, read))


def endpoints(arguments: argparse.Namespace) -> int:
    """Print a bookie's registration."""

    async def read(client: Client) -> Any:
        registry = (await client.context()).registry
        found = await registry.registration(arguments.bookie)
        if found is None and await registry.session(arguments.bookie) is not None:
            raise MetadataFormat(f"the registration of bookie {arguments.bookie} cannot be read: restart the bookie")
        if found is None:
            raise MetadataError(f"bookie {arguments.bookie} is not registered")
        return found

    address = _with_client(arguments, read)
    extensions = list(address.extensions)
    found: list[dict[str, Any]] = [
        {"id": "bookie", "protocol": "bookie-rpc", "host": address.host, "port": address.port, "extensions": extensions}
    ]
    if address.http is not None:
        host, port = address.http
        extensions = ["tls"] if address.http_tls else []
        found.append({"id": "httpserver", "protocol": "http", "host": host, "port": port, "extensions": extensions})
    if arguments.json:
        print_json({"bookie": arguments.bookie, "endpoints": found, "properties": address.properties})
    else:
        columns = ["endpoint", "protocol", "host", "port", "extensions"]
        print_table(columns, [tuple(each.values()) for each in found])
        print_facts(address.properties)
    return 0


# ---- autorecovery ----


def audit(arguments: argparse.Namespace) -> int:
    """Request an audit, as Apache's `triggeraudit` does: write the same delay again.

    If no delay is stored, no auditor has ever run: the first one writes its configured delay, and audits at once.
    """

    async def ask(client: Client) -> int:
        from bkspark.metadata.underreplication import UnderreplicationStore

        store = UnderreplicationStore(await client.tree(), client.uri)
        await store.prepare()
        before = await store.lost_bookie_recovery_delay()
        if before is not None:
            await store.set_lost_bookie_recovery_delay_s(before.seconds)
        await record_by(client, "trigger an audit")
        return before.seconds if before is not None else 0

    return _print_facts(arguments, {"audit": "requested", "lost_bookie_delay_s": _with_client(arguments, ask)})


def delay(arguments: argparse.Namespace) -> int:
    """Print or set the delay before the ledgers of a lost bookie are repaired."""

    async def change(client: Client) -> int | None:
        from bkspark.metadata.underreplication import UnderreplicationStore

        store = UnderreplicationStore(await client.tree(), client.uri)
        if arguments.seconds is not None:
            await store.prepare()
            await store.set_lost_bookie_recovery_delay_s(arguments.seconds)
            await record_by(client, f"set lostBookieRecoveryDelay={arguments.seconds}")
        found = await store.lost_bookie_recovery_delay()
        return None if found is None else found.seconds

    return _print_facts(arguments, {"lost_bookie_delay_s": _with_client(arguments, change)})


# ---- ids ----


def skip_ids(arguments: argparse.Namespace) -> int:
    """Let no new ledger get an id up to --above."""

    async def change(client: Client) -> int:
        return await skip_to(client, arguments.above)

    return _print_facts(arguments, {"new_ids_above": _with_client(arguments, change)})


async def skip_to(client: Client, above: int) -> int:
    """Let no new ledger get an id up to `above`; return an id above which all new ones are. Raises as `skip_ids`."""
    skipped = await (await client.context()).ledgers.skip_ids(above)
    first = ((above >> 32) + 1) << 32 if above >= paths.SHORT_ID_MAX else above
    if skipped > first:
        progress(
            f"nothing was changed: new ids were above {above} already. --above must be the largest id that was ever "
            "assigned, or a larger one"
        )
    await record_by(client, f"assign no ledger id up to {above} any more")
    return skipped


# ---- a bookie ----


def sanity(arguments: argparse.Namespace) -> int:
    """Check that one bookie takes and returns entries."""
    import asyncio

    async def check(client: Client) -> float:
        began = time.monotonic()
        try:
            async with asyncio.timeout(arguments.timeout):
                await _write_and_read(client, arguments.bookie, arguments.entries)
        except TimeoutError:
            raise BookKeeperError(
                f"bookie {arguments.bookie} did not take and return entries within {arguments.timeout:g} s"
            ) from None
        return round(time.monotonic() - began, 3)

    took_s = _with_client(arguments, check)
    return _print_facts(arguments, {"bookie": arguments.bookie, "passed": True, "seconds": took_s})


async def _write_and_read(client: Client, bookie: str, entries: int) -> None:
    """Write to a ledger on one bookie alone, read the entries back, and delete the ledger. Raises BookKeeperError."""
    from bkspark.core.metadata import Fragment, LedgerMetadata
    from bkspark.core.pipeline import WriterStart
    from bkspark.core.writer import WriterCore
    from bkspark.core.writer_options import WriterOptions
    from bkspark.ledger.writer import LedgerWriter

    context = await client.context()
    if bookie not in await context.registry.states():
        raise ConfigurationError(f"there is no bookie {bookie}")
    metadata = LedgerMetadata(1, 1, 1, (Fragment(0, (bookie,)),), ctime=wall_clock_ms())
    ledger_id, stored = await context.ledgers.create(metadata)
    try:
        options = WriterOptions()
        core = WriterCore(WriterStart(ledger_id, stored.metadata, stored.version), context.random, options)
        written = [b"sanity %d" % number for number in range(entries)]
        async with LedgerWriter(context, core, b"", options) as writer:
            await writer.append_many(written)
        reader = await client.open(ledger_id)
        found = [bytes(each) async for batch in reader.batches() for each in batch]
        if found != written:
            raise BookKeeperError(f"bookie {bookie} returned other entries than were written")
    finally:
        await context.ledgers.delete(ledger_id)


# ---- all metadata ----


def format_cluster(arguments: argparse.Namespace) -> int:
    """Delete all metadata, and create an empty cluster."""

    async def change(client: Client) -> str | None:
        return await format_all(client, arguments)

    return _print_facts(arguments, {"formatted": True, "instance_id": _with_client(arguments, change)})


async def format_all(client: Client, arguments: argparse.Namespace) -> str | None:
    """Delete the cluster's root, and create an empty cluster; return its instance id. Raises as `delete_all`.

    An interrupted one may have created the new cluster: it has another id then, and there is nothing to delete.
    """
    registry = (await client.context()).registry
    is_repeated = arguments.instance not in (None, await registry.instance_id())
    if not (is_repeated and await _is_empty(await client.tree(), client.uri.root)):
        await delete_all(client, arguments)
    await registry.initialize_cluster()
    await record_by(client, "format the cluster: all its earlier metadata are deleted")
    return await registry.instance_id()


async def _is_empty(tree: Tree, root: str) -> bool:
    """Return whether there is a cluster that has only what `cluster format` creates."""
    try:
        names = await tree.children(root)
        if paths.INSTANCE_ID not in names or not set(names) <= _OF_EMPTY.keys() | {paths.INSTANCE_ID, paths.LAYOUT}:
            return False
        for name in _OF_EMPTY.keys() & set(names):
            if set(await tree.children(f"{root}/{name}")) - _OF_EMPTY[name]:
                return False
        return not await tree.children(f"{root}/{paths.READ_ONLY}")
    except NoSuchNode:
        return False


def remove(arguments: argparse.Namespace) -> int:
    """Delete all metadata."""

    async def change(client: Client) -> None:
        await delete_all(client, arguments)

    _with_client(arguments, change)
    return _print_facts(arguments, {"removed": True})


async def delete_all(client: Client, arguments: argparse.Namespace) -> None:
    """Delete the cluster's root, if there is one. Raises ConfigurationError: it is not confirmed, or bookies run."""
    if await (await client.tree()).exists(client.uri.root) is None:
        return
    registry = (await client.context()).registry
    found = await registry.instance_id()
    if arguments.instance not in (None, found):
        how = "the cluster has no id, so confirm with --force" if found is None else f"confirm with --instance {found}"
        raise ConfigurationError(f"--instance {arguments.instance} is not the instance id of {client.uri}: {how}")
    if not arguments.force:
        if arguments.instance is None:
            raise ConfigurationError(
                f"all ledgers of {client.uri} would be lost: confirm with --instance {found}, or give --force"
            )
        running = [bookie for bookie, state in (await registry.states()).items() if state != "down"]
        if running:
            raise ConfigurationError(f"bookies run: {', '.join(running)}; stop them first, or give --force")
    await _delete_cluster(await client.tree(), client.uri.root)


async def _delete_cluster(tree: Tree, root: str) -> None:
    """Delete all nodes. The instance id goes last, with the root: it confirms a deletion that is repeated."""
    try:
        names = await tree.children(root)
    except NoSuchNode:
        return
    for name in names:
        if name != paths.INSTANCE_ID:
            await _delete_below(tree, f"{root}/{name}")
    last = [Delete(f"{root}/{name}") for name in names if name == paths.INSTANCE_ID]
    await tree.transaction([*last, Delete(root)])


async def _delete_below(tree: Tree, path: str) -> None:
    try:
        names = await tree.children(path)
    except NoSuchNode:
        return
    for name in names:
        await _delete_below(tree, f"{path}/{name}")
    try:
        await tree.delete(path)
    except NoSuchNode:
        return


def rename(arguments: argparse.Namespace) -> int:
    """Replace the id of a bookie that is down in the metadata of all ledgers."""
    if arguments.source == arguments.target:
        raise ConfigurationError(f"bookie {arguments.source} would keep its id: name two different ids")

    async def change(client: Client) -> tuple[int, int]:
        context = await client.context()
        # The ledgers of a running bookie would become unreadable: clients would look for them at the new id.
        if (await context.registry.states()).get(arguments.source, "down") != "down":
            raise ConfigurationError(f"bookie {arguments.source} serves under this id: stop it before it is renamed")
        group: list[int] = []
        changed = left = 0
        async for ledger_id in context.ledgers.ids():
            group.append(ledger_id)
            if len(group) == LEDGERS_AT_ONCE:
                done = await _rename_in(client, group, arguments, changed)
                changed, left, group = changed + done[0], left + done[1], []
        done = await _rename_in(client, group, arguments, changed)
        if not any((changed, left, *done, arguments.if_exists)):
            await check_known(client, arguments.source)
        what = f"rename bookie {arguments.source} to {arguments.target} in {changed + done[0]} ledgers"
        await record_by(client, what)
        return changed + done[0], left + done[1]

    changed, left = _with_client(arguments, change)
    facts = {"source": arguments.source, "target": arguments.target, "changed": changed, "left": left}
    _print_facts(arguments, facts)
    return 1 if left and arguments.limit is None else 0


async def _rename_in(client: Client, ids: list[int], arguments: argparse.Namespace, before: int) -> tuple[int, int]:
    """Return (ledgers that were changed, ledgers that were left)."""
    ledgers = (await client.context()).ledgers
    changed = left = 0
    for ledger_id in ids:
        try:
            stored = await ledgers.read(ledger_id)
            fragments = stored.metadata.fragments
            if not any(arguments.source in fragment.bookies for fragment in fragments):
                continue
            if arguments.limit is not None and before + changed >= arguments.limit:
                left += 1
                continue
            if any({arguments.source, arguments.target} <= set(fragment.bookies) for fragment in fragments):
                progress(f"ledger {ledger_id} names both bookies in one fragment: it is left as it is")
                left += 1
                continue
            renamed = tuple(
                replace(
                    fragment,
                    bookies=tuple(arguments.target if each == arguments.source else each for each in fragment.bookies),
                )
                for fragment in fragments
            )
            await ledgers.write(ledger_id, replace(stored.metadata, fragments=renamed), stored.version)
            changed += 1
        except NoSuchLedger:
            continue
        except MetadataError as error:
            progress(f"ledger {ledger_id} is left as it is: {error}")
            left += 1
    return changed, left
