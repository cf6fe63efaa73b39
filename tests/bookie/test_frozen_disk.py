"""The key-value store on a disk that takes nothing, not even into the page cache: a file system that is frozen."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from bookie_service.formats.index import LedgerHeader
from bookie_service.storage.index.index import LedgerUpdate
from bookie_service.storage.index.key_value_index import KeyValueIndex
from bookie_service.storage.io.disk_threads import DiskStalled
from bookie_service.storage.io.files import LocalFiles
from bookie_service.storage.io.key_values import KeyValueOptions
from tests.bookie.late_disks import WatchedDisks, running
from tests.bookie.small_disks import Freeze, disk_that_freezes, mounted

pytestmark = pytest.mark.cluster

DISK_BYTES = 64 << 20
FROZEN_S = 300
LEDGERS, LEDGERS_AT_ONCE = 12_000, 500
OPTIONS = KeyValueOptions(write_buffer_bytes=1 << 20)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with mounted(tmp_path / "disk", DISK_BYTES, disk_that_freezes) as path:
        yield path


@pytest.mark.parametrize("is_late_already", [False, True])
def test_only_the_flush_waits_for_the_disk_of_the_key_value_store(disk: Path, is_late_already: bool) -> None:
    """RocksDB waits for its disk when its memory is full. It then holds Python's lock: no thread runs, no request is
    answered."""
    with contextlib.ExitStack() as stack:
        disks = WatchedDisks([str(disk), "another"])
        index = KeyValueIndex(LocalFiles(), str(disk), OPTIONS, disks=disks)
        stack.callback(index.close)
        stack.callback(disks.stop)

        def hold(ledger_ids: range) -> None:
            one = np.ones(1, np.int64)
            for first in ledger_ids[::LEDGERS_AT_ONCE]:
                some = range(first, min(first + LEDGERS_AT_ONCE, ledger_ids.stop))
                index.hold(LedgerUpdate(each, LedgerHeader(each, 1, False, bytes(20)), one - 1, one) for each in some)

        hold(range(1))
        index.sync()
        disks.waits = False
        if is_late_already:
            hold(range(1, 2))
        freeze = Freeze(disk, FROZEN_S)
        stack.callback(freeze.end)
        if is_late_already:
            with pytest.raises(DiskStalled):
                index.sync()
        with running(lambda: hold(range(2, LEDGERS)), freeze.end) as holding:
            assert disks.waited_for.wait(FROZEN_S)
            assert index.has(0)
            assert holding.is_alive()
            assert freeze.goes_on
        disks.waits = True
        index.sync()
        assert index.is_clean
        assert index.has(LEDGERS - 1)
