"""Scenarios of docs/reliability.md that end in garbage collection, each by its number."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pytest

from bkspark.errors import MetadataError
from bkspark.wire import v2
from bkspark.wire.status import Status
from bookie_service.formats import index as index_format
from bookie_service.formats.entry_log import HEADER_BYTES
from bookie_service.storage.index.manifest import IndexManifest
from bookie_service.storage.io.files import LocalFiles
from bookie_service.storage.ledgers.tombstones import Tombstones
from bookie_service.storage.logs.compaction import LogInDoubt
from tests.bookie.collecting import OF_OTHERS, UNLIMITED, Bench, intended_copy
from tests.bookie.faulty_files import FaultyFiles
from tests.bookie.folders import cut
from tests.bookie.items import item
from tests.bookie.serving import Serving, service_options, stored
from tests.crash.images import Loss, crash_image
from tests.crash.simulated_files import SimulatedDisk, SimulatedFiles

ROOT = Path("/")


def on_disk(disk: SimulatedDisk) -> Bench:
    return Bench(ROOT, SimulatedFiles(disk))


def half_dead() -> tuple[Bench, SimulatedDisk]:
    """Return a store on a simulated disk whose log 1 holds ledger 1, which lives, and what was ledger 2."""
    disk = SimulatedDisk()
    bench = on_disk(disk)
    bench.put(1, range(6))
    bench.put(2, range(20))
    bench.flush()
    bench.store.seal_logs()
    bench.drop(2)
    return bench, disk


def images_of(work: Callable[[Bench], None], *, seed: int = 1) -> Iterator[tuple[str, SimulatedDisk]]:
    """Yield what a crash at each operation of `work` leaves of `half_dead`, under every policy of loss."""
    bench, disk = half_dead()
    random = Random(seed)
    images: list[tuple[str, SimulatedDisk]] = []

    def crash(operation: str, path: str) -> None:
        images.extend(
            (f"{loss.value} before operation {len(images)}, {operation} {path}", crash_image(disk, loss, random))
            for loss in Loss
        )

    disk.before_operation = crash
    work(bench)
    crash("nothing", "at the end")
    disk.before_operation = None
    return iter(images)


def compact_log_1(bench: Bench) -> None:
    bench.compact(1)


def test_s05_crash_before_old_log_is_gone_or_new_one_durable_loses_nothing() -> None:
    """Every operation of a compaction, every policy: the entries are there after the restart."""
    count = 0
    for name, image in images_of(compact_log_1):
        bench = on_disk(image)
        assert bench.holds(1, range(6)), name
        assert not bench.notices, name
        count += 1
    assert count > 50


def test_s05_second_crash_inside_the_recovery_loses_nothing() -> None:
    random = Random(2)
    for name, image in images_of(compact_log_1):
        again: list[SimulatedDisk] = []

        def crash(operation: str, path: str, image: SimulatedDisk = image, again: list = again) -> None:
            if random.random() < 0.2:
                again.append(crash_image(image, random.choice(list(Loss)), random))

        image.before_operation = crash
        on_disk(image)
        for each in again:
            assert on_disk(each).holds(1, range(6)), name


def test_s06_index_never_points_to_copies_that_are_not_durable() -> None:
    """When the first position changes, all of the new log is durable under its name."""
    bench, disk = half_dead()
    checked = []

    def before(operation: str, path: str) -> None:
        if operation == "write" and path.endswith(".idx"):
            image = crash_image(disk, Loss.LOST, Random(1))
            log = SimulatedFiles(image).read_all("/ledgers0/2.log")
            checked.append(log.count(item(1, 5)))

    disk.before_operation = before
    bench.compact(1)
    assert checked
    assert set(checked) == {1}


def test_s07_old_log_goes_only_after_the_index_is_durable() -> None:
    bench, disk = half_dead()
    images = []

    def before(operation: str, path: str) -> None:
        if operation == "remove" and path.endswith("1.log"):
            images.append(crash_image(disk, Loss.LOST, Random(1)))

    disk.before_operation = before
    bench.compact(1)
    (image,) = images
    SimulatedFiles(image).remove("/ledgers0/1.log")
    SimulatedFiles(image).remove("/ledgers0/compaction")
    assert on_disk(image).holds(1, range(6))


def test_s08_crash_in_mid_compaction_leaks_no_space() -> None:
    """After the restart and one pass nothing is left but one copy of the live entries."""
    for name, image in images_of(compact_log_1):
        bench = on_disk(image)
        bench.cluster.existing = {1}
        bench.collect()
        assert bench.holds(1, range(6)), name
        assert bench.log_bytes <= 1.05 * 6 * len(item(1, 0)) / UNLIMITED.major.threshold, name
        assert bench.other_names == set(), name


def test_s12_ledger_created_after_the_listing_began_is_kept(tmp_path: Path) -> None:
    """The bookie's own list comes first, so a ledger that an old listing lacks is not even looked at."""
    bench = Bench(tmp_path)
    bench.put(1, range(3))
    bench.flush()

    def create_meanwhile() -> None:
        bench.put(2, range(3))
        bench.flush()

    bench.cluster.while_listing = create_meanwhile
    assert bench.collect().dropped_ledgers == 0
    assert bench.cluster.direct_reads == []
    assert bench.holds(1, range(3))
    assert bench.holds(2, range(3))
    bench.store.close()


