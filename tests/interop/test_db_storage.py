"""A bookie of Apache's with DbLedgerStorage and one of ours: their metrics, and `bkspark top` on both."""

from __future__ import annotations

import itertools
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from bkspark.blocking import Client, LedgerReader
from tests.bookie.prometheus import EXPRESSIONS, is_filled, needs_prometheus, published_panels, running_prometheus
from tests.bookie.published_panels import BOOKIES, GONE
from tests.cli.console import Console
from tests.cli.terminal import Terminal, needs_tmux
from tests.interop.pair import Pair, different_metrics, running_pair, unlisted_metrics
from tests.interop.peer import Peer
from tests.polling import wait_until

pytestmark = [pytest.mark.interop, pytest.mark.cluster]

SETTINGS = {
    "ledgerStorageClass": "org.apache.bookkeeper.bookie.storage.ldb.DbLedgerStorage",
    "dbStorage_writeCacheMaxSizeMb": "16",
    "dbStorage_readAheadCacheMaxSizeMb": "16",
    "dbStorage_rocksDB_blockCacheSize": str(16 << 20),
}
NAMES = [
    "bookie_ledgers_count",
    "bookie_entries_count",
    "bookie_write_cache_size",
    "bookie_read_cache_size",
    "bookie_read_cache_hits",
    "bookie_read_cache_misses",
    "bookie_read_entry",
    "bookie_readahead_batch_count",
    "bookie_readahead_batch_size",
    "bookie_add_entry",
    "bookie_write_cache_max_size",
    "bookie_write_cache_hits",
    "bookie_write_cache_misses",
    "bookie_ledger_writable_dirs",
    "bookie_DELETED_LEDGER_TOTAL",
    "bookie_MAJOR_COMPACTION_TOTAL",
    "bookie_MINOR_COMPACTION_TOTAL",
    "bookie_RECLAIMED_DELETION_SPACE_BYTES",
    "bookie_RECLAIMED_COMPACTION_SPACE_BYTES",
    "bookie_ACTIVE_ENTRY_LOG_TOTAL",
    "bookie_ACTIVE_LEDGER_TOTAL",
]
"""Those of dashboards for BookKeeper and Pulsar that only this storage has, or that have other labels with it."""


@pytest.fixture(scope="module")
def pair(classpath: str, peer: Peer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    with running_pair(classpath, peer, tmp_path_factory.mktemp("db"), SETTINGS) as pair:
        yield pair


def test_metrics_of_db_storage_have_apaches_names_kinds_and_labels(pair: Pair) -> None:
    different = different_metrics(pair, NAMES)
    assert not different, "\n".join(different)


def test_metrics_of_apaches_that_are_not_here_are_listed(pair: Pair) -> None:
    missing = unlisted_metrics(pair)
    assert not missing, " ".join(missing)


READ_THREADS = 8
"""`numReadWorkerThreads` of Apache's bookie. Its metrics have a value for each thread, and a sum over them is empty if
one of them read nothing in the last second. The thread is the ledger's id modulo their number."""


def striped(client: Client) -> LedgerReader:
    """Return a ledger with an entry that only Apache's bookie has, and one that only ours has.

    The client may leave the slower bookie out of reads of entries that both have.
    """
    with client.create(ensemble=2, write_quorum=1, ack_quorum=1) as writer:
        writer.append_many([b"x" * 1000] * 2)
    return client.open(writer.ledger_id)


@pytest.fixture
def load(pair: Pair) -> Iterator[None]:
    """Entries are added to both bookies and read all the time, also such as no cache has."""
    stopping = threading.Event()

    def write() -> None:
        with Client(pair.uri) as client:
            for_threads = [striped(client) for _ in range(READ_THREADS)]
            writer, closed = client.create(ensemble=2, write_quorum=2, ack_quorum=2), [client.open(0)]
            for number in itertools.count(1):
                # Often enough for each second to have a quantile.
                if stopping.wait(0.05):
                    break
                writer.append_many([b"x" * 1000] * 20)
                if number % 20 == 0:
                    writer.close()
                    closed.append(client.open(writer.ledger_id))
                    writer = client.create(ensemble=2, write_quorum=2, ack_quorum=2)
                closed[0].read(0, 199)
                for reader in for_threads:
                    reader.read(0, 1)
                # An entry of an older ledger: the first one that is read after a flush comes from the disk.
                older, entry = closed[number % len(closed)], 37 * number % 200
                older.read(entry, entry)
            writer.close()

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield
    finally:
        stopping.set()
        thread.join(60)


@needs_prometheus
def test_no_panel_that_apaches_bookie_fills_is_empty_with_ours(pair: Pair, load: None, tmp_path: Path) -> None:
    """A panel of a published dashboard that Apache's bookie of this version fills is one of `BOOKIES`."""
    # The load is V2, and Apache's bookie measures whole requests of V3 alone.
    loaded = {each for each in BOOKIES if "bookkeeper_server_ADD_ENTRY_REQUEST{" not in each}
    expressions = [each for each in [*EXPRESSIONS, *BOOKIES, *GONE, *published_panels()] if "bkspark" not in each]
    with (
        running_prometheus(tmp_path / "apache", pair.apache_port) as apache,
        running_prometheus(tmp_path / "ours", pair.our_port) as ours,
    ):
        filled: dict[int, set[str]] = {apache: set(), ours: set()}

        def all_filled() -> bool:
            for port, found in filled.items():
                found.update(each for each in expressions if each not in found and is_filled(port, each))
            return loaded <= filled[apache] <= filled[ours]

        try:
            wait_until(all_filled, "the panels of our bookie", 60)
        except AssertionError:
            empty = loaded - filled[apache]
            pytest.fail(f"empty with ours: {filled[apache] - filled[ours]}; empty with Apache's: {empty}")
        assert filled[apache].isdisjoint(GONE)
    print(f"{len(filled[apache])} of {len(expressions)} expressions have a value with Apache's bookie, and with ours")


@needs_tmux
@pytest.mark.parametrize(("width", "height"), [(80, 24), (160, 50)])
def test_top_shows_apaches_bookie(pair: Pair, tmp_path: Path, width: int, height: int) -> None:
    terminal = Terminal(tmp_path, width, height, f"{sys.executable} -m bkspark.cli top --uri {pair.uri} --interval 0.5")
    try:
        wait_until(lambda: pair.apache in terminal.screen(), "Apache's bookie", 60)
        screen = terminal.screen()
        assert len(screen.splitlines()) <= height
        assert all(len(line) <= width for line in screen.splitlines())
        assert "2 bookies, 2 writable" in screen
        assert ("READS/S" in screen) == (width > 80)
        terminal("send-keys", "-t", "top", "q")
        wait_until(lambda: not terminal("list-sessions"), "the command to end")
    finally:
        terminal.end()


def test_top_takes_its_figures_from_apaches_metrics(
    pair: Pair, load: None, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    console = Console(pair.uri, monkeypatch, capfd)

    def shown() -> dict[str, object]:
        bookies = console.json("top", "--interval", "0.5")["bookies"]
        return next(each for each in bookies if each["id"] == pair.apache)

    # Quantiles are those of the last whole second, and a disk is looked at every ten.
    wait_until(lambda: shown()["add_p99"] is not None and shown()["disk"] != 0.0, "a quantile and the disk", 60)
    found = shown()
    assert found["state"] == "available"
    assert not found["problem"]
    for fact in ("adds", "bytes", "add_p99", "fsync_p99", "disk"):
        assert isinstance(found[fact], float), (fact, found)
        assert found[fact] > 0, (fact, found)
