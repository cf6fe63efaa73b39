"""The simulated disk does what a real one does, and loses what a real one may lose."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from bookie_service.storage.io.files import LocalFiles
from tests.crash.images import Loss, crash_image
from tests.crash.simulated_files import Inode, SimulatedDisk, SimulatedFiles
from tests.crash.simulated_key_values import SimulatedKeyValues

Step = Callable[[LocalFiles, str, Random], object]


def overwrite(files: LocalFiles, path: str, random: Random) -> object:
    file = files.open(path)
    parts = [random.randbytes(random.randrange(700)) for _ in range(random.randrange(4))]
    written = file.write(parts, random.randrange(1500))
    file.sync_data()
    file.close()
    return written


def read(files: LocalFiles, path: str, random: Random) -> object:
    file = files.open(path)
    found = file.read(random.randrange(2000), random.randrange(2000)), file.size()
    file.close()
    return found


def preallocate(files: LocalFiles, path: str, random: Random) -> object:
    file = files.open(path)
    file.preallocate(random.randrange(1000), random.randrange(1, 2000))
    file.close()
    return files.read_all(path)


def truncate(files: LocalFiles, path: str, random: Random) -> object:
    file = files.open(path)
    file.truncate(random.randrange(2500))
    file.close()
    return files.read_all(path)


def create(files: LocalFiles, path: str, random: Random) -> object:
    files.create(path).close()
    return files.names(os.path.dirname(path))


def rename(files: LocalFiles, path: str, random: Random) -> object:
    files.rename(path, path[:-1] + random.choice("abc"))
    return files.names(os.path.dirname(path))


STEPS: dict[str, Step] = {
    "overwrite": overwrite,
    "read": read,
    "preallocate": preallocate,
    "truncate": truncate,
    "create": create,
    "rename": rename,
    "remove": lambda files, path, random: files.remove(path),
    "replace": lambda files, path, random: files.replace(path, random.randbytes(40)),
    "read_all": lambda files, path, random: files.read_all(path),
    "exists": lambda files, path, random: (files.exists(path), files.is_directory(os.path.dirname(path))),
    "names": lambda files, path, random: files.names(path),
    "make_directory": lambda files, path, random: files.make_directory(os.path.dirname(path)),
    "sync_directory": lambda files, path, random: files.sync_directory(os.path.dirname(path)),
}


def outcome(step: Step, files: LocalFiles, root: str, name: str, random: Random) -> object:
    """Return what a step gave, or which error it raised about which path below the root."""
    try:
        return step(files, f"{root}/{name}", random)
    except OSError as error:
        return type(error), str(error.filename).removeprefix(root)


@pytest.mark.parametrize("seed", range(8))
def test_same_calls_give_the_same_results_on_both_backends(seed: int, tmp_path: Path) -> None:
    choices, disk = Random(seed), SimulatedDisk()
    real, simulated = LocalFiles(), SimulatedFiles(disk)
    simulated.make_directory("/root")
    for number in range(300):
        kind = choices.choice(list(STEPS))
        name = choices.choice(("a", "b", "d/a", "d/c", "d/e/b"))
        expected = outcome(STEPS[kind], real, str(tmp_path), name, Random(number))
        assert outcome(STEPS[kind], simulated, "/root", name, Random(number)) == expected, (number, kind, name)
    found = {str(path.relative_to(tmp_path)): path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert {path[6:]: bytes(inode.cached) for path, inode in disk.visible_files().items()} == found


def test_lock_of_another_process_is_refused_until_released() -> None:
    disk = SimulatedDisk()
    files = SimulatedFiles(disk)
    files.make_directory("/d")
    lock = files.lock("/d")
    with pytest.raises(BlockingIOError):
        files.lock("/d")
    lock.release()
    files.lock("/d").release()


def disk_with_file(durable: bytes) -> tuple[SimulatedDisk, SimulatedFiles]:
    """Return a disk with the durable file /d/f."""
    disk = SimulatedDisk()
    files = SimulatedFiles(disk)
    files.make_directory("/d")
    file = files.create("/d/f")
    file.write([durable], 0)
    file.sync_data()
    files.sync_directory("/d")
    return disk, files


def content(disk: SimulatedDisk, path: str = "/d/f") -> bytes | None:
    node = disk.find(path)
    return bytes(node.cached) if isinstance(node, Inode) else None


@pytest.mark.parametrize(
    ("loss", "expected"),
    [
        (Loss.KEPT, {b"newer and longer"}),
        (Loss.LOST, {b"older"}),
        (Loss.ZEROED, {b"older" + bytes(11)}),
        (Loss.TORN, {b"newer and longer"[:cut] + b"older"[cut:] for cut in range(16)}),
        (Loss.REORDERED, {b"older", b"newer and longer"}),
        (Loss.RENAMED, {b"older", b"newer and longer"}),
    ],
)
def test_unsynced_write_survives_as_its_policy_says(loss: Loss, expected: set[bytes]) -> None:
    disk, files = disk_with_file(b"older")
    files.open("/d/f").write([b"newer and ", b"longer"], 0)
    assert {content(crash_image(disk, loss, Random(seed))) for seed in range(300)} == expected


@pytest.mark.parametrize("loss", list(Loss))
def test_synced_bytes_and_names_survive_every_policy(loss: Loss) -> None:
    disk, files = disk_with_file(b"older")
    file = files.open("/d/f")
    file.write([b"newer"], 0)
    file.sync_data()
    for seed in range(20):
        assert content(crash_image(disk, loss, Random(seed))) == b"newer"


def test_names_and_bytes_are_lost_apart_from_each_other() -> None:
    disk, files = disk_with_file(b"older")
    files.create("/d/g").write([b"bytes"], 0)
    files.rename("/d/g", "/d/f")
    outcomes = {content(crash_image(disk, Loss.RENAMED, Random(seed))) for seed in range(50)}
    assert outcomes == {b"older", b"", b"bytes"}


def test_large_write_survives_in_any_sectors() -> None:
    disk, files = disk_with_file(b"o" * 1536)
    files.open("/d/f").write([b"n" * 1536], 0)
    outcomes = {content(crash_image(disk, Loss.REORDERED, Random(seed))) for seed in range(200)}
    assert outcomes == {a * 512 + b * 512 + c * 512 for a in (b"o", b"n") for b in (b"o", b"n") for c in (b"o", b"n")}


def test_killed_process_leaves_bytes_that_a_power_cut_still_takes() -> None:
    disk, files = disk_with_file(b"older")
    files.open("/d/f").write([b"newer"], 0)
    killed = crash_image(disk, Loss.KEPT, Random(0))
    assert content(killed) == b"newer"
    assert content(crash_image(killed, Loss.LOST, Random(0))) == b"older"


def test_failed_sync_loses_the_write_for_good() -> None:
    disk, files = disk_with_file(b"older")
    file = files.open("/d/f")
    file.write([b"newer"], 0)
    disk.fault = lambda operation, path: OSError(5, "Input/output error", path) if operation == "sync_data" else None
    with pytest.raises(OSError):
        file.sync_data()
    disk.fault = None
    file.sync_data()
    assert content(crash_image(disk, Loss.LOST, Random(0))) == b"older"


def test_key_values_that_a_kill_left_without_a_durable_name_have_one_when_they_are_opened_again() -> None:
    """RocksDB makes files whenever it opens a store, and syncs the directory that they lie in."""
    disk = SimulatedDisk()
    SimulatedFiles(disk).make_directory("/kv")
    SimulatedFiles(disk).sync_directory("/")

    def kill(operation: str, path: str) -> None:
        if operation == "sync_directory":
            raise InterruptedError

    disk.before_operation = kill
    with pytest.raises(InterruptedError):
        SimulatedKeyValues(SimulatedFiles(disk), "/kv")
    disk = crash_image(disk, Loss.KEPT, Random(0))
    key_values = SimulatedKeyValues(SimulatedFiles(disk), "/kv")
    key_values.write([(b"key", b"value")])
    key_values.sync()
    disk = crash_image(disk, Loss.LOST, Random(0))
    assert SimulatedKeyValues(SimulatedFiles(disk), "/kv").get([b"key"]) == [b"value"]
