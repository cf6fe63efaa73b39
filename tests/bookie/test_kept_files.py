"""Files with what a store lacks, in another ledger directory: they go as soon as nothing needs them."""

from __future__ import annotations

from bookie_service.formats.kept_changes import KeptChanges
from bookie_service.storage.index.kept_files import KeptFiles
from bookie_service.storage.io.disk_threads import InTurn
from bookie_service.storage.io.file_places import FilePlaces
from tests.crash.simulated_files import SimulatedFiles
from tests.crash.split_stores import split_setup


class BusyDisks(InTurn):
    """Disks of which a test says which are late with earlier work."""

    def __init__(self) -> None:
        super().__init__()
        self.busy: set[int] = set()

    def is_busy(self, place: int) -> bool:
        return place in self.busy


def test_file_whose_disk_is_late_when_it_is_not_needed_any_more_is_removed_later() -> None:
    setup = split_setup(3)
    disk = setup.new_disk()
    files, disks = SimulatedFiles(disk), BusyDisks()
    for path in (*setup.current_journal_paths, *setup.current_ledger_paths):
        files.make_directory(path)
    places = FilePlaces(files, setup.current_journal_paths[0])
    places.settle()
    kept = KeptFiles(files, setup.current_ledger_paths, places)
    assert kept.save(files, disks, KeptChanges(3, 0, 1, 1, [], {b"key": b"value"}), ())
    (path,) = [path for path in disk.visible_files() if "positions.kept" in path]
    disks.busy = {setup.current_ledger_paths.index(path.rpartition("/")[0])}
    kept.remove(files, disks, 0)
    assert kept.has(0)
    disks.busy = set()
    kept.remove(files, disks, 0)
    assert not kept.has(0)
    assert path not in disk.visible_files()
