"""`bkspark top`: its screen as text, and the command in a real terminal (tmux), narrow and wide."""

from __future__ import annotations

import json
import sys
import threading
import unicodedata
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import pytest

from bkspark.blocking import Client
from bkspark.cli.__main__ import build_parser
from bkspark.cli.top import Watch, parse
from bkspark.cli.top_screen import SORTS, BookieRow, LedgerRow, RepairRow, TopView, columns, ordered, render
from bkspark.cli.zookeeper_process import ZooKeeperProcess
from tests.cli.console import Console
from tests.cli.terminal import Terminal, needs_tmux
from tests.cluster import Cluster, GuestCluster
from tests.polling import wait_until

HTTP = {
    "httpServerEnabled": "true",
    "httpServerPort": "0",
    "httpServerHost": "127.0.0.1",
    "prometheusStatsLatencyRolloverSeconds": "1",
}


def bookie(number: int, **facts: object) -> BookieRow:
    return BookieRow(f"10.0.0.{number}:3181", "available", **facts)  # type: ignore[arg-type]


BUSY = bookie(1, adds=1234.5, bytes=3e6, add_p99=2.5, fsync_p99=1.25, disk=40.0, queue=7.0, reads=9.0, version="0.1")
SLOW = bookie(2, adds=10.0, bytes=1e3, add_p99=900.0, fsync_p99=800.0, disk=91.0, queue=70.0)
DEAD = BookieRow("10.0.0.3:3181", "down", problem="does not run")
VIEW = TopView(
    "zk://h:2181/ledgers",
    "12:00:00",
    (SLOW, DEAD, BUSY),
    (LedgerRow(17, "events", 500.0, 1e6, 999, ("10.0.0.1:3181",)), LedgerRow(18, None, 0.0, 0.0, 3, ())),
    (RepairRow(5, "10.0.0.1:3181", 1 << 20, 1 << 21),),
    4,
    False,
)


@pytest.mark.parametrize(("width", "height"), [(80, 24), (200, 60), (40, 10), (20, 5), (1, 1)])
def test_screen_fits_any_terminal(width: int, height: int) -> None:
    lines = render(VIEW, width, height)
    assert len(lines) <= height
    assert all(len(line) <= width for line in lines)


def test_narrow_screen_has_what_matters_and_a_wide_one_has_more() -> None:
    narrow = "\n".join(render(VIEW, 80, 24))
    for text in (
        "ADDS/S",
        "MiB/S",
        "P99 MS",
        "FSYNC",
        "DISK%",
        "QUEUE",
        "1,234",
        "40.0",
        "does not run",
        "events",
        "500",
    ):
        assert text in narrow, text
    assert "4 ledgers lack copies; autorecovery is disabled" in narrow
    assert "1.0 MiB" in narrow
    assert "READS/S" not in narrow
    assert {"READS/S", "READ P99", "VERSION"} <= {each.title for each in columns(200)}
    assert " 18 " not in narrow, "a ledger that does not grow is not busy"


def test_what_others_named_cannot_move_the_cursor() -> None:
    """Anyone who writes a ledger chooses the name of its log. A terminal obeys it, and curses refuses zero bytes."""
    row = LedgerRow(17, "a\0b\x1b[2J\nred", 500.0, 1e6, 999, ("10.0.0.1:3181",))
    hostile = bookie(4, version="1\x1b[31m")
    lines = render(TopView("zk://h", "12:00:00", (hostile,), (row,), problem="away\x07"), 200, 30)
    assert all(line.isprintable() for line in lines)
    assert any(r"a\x00b\x1b[2J\nred " in line for line in lines)


def test_wide_characters_take_two_columns_and_combining_ones_none() -> None:
    """A line of 80 characters with such a name had up to 104 columns, and the terminal showed its end on the next."""
    names = ("\u65e5\u672c\u8a9e" * 12, "e\u0301" * 30, "plain")
    rows = tuple(LedgerRow(number, name, 500.0, 1e6, 999, ("b:1",)) for number, name in enumerate(names))
    lines = render(TopView("zk://h", "12:00:00", (BUSY,), rows), 80, 24)
    assert all(columns_of(line) <= 80 for line in lines)
    begins = [columns_of(line[: line.index("500")]) for line in lines if " 500 " in line]
    assert len(set(begins)) == 1, "the columns after a name are aligned"
    assert len(begins) == 3


def columns_of(text: str) -> int:
    """The columns of a terminal that a text takes, by the properties of Unicode."""
    wide = sum(unicodedata.east_asian_width(each) in "WF" for each in text)
    return len(text) + wide - sum(unicodedata.combining(each) > 0 for each in text)


