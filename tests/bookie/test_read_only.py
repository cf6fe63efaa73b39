"""A bookie whose disks fill up: read-only and back, with nothing lost and nothing hanging."""

from __future__ import annotations

import errno
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from bkspark.errors import DiskFull
from bkspark.wire import v2
from bkspark.wire.status import Status
from bookie_service.engine.disk_watch import DiskOptions
from bookie_service.settings.service_options import ServiceOptions
from bookie_service.storage.disks import DiskLimits
from bookie_service.storage.ledgers.base import StoreOptions
from tests.bookie.faulty_files import FaultyFiles
from tests.bookie.serving import Peer, Serving, service_options, stored
from tests.polling import wait_until

RECOVERY = v2.RECOVERY_ADD | v2.HIGH_PRIORITY
FULL, EMPTY = 0.97, 0.5
OFTEN = DiskOptions(limits=DiskLimits(low_share=0.9), interval_s=0.02)


@pytest.fixture
def files() -> FaultyFiles:
    files = FaultyFiles()
    files.used = {"journal": EMPTY, "ledgers": EMPTY}
    return files


@pytest.fixture
def options(tmp_path: Path) -> ServiceOptions:
    return service_options(tmp_path, disks=OFTEN)


@pytest.fixture
def serving(files: FaultyFiles, options: ServiceOptions) -> Iterator[Serving]:
    with Serving(options, files) as serving:
        yield serving


def next_add(peer: Peer, ledger_id: int = 5) -> int:
    """Add after the last entry; return the status."""
    reply = peer.read(ledger_id, v2.LAST_ENTRY)
    entry_id = int.from_bytes(reply.body[8:16], "big") + 1 if reply.status == Status.EOK else 0
    return peer.add(ledger_id, entry_id, [b"x"])[0]


def wait_for(peer: Peer, status: Status) -> None:
    wait_until(lambda: next_add(peer) == status, f"adds to be answered {status.name}")


@pytest.mark.parametrize("disk", ["journal", "ledgers"])
def test_full_disk_refuses_adds_and_goes_on_with_reads_fences_and_recovery(
    files: FaultyFiles, serving: Serving, disk: str
) -> None:
    """B9: keep reads, fences and recovery adds; docs/protocol.md §1.6: EREADONLY."""
    with serving.connect() as peer:
        assert peer.add(6, 0, [b"before"]) == [Status.EOK]
        files.used[disk] = FULL
        wait_for(peer, Status.EREADONLY)
        assert peer.read(6, 0).body == stored(6, 0, b"before")
        assert peer.read(6, 0, v2.DO_FENCING).status == Status.EOK
        assert peer.add(6, 1, [b"rewritten"], RECOVERY) == [Status.EOK]
        assert peer.add(7, 0, [b"new here"], RECOVERY) == [Status.EOK]
        files.used[disk] = 0.93
        assert next_add(peer) == Status.EREADONLY
        files.used[disk] = EMPTY
        wait_for(peer, Status.EOK)


def test_recovery_adds_are_refused_where_the_reserve_is_used_up(files: FaultyFiles, serving: Serving) -> None:
    with serving.connect() as peer:
        files.used["ledgers"] = 0.9995
        wait_until(lambda: peer.add(7, 0, [b"x"], RECOVERY) == [Status.EREADONLY], "the refusal of recovery adds")
        assert peer.read(7, 0, v2.DO_FENCING).status in (Status.ENOENTRY, Status.EOK)


def test_bookie_that_starts_on_full_disks_is_read_only_from_the_first_request(
    files: FaultyFiles, options: ServiceOptions
) -> None:
    """Scenario S31: a full bookie starts."""
    with Serving(options, files) as serving, serving.connect() as peer:
        assert peer.add(5, 0, [b"x"]) == [Status.EOK]
    files.used["ledgers"] = FULL
    with Serving(options, files) as serving, serving.connect() as peer:
        assert peer.read(5, 0).body == stored(5, 0, b"x")
        assert peer.add(5, 1, [b"x"]) == [Status.EREADONLY]


