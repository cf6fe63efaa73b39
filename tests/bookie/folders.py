"""Folders of a bookie that really served, to be looked at and damaged."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

from bkspark.metadata import cookies
from bkspark.metadata.cookies import Cookie
from bkspark.wire import v2
from bookie_service.formats import marks
from bookie_service.storage.ledgers.base import StoreOptions
from bookie_service.storage.ledgers.storage_class import StorageClass
from tests.bookie.serving import Peer, Serving, service_options

SMALL, FENCED = 5, 300
"""The two ledgers: 25 small entries, added by two runs of the bookie; 10 of 1 KB, fenced."""
SMALL_PAYLOADS = [b"payload %d" % i for i in range(25)]
LARGE_PAYLOADS = [bytes([65 + i]) * 1000 for i in range(10)]


class Folder:
    """One bookie's journal and ledger directory, each with a cookie."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.journals = directory / "journal" / "current"
        self.ledgers = directory / "ledgers" / "current"
        self.settings = [
            *("--set", f"journalDirectories={directory / 'journal'}"),
            *("--set", f"ledgerDirectories={directory / 'ledgers'}"),
        ]

    @classmethod
    def copy(cls, template: Path, directory: Path) -> Folder:
        """Return a copy of a folder whose cookies name the copy."""
        shutil.copytree(template, directory)
        folder = cls(directory)
        cookie = Cookie("127.0.0.1:3181", (str(directory / "journal"),), (str(directory / "ledgers"),), "an-instance")
        for current in (folder.journals, folder.ledgers):
            (current / "VERSION").write_bytes(cookies.encode(cookie))
        return folder

    def journal(self, file_id: int) -> Path:
        return self.journals / f"{file_id:016x}.txn"

    @property
    def marked(self) -> int:
        """Where in the last journal file replay begins; a bookie that was slow to stop wrote padding after it."""
        mark = marks.decode_mark((self.ledgers / "lastMark").read_bytes())
        assert mark is not None
        return mark.offset

    @property
    def small_index(self) -> Path:
        return self.ledgers / "0" / "5" / "5.idx"

    def state(self) -> dict[str, tuple[str, int]]:
        """Return the digest and the time of the last change of every file."""
        return {
            str(path): (hashlib.sha256(path.read_bytes()).hexdigest(), path.stat().st_mtime_ns)
            for path in sorted(self.directory.rglob("*"))
            if path.is_file()
        }


def serve(
    directory: Path, *, is_stopped_cleanly: bool = True, storage_class: StorageClass = StorageClass.SORTED
) -> Path:
    """Fill a directory with what two runs of a bookie leave; the second may end in a crash."""
    options = service_options(directory, store=StoreOptions(storage_class))
    with Serving(options) as serving, serving.connect() as peer:
        add(peer, SMALL, 0, SMALL_PAYLOADS[:20])
        add(peer, FENCED, 0, LARGE_PAYLOADS)
        peer.read(FENCED, -1, v2.DO_FENCING)
    with Serving(options) as serving, serving.connect() as peer:
        add(peer, SMALL, 20, SMALL_PAYLOADS[20:23])
        add(peer, SMALL, 23, SMALL_PAYLOADS[23:])
        if not is_stopped_cleanly:
            serving.abandon()
    return directory


def add(peer: Peer, ledger_id: int, first_entry: int, payloads: list[bytes]) -> None:
    assert set(peer.add(ledger_id, first_entry, payloads)) == {0}


def flip(path: Path, offset: int) -> None:
    """Change one byte of a file."""
    data = bytearray(path.read_bytes())
    data[offset] ^= 0x21
    path.write_bytes(data)


def cut(path: Path, size: int) -> None:
    """Truncate a file to `size` bytes; negative: this many bytes less."""
    data = path.read_bytes()
    path.write_bytes(data[:size])


def contents(directory: Path) -> dict[str, bytes]:
    """Return the files that decide what a bookie serves, with their contents: no logs of RocksDB's."""
    return {
        str(path): path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file() and (path.parent.name != "positions" or path.suffix == ".sst")
    }
