"""`bkspark ledger list`: the ids of ledgers, or what their metadata say, filtered and sorted."""

from __future__ import annotations

import argparse
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from bkspark.cli.arguments import age, bookie_id, log_name, not_negative, positive
from bkspark.cli.connecting import LEDGERS_AT_ONCE, connect
from bkspark.cli.output import human_bytes, json_text, print_table
from bkspark.cli.plans import check_known
from bkspark.wall_clock import wall_clock_ms

if TYPE_CHECKING:
    from bkspark.client import Client
    from bkspark.ledger import Cluster
    from bkspark.metadata.ledgers import Versioned

SORTS = ("id", "size", "age")
SORTED_AT_ONCE = 10_000
TABLE_ROWS = 1000
"""Rows between two headers of a table."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    parser.add_argument("--long", action="store_true", help="state, quorums, size, age, log and bookies of each")
    parser.add_argument("--open", action="store_true", help="only ledgers that are not closed")
    parser.add_argument("--bookie", type=bookie_id, metavar="ID", help="only ledgers that name this bookie")
    parser.add_argument("--log", type=log_name, metavar="NAME", help="only ledgers of this log")
    parser.add_argument("--if-exists", action="store_true", help="list nothing if there is no such bookie or log")
    parser.add_argument("--older-than", type=age, metavar="TIME", help="only ledgers older than 90s, 30m, 2h, 1d")
    parser.add_argument("--sort", choices=SORTS, default="id", help="by id, largest or oldest first (default: id)")
    parser.add_argument("--after", type=not_negative, metavar="ID", help="only ids above this one")
    parser.add_argument("--limit", type=positive, metavar="N", help="at most N ledgers")


def list_ledgers(arguments: argparse.Namespace) -> int:
    """Print ledgers, ids in ascending order unless sorted."""
    from bkspark.blocking import run

    output = _JsonOutput() if arguments.json else _TableOutput() if arguments.long else _LinesOutput()
    with connect(arguments) as client:
        count, shown = run(lambda: _list(client.asynchronous, arguments, output))
    output.end({} if arguments.limit is None else {"count": count})
    if count > shown and not arguments.json:
        print(f"{count - shown} more: --limit N", file=sys.stderr)
    return 0


async def _list(client: Client, arguments: argparse.Namespace, output: _Output) -> tuple[int, int]:
    """Print the selected ledgers; return (how many match, how many are shown)."""
    listing = _Listing(client, arguments)
    shown = 0
    async for rows in listing.shown():
        output.add(rows)
        shown += len(rows)
    if not listing.count and not arguments.if_exists:
        if arguments.bookie is not None:
            await check_known(client, arguments.bookie)
        if arguments.log is not None:
            await client.log(arguments.log).show()  # raises if there is no such log
    return listing.count, shown


class _Listing:
    """Reads the ledgers of the cluster of `client` in order, a page at a time.

    Only sorting by size or age without a limit keeps all of them.
    """

    def __init__(self, client: Cluster, arguments: argparse.Namespace) -> None:
        self._client = client
        self._arguments = arguments
        """What to list: the options of `ledger list`."""
        self.count = 0
        """Ledgers that match so far, shown or not."""

    async def shown(self) -> AsyncIterator[list[Any]]:
        """Yield the rows to show: ids, or facts with --long."""
        arguments, left = self._arguments, self._arguments.limit
        needs_facts = arguments.open or arguments.bookie or arguments.log or arguments.older_than
        if needs_facts or arguments.sort != "id":
            async for rows in self._chosen() if arguments.sort == "id" else self._in_order():
                rows = rows[:left]
                left = None if left is None else left - len(rows)
                yield rows if arguments.long else [each["ledger"] for each in rows]
            return
        async for page in self._pages():
            self.count += len(page)
            ids = page[:left]
            left = None if left is None else left - len(ids)
            if not arguments.long:
                yield ids
                continue
            # Only the metadata that are shown are read.
            async for rows in _facts(self._client, ids):
                yield rows

    async def _pages(self) -> AsyncIterator[list[int]]:
        from bkspark.metadata.ledgers import NO_LEDGER

        after = NO_LEDGER if self._arguments.after is None else self._arguments.after
        async for page in (await self._client.context()).ledgers.pages(after):
            yield page.tolist()

    async def _chosen(self) -> AsyncIterator[list[dict[str, Any]]]:
        async for page in self._pages():
            async for some in _facts(self._client, page):
                rows = [each for each in some if _is_chosen(each, self._arguments)]
                self.count += len(rows)
                yield rows

    async def _in_order(self) -> AsyncIterator[list[dict[str, Any]]]:
        name, limit = ("length" if self._arguments.sort == "size" else "age_s"), self._arguments.limit
        best: list[dict[str, Any]] = []
        async for rows in self._chosen():
            best += rows
            if limit is not None and len(best) > limit + SORTED_AT_ONCE:
                best = sorted(best, key=lambda each: -each[name])[:limit]
        yield sorted(best, key=lambda each: -each[name])


class _Output(Protocol):
    """Prints rows as they are found."""

    def add(self, rows: Sequence[Any]) -> None:
        """Add more rows."""

    def end(self, more: Mapping[str, Any]) -> None:
        """Finish; `more`: members that JSON output has in addition to the rows."""


class _LinesOutput:
    def add(self, rows: Sequence[Any]) -> None:
        sys.stdout.write("".join(f"{each}\n" for each in rows))

    def end(self, more: Mapping[str, Any]) -> None:
        sys.stdout.flush()


class _JsonOutput:
    """One JSON object, which is never whole in memory."""

    def __init__(self) -> None:
        self._before = '{"ledgers": ['
        """What is printed before the next rows."""

    def add(self, rows: Sequence[Any]) -> None:
        if rows:
            sys.stdout.write(self._before + json_text(rows)[1:-1])
            self._before = ", "

    def end(self, more: Mapping[str, Any]) -> None:
        begin = "" if self._before == ", " else self._before
        rest = json_text(more)[1:-1]
        sys.stdout.write(f"{begin}]{', ' if rest else ''}{rest}}}\n")
        sys.stdout.flush()


class _TableOutput:
    """A table; its header is repeated after TABLE_ROWS rows."""

    def __init__(self) -> None:
        self._rows: list[Sequence[Any]] = []
        """Rows that are not printed yet; at most TABLE_ROWS."""
        self._is_begun = False
        """Whether a table was printed."""

    def add(self, rows: Sequence[Any]) -> None:
        for each in rows:
            self._rows.append(
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
            )
            if len(self._rows) == TABLE_ROWS:
                self._print()

    def end(self, more: Mapping[str, Any]) -> None:
        if self._rows or not self._is_begun:
            self._print()

    def _print(self) -> None:
        header = ["ledger", "state", "E/Qw/Qa", "last entry", "size", "age", "log", "bookies"]
        print_table(header, self._rows)
        self._rows, self._is_begun = [], True


def _is_chosen(facts: dict[str, Any], arguments: argparse.Namespace) -> bool:
    return (
        (not arguments.open or facts["state"] != "CLOSED")
        and (arguments.bookie is None or arguments.bookie in facts["bookies"])
        and (arguments.log is None or arguments.log == facts["log"])
        and (arguments.older_than is None or facts["age_s"] > arguments.older_than)
    )


async def _facts(client: Cluster, ids: Sequence[int]) -> AsyncIterator[list[dict[str, Any]]]:
    """Yield facts from the metadata of ledgers, some at a time; ledgers that are deleted meanwhile are left out."""
    from bkspark.errors import MetadataFormat, NoSuchLedger
    from bkspark.tasks import chunks, each_of

    ledgers, now_ms = (await client.context()).ledgers, wall_clock_ms()

    async def read(ledger_id: int) -> dict[str, Any] | None:
        try:
            return _described(ledger_id, await ledgers.read(ledger_id), now_ms)
        except NoSuchLedger:
            return None
        except MetadataFormat as error:
            print(error, file=sys.stderr, flush=True)
            return None

    for some in chunks(ids, LEDGERS_AT_ONCE):
        yield [each for each in await each_of(read, some, LEDGERS_AT_ONCE) if each is not None]


def _described(ledger_id: int, stored: Versioned, now_ms: int) -> dict[str, Any]:
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
        "age_s": round(max(0, now_ms - began_ms) / 1000, 1),
        "log": None if log is None else bytes(log).decode("utf-8", "backslashreplace"),
        "bookies": sorted({bookie for fragment in metadata.fragments for bookie in fragment.bookies}),
        "fragments": len(metadata.fragments),
    }


def _age(seconds: float) -> str:
    for unit, size in (("d", 86_400), ("h", 3600), ("m", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f}{unit}"
    return f"{seconds:.0f}s"