def test_bookie_without_read_only_mode_ends_with_a_line(files: FaultyFiles, options: ServiceOptions) -> None:
    """`readOnlyModeEnabled=false`."""
    ending = replace(options, disks=replace(OFTEN, read_only_mode=False))
    with Serving(ending, files) as serving, serving.connect() as peer:
        assert peer.add(5, 0, [b"x"]) == [Status.EOK]
        files.used["ledgers"] = FULL
        wait_until(lambda: serving.full is not None, "the end of the service")
    assert isinstance(serving.full, DiskFull)
    assert "readOnlyModeEnabled is false: all ledger directories are full" in str(serving.full)
    files.used["ledgers"] = EMPTY
    with Serving(options, files) as serving, serving.connect() as peer:
        assert peer.read(5, 0).body == stored(5, 0, b"x")


# ---- several ledger directories ----


def logs_in(directory: str) -> set[str]:
    return {path.name for path in Path(directory, "current").glob("*.log")}


def bytes_in(directory: str) -> int:
    return sum(path.stat().st_size for path in Path(directory, "current").glob("*.log"))


def test_entries_go_to_the_directory_of_their_ledger_and_leave_a_full_disk(files: FaultyFiles, tmp_path: Path) -> None:
    """One full directory: another one is used, and the bookie stays writable."""
    # Ledger 5 belongs to the second of two.
    second, first = (str(tmp_path / f"ledgers-{name}") for name in ("b", "a"))
    options = replace(small(service_options(tmp_path, disks=OFTEN)), ledger_directories=[second, first])
    files.used = {"journal": EMPTY, "ledgers-a": 0.6, "ledgers-b": 0.2}
    with Serving(options, files) as serving, serving.connect() as peer:
        assert peer.add(5, 0, [b"x"]) == [Status.EOK]
        wait_until(lambda: logs_in(first), "the first entry log")
        assert not logs_in(second)
        files.used["ledgers-a"] = FULL

        def moved() -> set[str]:
            assert next_add(peer) == Status.EOK
            return logs_in(second)

        wait_until(moved, "an entry log on the other disk")
        before = logs_in(first)
        size = bytes_in(second)

        def grown() -> bool:
            assert next_add(peer) == Status.EOK
            return bytes_in(second) > size

        wait_until(grown, "more entries there")
        assert logs_in(first) == before
        files.used["ledgers-b"] = FULL
        wait_for(peer, Status.EREADONLY)
    with Serving(options, files) as serving, serving.connect() as peer:
        assert peer.read(5, 0).body == stored(5, 0, b"x")


# ---- no space for a checkpoint ----


def small(options: ServiceOptions) -> ServiceOptions:
    """Two halves of 12 MiB, flushed often."""
    return replace(options, store=StoreOptions(cache_half_bytes=12 << 20), checkpoint_interval_s=0.05)


@pytest.mark.parametrize(
    ("operation", "place"),
    [
        ("write", ".log"),
        ("sync_data", ".log"),
        ("create", ".log"),
        ("write", "lastId"),
        ("write", ".idx"),
        ("create", ".idx"),
        ("write", "lastMark"),
        ("rename", "lastMark"),
        ("sync_directory", "ledgers"),
    ],
)
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_checkpoint_without_space_makes_read_only_and_succeeds_when_there_is_some(
    files: FaultyFiles, options: ServiceOptions, operation: str, place: str, code: int
) -> None:
    """D7: nothing acknowledged is lost, the bookie comes back by itself."""
    with Serving(small(options), files) as serving, serving.connect() as peer:
        assert peer.add(6, 0, [b"before"]) == [Status.EOK]
        files.code = code
        # The checkpoint of "before" may run already: it finds no space once the others are added, not before.
        added = threading.Event()
        files.fault = lambda at, path: at == operation and place in path and added.wait(60)
        assert peer.add(7, 0, [b"during", b"more"]) == [Status.EOK] * 2
        added.set()
        wait_for(peer, Status.EREADONLY)
        assert peer.read(6, 0).body == stored(6, 0, b"before")
        assert peer.read(7, 1).body == stored(7, 1, b"more")
        assert peer.read(7, 0, v2.DO_FENCING).status == Status.EOK
        assert peer.add(7, 2, [b"recovered"], RECOVERY) == [Status.EOK]
        files.fault = None
        wait_for(peer, Status.EOK)
        held = {(6, 0): b"before", (7, 0): b"during", (7, 1): b"more", (7, 2): b"recovered"}
        for (ledger_id, entry_id), payload in held.items():
            assert peer.read(ledger_id, entry_id).body == stored(ledger_id, entry_id, payload)
    with Serving(options, files) as serving, serving.connect() as peer:
        for (ledger_id, entry_id), payload in held.items():
            assert peer.read(ledger_id, entry_id).body == stored(ledger_id, entry_id, payload)
        assert peer.add(7, 3, [b"late"]) == [Status.EFENCED]


