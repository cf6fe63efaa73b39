"""Which entry log an item goes to, how far logs grow, and when they are complete."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bookie_service.formats import entry_log as log_format
from bookie_service.formats.entry_log import HEADER_BYTES, OFFSET_BITS
from bookie_service.settings.configuration import configure
from bookie_service.storage.io.files import LocalFiles
from bookie_service.storage.logs.entry_log import EntryLogs
from bookie_service.storage.logs.log_appender import AppendOptions, EntryLogAppender
from bookie_service.storage.logs.log_scan import LogScan
from tests.bookie.items import item
from tests.crash.simulated_files import SimulatedDisk, SimulatedFiles


class Appending:
    """An appender over real files, with a clock that the test sets."""

    def __init__(self, directory: Path, options: AppendOptions) -> None:
        self.directory = directory
        self.now_s = 1000.0
        self.logs = EntryLogs(LocalFiles(), [str(directory)], reserves=options.reserves)
        self.appender = EntryLogAppender(self.logs, options, lambda: self.now_s)

    def append(self, *ids: tuple[int, int], size: int = 40) -> list[int]:
        """Append entries; return the log of each."""
        items = [item(ledger_id, entry_id, size) for ledger_id, entry_id in ids]
        sizes = np.array([len(each) for each in items])
        memory = np.frombuffer(b"".join(items), np.uint8)
        positions = self.appender.append(memory, np.cumsum(sizes) - sizes, sizes)
        self.appender.sync()
        return (positions >> OFFSET_BITS).tolist()

    def contents(self) -> dict[int, list[tuple[int, int]]]:
        """Return (ledger, entry) of what each log holds, in order."""
        found = {}
        for path in sorted(self.directory.glob("*.log")):
            file = LocalFiles().open(str(path))
            log_id = log_format.parse_file_name(path.name)
            assert log_id is not None
            found[log_id] = [
                each
                for window in LogScan(file, log_id)
                for each in zip(window.ledger_ids.tolist(), window.entry_ids.tolist())
            ]
            file.close()
        return found

    def complete(self) -> set[int]:
        """Return the logs that have a whole ledgers map."""
        found = set()
        for log_id in self.contents():
            file = LocalFiles().open(str(self.directory / log_format.file_name(log_id)))
            if LogScan(file, log_id).ledgers_map is not None:
                found.add(log_id)
            file.close()
        return found


def test_ledgers_share_one_log_by_default(tmp_path: Path) -> None:
    appending = Appending(tmp_path, AppendOptions())
    assert set(appending.append((5, 0), (6, 0), (7, 0))) == {1}


def test_each_ledger_has_a_log_of_its_own(tmp_path: Path) -> None:
    appending = Appending(tmp_path, AppendOptions(log_per_ledger=True))
    logs = appending.append((5, 0), (6, 0), (5, 1), (7, 0), (6, 1))
    assert logs == [1, 2, 1, 3, 2]
    assert appending.append((6, 2), (5, 2)) == [2, 1]
    assert appending.contents() == {1: [(5, 0), (5, 1), (5, 2)], 2: [(6, 0), (6, 1), (6, 2)], 3: [(7, 0)]}
    appending.appender.close()


def test_no_more_logs_are_open_than_may_be_and_the_least_recently_written_is_completed(tmp_path: Path) -> None:
    appending = Appending(tmp_path, AppendOptions(log_per_ledger=True, active_logs_max=2))
    appending.append((5, 0), (6, 0))
    appending.append((5, 1))
    assert appending.append((7, 0)) == [3]
    assert appending.appender.active_log_ids == {1, 3}
    assert appending.complete() == {2}
    assert appending.append((6, 1)) == [4]
    assert appending.complete() == {1, 2}
    appending.append(*((ledger_id, 0) for ledger_id in range(100, 150)))
    assert len(appending.appender.active_log_ids) == 2
    assert len(appending.complete()) == 52
    appending.appender.close()


@pytest.mark.parametrize("log_per_ledger", [False, True])
def test_no_log_outgrows_its_limit_but_for_a_single_entry(tmp_path: Path, log_per_ledger: bool) -> None:
    limit = HEADER_BYTES + 10 * len(item(5, 0, 40))
    appending = Appending(tmp_path, AppendOptions(limit, log_per_ledger=log_per_ledger))
    for first in range(0, 36, 4):
        appending.append(*((ledger_id, entry_id) for entry_id in range(first, first + 4) for ledger_id in (5, 6)))
    appending.append((5, 36), size=5000)
    for log_id, ids in appending.contents().items():
        assert len(ids) <= 10
        if log_per_ledger:
            assert len({ledger_id for ledger_id, _ in ids}) == 1
        assert len(ids) == 10 or log_id in list(appending.contents())[-3:]
    assert sorted(each for ids in appending.contents().values() for each in ids) == [
        (ledger_id, entry_id) for ledger_id in (5, 6) for entry_id in range(37 if ledger_id == 5 else 36)
    ]
    appending.appender.close()


@pytest.mark.parametrize(("spare", "count"), [(0, 10), (-1, 9)])
def test_entry_that_would_pass_the_limit_by_a_byte_begins_the_next_log(tmp_path: Path, spare: int, count: int) -> None:
    appending = Appending(tmp_path, AppendOptions(HEADER_BYTES + 10 * len(item(5, 0, 40)) + spare))
    for entry_id in range(20):
        appending.append((5, entry_id), size=40)
    assert [len(ids) for ids in appending.contents().values()][:2] == [count, count]
    appending.appender.close()


def test_entries_of_one_append_fill_a_log_to_the_last_byte(tmp_path: Path) -> None:
    appending = Appending(tmp_path, AppendOptions(HEADER_BYTES + 10 * len(item(5, 0, 40))))
    appending.append(*((5, entry_id) for entry_id in range(20)), size=40)
    assert [len(ids) for ids in appending.contents().values()] == [10, 10]
    appending.appender.close()


def test_log_of_an_idle_ledger_is_completed_at_the_end_of_a_flush(tmp_path: Path) -> None:
    appending = Appending(tmp_path, AppendOptions(log_per_ledger=True, idle_s=300))
    appending.append((5, 0), (6, 0))
    appending.now_s += 299
    appending.append((6, 1))
    appending.appender.seal_idle()
    assert appending.complete() == set()
    appending.now_s += 1
    appending.appender.seal_idle()
    assert appending.complete() == {1}
    appending.appender.close()


def test_shared_log_is_never_idle(tmp_path: Path) -> None:
    appending = Appending(tmp_path, AppendOptions(idle_s=0))
    appending.append((5, 0))
    appending.appender.seal_idle()
    assert appending.appender.active_log_ids == {1}
    appending.appender.close()


def test_logs_of_many_ledgers_and_of_compactions_never_have_the_same_id(tmp_path: Path) -> None:
    """Invariant B7, across restarts and with `lastId` gone."""
    seen: list[int] = []
    for _ in range(3):
        appending = Appending(tmp_path, AppendOptions(log_per_ledger=True, active_logs_max=2))
        seen += appending.append((5, 0), (6, 0), (7, 0))
        temporary = appending.logs.create_temporary(".compacting")
        seen.append(temporary.log_id)
        temporary.close()
        appending.appender.close()
        (tmp_path / log_format.LAST_ID_NAME).unlink()
        (tmp_path / f"{temporary.log_id:x}.log.compacting").unlink()
        # As after a compaction that came to nothing: its number may return, as no position names it.
        seen.pop()
    assert len(set(seen)) == len(seen)


def test_space_is_reserved_ahead_and_given_back_when_a_log_is_complete(tmp_path: Path) -> None:
    appending = Appending(tmp_path, AppendOptions())
    appending.append((5, 0))
    path = tmp_path / "1.log"
    assert path.stat().st_size == HEADER_BYTES + len(item(5, 0, 40))
    reserved = path.stat().st_blocks * 512
    appending.appender.seal()
    if reserved < 1024 * 1024:
        pytest.skip("this file system cannot reserve space")
    assert path.stat().st_blocks * 512 <= 8192
    assert appending.complete() == {1}


def test_error_about_space_that_cannot_be_reserved_names_the_file(tmp_path: Path) -> None:
    """More than any file can have, so that nothing is reserved: a full disk would let other tests fail."""
    file = LocalFiles().create(str(tmp_path / "file"))
    with pytest.raises(OSError, match="file") as refused:
        file.reserve(0, (1 << 63) - 1)
    assert refused.value.filename == str(tmp_path / "file")
    assert file.size() == 0
    file.close()


def test_keys_are_apaches() -> None:
    default = configure({}).service.store.append
    assert (default.log_per_ledger, default.active_logs_max, default.idle_s, default.reserves) == (
        False,
        500,
        300,
        True,
    )
    settings = {"entryLogPerLedgerEnabled": "true", "maximumNumberOfActiveEntryLogs": "7"}
    settings |= {"entrylogMapAccessExpiryTimeInSeconds": "9", "entryLogFilePreallocationEnabled": "false"}
    chosen = configure(settings).service.store.append
    assert (chosen.log_per_ledger, chosen.active_logs_max, chosen.idle_s, chosen.reserves) == (True, 7, 9, False)


def test_log_of_a_ledger_of_its_own_takes_four_syncs_from_its_beginning_to_its_map() -> None:
    """Its name, its entries, its map, the header that names the map; a clean stop waits for each."""
    disk = SimulatedDisk()
    files = SimulatedFiles(disk)
    files.make_directory("/ledgers")
    calls: list[tuple[str, str]] = []
    disk.before_operation = lambda operation, path: calls.append((operation, path))
    appender = EntryLogAppender(EntryLogs(files, ["/ledgers"]), AppendOptions(log_per_ledger=True))
    content = item(5, 0, 40)
    appender.append(np.frombuffer(content, np.uint8), np.array([0]), np.array([len(content)]))
    appender.sync()
    appender.seal()
    syncs = [call for call in calls if call[0].startswith("sync")]
    assert syncs == [("sync_directory", "/ledgers"), *[("sync_data", "/ledgers/1.log")] * 3]
