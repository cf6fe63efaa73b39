"""A bookie as a process, one of whose ledger directories is on a real file system that is shut down: from then on the
kernel answers with input/output errors, as when a disk is gone."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from bkspark.wire.status import Status
from tests.bookie.child import STOP_S, BookieChild
from tests.bookie.serving import stored

pytestmark = pytest.mark.cluster

LEDGERS = range(12, 18)
_SHUTDOWN = 0x8004587D
"""EXT4_IOC_SHUTDOWN."""
_WITHOUT_LOG = struct.pack("I", 2)


class Disk:
    """A file system in a file, mounted at `path`."""

    def __init__(self, image: Path, path: Path) -> None:
        self.path = path
        self._image = image
        path.mkdir(parents=True)
        with image.open("wb") as file:
            file.truncate(64 << 20)
        subprocess.run(["mkfs.ext4", "-q", "-F", str(image)], check=True)

    def mount(self) -> None:
        result = subprocess.run(
            ["mount", "-o", "loop", str(self._image), str(self.path)], capture_output=True, text=True, check=False
        )
        if result.returncode:
            pytest.skip(f"this process may not mount a file system: {result.stderr.strip()}")

    def unmount(self) -> None:
        subprocess.run(["umount", "--lazy", str(self.path)], check=True)

    def shut_down(self) -> None:
        fd = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.ioctl(fd, _SHUTDOWN, _WITHOUT_LOG)
        finally:
            os.close(fd)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    disk = Disk(tmp_path / "image", tmp_path / "bookie" / "b")
    disk.mount()
    yield disk
    with contextlib.suppress(subprocess.CalledProcessError):
        disk.unmount()


def test_bookie_serves_the_other_disks_while_one_is_gone_and_all_when_it_is_back(
    tmp_path: Path, uri: str, disk: Disk
) -> None:
    directories = ",".join(str(tmp_path / "bookie" / name) for name in "abc")
    bookie = BookieChild(tmp_path / "bookie", uri, ledgerDirectories=directories, flushInterval="200")
    with bookie.running(), bookie.connect() as peer:
        for ledger_id in LEDGERS:
            assert set(peer.add(ledger_id, 0, [b"x%d" % entry_id for entry_id in range(10)])) == {Status.EOK}
    with bookie.running() as process:
        disk.shut_down()
        with bookie.connect() as peer:
            for ledger_id in (*(each for each in LEDGERS if each % 3 != 1), *range(100, 106)):
                assert peer.add(ledger_id, 10, [b"x10"]) == [Status.EOK]
        process.signal(signal.SIGTERM)
        assert process.wait(STOP_S)
        assert process.exit_code == 0, bookie.log_text()
    with bookie.running() as process:
        assert f"ledger directory {disk.path} cannot be read" in bookie.log_text()
        with bookie.connect() as peer:
            for ledger_id in range(100, 106):
                assert peer.read(ledger_id, 10).body == stored(ledger_id, 10, b"x10")
                assert peer.add(ledger_id, 11, [b"x11"]) == [Status.EOK]
            for ledger_id in LEDGERS:
                is_there = ledger_id % 3 == 1
                assert (peer.read(ledger_id, 5).status == Status.EOK) != is_there
                assert (peer.read(ledger_id, 11).status == Status.ENOENTRY) != is_there
        process.signal(signal.SIGTERM)
        assert process.wait(STOP_S)
        assert process.exit_code == 0, bookie.log_text()
    disk.unmount()
    disk.mount()
    with bookie.running(), bookie.connect() as peer:
        for ledger_id in LEDGERS:
            for entry_id in range(10):
                assert peer.read(ledger_id, entry_id).body == stored(ledger_id, entry_id, b"x%d" % entry_id)
            # Ledgers whose index was hidden are in limbo, because other bookies may have repaired them meanwhile, until
            # the bookie finds that the metadata has no such ledgers.
            hidden = (Status.EIO, Status.ENOENTRY)
            assert peer.read(ledger_id, 10).status in (hidden if ledger_id % 3 == 1 else (Status.EOK,)), (
                bookie.log_text()
            )
        for ledger_id in range(100, 106):
            assert peer.read(ledger_id, 11).body == stored(ledger_id, 11, b"x11")