def test_s13_ledgers_that_a_listing_misses_are_kept(tmp_path: Path) -> None:
    """A direct read is the second proof: it finds them."""
    bench = Bench(tmp_path)
    for ledger_id in range(5):
        bench.put(ledger_id, range(3))
    bench.flush()
    bench.cluster.unlisted = {2, 3, 4}
    bench.delete(4)
    assert bench.collect().dropped_ledgers == 1
    assert sorted(set(bench.cluster.direct_reads)) == [2, 3, 4]
    assert all(bench.holds(ledger_id, range(3)) for ledger_id in range(4))
    assert bench.store.ledger(4) is None
    bench.store.close()


def test_b8_failing_metadata_store_deletes_nothing_but_logs_are_still_compacted(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.put(1, range(3))
    bench.put(2, range(30))
    bench.put(3, range(3))
    bench.flush()
    bench.store.seal_logs()
    bench.drop(2)
    bench.delete(1)
    bench.cluster.failure = MetadataError("the session is lost")
    report = bench.collect()
    assert (report.dropped_ledgers, report.compacted_logs) == (0, 1)
    assert bench.holds(1, range(3))
    bench.cluster.failure = None
    assert bench.collect().dropped_ledgers == 1
    bench.store.close()


def test_z10_lost_metadata_do_not_delete_all_ledgers(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    for ledger_id in range(30):
        bench.put(ledger_id, range(1))
    bench.flush()
    bench.cluster.existing = {OF_OTHERS}
    assert bench.collect().dropped_ledgers == 0
    assert bench.cluster.direct_reads == []
    assert all(bench.holds(ledger_id, range(1)) for ledger_id in range(30))
    bench.store.close()


def test_s16_flush_in_flight_does_not_bring_a_dropped_ledger_back(tmp_path: Path) -> None:
    """What a flush, or the next one, still carries is not dropped; it goes in a later pass."""
    bench = Bench(tmp_path)
    bench.put(1, range(3))
    bench.flush()
    bench.put(1, range(3, 6))
    bench.delete(1)
    assert bench.store.drop([1]) == []
    flush = bench.store.begin_flush()
    assert flush is not None
    assert bench.store.drop([1]) == []
    bench.store.write_flush(flush)
    assert bench.store.drop([1]) == []
    bench.store.end_flush(flush)
    assert bench.collect_in_passes(2).dropped_ledgers == 1
    assert bench.store.ledger(1) is None
    bench.put(9, range(1))
    bench.flush()
    bench.reopen()
    assert bench.store.ledger(1) is None
    bench.store.close()


def test_s16_ledger_that_is_not_dropped_after_all_is_still_known_to_have_an_index_file(tmp_path: Path) -> None:
    """Otherwise nothing would notice that the file is lost, and its entries would be denied."""
    bench = Bench(tmp_path)
    bench.put(1, range(3))
    bench.flush()
    bench.put(1, range(3, 6))
    bench.delete(1)
    assert bench.collect_in_passes(2).dropped_ledgers == 0
    assert IndexManifest(LocalFiles(), bench.paths).least_bytes(1) > 0
    bench.store.close()


def test_s16_record_of_an_index_file_is_there_at_each_moment_of_a_pass_that_keeps_its_ledger(tmp_path: Path) -> None:
    """After a crash without it, nothing would notice that the file is lost."""
    files = FaultyFiles()
    bench = Bench(tmp_path, files)
    bench.put(5, range(3))
    bench.flush()
    bench.delete(5)

    def come_back() -> None:
        bench.put(5, range(3, 6))
        bench.flush()
        bench.delete(5)

    bench.cluster.while_listing = come_back
    least_bytes: list[int] = []

    def look(operation: str, path: str) -> bool:
        least_bytes.append(IndexManifest(LocalFiles(), bench.paths).least_bytes(5))
        return False

    files.fault = look
    assert bench.collect().dropped_ledgers == 0
    assert least_bytes
    assert min(least_bytes) > 0
    bench.store.close()


@pytest.mark.parametrize("at", [3, 8, 15, 19, 1004, 1016, 1020])
def test_s23_garbage_in_a_log_header_does_not_make_it_dead(tmp_path: Path, at: int) -> None:
    """A log whose header or map fails its checksum is scanned."""
    bench = Bench(tmp_path)
    bench.put(1, range(3))
    bench.put(2, range(30))
    bench.flush()
    bench.store.seal_logs()
    path = Path(bench.log_paths[0])
    content = bytearray(path.read_bytes())
    content[at] ^= 0xFF
    path.write_bytes(content)
    bench.delete(2)
    bench.collect()
    assert bench.holds(1, range(3))
    bench.reopen()
    assert bench.holds(1, range(3))
    bench.store.close()


def test_s24_one_damaged_log_does_not_stop_the_pass(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench(tmp_path)
    for first in range(0, 300, 30):
        bench.put(1, range(first, first + 5))
        bench.put(2, range(first, first + 30))
        bench.flush()
    bench.store.seal_logs()
    paths = [Path(path) for path in bench.log_paths]
    content = bytearray(paths[0].read_bytes())
    content[HEADER_BYTES] = 0xFF
    paths[0].write_bytes(content)
    bench.delete(2)
    report = bench.collect()
    assert report.damaged_logs == 1
    assert report.compacted_logs == len(paths) - 1
    assert paths[0].exists()
    assert sum("1.log" in record.getMessage() for record in caplog.records) == 1
    assert bench.holds(1, range(30, 35))
    bench.store.close()


def test_s35_ledger_of_other_bookies_only_is_removed(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.put(1, range(3))
    bench.put(2, range(3))
    bench.flush()
    bench.cluster.on_other_bookies = {1}
    assert bench.collect().dropped_ledgers == 1
    assert bench.store.ledger(1) is None
    assert bench.holds(2, range(3))
    bench.store.close()


def test_p21_fenced_and_deleted_ledger_is_remembered(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    for ledger_id in (1, 2):
        bench.put(ledger_id, range(3))
    ledger = bench.store.ledger(1)
    assert ledger is not None
    bench.store.fence(ledger)
    bench.flush()
    bench.delete(1, 2)
    assert bench.collect().dropped_ledgers == 2
    bench.reopen()
    assert [ledger_id in bench.store.tombstones for ledger_id in (1, 2)] == [True, False]
    bench.store.close()


def test_p21_late_writer_is_refused_and_a_repair_brings_the_ledger_back_fenced(tmp_path: Path) -> None:
    current = tmp_path / "ledgers" / "current"
    current.mkdir(parents=True)
    Tombstones(LocalFiles(), [str(current)]).remember([5], 1 << 40)
    with Serving(service_options(tmp_path)) as serving, serving.connect() as peer:
        assert peer.add(5, 0, [b"late"]) == [Status.EFENCED]
        assert peer.read(5, 0).status == Status.ENOLEDGER
        assert peer.add(5, 0, [b"repaired"], v2.RECOVERY_ADD) == [Status.EOK]
        assert peer.add(5, 1, [b"late"]) == [Status.EFENCED]
        serving.abandon()
    with Serving(service_options(tmp_path)) as serving, serving.connect() as peer:
        assert peer.add(5, 1, [b"late"]) == [Status.EFENCED]
        assert peer.read(5, 0).body == stored(5, 0, b"repaired")


# ---- ledgers in limbo, and ledgers whose index is lost or cut ----


def index_path(bench: Bench, ledger_id: int) -> Path:
    return Path(bench.paths[ledger_id % len(bench.paths)], *index_format.relative_path(ledger_id))


def with_map(bench: Bench) -> None:
    bench.store.seal_logs()


def without_map(bench: Bench) -> None:
    """The log that a crash ended has no ledgers map, and garbage collection scans it."""


@pytest.mark.parametrize("kept_positions", [None, 0, 3])
@pytest.mark.parametrize("end_log", [with_map, without_map])
def test_b8_logs_of_a_ledger_whose_index_is_lost_or_cut_are_neither_removed_nor_rewritten(
    tmp_path: Path, end_log: Callable[[Bench], None], kept_positions: int | None
) -> None:
    """C9: the metadata name this bookie, and its entry logs may be the last place where the entries are."""
    bench = Bench(tmp_path)
    bench.put(7, range(8))
    bench.put(9, range(30))
    bench.flush()
    end_log(bench)
    bench.reopen()
    logs = {path: Path(path).read_bytes() for path in bench.log_paths}
    path = index_path(bench, 7)
    if kept_positions is None:
        path.unlink()
    else:
        cut(path, index_format.LAYOUT.position_at(kept_positions))
    bench.delete(9)
    for _ in range(3):
        report = bench.collect()
        bench.reopen()
    assert (report.removed_logs, report.compacted_logs) == (0, 0)
    assert {path: Path(path).read_bytes() for path in logs} == logs
    bench.delete(7)
    bench.collect()
    assert bench.log_paths == [], "once the ledger is deleted its logs are garbage"
    bench.store.close()


def test_b8_log_is_kept_when_an_index_file_is_cut_while_its_log_is_rewritten(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.put(7, range(8))
    bench.put(9, range(30))
    bench.flush()
    bench.store.seal_logs()
    bench.drop(9)
    cut(index_path(bench, 7), index_format.LAYOUT.position_at(3))
    with pytest.raises(LogInDoubt, match="ledger 7"):
        intended_copy(bench.compactor, 1)
    assert bench.other_names == set()
    bench.store.close()


def test_ledger_that_is_dropped_is_not_in_limbo_any_more(tmp_path: Path) -> None:
    """Otherwise each pass would ask the metadata about it for ever."""
    bench = Bench(tmp_path)
    bench.put(1, range(3))
    bench.flush()
    bench.store.limbo.begin([1])
    bench.delete(1)
    assert bench.collect_in_passes(2).dropped_ledgers == 1
    assert bench.store.limbo.ledger_ids.tolist() == []
    bench.store.close()


def test_b8_logs_of_a_ledger_in_limbo_keep_entries_without_a_position(tmp_path: Path) -> None:
    """After a crash with an incomplete journal entries may be in a log and nowhere in the index."""
    bench = Bench(tmp_path)
    bench.put(7, range(4))
    bench.put(9, range(30))
    bench.flush()
    bench.store.seal_logs()
    bench.store.limbo.begin([7])
    bench.delete(9)
    assert bench.collect().compacted_logs == 0
    assert bench.holds(7, range(4))
    bench.store.limbo.end([7])
    assert bench.collect().compacted_logs == 1
    assert bench.holds(7, range(4))
    bench.store.close()


@pytest.mark.parametrize("end_log", [with_map, without_map])
def test_b8_log_of_a_ledger_in_limbo_that_has_no_index_file_is_kept(
    tmp_path: Path, end_log: Callable[[Bench], None]
) -> None:
    """A flush ended after the log, and the journal may lack the ledger. A rebuild finds its entries there."""
    files = FaultyFiles()
    files.code = errno.ENOSPC
    bench = Bench(tmp_path, files)
    bench.put(7, range(4))
    flush = bench.store.begin_flush()
    assert flush is not None
    files.fault = lambda operation, path: operation == "create" and path.endswith(".idx")
    with pytest.raises(OSError, match="No space left"):
        bench.store.write_flush(flush)
    end_log(bench)
    files.fault = None
    bench.reopen()
    (log_path,) = bench.log_paths
    bench.store.limbo.begin([7])
    assert bench.collect().removed_logs == 0
    assert bench.log_paths == [log_path]
    bench.store.limbo.end([7])
    assert bench.collect().removed_logs == 1
    assert bench.log_paths == []
    bench.store.close()


def test_torn_log_is_kept_while_any_index_is_lost(tmp_path: Path) -> None:
    """The bytes after the damage may be an entry of the ledger whose positions are lost."""
    bench = Bench(tmp_path)
    bench.put(7, range(4))
    bench.put(9, range(30))
    bench.flush()
    bench.store.close()
    path = Path(bench.log_paths[0])
    content = bytearray(path.read_bytes())
    content[HEADER_BYTES] = 0xFF
    path.write_bytes(content)
    index_path(bench, 7).unlink()
    bench.open()
    bench.delete(9)
    assert bench.collect().removed_logs == 0
    assert path.exists()
    bench.store.close()


def test_p21_ledger_in_doubt_counts_as_fenced_when_it_is_dropped(tmp_path: Path) -> None:
    """Its fence may have been lost with its index file."""
    bench = Bench(tmp_path)
    bench.put(1, range(3))
    bench.put(2, range(3))
    bench.flush()
    bench.reopen()
    index_path(bench, 1).unlink()
    bench.delete(1, 2)
    assert bench.collect().dropped_ledgers == 2
    assert [ledger_id in bench.store.tombstones for ledger_id in (1, 2)] == [True, False]
    assert bench.store.index.lost(1) == ""
    bench.store.close()
