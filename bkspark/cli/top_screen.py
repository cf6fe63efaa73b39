"""The screen of `bkspark top` as lines of text: which columns fit, how rows are sorted. No terminal and no clock."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from bkspark.cli.output import human_bytes
from bkspark.cli.text_columns import columns_of, cut, padded
from bkspark.one_line import one_line

SORTS = ("adds", "bytes", "p99", "fsync", "disk", "queue", "name")
LEDGERS_MIN = 3
"""The least number of rows for the busiest ledgers, with their title."""


@dataclass(frozen=True, slots=True)
class BookieRow:
    """The bookie `id`: rates a second since the last look, times in ms; None: not known."""

    id: str
    state: str
    """"available", "readonly" or "down"."""
    adds: float | None = None
    """Entries a second; `bytes`: of them; `reads`: requests a second."""
    bytes: float | None = None
    reads: float | None = None
    add_p99: float | None = None
    """99 of 100 adds took less. `read_p99`, `fsync_p99`: the same of reads and of syncs of the journal."""
    read_p99: float | None = None
    fsync_p99: float | None = None
    disk: float | None = None
    """How full the fullest ledger directory is, in percent."""
    queue: float | None = None
    """Adds that wait for the journal."""
    version: str | None = None
    """The version of its software."""
    problem: str = ""
    """Why nothing is known of it; "": nothing prevents it."""


@dataclass(frozen=True, slots=True)
class LedgerRow:
    """An open ledger, and the log that it belongs to: entries and bytes a second."""

    ledger: int
    log: str | None
    entries: float
    bytes: float
    last_entry: int
    bookies: tuple[str, ...]
    """Those that store its last fragment."""


@dataclass(frozen=True, slots=True)
class RepairRow:
    """A ledger under repair, and the progress of the worker that repairs it."""

    ledger: int
    worker: str
    copied: int
    """Bytes that the worker has copied, and about how many are `left`."""
    left: int


@dataclass(frozen=True, slots=True)
class TopView:
    """The state of the cluster at one moment, as it is shown."""

    cluster: str
    time: str
    """The time of day, as shown."""
    bookies: Sequence[BookieRow] = ()
    ledgers: Sequence[LedgerRow] = ()
    repairs: Sequence[RepairRow] = ()
    lacking: int = 0
    """How many ledgers are listed as lacking copies."""
    is_repair_enabled: bool = True
    """Whether no operator has turned repair off."""
    unseen_ledgers: int = 0
    """Open ledgers that were not looked at, because there are too many."""
    problem: str = ""
    """Why the cluster could not be read; "": it could."""

    @property
    def is_known(self) -> bool:
        """Whether the cluster was ever read. Otherwise there is nothing to say about it."""
        return bool(self.time)


@dataclass(frozen=True, slots=True)
class Column:
    """A column of bookies. priority: those with the largest number are left out first."""

    title: str
    """The heading; `width`: characters of the column."""
    width: int
    priority: int
    cell: Callable[[BookieRow], str] = field(repr=False)
    """Returns the text of a row."""


def _number(value: float | None, width: int, form: str = ",.0f") -> str:
    """Return a number in at most `width` characters, with fewer digits or a unit where it needs more.

    >>> [_number(each, 6) for each in (12345.0, 123456.0, 1234567.0, 123456789012.0)]
    ['12,345', '123456', '1235k', '123.5G']
    """
    if value is None or value != value:
        return "-"
    units = (("", 1.0), ("k", 1e3), ("M", 1e6), ("G", 1e9), ("T", 1e12))
    texts = [f"{value / power:.{digits}f}{unit}" for unit, power in units for digits in ((1, 0) if unit else (0,))]
    return next((text for text in (format(value, form), *texts) if len(text) <= width), texts[-1])


def _ms(value: float | None, width: int) -> str:
    return _number(value, width, ".1f" if value is None or value < 1000 else ".0f")


def _mib(value: float | None, width: int) -> str:
    return _number(None if value is None else value / (1 << 20), width, ".1f")


_COLUMNS = (
    Column("BOOKIE", 21, 0, lambda row: row.id),
    Column("STATE", 9, 0, lambda row: row.state),
    Column("ADDS/S", 8, 0, lambda row: _number(row.adds, 8)),
    Column("MiB/S", 6, 0, lambda row: _mib(row.bytes, 6)),
    Column("P99 MS", 6, 0, lambda row: _ms(row.add_p99, 6)),
    Column("FSYNC", 6, 0, lambda row: _ms(row.fsync_p99, 6)),
    Column("DISK%", 5, 0, lambda row: _number(row.disk, 5, ".1f")),
    Column("QUEUE", 6, 0, lambda row: _number(row.queue, 6)),
    Column("READS/S", 8, 1, lambda row: _number(row.reads, 8)),
    Column("READ P99", 8, 2, lambda row: _ms(row.read_p99, 8)),
    Column("VERSION", 10, 3, lambda row: row.version or "-"),
)
_LEFT = ("BOOKIE", "STATE", "VERSION")


def columns(width: int, id_width: int = 0) -> list[Column]:
    """Return the columns that fit: less important ones are left out in a narrow terminal.

    Args:
        id_width: what the longest id of a bookie needs. Ids get it as far as all other columns leave it.
    """
    chosen = list(_COLUMNS)
    while sum(each.width + 1 for each in chosen) > width and any(each.priority for each in chosen):
        chosen.remove(max(chosen, key=lambda each: each.priority))
    ids, *others = chosen
    spare = width - sum(each.width + 1 for each in chosen)
    return [replace(ids, width=max(ids.width, min(id_width, ids.width + spare))), *others]


def ordered(rows: Sequence[BookieRow], sort: str) -> list[BookieRow]:
    """Return rows, those with the largest value first; those without one last; by name where they are equal."""
    by_name = sorted(rows, key=lambda row: row.id)
    if sort == "name":
        return by_name
    name = {"p99": "add_p99", "fsync": "fsync_p99"}.get(sort, sort)

    def value(row: BookieRow) -> float:
        found: Any = getattr(row, name)
        return -1.0 if found is None or found != found else float(found)

    return sorted(by_name, key=value, reverse=True)


def render(view: TopView, width: int, height: int, sort: str = "adds", offset: int = 0) -> list[str]:
    """Return at most `height` lines of at most `width` characters.

    Args:
        offset: how many bookies are scrolled away.
    """
    repairs = _repairs(view)
    ledgers = _ledgers(view, width)
    heads = _heads(view, sort)
    room = height - len(heads) - 1
    # Half of what is left belongs to bookies, if there are that many; the rest to ledgers and repairs.
    shown_repairs = repairs[: max(0, min(len(repairs), room // 4))]
    bookies_max = max(1, room - 1 - len(shown_repairs) - min(len(ledgers), max(LEDGERS_MIN, room // 3)))
    rows = ordered(view.bookies, sort)
    offset = max(0, min(offset, len(rows) - bookies_max))
    bookies = _bookies(rows[offset : offset + bookies_max], width)
    hidden = len(rows) - len(rows[offset : offset + bookies_max])
    if hidden:
        heads[-1] = f"{heads[-1]}  ({hidden} more bookies: arrow keys)"
    ledgers_max = max(0, room - len(bookies) - len(shown_repairs))
    lines = [*heads, *bookies, *ledgers[:ledgers_max], *shown_repairs]
    lines = lines[: height - 1]
    lines += [""] * (height - 1 - len(lines))
    lines.append("q quit   s sort   arrows scroll")
    return [cut(one_line(line), width) for line in lines[:height]]


def _heads(view: TopView, sort: str) -> list[str]:
    states = [row.state for row in view.bookies]
    counts = f"{len(states)} bookies, {states.count('available')} writable"
    unwell = sum(bool(row.problem) for row in view.bookies)
    counts += f", {unwell} without metrics" if unwell else ""
    repair = f"{view.lacking} ledgers lack copies" if view.lacking else "no ledger is known to lack copies"
    repair += "" if view.is_repair_enabled else "; autorecovery is disabled"
    adds = sum(row.adds or 0.0 for row in view.bookies)
    size = sum(row.bytes or 0.0 for row in view.bookies)
    return [
        f"bkspark top  {view.time}  {view.cluster}",
        view.problem or f"{counts}; {_number(adds, 20)} adds/s, {_mib(size, 20)} MiB/s",
        f"{repair}; sorted by {sort}" if view.is_known else "",
    ]


def _bookies(rows: Sequence[BookieRow], width: int) -> list[str]:
    chosen = columns(width, max((columns_of(row.id) for row in rows), default=0))
    lines = [" ".join(_cell(each, each.title) for each in chosen)]
    for row in rows:
        # For a bookie without figures, its problem is shown instead.
        shown = [each for each in chosen if not row.problem or each.title in ("BOOKIE", "STATE")]
        lines.append(" ".join([*(_cell(each, each.cell(row)) for each in shown), row.problem]).rstrip())
    return lines


def _cell(column: Column, text: str) -> str:
    return padded(cut(one_line(text), column.width), column.width, right=column.title not in _LEFT)


def _ledgers(view: TopView, width: int) -> list[str]:
    if not view.is_known:
        return []
    rows = sorted(view.ledgers, key=lambda row: (-row.entries, row.ledger))
    busy = [row for row in rows if row.entries > 0]
    if not busy:
        return (
            ["", "no open ledger grows"] if not view.unseen_ledgers else ["", "no open ledger that was looked at grows"]
        )
    lines = ["", f"{'LEDGER':>12} {'LOG':<24} {'ENTRIES/S':>10} {'MiB/S':>7} {'LAST':>12}  BOOKIES"]
    for row in busy:
        name = padded(cut(one_line(row.log or "-"), 24), 24)
        lines.append(
            f"{row.ledger:>12} {name} {_number(row.entries, 10):>10} {_mib(row.bytes, 7):>7} {row.last_entry:>12}  "
            f"{', '.join(row.bookies)}"
        )
    return lines


def _repairs(view: TopView) -> list[str]:
    if not view.repairs:
        return []
    lines = ["", f"{'REPAIRED':>12} {'BY':<24} {'COPIED':>10} {'LEFT':>10}"]
    for row in view.repairs:
        lines.append(
            f"{row.ledger:>12} {row.worker[:24]:<24} {human_bytes(row.copied):>10} {human_bytes(row.left):>10}"
        )
    return lines
