"""What the report of a pass names, and that no log is left out for the number of directories."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path

import pytest

from bkspark.errors import MetadataError
from bookie_service.formats import compaction as intent_format
from bookie_service.formats.compaction import SUFFIX
from bookie_service.formats.entry_log import HEADER_BYTES
from bookie_service.gc.garbage_collector import GarbageCollector
from bookie_service.gc.said_lines import SAID_MAX, SaidLines
from tests.bookie.collecting import UNLIMITED, Bench, collect, copies
from tests.bookie.faulty_files import FaultyFiles


def half_garbage(bench: Bench, kept: int, deleted: int, entry_ids: range) -> None:
    """Add a complete log with entries of two ledgers."""
    bench.put(kept, entry_ids)
    bench.put(deleted, entry_ids)
    bench.flush()
    bench.store.seal_logs()


def test_all_logs_are_rewritten_though_one_directory_has_more_than_another(tmp_path: Path) -> None:
    bench = Bench(tmp_path, directories=2)
    for first in (0, 20, 40):
        half_garbage(bench, 4, 6, range(first, first + 20))
    half_garbage(bench, 5, 7, range(20))
    bench.delete(6, 7)
    assert sorted(Path(path).parent.name for path in bench.log_paths) == ["ledgers0"] * 3 + ["ledgers1"]
    report = collect(bench)
    assert (report.compacted_logs, report.damaged_logs, report.dropped_ledgers) == (4, 0, 2)
    assert bench.holds(4, range(60))
    assert bench.holds(5, range(20))
    bench.store.close()


def test_log_whose_replacement_cannot_be_noted_stays_and_is_named(tmp_path: Path) -> None:
    files = FaultyFiles()
    bench = Bench(tmp_path, files)
    half_garbage(bench, 4, 6, range(20))
    bench.delete(6)
    (path,) = bench.log_paths
    files.fault = lambda operation, path: Path(path).name.startswith(intent_format.FILE_NAME) and operation == "create"
    report = bench.collect()
    assert (report.compacted_logs, report.damaged_logs) == (0, 1)
    assert report.kept_because.startswith("entry log 1 is left out of garbage collection")
    assert (bench.log_paths, copies(tmp_path)) == ([path], [])
    files.fault = None
    assert bench.collect().compacted_logs == 1
    assert bench.holds(4, range(20))
    bench.store.close()


def test_first_of_several_reasons_is_reported(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    half_garbage(bench, 4, 6, range(20))
    (path,) = map(Path, bench.log_paths)
    content = bytearray(path.read_bytes())
    content[HEADER_BYTES] ^= 0x80
    # Without its map the log is looked through.
    path.write_bytes(bytes(HEADER_BYTES) + content[HEADER_BYTES:])
    bench.cluster.failure = MetadataError("no answer")
    report = bench.collect()
    assert report.damaged_logs == 1
    assert report.kept_because == "ledgers are not dropped, because it is unknown which are deleted: no answer"
    bench.store.close()


def logged(said: SaidLines, lines: Iterable[str]) -> list[str]:
    """Return what one pass with these reasons logs."""
    said.begin_pass()
    return [found for line in lines if (found := said.to_log(line))]


def test_reason_that_stays_is_logged_once_and_forgotten_ones_take_no_memory() -> None:
    """Each reason names a ledger, a log or an error, so a bookie that runs for years finds any number of them."""
    said = SaidLines()
    assert logged(said, ["stays"]) == ["stays"]
    for number in range(3 * SAID_MAX):
        assert logged(said, [f"ledger {number}", "stays"]) == [f"ledger {number}"]
    assert len(said) == SAID_MAX
    assert logged(said, [f"ledger {2 * SAID_MAX + 2}"]) == []
    assert logged(said, [f"ledger {2 * SAID_MAX - 2}"]) != [], "forgotten"


def test_more_reasons_than_are_remembered_are_not_logged_again_in_every_pass() -> None:
    """A disk that fails may hold thousands of logs: each is left out, in each pass."""
    said = SaidLines()
    reasons = [f"entry log {number:x} is left out" for number in range(SAID_MAX + 100)]
    first = logged(said, reasons)
    assert first[:-1] == reasons[:SAID_MAX]
    assert first[-1] == f"further reasons are not logged: {SAID_MAX} are remembered, as many as can be"
    for _ in range(3):
        assert logged(said, reasons) == []
    assert logged(said, reasons[50:]) == [], "those of the pass before keep their places"
    assert logged(said, reasons[50:]) == [*reasons[SAID_MAX : SAID_MAX + 50], first[-1]], "50 are over"


def test_error_that_no_file_caused_ends_a_pass_that_copies_several_logs(tmp_path: Path) -> None:
    files = FaultyFiles()
    bench = Bench(tmp_path, files, directories=2)
    half_garbage(bench, 4, 6, range(20))
    half_garbage(bench, 5, 7, range(20))
    bench.delete(6, 7)

    def fault(operation: str, path: str) -> bool:
        if operation == "create" and path.endswith(SUFFIX):
            raise RuntimeError("a defect")
        return False

    files.fault = fault
    with pytest.raises(RuntimeError, match="a defect"):
        collect(bench)
    bench.store.close()


def test_damaged_log_is_not_copied_again(tmp_path: Path) -> None:
    files = FaultyFiles()
    bench = Bench(tmp_path, files)
    half_garbage(bench, 4, 6, range(20))
    bench.delete(6)
    (path,) = map(Path, bench.log_paths)
    content = bytearray(path.read_bytes())
    content[HEADER_BYTES + 10 * 120] ^= 0x80  # the length of an entry in the middle
    path.write_bytes(content)

    async def run() -> None:
        collector = GarbageCollector(bench.store, bench.compactor, bench.cluster, UNLIMITED, bench.callbacks())
        for damaged in (1, 0):
            report = await collector.run_pass(is_forced=True)
            assert (report.damaged_logs, report.compacted_logs) == (damaged, 0)
        await collector.stop()

    asyncio.run(run())
    assert len([each for each in files.operations if each[0] == "create" and each[1].endswith(SUFFIX)]) == 1
    bench.store.close()
