"""Crashes and damage around the file of headers of ledgers without entries (`formats.ledger_headers`)."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partialmethod
from random import Random

from bkspark.wire.flags import RECOVERY_ADD
from bookie_service.formats import index_files
from bookie_service.formats import ledger_headers as file_format
from bookie_service.storage.index.ledger_headers import LedgerHeadersWriter
from bookie_service.storage.index.per_ledger import PageOptions
from bookie_service.storage.ledgers.base import StoreOptions
from bookie_service.storage.ledgers.storage_class import StorageClass
from tests.crash.audit import Violation, audit
from tests.crash.campaign import Campaign, Starts, reopened
from tests.crash.history import History
from tests.crash.images import Loss, crash_image, every_image
from tests.crash.metadata_view import DoubtfulMetadataView
from tests.crash.scripts import FencingScript
from tests.crash.simulated_files import Inode, SimulatedDisk
from tests.crash.twins import BookieTwin, Setup
from tests.planting import Plant, changed

_SCRIPTS = 8
_NAMES = (file_format.FILE_NAME, index_files.FILE_NAME)


def hunt_headers() -> None:
    """Crash scripts of ledgers that have fences and explicit LACs, and few entries, at some boundaries."""
    campaign = Campaign(script=FencingScript, share=0.2)
    for seed in range(1, _SCRIPTS + 1):
        campaign.run_script(seed)


def crash_headers(directories: int = 1, files_synced_singly_max: int = 128) -> None:
    """Fence ledgers without entries, give one an entry and drop others; crash everywhere in that.

    Each image is one of `every_image`, so no sync that is missing depends on chance.

    Raises:
        Violation: a fence or a key is gone, or a crash alone puts all ledgers in doubt.
    """
    with _rewritten_often():
        twin = _fencing(directories, files_synced_singly_max)
        _crash_every_image(twin)
        _change_headers(twin)


def crash_start_after_headers() -> None:
    """Kill the bookie where it writes headers or notes them, and cut the power everywhere in the next start.

    Raises:
        Violation: the start built on what was not durable.
    """
    random, starts = Random(0), Starts()

    def kill(operation: str, path: str) -> None:
        if operation != "sync_directory" and path.rpartition("/")[2].removesuffix(".new") not in _NAMES:
            return
        history = twin.history.after_crash()
        image = crash_image(twin.disk, Loss.KEPT, random)

        def cut_power(operation: str, path: str) -> None:
            starts.audit(crash_image(image, Loss.LOST, random), twin.setup, history)

        image.before_operation = cut_power
        reopened(image, twin.setup, history)
        cut_power("end", "")

    with _rewritten_often():
        twin = _fencing(1, 128)
        twin.disk.before_operation = kill
        _change_headers(twin)


def crash_first_header_after_all_were_dropped() -> None:
    """Drop all ledgers without entries, stop and start, fence another; crash everywhere in that.

    Raises:
        Violation: a torn record counts as a loss, because the manifest said that the file is not needed.
    """
    twin = _fencing(1, 128)
    twin.fence(1)
    twin.checkpoint()
    _delete(twin, 1)
    twin.stop()
    twin = reopened(twin.disk, twin.setup, twin.history)
    _crash_every_image(twin)
    for ledger_id in (2, 3):
        twin.fence(ledger_id)
        twin.checkpoint()


def crash_manifest_beside_a_first_entry() -> None:
    """Evict first entries of a fenced ledger to a new index file, drop another ledger, and crash everywhere in that.

    The manifest may be torn while the new file has no header yet.

    Raises:
        Violation: a start notes that file from its name, and drops the header that counts.
    """
    twin = _fencing(1, 128)
    twin.add(7, [(0, b"dropped")])
    twin.fence(1)
    twin.checkpoint()
    for first in (0, 8, 16):
        twin.add(1, [(entry_id, b"recovered") for entry_id in range(first, first + 8)], RECOVERY_ADD)
    twin.settle()
    twin.bookie.checkpoint(advances_checkpoint=False)
    twin.settle()
    _crash_every_image(twin)
    _delete(twin, 7)


def lose_headers() -> None:
    """Remove the file, cut it at every length, and flip a bit of every byte, each of a stopped bookie.

    Raises:
        Violation: the next start neither has all fences and explicit LACs nor puts every ledger into limbo.
    """
    for damage, disk, setup, history in damaged_headers():
        again = BookieTwin(disk, setup, history)
        again.begin_run(history.ledgers)
        try:
            audit(again, history, errors_allowed=again.is_in_doubt)
        except Violation as violation:
            raise Violation(f"{damage}: {violation}") from violation


def damaged_headers() -> Iterator[tuple[str, SimulatedDisk, Setup, History]]:
    """Yield (what was done, disk, configuration, history) of each damage to a stopped bookie's file of headers."""
    twin = _fencing(1, 128)
    twin.add(7, [(0, b"entry")])
    for ledger_id in (1, 2):
        twin.fence(ledger_id)
        twin.checkpoint()
    twin.write_lac(3, 0)
    twin.checkpoint()
    history = twin.history.after_crash()
    twin.stop()
    content = bytes(_headers_inode(twin.disk).durable)

    def with_content(data: bytes) -> SimulatedDisk:
        disk = crash_image(twin.disk, Loss.KEPT, Random(0))
        inode = _headers_inode(disk)
        inode.cached[:] = inode.durable[:] = data
        return disk

    removed = crash_image(twin.disk, Loss.KEPT, Random(0))
    directory = removed.directory(f"{twin.setup.ledger_paths[0]}/current")
    del directory.cached[file_format.FILE_NAME], directory.durable[file_format.FILE_NAME]
    yield "removed", removed, twin.setup, history
    for size in range(len(content)):
        yield f"cut at {size}", with_content(content[:size]), twin.setup, history
    for at in range(len(content)):
        flipped = content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]
        yield f"flipped at {at}", with_content(flipped), twin.setup, history


