"""`bkspark top`: bookies, the busiest ledgers and repairs, live in a terminal; also of Apache's bookies.

Metrics come from the HTTP server that a bookie's registration names, or from `--metrics-port`. Which ledgers are busy
is derived from the last entries of open ledgers, which are read without fencing, as readers do.
"""

from __future__ import annotations

import argparse
import math
import re
import sys
import time
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from bkspark.cli.arguments import Commands, add_cluster, client_net, client_zookeeper, cluster_uri, port, seconds
from bkspark.cli.bookie_http import BookieHttpAccess, add_http_token, http_access, http_origin, http_problem
from bkspark.cli.connecting import LEDGERS_AT_ONCE
from bkspark.cli.output import print_json
from bkspark.cli.top_screen import SORTS, BookieRow, LedgerRow, RepairRow, TopView, render
from bkspark.errors import BookKeeperError, ConfigurationError
from bkspark.one_line import one_line

if TYPE_CHECKING:
    from bkspark.client import Client

INTERVAL_S = 2.0
OPEN_LEDGERS_MAX = 200
"""Number of open ledgers that are read, the newest ones."""
KEYS_S = 0.1
WIDTH, HEIGHT = 120, 40
"""The size of what `--once` prints."""
OWNER_MAX = 100
"""At most this many characters of the id that another bookie reports are shown."""
_SAMPLE = re.compile(r"^([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})? (\S+)$")
_LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"')

_QUEUES = ("bookie_journal_JOURNAL_QUEUE_SIZE", "bookkeeper_server_ADD_ENTRY_IN_PROGRESS")
_LISTED_S = 30.0
"""How often all ledgers are listed."""

Metrics = Mapping[str, list[tuple[dict[str, str], float]]]


def add_parser(commands: Commands) -> None:
    """Add `bkspark top`."""
    description = "show bookies, the busiest ledgers and repairs, live in a terminal"
    parser = commands.add_parser("top", help=description, description=f"{description[0].upper()}{description[1:]}.")
    add_cluster(parser)
    add_http_token(parser)
    parser.add_argument(
        "--interval",
        type=seconds,
        default=INTERVAL_S,
        metavar="SECONDS",
        help="time between two looks (default: %(default)g)",
    )
    parser.add_argument("--sort", choices=SORTS, default="adds", help="the sort order of the bookies (default: adds)")
    parser.add_argument("--once", action="store_true", help="print the state once, after one interval, and exit")
    parser.add_argument(
        "--metrics-port", type=port, metavar="N", help="port of /metrics of bookies whose registration names none"
    )
    parser.set_defaults(run=top)


def top(arguments: argparse.Namespace) -> int:
    """Show the screen until q is pressed, or print it once."""
    import asyncio

    if arguments.once or arguments.json:
        return asyncio.run(_once(arguments))
    if not sys.stdout.isatty():
        raise ConfigurationError("bkspark top needs a terminal; --once prints it once")
    import curses

    def show(screen: Any) -> None:
        asyncio.run(_live(screen, arguments))

    try:
        curses.wrapper(show)
    except KeyboardInterrupt:
        return 0
    except curses.error as error:
        raise ConfigurationError(f"the terminal cannot show it: {error}; --once prints it once") from None
    return 0


async def _once(arguments: argparse.Namespace) -> int:
    import asyncio

    from bkspark.client import Client

    net, zookeeper = client_net(arguments), client_zookeeper(arguments)

    async with Client(cluster_uri(arguments), net=net, zookeeper=zookeeper) as client:
        watch = Watch(client, arguments)
        await watch.look()
        await asyncio.sleep(arguments.interval)
        view = await watch.look()
    if arguments.json:
        print_json(asdict(view))
        return 0
    lines = render(view, WIDTH, max(HEIGHT, len(view.bookies) + 16), arguments.sort)[:-1]
    print("\n".join(line.rstrip() for line in lines).rstrip())
    return 0


async def _live(screen: Any, arguments: argparse.Namespace) -> None:
    import asyncio
    import contextlib
    import curses

    from bkspark.client import Client
    from bkspark.tasks import end_all

    with contextlib.suppress(curses.error):  # a terminal of type vt100 or ansi cannot hide its cursor
        curses.curs_set(0)
    screen.nodelay(True)
    sort, offset = arguments.sort, 0
    view = TopView(arguments.uri, "", problem="asking the cluster ...")
    net, zookeeper = client_net(arguments), client_zookeeper(arguments)
    # Not connected before the first screen is drawn: that may take long.
    client = Client(cluster_uri(arguments), net=net, zookeeper=zookeeper)
    watch = Watch(client, arguments)
    looking = asyncio.ensure_future(watch.look_often(arguments.interval))
    try:
        while True:
            if looking.done():
                looking.result()
            view = watch.view or view
            _draw(screen, view, sort, offset)
            key = screen.getch()
            if key in (ord("q"), ord("Q")):
                return
            if key in (ord("s"), ord("S")):
                sort = SORTS[(SORTS.index(sort) + 1) % len(SORTS)]
            elif key in (curses.KEY_DOWN, curses.KEY_UP):
                step = 1 if key == curses.KEY_DOWN else -1
                offset = max(0, min(len(view.bookies) - 1, offset + step))
            elif key == -1:
                await asyncio.sleep(KEYS_S)
    finally:
        await end_all([looking])
        await client.close()


