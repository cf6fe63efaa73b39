"""An index file that is lost or cut is noticed: nothing that was held is ever answered as never written (B2, P29)."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from types import FrameType

import numpy as np
import pytest
from crc32c import crc32c

from bkspark.errors import StorageDamaged
from bkspark.wire import v2
from bkspark.wire.status import Status
from bookie_service.formats import index_files as file_format
from bookie_service.formats.index import LAYOUT, POSITION_BYTES
from bookie_service.settings.service_options import ServiceOptions
from bookie_service.storage.index import manifest
from bookie_service.storage.index.manifest import IndexManifest, IndexManifestWriter
from bookie_service.storage.index.per_ledger import PageOptions
from bookie_service.storage.io.files import LocalFiles
from bookie_service.storage.ledgers.factory import open_ledger_storage
from bookie_service.storage.ledgers.limbo import Limbo
from tests.bookie.collecting import STORE_OPTIONS, Bench
from tests.bookie.faulty_files import FaultyFiles
from tests.bookie.folders import cut, flip
from tests.bookie.serving import Serving, service_options, stored

RECOVERY = v2.RECOVERY_ADD | v2.HIGH_PRIORITY
ENTRIES = 10
TraceFunction = Callable[[FrameType, str, object], object]


@pytest.fixture
def options(tmp_path: Path) -> ServiceOptions:
    """Return the options of a bookie that served ledger 5, fenced it, and stopped in order; ledger 6 is untouched."""
    options = service_options(tmp_path)
    with Serving(options) as serving, serving.connect() as peer:
        for ledger_id in (5, 6):
            assert set(peer.add(ledger_id, 0, [b"payload"] * ENTRIES)) == {Status.EOK}
        peer.read(5, 0, v2.DO_FENCING)
    return options


def current(options: ServiceOptions) -> Path:
    return Path(options.ledger_directories[0]) / "current"


def lose(options: ServiceOptions, size: int | None) -> None:
    path = current(options) / "0" / "5" / "5.idx"
    if size is None:
        path.unlink()
    else:
        cut(path, size)


@pytest.mark.parametrize("size", [None, 0, 100, 600, LAYOUT.positions_at, LAYOUT.positions_at + 4 * POSITION_BYTES])
def test_ledger_whose_index_file_is_lost_or_cut_is_in_limbo(options: ServiceOptions, size: int | None) -> None:
    lose(options, size)
    with Serving(options) as serving, serving.connect() as peer:
        for entry_id in (ENTRIES - 1, ENTRIES, v2.LAST_ENTRY):
            assert peer.read(5, entry_id).status == Status.EIO
            assert peer.batch_read(5, entry_id).status == Status.EIO
        assert peer.add(5, ENTRIES, [b"late"])[0] in (Status.EIO, Status.EFENCED)
        assert peer.read(6, ENTRIES - 1).body == stored(6, ENTRIES - 1, b"payload")
        assert peer.read(6, ENTRIES).status == Status.ENOENTRY
        assert peer.read(7, 0).status == Status.ENOLEDGER
        # Recovery, or a repair, brings it back.
        assert peer.add(5, ENTRIES - 1, [b"payload"], RECOVERY) == [Status.EOK]
        assert peer.read(5, ENTRIES - 1).body == stored(5, ENTRIES - 1, b"payload")
    with Serving(options) as serving, serving.connect() as peer:
        assert peer.read(5, ENTRIES - 1).body == stored(5, ENTRIES - 1, b"payload")
        assert peer.read(5, ENTRIES).status == Status.EIO
    assert Limbo(LocalFiles(), [str(current(options))]).ledger_ids.tolist() == [5]


def test_index_file_that_is_cut_while_the_bookie_serves_is_noticed(options: ServiceOptions) -> None:
    with Serving(options) as serving, serving.connect() as peer:
        assert peer.read(5, 0).status == Status.EOK
        assert peer.read(6, ENTRIES).status == Status.ENOENTRY
    with Serving(options) as serving, serving.connect() as peer:
        # A read of ledger 5 would bring its positions into memory, from which they are served.
        assert peer.read(6, ENTRIES).status == Status.ENOENTRY
        lose(options, LAYOUT.positions_at)
        for entry_id in (ENTRIES - 1, ENTRIES, v2.LAST_ENTRY):
            assert peer.read(5, entry_id).status == Status.EIO


def test_index_file_that_is_cut_is_noticed_by_a_batch_read_of_a_ledger_in_memory(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.put(5, range(80))
    bench.flush()
    bench.store.close()
    store = open_ledger_storage(bench.files, bench.paths, replace(STORE_OPTIONS, pages=PageOptions(64, 1)))
    ledger = store.ledger(5)
    assert ledger is not None
    cut(next(tmp_path.rglob("5.idx")), LAYOUT.position_at(3))
    assert store.read(ledger, 15, 3, 1 << 20) == []
    assert 5 in store.limbo
    store.close()


def test_records_of_a_lost_index_file_in_the_journal_are_kept(options: ServiceOptions) -> None:
    with Serving(options) as serving, serving.connect() as peer:
        assert peer.add(5, ENTRIES, [b"recovered"], RECOVERY) == [Status.EOK]
        serving.abandon()
    lose(options, None)
    with Serving(options) as serving, serving.connect() as peer:
        assert peer.read(5, ENTRIES).body == stored(5, ENTRIES, b"recovered")
        assert peer.read(5, 0).status == Status.EIO


def test_unreadable_header_is_refused_and_a_file_that_is_removed_is_in_limbo(
    options: ServiceOptions, caplog: pytest.LogCaptureFixture
) -> None:
    path = current(options) / "0" / "5" / "5.idx"
    for at in (slot_at + 20 for slot_at in LAYOUT.slots_at):
        flip(path, at)
    with Serving(options) as serving, serving.connect() as peer:
        assert peer.read(5, 0).status == Status.EIO
        assert "`bkspark bookie --rebuild-index 5`" in caplog.text
    path.unlink()
    with Serving(options) as serving, serving.connect() as peer:
        assert peer.read(5, 0).status == Status.EIO
        assert peer.add(5, 0, [b"payload"], RECOVERY) == [Status.EOK]
        assert peer.read(5, 0).body == stored(5, 0, b"payload")


@pytest.mark.parametrize("damage", ["removed", "flipped", "cut"])
def test_damaged_list_is_made_again_from_the_files_that_are_there(options: ServiceOptions, damage: str) -> None:
    path = current(options) / manifest.file_format.FILE_NAME
    if damage == "removed":
        path.unlink()
    elif damage == "flipped":
        flip(path, 30)
    else:
        cut(path, len(path.read_bytes()) - 1)
    with Serving(options) as serving, serving.connect() as peer:
        assert peer.read(5, ENTRIES).status == Status.ENOENTRY
    lose(options, None)
    with Serving(options) as serving, serving.connect() as peer:
        assert peer.read(5, 0).status == Status.EIO


def test_list_of_a_later_version_refuses_the_start(options: ServiceOptions) -> None:
    path = current(options) / file_format.FILE_NAME
    head = b"BKSF\0\0\0\4" + bytes(8)
    path.write_bytes(head + crc32c(head).to_bytes(4, "big"))
    with pytest.raises(StorageDamaged, match=r"indexFiles.*: version 4"), Serving(options):
        pass


def test_list_says_what_a_dictionary_would(tmp_path: Path) -> None:
    small = {"recent_max": 20, "rows_beside": 30}
    random = Random(1)
    model: dict[int, int] = {}
    known = IndexManifestWriter(LocalFiles(), [str(tmp_path)], **small)
    for step in range(300):
        changed = random.sample(range(50), random.randrange(9))
        changes = {ledger_id: random.choice((0, random.randrange(1, 9999))) for ledger_id in changed}
        known.note(changes)
        model |= changes
        if step % 40 == 39:
            known = IndexManifestWriter(LocalFiles(), [str(tmp_path)], **small)
            assert known.is_complete
        assert [known.least_bytes(each) for each in range(50)] == [model.get(each, 0) for each in range(50)]
    ledger_ids, file_bytes = IndexManifest(LocalFiles(), [str(tmp_path)]).all()
    assert dict(zip(ledger_ids.tolist(), file_bytes.tolist())) == {each: size for each, size in model.items() if size}
    assert (tmp_path / file_format.FILE_NAME).stat().st_size < 10_000, "rows that say nothing any more are left out"


@pytest.mark.parametrize("seed", range(4))
def test_list_with_places_says_what_a_dictionary_would_while_disks_fail(tmp_path: Path, seed: int) -> None:
    """What was refused by all disks is written with the next change."""
    small = {"recent_max": 10, "rows_beside": 20}
    random, files = Random(seed), FaultyFiles()
    directories = [str(tmp_path / name) for name in "abc"]
    for each in directories:
        Path(each).mkdir()
    sizes: dict[int, int] = {}
    places: dict[int, int] = {}
    known, is_waiting = IndexManifestWriter(files, directories, **small), False
    for step in range(150):
        bad = random.choice(["", "", "a", "b", "ac", "abc"])
        files.fault = lambda operation, path: operation != "read" and any(f"/{name}/" in path for name in bad)  # noqa: B023
        changed = random.sample(range(30), random.randrange(1, 7))
        changes = {ledger_id: random.choice((0, random.randrange(1, 9999))) for ledger_id in changed}
        moved = {each: random.randrange(3) for each in changed if random.random() < 0.4}
        try:
            known.note(changes, moved)
            is_waiting = False
        except OSError:
            is_waiting = True
        sizes |= changes
        places = {each: place for each, place in places.items() if each not in changes} | moved
        assert [known.least_bytes(each) for each in range(30)] == [sizes.get(each, 0) for each in range(30)]
        assert known.are_noted(np.arange(31)).tolist() == [bool(sizes.get(each)) for each in range(31)]
        held = {each for each, size in sizes.items() if size}
        assert known.all()[0].tolist() == sorted(held)
        assert known.moved() == {each: place for each, place in places.items() if each in held}
        assert all(known.place(each) == places.get(each, each % 3) for each in held)
        if step % 20 == 19 and not is_waiting:
            files.fault = None
            known = IndexManifestWriter(files, directories, **small)
            assert known.is_complete
            assert known.damaged_at is None


def test_reader_of_the_list_finds_a_row_at_each_moment_in_which_others_are_merged_with_it(tmp_path: Path) -> None:
    """Otherwise the loss of its index file would not be noticed."""
    known = IndexManifestWriter(LocalFiles(), [str(tmp_path)], recent_max=2)
    known.note({1: 9000, 2: 9000})
    found: list[int] = []

    def look(frame: FrameType, event: str, _: object) -> TraceFunction | None:
        if frame.f_code.co_filename != manifest.__file__:
            return None
        frame.f_trace_opcodes = True
        found.append(known.least_bytes(1))
        return look

    before = sys.gettrace()
    sys.settrace(look)
    try:
        known.note({3: 9000})
    finally:
        sys.settrace(before)
    assert len(found) > 100
    assert set(found) == {9000}


def test_every_damaged_byte_ends_the_rows_that_are_believed() -> None:
    rows = [(np.arange(first, first + 3), np.arange(3) + 1024) for first in (0, 10)]
    data = file_format.encode_head(1) + b"".join(file_format.encode_rows(*each) for each in rows)
    assert file_format.decode(data)[2] == len(data)
    for at in range(len(data)):
        damaged = bytearray(data)
        damaged[at] ^= 0x80
        ledger_ids, _, end = file_format.decode(bytes(damaged))
        assert end <= at
        assert ledger_ids.tolist() in ([], [0, 1, 2])