def test_wide_screen_shows_long_ids_of_bookies_whole() -> None:
    """Every terminal showed 21 characters of `bookie-0.bookie.pulsar.svc.cluster.local:3181`."""
    ids = [f"bookie-{number}.bookie.pulsar.svc.cluster.local:3181" for number in range(3)]
    view = TopView("zk://h", "12:00:00", tuple(BookieRow(each, "available", version="0.1.0") for each in ids))
    wide = "\n".join(render(view, 160, 30))
    assert all(each in wide for each in ids)
    assert "0.1.0" in wide
    assert all(len(line) <= 80 for line in render(view, 80, 24))


@pytest.mark.parametrize("value", [7.0, 999_999.0, 1_234_567.0, 98_765_432.0, 4e9, 5e13])
@pytest.mark.parametrize("width", [80, 200])
def test_number_that_is_too_wide_for_its_column_is_not_cut(value: float, width: int) -> None:
    """1,234,567 adds a second were shown as 1,234,56, and a queue of 123,456 as 123,45."""
    row = BookieRow("b:1", "available", value, value * (1 << 20), value, value, value, value, 50.0, value)
    (line,) = (each for each in render(TopView("zk://h", "12:00:00", (row,)), width, 24) if each.startswith("b:1 "))
    units = {"k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
    numbers = line.split()[2:-1] if width == 200 else line.split()[2:]
    assert len(numbers) == (8 if width == 200 else 6)
    for text in numbers:
        number = float(text.rstrip("kMGT").replace(",", "")) * units.get(text[-1], 1.0)
        assert number == pytest.approx(50.0 if text == "50.0" else value, rel=0.01), line


def test_screen_says_nothing_of_a_cluster_that_was_never_read() -> None:
    """It said that no ledger lacked copies, and that none grew, while the cluster did not answer."""
    lines = render(TopView("zk://h/ledgers", "", problem="the metadata store does not answer"), 80, 24)
    assert [line.split() for line in lines if line.strip()] == [
        ["bkspark", "top", "zk://h/ledgers"],
        ["the", "metadata", "store", "does", "not", "answer"],
        ["BOOKIE", "STATE", "ADDS/S", "MiB/S", "P99", "MS", "FSYNC", "DISK%", "QUEUE"],
        ["q", "quit", "s", "sort", "arrows", "scroll"],
    ]


def test_figures_that_are_not_finite_are_left_out() -> None:
    """JSON has no NaN and no infinity: `--json` printed them, and no other program could read it."""
    watch = Watch(None, build_parser().parse_args(["top", "--uri", "zk://h/ledgers"]))  # type: ignore[arg-type]
    text = (
        "bookie_ledger_dir__a_usage NaN\nbookie_ledger_dir__b_usage 40\nbookie_WRITE_BYTES +Inf\n"
        'bookkeeper_server_ADD_ENTRY{success="true",quantile="0.99"} +Inf\n'
        "bookie_journal_JOURNAL_QUEUE_SIZE NaN\n"
    )
    for _ in range(2):
        row = watch._row("b:1", "available", None, parse(text))
    assert (row.disk, row.bytes, row.add_p99, row.queue) == (40.0, 0.0, None, 0.0)
    json.loads(json.dumps(asdict(row), allow_nan=False))


def metrics(adds: int, failed: int, size: int) -> str:
    name = "bookkeeper_server_ADD_ENTRY_count"
    return (
        f'{name}{{success="true", thread="0"}} {adds}\n{name}{{success="false", thread="0"}} {failed}\n'
        f"bookie_WRITE_BYTES {size}\n"
    )


def test_rates_are_those_of_successful_adds_and_never_below_zero() -> None:
    """A bookie that has restarted counts from zero again. Adds that it refuses are not its throughput."""
    watch = Watch(None, build_parser().parse_args(["top", "--uri", "zk://h/ledgers"]))  # type: ignore[arg-type]
    rows = [
        watch._row("b:1", "available", None, parse(text))
        for text in (metrics(1000, 5, 10**6), metrics(1000, 10**9, 10**6), metrics(7, 0, 700), metrics(8, 0, 800))
    ]
    assert [(row.adds, row.bytes) for row in rows[:3]] == [(None, None), (0.0, 0.0), (0.0, 0.0)]
    assert rows[3].adds is not None
    assert rows[3].bytes is not None
    assert 0 < rows[3].adds < rows[3].bytes


def test_bookies_are_sorted_and_scrolled() -> None:
    assert [row.id[7] for row in ordered(VIEW.bookies, "adds")] == ["1", "2", "3"]
    for sort in ("p99", "fsync", "disk", "queue"):
        assert [row.id[7] for row in ordered(VIEW.bookies, sort)] == ["2", "1", "3"], sort
    assert [row.id[7] for row in ordered(VIEW.bookies, "name")] == ["1", "2", "3"]
    many = TopView("c", "t", [bookie(number, adds=float(-number)) for number in range(60)])
    first = "\n".join(render(many, 80, 24))
    assert "10.0.0.0:3181" in first
    assert "more bookies: arrow keys" in first
    last = "\n".join(render(many, 80, 24, offset=1000))
    assert "10.0.0.59:3181" in last
    assert "10.0.0.0:3181" not in last
    assert set(SORTS) == {"adds", "bytes", "p99", "fsync", "disk", "queue", "name"}


def test_metrics_of_both_kinds_of_bookies_are_read() -> None:
    """The forms are those of Apache's exposition: NaN, spaces between labels, exponents, lines without labels."""
    found = parse(
        '# TYPE x summary\nx{success="true",quantile="0.99", thread="0",threadPool="P"} 10.708\n'
        'x{success="false",quantile="0.99", thread="0"} NaN\nbookie_WRITE_BYTES 1.5E7\njvm_x{} 3\nnonsense\nbad x\n'
    )
    assert found["x"][0] == ({"success": "true", "quantile": "0.99", "thread": "0", "threadPool": "P"}, 10.708)
    assert found["bookie_WRITE_BYTES"] == [({}, 1.5e7)]
    assert found["jvm_x"] == [({}, 3.0)]
    assert set(found) == {"x", "bookie_WRITE_BYTES", "jvm_x"}


@pytest.fixture
def busy(zookeeper: ZooKeeperProcess, tmp_path: Path) -> Iterator[Cluster]:
    """A cluster on which a log is written all the time."""
    with GuestCluster(zookeeper, tmp_path, bookies=3, settings=HTTP) as cluster, Client(cluster.uri) as client:
        stopping = threading.Event()
        log = client.log("events")
        log.create()

        def write() -> None:
            with log.open_for_writing() as writer:
                while not stopping.wait(0.01):
                    writer.append_many([b"x" * 1000] * 20)

        thread = threading.Thread(target=write)
        thread.start()
        try:
            yield cluster
        finally:
            stopping.set()
            thread.join(60)


@pytest.mark.cluster
@needs_tmux
def test_top_is_live_in_a_terminal_and_prints_once(
    busy: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    command = f"{sys.executable} -m bkspark.cli top --uri {busy.uri} --interval 0.5"
    terminal = Terminal(tmp_path, 80, 24, command)
    try:
        wait_until(lambda: "events" in terminal.screen(), "the busiest log", 60)
        screen = terminal.screen()
        assert len(screen.splitlines()) <= 24
        assert all(each.id in screen for each in busy.bookies)
        assert "sorted by adds" in screen
        assert "3 bookies, 3 writable" in screen
        terminal("send-keys", "-t", "top", "s")
        wait_until(lambda: "sorted by bytes" in terminal.screen(), "another order")
        terminal("resize-window", "-t", "top", "-x", "160", "-y", "50")
        wait_until(lambda: "READS/S" in terminal.screen(), "more columns")
        busy.bookies[0].kill()
        wait_until(lambda: "/metrics does not answer" in terminal.screen(), "a bookie that was killed")
        terminal("send-keys", "-t", "top", "q")
        wait_until(lambda: not terminal("list-sessions"), "the command to end")
    finally:
        terminal.end()
    console = Console(busy.uri, monkeypatch, capfd)
    text = console.text("top", "--once", "--interval", "0.5", "--sort", "name")
    assert "sorted by name" in text
    view = console.json("top", "--interval", "0.5")
    writing = [each for each in view["bookies"] if each["adds"]]
    assert writing
    assert all(each["bytes"] > 0 and each["disk"] > 0 for each in writing)
    assert any(each["log"] == "events" for each in view["ledgers"])
    assert "needs a terminal" in console.fails(2, "top").err


@pytest.mark.cluster
@needs_tmux
@pytest.mark.parametrize("kind", ["xterm", "vt100"])
def test_top_shows_its_screen_in_any_terminal_and_before_the_cluster_answers(tmp_path: Path, kind: str) -> None:
    """Serial consoles and old terminals cannot hide the cursor: it is seen, and nothing else differs."""
    command = f"env TERM={kind} {sys.executable} -m bkspark.cli top --uri zk://127.0.0.1:1/ledgers"
    terminal = Terminal(tmp_path, 80, 24, command)
    try:
        wait_until(lambda: "q quit" in terminal.screen(), "the screen", 60)
        terminal("send-keys", "-t", "top", "q")
        wait_until(lambda: not terminal("list-sessions"), "the command to end", 60)
    finally:
        terminal.end()
