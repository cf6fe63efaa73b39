"""`bkspark cluster bookies`: all bookies, whether they answer, disks, racks, versions, and why they are read-only."""

from __future__ import annotations

import argparse
from functools import partial
from typing import TYPE_CHECKING, Any

from bkspark.cli.arguments import client_net, client_zookeeper, cluster_uri
from bkspark.cli.bookie_answers import DIRECTORY, rows
from bkspark.cli.bookie_http import BookieHttpAccess, http_access, http_origin, http_problem
from bkspark.cli.health import ask_all, bookie_facts
from bkspark.cli.output import human_bytes, print_json, print_table, progress
from bkspark.errors import MetadataFormat

if TYPE_CHECKING:
    from bkspark.client import Client


def bookies(arguments: argparse.Namespace) -> int:
    """List every bookie that is registered, and those that have a cookie and are not."""
    import asyncio

    found = asyncio.run(_bookies(arguments))
    free, total = (sum(each[name] or 0 for each in found) for name in ("free_bytes", "total_bytes"))
    if arguments.json:
        print_json({"bookies": found, "free_bytes": free, "total_bytes": total})
        return 0
    listed = [
        (
            each["id"],
            each["state"],
            each["reachable"],
            _bytes(each["free_bytes"]),
            _bytes(each["total_bytes"]),
            each["used_percent"],
            each["rack"],
            each["version"],
            each["problem"] or each["reason"] or None,
        )
        for each in found
    ]
    print_table(["bookie", "state", "answers", "free", "total", "used %", "rack", "version", "why"], listed)
    print(f"{len(found)} bookies, {human_bytes(free)} of {human_bytes(total)} are free")
    _print_directories(found)
    return 0


def _print_directories(found: list[dict[str, Any]]) -> None:
    disks = [
        (each["id"], disk["kind"], disk["directory"], disk["used_percent"])
        for each in found
        for disk in each["directories"]
    ]
    if disks:
        print()
        print_table(["bookie", "kind", "directory", "used %"], disks)


def _bytes(count: int | None) -> str | None:
    return None if count is None else human_bytes(count)


async def _bookies(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Return every bookie; registered ones are queried concurrently."""
    from bkspark.client import Client

    net, zookeeper, http = client_net(arguments), client_zookeeper(arguments), http_access(arguments)
    async with Client(cluster_uri(arguments), net=net, zookeeper=zookeeper) as client:
        registry = (await client.context()).registry
        states = await registry.states()
        try:
            racks = (await registry.racks()).racks
        except MetadataFormat as error:
            # Another program writes it. Clients place copies without it, too.
            progress(f"the racks are not known: {error}")
            racks = {}
        return await ask_all(states, partial(_bookie, client, racks, http))


async def _bookie(
    client: Client, racks: dict[str, str], http: BookieHttpAccess, bookie: str, state: str
) -> dict[str, Any]:
    from bkspark.core.placement import RACK_DEFAULT
    from bkspark.metadata.registration import REASON, VERSION

    facts = await bookie_facts(client, bookie, state)
    address = await (await client.context()).registry.registration(bookie) if state != "down" else None
    properties = {} if address is None else address.properties
    directories: list[dict[str, Any]] = []
    if address is not None and not http_problem(address) and facts.serves:
        # Only our bookies have this path; Apache's do not report single directories.
        found = await http.fetch_object(f"{http_origin(address)}/api/v2/bookie")
        directories = rows(found, "directories", DIRECTORY) if found and found.get("id") == bookie else []
    used = None
    if facts.total_bytes and facts.free_bytes is not None:
        used = round(100 * (1 - facts.free_bytes / facts.total_bytes), 1)
    return {
        "id": bookie,
        "address": None if address is None else f"{address.host}:{address.port}",
        "state": state,
        "free_bytes": facts.free_bytes,
        "total_bytes": facts.total_bytes,
        "used_percent": used,
        "reachable": facts.serves,
        "problem": facts.problem,
        "reason": properties.get(REASON, ""),
        "version": properties.get(VERSION),
        "rack": racks.get(bookie, RACK_DEFAULT),
        "http": None if address is None or address.http is None else f"{address.http[0]}:{address.http[1]}",
        "directories": directories,
    }
