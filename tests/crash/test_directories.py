"""Historic bugs of a bookie's directories (docs/reliability.md): full, emptied, lost, another bookie's, half made."""

from __future__ import annotations

import asyncio
import copy
import errno
from random import Random

import pytest

from bkspark.errors import ConfigurationError
from bkspark.metadata.bookies import BookieRegistry
from bkspark.metadata.memory import MemoryStore
from bkspark.metadata.uri import MetadataUri
from bkspark.wire.status import Status
from bookie_service.cluster.identity import Identity
from tests.crash.audit import Violation, audit
from tests.crash.campaign import reopened
from tests.crash.history import History
from tests.crash.images import Loss, crash_image
from tests.crash.simulated_files import SimulatedDisk, SimulatedFiles, os_error
from tests.crash.staging import ROOMY, new_bookie, put, restarted
from tests.crash.twins import BookieTwin


def full_image(twin: BookieTwin, place: str) -> SimulatedDisk:
    """Return what a crash leaves of a bookie's disk, with no space below `place`."""
    image = crash_image(twin.disk, Loss.LOST, Random(0))
    grows = ("create", "write", "preallocate", "create_directory")
    image.fault = lambda operation, path: (
        os_error(errno.ENOSPC, path) if operation in grows and path.startswith(place) else None
    )
    return image


def test_s31_full_journal_disk_refuses_to_start_with_the_path_and_loses_nothing() -> None:
    twin = new_bookie()
    put(twin, 1, range(5))
    image = full_image(twin, "/journal0")
    with pytest.raises(OSError) as caught:
        BookieTwin(image, twin.setup, History())
    assert caught.value.filename.startswith("/journal0")
    image.fault = None
    history = twin.history.after_crash()
    audit(reopened(image, twin.setup, history), history)


def test_s31_bookie_whose_ledger_disk_is_full_starts_read_only_and_loses_nothing() -> None:
    twin = new_bookie()
    put(twin, 1, range(5))
    image = full_image(twin, "/ledgers0")
    history = twin.history.after_crash()
    again = BookieTwin(image, twin.setup, history)
    assert again.disks.is_stuck
    assert [again.read(1, entry_id)[0] for entry_id in range(5)] == [Status.EOK] * 5
    # A crash before there is space finds the entries in the journal once more.
    crashed = crash_image(image, Loss.LOST, Random(0))
    history = history.after_crash()
    audit(reopened(crashed, twin.setup, history), history)


def new_cluster() -> MemoryStore:
    store = MemoryStore()
    uri = MetadataUri.parse("zk://127.0.0.1:2181/ledgers")
    asyncio.run(BookieRegistry(store.session(), uri).initialize_cluster())
    return store


def establish(disk: SimulatedDisk, cluster: MemoryStore) -> None:
    """Establish whose directories these are, as a bookie's process does before it opens them."""
    uri = MetadataUri.parse("zk://127.0.0.1:2181/ledgers")
    identity = Identity(SimulatedFiles(disk), ROOMY.journal_paths, ROOMY.ledger_paths)
    asyncio.run(identity.establish(BookieRegistry(cluster.session(), uri), "127.0.0.1:3181"))
    identity.release()


@pytest.mark.parametrize("lost", ["/journal0", "/ledgers0"])
def test_s32_emptied_directory_is_not_a_new_bookie(lost: str) -> None:
    cluster, disk = new_cluster(), ROOMY.new_disk()
    establish(disk, cluster)
    put(BookieTwin(disk, ROOMY, History()), 1, range(3))
    disk.directory("/").change({lost[1:]: None})
    SimulatedFiles(disk).make_directory(lost)
    with pytest.raises(ConfigurationError, match=f"{lost} of bookie .* has lost its contents"):
        establish(disk, cluster)


def test_s33_bookie_that_the_cluster_does_not_know_does_not_start() -> None:
    cluster, disk = new_cluster(), ROOMY.new_disk()
    as_it_was = copy.deepcopy(cluster)
    establish(disk, cluster)
    put(BookieTwin(disk, ROOMY, History()), 1, range(3))
    with pytest.raises(ConfigurationError, match="does not know bookie"):
        establish(disk, as_it_was)


def test_x5_first_boot_that_crashes_anywhere_is_finished_by_the_next() -> None:
    cluster, disk = new_cluster(), ROOMY.new_disk()
    images: list[SimulatedDisk] = []
    disk.before_operation = lambda operation, path: images.extend(
        crash_image(disk, loss, Random(len(images))) for loss in Loss
    )
    as_it_was = copy.deepcopy(cluster)
    establish(disk, cluster)
    assert len(images) > 60
    for image in images:
        establish(image, copy.deepcopy(as_it_was))
        put(BookieTwin(image, ROOMY, History()), 1, range(2))
    establish(crash_image(disk, Loss.LOST, Random(0)), cluster)


def test_d12_lost_journal_directory_is_never_a_silent_empty_replay() -> None:
    twin = new_bookie()
    put(twin, 1, range(3))
    twin.disk.directory("/journal0").change({"current": None})
    with pytest.raises(Violation, match=r"journal file .* is missing"):
        restarted(twin, Loss.KEPT)