def _change_headers(twin: BookieTwin) -> None:
    """Change headers of ledgers without entries in every way."""
    for ledger_id in (1, 2, 3):
        twin.fence(ledger_id)
    twin.checkpoint()
    twin.fence(4)
    twin.write_lac(2, 0)
    twin.checkpoint()
    twin.add(1, [(0, b"recovered")], RECOVERY_ADD)
    twin.checkpoint()
    _delete(twin, 2)
    for ledger_id in (5, 6):
        twin.fence(ledger_id)
        twin.checkpoint()
    for ledger_id in (3, 4, 5, 6):
        _delete(twin, ledger_id)
    assert twin.disk.before_operation is not None
    twin.disk.before_operation("end", "")


def _crash_every_image(twin: BookieTwin) -> None:
    """From now on crash before each operation of index and marks, in each way in which a missing sync shows."""
    random, starts = Random(0), Starts()

    def crash(operation: str, path: str) -> None:
        name = path.rpartition("/")[2]
        if operation != "end" and not name.startswith((*_NAMES, "lastMark")) and not name.endswith(".idx"):
            return
        history = twin.history.after_crash()
        for what, image in every_image(twin.disk, random):
            try:
                starts.audit(image, twin.setup, history)
            except Violation as violation:
                raise Violation(f"{what}, before {operation} of {path}: {violation}") from violation

    twin.disk.before_operation = crash


def _delete(twin: BookieTwin, ledger_id: int) -> None:
    twin.history.delete(ledger_id)
    twin.collect(DoubtfulMetadataView(sorted(twin.history.ledgers)), is_forced=False)


def _fencing(directories: int, files_synced_singly_max: int) -> BookieTwin:
    pages = PageOptions(page_bytes=64, pages_max=1, files_synced_singly_max=files_synced_singly_max)
    setup = Setup(ledger_directories=directories, store=StoreOptions(StorageClass.SORTED, 6144, pages=pages))
    return BookieTwin(setup.new_disk(), setup, History())


def _headers_inode(disk: SimulatedDisk) -> Inode:
    (inode,) = (inode for path, inode in disk.visible_files().items() if path.endswith(f"/{file_format.FILE_NAME}"))
    return inode


def _rewritten_often() -> Plant:
    """Let few obsolete rows be enough to write the file again."""
    return changed(LedgerHeadersWriter, "__init__", lambda old: partialmethod(old, rows_beside=1))
