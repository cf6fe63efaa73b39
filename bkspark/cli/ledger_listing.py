"""`bkspark ledger list`: the ids of ledgers, or what their metadata say, filtered and sorted."""

from __future__ import annotations

import argparse
import sys
import time
from typing import TYPE_CHECKING, Any

from bkspark.cli.arguments import not_negative, positive
from bkspark.cli.connecting import connect
from bkspark.cli.output import human_bytes, print_json, print_table
from bkspark.cli.plans import duration

if TYPE_CHECKING:
    from bkspark.ledger import Cluster
    from bkspark.metadata.ledgers import Versioned

SORTS = ("id", "size", "age")
LEDGERS_AT_ONCE = 64


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    parser.add_argument("--long", action="store_true", help="state, quorums, size, age, log and bookies of each")
    parser.add_argument("--open", action="store_true", help="only ledgers that are not closed")
    parser.add_argument("--bookie", metavar="ID", help="only ledgers that name this bookie")
    parser.add_argument("--log", metavar="NAME", help="only ledgers of this log")
    parser.add_argument("--older-than", type=duration, metavar="TIME", help="only ledgers older than 90s, 30m, 2h, 1d")
    parser.add_argument("--sort", choices=SORTS, default="id", help="by id, largest or oldest first (default: id)")
    parser.add_argument("--after", type=not_negative, metavar="ID", help="only ids above this one")
    parser.add_argument("--limit", type=positive, metavar="N", help="at most N ledgers")


def list_ledgers(arguments: argparse.Namespace) -> int:
    """Print ledgers, ids in ascending order unless sorted."""
    from bkspark.blocking import run

    with connect(arguments) as client:
        found, count = run(lambda: _found(client.asynchronous, arguments))
    if arguments.json:
        print_json({"ledgers": found} if arguments.limit is None else {"ledgers": found, "count": count})
    elif arguments.long:
        rows = [
            (
                each["ledger"],
                each["state"],
                "/".join(map(str, each["quorums"])),
                each["last_entry"],
                human_bytes(each["length"]),
                _age(each["age_s"]),
                each["log"],
                each["bookies"],
            )
            for each in found
        ]
        print_table(["ledger", "state", "E/Qw/Qa", "last entry", "size", "age", "log", "bookies"], rows)
    else:
        sys.stdout.write("".join(f"{each}\n" for each in found))
    if count > len(found) and not arguments.json:
        print(f"{count - len(found)} more: --limit N", file=sys.stderr)
    return 0


async def _found(client: Cluster, arguments: argparse.Namespace) -> tuple[list[Any], int]:
    """Return (ids, or facts with --long, in order and within the limit; how many there are)."""
    ids = sorted([ledger_id async for ledger_id in client.ledgers()])
    if arguments.after is not None:
        ids = [ledger_id for ledger_id in ids if ledger_id > arguments.after]
    is_filtered = arguments.open or arguments.bookie or arguments.log or arguments.older_than
    if not (arguments.long or is_filtered or arguments.sort != "id"):
        return ids[: arguments.limit], len(ids)
    if arguments.long and not is_filtered and arguments.sort == "id":
        # Only the metadata that are shown are read.
        return await _facts(client, ids[: arguments.limit]), len(ids)
    chosen = [each for each in await _facts(client, ids) if _is_chosen(each, arguments)]
    if arguments.sort == "size":
        chosen.sort(key=lambda each: -each["length"])
    elif arguments.sort == "age":
        chosen.sort(key=lambda each: -each["age_s"])
    page = chosen[: arguments.limit]
    return (page if arguments.long else [each["ledger"] for each in page]), len(chosen)


def _is_chosen(facts: dict[str, Any], arguments: argparse.Namespace) -> bool:
    return (
        (not arguments.open or facts["state"] != "CLOSED")
        and (arguments.bookie is None or arguments.bookie in facts["bookies"])
        and (arguments.log is None or arguments.log == facts["log"])
        and (arguments.older_than is None or facts["age_s"] > arguments.older_than)
    )


async def _facts(client: Cluster, ids: list[int]) -> list[dict[str, Any]]:
    """Return what the metadata of ledgers say; those that are deleted meanwhile are left out."""
    import asyncio

    from bkspark.errors import MetadataFormat, NoSuchLedger

    ledgers, now_s = (await client.context()).ledgers, time.time()

    async def read(ledger_id: int) -> dict[str, Any] | None:
        try:
            return _described(ledger_id, await ledgers.read(ledger_id), now_s)
        except NoSuchLedger:
            return None
        except MetadataFormat as error:
            print(error, file=sys.stderr, flush=True)
            return None

    found: list[dict[str, Any]] = []
    for begin in range(0, len(ids), LEDGERS_AT_ONCE):
        some = await asyncio.gather(*map(read, ids[begin : begin + LEDGERS_AT_ONCE]))
        found += [each for each in some if each is not None]
    return found


def _described(ledger_id: int, stored: Versioned, now_s: float) -> dict[str, Any]:
    from bkspark.log.formats import LOG_KEY

    metadata = stored.metadata
    log = metadata.custom_metadata.get(LOG_KEY)
    began_ms = stored.ctime_ms if metadata.ctime is None else metadata.ctime
    return {
        "ledger": ledger_id,
        "state": metadata.state.name,
        "quorums": [metadata.ensemble_size, metadata.write_quorum, metadata.ack_quorum],
        "last_entry": metadata.last_entry,
        "length": metadata.length,
        "ctime": began_ms,
        "age_s": round(max(0.0, now_s - began_ms / 1000), 1),
        "log": None if log is None else bytes(log).decode("utf-8", "backslashreplace"),
        "bookies": sorted({bookie for fragment in metadata.fragments for bookie in fragment.bookies}),
        "fragments": len(metadata.fragments),
    }


def _age(seconds: float) -> str:
    for unit, size in (("d", 86_400), ("h", 3600), ("m", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f}{unit}"
    return f"{seconds:.0f}s"