def _draw(screen: Any, view: TopView, sort: str, offset: int) -> None:
    import contextlib
    import curses

    height, width = screen.getmaxyx()
    screen.erase()
    for number, line in enumerate(render(view, width, height, sort, offset)):
        is_head = number == 0 or line.lstrip().startswith(("BOOKIE", "LEDGER", "REPAIRED"))
        # A terminal that shrinks at this moment, and the last cell of the last line, cannot be written.
        with contextlib.suppress(curses.error):
            screen.addnstr(number, 0, line, width, curses.A_BOLD if is_head else curses.A_NORMAL)
    screen.refresh()


@dataclass(slots=True)
class _Before:
    """Counters at the last look."""

    at_s: float
    """When it was."""
    adds: float
    """Added entries, their `bytes`, and `reads` since the bookie's start."""
    bytes: float
    reads: float


@dataclass(slots=True)
class Watch:
    """Reads the state of a cluster repeatedly; rates are those since the last time."""

    client: Client
    """A client of the cluster that is watched. Constant."""
    arguments: argparse.Namespace
    """The arguments of `bkspark top`. Constant."""
    view: TopView | None = None
    """The last view; None before the first one."""
    _http: BookieHttpAccess = field(init=False)
    _before: dict[str, _Before] = field(default_factory=dict)
    """Counters of each bookie at the last look."""
    _ids: list[int] = field(default_factory=list)
    """The newest ledgers when they were last listed."""
    _older_ledgers: int = 0
    """How many older ledgers there were."""
    _listed_at_s: float = float("-inf")
    """When they were listed."""

    def __post_init__(self) -> None:
        self._http = http_access(self.arguments)
        """Asks bookies' HTTP servers. Constant."""

    _asked: set[tuple[str, str]] = field(default_factory=set)
    """Bookies, each with the origin of its HTTP server, which did not say that it belongs to another one."""
    _ledgers_before: dict[int, tuple[float, int, int]] = field(default_factory=dict)
    """When each ledger was last looked at, its last entry and its length."""

    async def look_often(self, interval_s: float) -> None:
        """Read the state for ever. While the metadata store does not answer, the last view is shown with a notice."""
        import asyncio
        from dataclasses import replace

        while True:
            try:
                await self.look()
            except BookKeeperError as error:
                last = self.view or TopView(str(self.client.uri), "")
                self.view = replace(last, problem=" ".join(str(error).split()))
            await asyncio.sleep(interval_s)

    async def look(self) -> TopView:
        """Read the state once. Raises BookKeeperError if the metadata store does not answer."""
        import asyncio

        from bkspark.metadata.repair_reports import RepairReports
        from bkspark.metadata.underreplication import UnderreplicationStore

        client, tree = self.client, await self.client.tree()
        registry = (await client.context()).registry
        states = await registry.states()
        rows = await asyncio.gather(*(self._bookie(bookie, state) for bookie, state in states.items()))
        store = UnderreplicationStore(tree, client.uri)
        repairs = [
            RepairRow(each.ledger, report.worker, each.copied_bytes, max(0, each.bytes - each.copied_bytes))
            for report in await RepairReports(tree, client.uri).all()
            for each in report.repairs
        ]
        ledgers, unseen = await self._ledgers()
        self.view = TopView(
            str(client.uri),
            time.strftime("%H:%M:%S"),
            rows,
            ledgers,
            repairs,
            await store.count(),
            await store.is_enabled(),
            unseen,
        )
        return self.view

    # ---- bookies ----

    async def _bookie(self, bookie: str, state: str) -> BookieRow:
        from bkspark.metadata.registration import VERSION

        if state == "down":
            return BookieRow(bookie, state, problem="does not run")
        address = await (await self.client.context()).registry.registration(bookie)
        version = None if address is None else address.properties.get(VERSION)
        port = self.arguments.metrics_port
        where = None if port is None or address is None else (address.host, port)
        problem = http_problem(address, where)
        if address is None or problem:
            return BookieRow(bookie, state, version=version, problem=problem)
        origin = http_origin(address, where)
        owner = await self._owner(bookie, origin) if version is not None else bookie
        if owner != bookie:
            return BookieRow(bookie, state, version=version, problem=f"{origin} is the HTTP server of bookie {owner}")
        body = await self._http.fetch(f"{origin}/metrics")
        if body is None:
            return BookieRow(bookie, state, version=version, problem="/metrics does not answer")
        return self._row(bookie, state, version, parse(body.decode(errors="replace")))

    async def _owner(self, bookie: str, origin: str) -> str:
        """Return the bookie that an HTTP server belongs to; `bookie` if it does not say. It is asked once."""
        if (bookie, origin) in self._asked:
            return bookie
        found = await self._http.fetch_object(f"{origin}/api/v2/bookie")
        owner = one_line(str((found or {}).get("id", bookie)))[:OWNER_MAX]
        if owner == bookie:
            self._asked.add((bookie, origin))
        return owner

    def _row(self, bookie: str, state: str, version: str | None, metrics: Metrics) -> BookieRow:
        now = _Before(
            time.monotonic(),
            _sum(metrics, "bookkeeper_server_ADD_ENTRY_count"),
            _sum(metrics, "bookie_WRITE_BYTES"),
            _sum(metrics, "bookkeeper_server_READ_ENTRY_count"),
        )
        before = self._before.get(bookie)
        self._before[bookie] = now
        rates: dict[str, float | None] = {"adds": None, "bytes": None, "reads": None}
        if before is not None:
            elapsed_s = max(now.at_s - before.at_s, 0.001)
            # A bookie that was restarted counts from 0 again.
            rates = {name: max(0.0, getattr(now, name) - getattr(before, name)) / elapsed_s for name in rates}
        disks = [
            value
            for name, samples in metrics.items()
            if name.startswith("bookie_ledger_dir_") and name.endswith("_usage")
            for _, value in samples
            if math.isfinite(value)
        ]
        return BookieRow(
            bookie,
            state,
            rates["adds"],
            rates["bytes"],
            rates["reads"],
            _p99(metrics, "bookkeeper_server_ADD_ENTRY"),
            _p99(metrics, "bookkeeper_server_READ_ENTRY"),
            _p99(metrics, "bookie_journal_JOURNAL_SYNC"),
            max(disks, default=None),
            sum(_sum(metrics, name) for name in _QUEUES),
            version,
        )

    # ---- ledgers ----

    async def _ledgers(self) -> tuple[list[LedgerRow], int]:
        """Return (open ledgers that grow or grew, how many ledgers were not looked at)."""
        from bkspark.tasks import each_of

        if time.monotonic() - self._listed_at_s > _LISTED_S:
            await self._list()
            self._listed_at_s = time.monotonic()
        ids = self._ids
        found = await each_of(self._ledger, ids, LEDGERS_AT_ONCE)
        self._ledgers_before = {id: self._ledgers_before[id] for id in ids if id in self._ledgers_before}
        return [row for row in found if row is not None], self._older_ledgers

    async def _list(self) -> None:
        """Record the newest ledgers, by descending id, and how many older ones there are."""
        newest: list[int] = []
        count = 0
        async for page in (await self.client.context()).ledgers.pages():
            newest = (newest + page.tolist())[-OPEN_LEDGERS_MAX:]
            count += len(page)
        self._ids, self._older_ledgers = newest[::-1], count - len(newest)

    async def _ledger(self, ledger_id: int) -> LedgerRow | None:
        from bkspark.ledger.reader import last_entries
        from bkspark.log.formats import LOG_KEY
        from bkspark.wire.digest import EntryDigest

        context = await self.client.context()
        try:
            metadata = (await context.ledgers.read(ledger_id)).metadata
            before = self._ledgers_before.get(ledger_id)
            if metadata.is_closed:
                if before is None:
                    return None
                last, length = metadata.last_entry, metadata.length
            else:
                digest = EntryDigest(metadata.digest, metadata.password or b"", metadata.lac_bounds)
                found = await last_entries(context.pool, ledger_id, metadata, digest)
                last, length = found.lap, found.length
        except BookKeeperError:
            return None
        now_s = time.monotonic()
        self._ledgers_before[ledger_id] = (now_s, last, length)
        log = metadata.custom_metadata.get(LOG_KEY)
        elapsed_s, entries, size = 1.0, 0, 0
        if before is not None:
            elapsed_s = max(now_s - before[0], 0.001)
            entries, size = max(0, last - before[1]), max(0, length - before[2])
        return LedgerRow(
            ledger_id,
            None if log is None else bytes(log).decode("utf-8", "backslashreplace"),
            entries / elapsed_s,
            size / elapsed_s,
            last,
            metadata.last_fragment.bookies,
        )


def parse(text: str) -> Metrics:
    """Return the samples of Prometheus text by name; lines of another form are left out."""
    found: dict[str, list[tuple[dict[str, str], float]]] = defaultdict(list)
    for line in text.splitlines():
        match = None if line.startswith("#") else _SAMPLE.match(line)
        if match is None:
            continue
        try:
            value = float(match[3])
        except ValueError:
            continue
        found[match[1]].append((dict(_LABEL.findall(match[2] or "")), value))
    return found


def _succeeded(labels: Mapping[str, str]) -> bool:
    return labels.get("success", "true") == "true"


def _sum(metrics: Metrics, name: str) -> float:
    """Return the sum over threads and journals, failures left out."""
    return sum(value for labels, value in metrics.get(name, ()) if _succeeded(labels) and math.isfinite(value))


def _p99(metrics: Metrics, name: str) -> float | None:
    """Return the largest 99th percentile of threads and journals, None if there was nothing to measure."""
    found = [
        value
        for labels, value in metrics.get(name, ())
        if _succeeded(labels) and labels.get("quantile") == "0.99" and math.isfinite(value)
    ]
    return max(found, default=None)