def test_memory_stays_bounded_while_a_checkpoint_waits_for_space(files: FaultyFiles, options: ServiceOptions) -> None:
    """Recovery adds go on until the write cache is full; then they are refused, and no client waits for ever."""
    with Serving(small(options), files) as serving, serving.connect() as peer:
        files.code = errno.ENOSPC
        files.fault = lambda at, path: ".log" in path
        statuses = [peer.add(7, entry_id, [bytes(1 << 20)], RECOVERY)[0] for entry_id in range(40)]
        taken = statuses.count(Status.EOK)
        assert 12 <= taken <= 24
        assert statuses == [Status.EOK] * taken + [Status.EREADONLY] * (40 - taken)
        files.fault = None
        wait_until(lambda: peer.add(7, taken, [b"x"]) == [Status.EOK], "space")
        assert {peer.read(7, entry_id).status for entry_id in range(taken)} == {Status.EOK}


def test_bookie_stopped_while_a_checkpoint_waits_loses_nothing(files: FaultyFiles, options: ServiceOptions) -> None:
    with Serving(small(options), files) as serving, serving.connect() as peer:
        files.code = errno.ENOSPC
        files.fault = lambda at, path: ".idx" in path
        assert peer.add(7, 0, [b"x"]) == [Status.EOK]
        wait_for(peer, Status.EREADONLY)
    files.fault = None
    with Serving(options, files) as serving, serving.connect() as peer:
        assert peer.read(7, 0).body == stored(7, 0, b"x")


def test_waiting_for_space_leaves_no_garbage(files: FaultyFiles, options: ServiceOptions) -> None:
    """A flush that is tried a hundred times takes the space of one."""
    with Serving(small(options), files) as serving, serving.connect() as peer:
        files.code = errno.ENOSPC
        tries = 0

        def fault(operation: str, path: str) -> bool:
            nonlocal tries
            tries += operation == "write" and ".idx" in path
            return operation in ("write", "sync_data") and ".idx" in path

        files.fault = fault
        assert peer.add(7, 0, [bytes(1 << 20)]) == [Status.EOK]
        wait_until(lambda: tries > 20, "so many tries")
        files.fault = None
        wait_until(lambda: peer.add(7, 1, [b"x"]) == [Status.EOK], "space")
    logs = Path(options.ledger_directories[0]).glob("current/*.log")
    assert sum(path.stat().st_size for path in logs) < 2 << 20


@pytest.mark.parametrize(
    ("operation", "place", "code"),
    [("write", ".log", errno.EIO), ("sync_data", ".idx", errno.EIO), ("sync_data", ".idx", errno.ENOSPC)],
)
def test_disk_that_fails_ends_the_process(
    files: FaultyFiles, options: ServiceOptions, operation: str, place: str, code: int
) -> None:
    """EIO is not a lack of space: what the disk holds is unknown. After a failed sync, too."""
    files.code = code
    with Serving(small(options), files) as serving, serving.connect() as peer:
        files.fault = lambda at, path: at == operation and place in path
        assert peer.add(5, 0, [b"x"]) == [Status.EOK]
        error = serving.wait_for_failure()
    assert isinstance(error, OSError)
    assert error.errno == code
    files.fault = None
    with Serving(options, files) as serving, serving.connect() as peer:
        assert peer.read(5, 0).body == stored(5, 0, b"x")


def test_fast_writer_is_stopped_before_the_next_look_at_the_disks(files: FaultyFiles, tmp_path: Path) -> None:
    """The disk is looked at again after as many bytes as could fill it, not only now and then."""
    rarely = DiskOptions(limits=DiskLimits(), interval_s=3600)
    files.used["ledgers"] = 0.95 - 2e-5  # 22 MB before it is full
    with Serving(service_options(tmp_path, disks=rarely), files) as serving, serving.connect() as peer:
        assert peer.add(5, 0, [b"x"]) == [Status.EOK]
        deadline = time.monotonic() + 120
        entry_id = 1
        while (status := peer.add(5, entry_id, [bytes(1 << 20)] * 4)[0]) == Status.EOK:
            assert time.monotonic() < deadline
            entry_id += 4
        assert status == Status.EREADONLY
