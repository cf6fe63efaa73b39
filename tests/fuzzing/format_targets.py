"""Targets of what lies on a bookie's disk.

Most formats carry checksums, which random bytes never match. So an input says first whether its checksums are made
right before it is decoded: what is looked for then is not damage, but bytes written on purpose, or by a bookie with a
defect.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from crc32c import crc32c

from bkspark.errors import StorageDamaged
from bkspark.wire.digest import DigestType
from bookie_service.admin.inspection.digests import DigestVerifier
from bookie_service.admin.inspection.entry_log import read_entry_log
from bookie_service.admin.inspection.findings import Damage, Fact, Finding, FoundEntries
from bookie_service.admin.inspection.journal import read_journal
from bookie_service.formats import (
    compaction,
    entry_log,
    index,
    index_files,
    journal,
    key_value_index,
    limbo,
    marks,
    tombstones,
)
from bookie_service.formats.index import LedgerHeader
from bookie_service.formats.journal import FILE_HEADER_BYTES, FileHeader, RecordKind
from bookie_service.formats.marks import NO_JOURNAL, JournalPosition
from bookie_service.storage import layout
from bookie_service.storage.journal.replay import replay_journal
from bookie_service.storage.logs.log_scan import LogScan
from tests.crash.simulated_files import SimulatedDisk, SimulatedFiles
from tests.fuzzing.target import Draw, Target
from tests.fuzzing.wire_targets import framed, stored_entry

_KEY = bytes(range(20))
_CRC_BYTES = 4
_SLOT_FIELDS = 184
"""What of a header slot of an index file is not zero."""


def _sealed(body: bytes) -> bytes:
    """Return bytes followed by the CRC32C of all of them."""
    return body + crc32c(body).to_bytes(_CRC_BYTES, "big")


def _maybe_sealed(data: bytes) -> bytes:
    """Return an input without its first byte; that says whether the last four are made a right checksum."""
    draw = Draw(data)
    seals, rest = draw.flag(), draw.rest()
    return _sealed(rest[:-_CRC_BYTES]) if seals and len(rest) >= _CRC_BYTES else rest


def _simple(
    name: str, decode: Callable[[bytes], Any], encode: Callable[[Any], bytes], seeds: Callable[[], list[bytes]]
) -> Target:
    """Return the target of a format that is checksummed as a whole: what is whole encodes to the same bytes again."""

    def decoded(data: bytes) -> tuple[bytes, Any]:
        text = _maybe_sealed(data)
        return text, decode(text)

    def holds(found: tuple[bytes, Any]) -> None:
        text, value = found
        if value is not None:
            assert encode(value) == text, "not canonical"

    return Target(name, decoded, (ValueError,), holds, lambda: [b"\0" + seed for seed in seeds()])


def _limbo(data: bytes) -> tuple[bytes, tuple[np.ndarray, int]]:
    text = _maybe_sealed(data)
    return text, limbo.decode_limbo(text)


def _limbo_encodes_again(found: tuple[bytes, tuple[np.ndarray, int]]) -> None:
    """A file of version 1 is written as one of version 2."""
    text, value = found
    again = limbo.encode_limbo(*value)
    assert again == text or text[4:8] != limbo.VERSION.to_bytes(4, "big"), "not canonical"
    ids, generation = limbo.decode_limbo(again)
    assert (ids.tolist(), generation) == (value[0].tolist(), value[1])


# ---- journal ----


def _journal_parts(data: bytes) -> None:
    """Headers and bodies of records by themselves."""
    draw = Draw(data)
    kind, count = draw.below(5), draw.int64()
    if kind == 0:
        text = _maybe_sealed(draw.rest())
        header = journal.decode_file_header(text, 2)
        if header is not None:
            assert journal.encode_file_header(header)[:36] == text[:36]
    elif kind == 1:
        found = journal.decode_record_header(_maybe_sealed(draw.rest()), 0, file_id=2, offset=512)
        assert found is None or (found.body_bytes >= 0 and found.count >= 0)
    elif kind == 2:
        body = draw.rest()
        assert journal.encode_keys(journal.decode_keys(body, count)) == body
    elif kind == 3:
        body = draw.rest()
        assert journal.encode_fences(journal.decode_fences(body, count)) == body
    else:
        body = draw.rest()
        found_lacs = journal.decode_lacs(body, count)
        assert b"".join(packet for _, packet in found_lacs) in body or len(found_lacs) > 1
        assert all(len(packet) <= len(body) for _, packet in found_lacs)


def _journal_part_seeds() -> Iterator[bytes]:
    one = b"\0\1"  # int64(): 1
    yield b"\0\0\0\0" + journal.encode_file_header(FileHeader(2, 1, 1000))[:36]
    yield b"\1\0\0\0" + journal.encode_record_header(
        RecordKind.FENCE, 8, 1, file_id=2, offset=512, synced=512, body_crc=5
    )
    yield b"\2" + one + journal.encode_keys([(7, _KEY)])
    yield b"\3" + one + journal.encode_fences([7])
    yield b"\4" + one + journal.encode_lacs([(7, b"packet of sixteen bytes")])


def _journal_file(data: bytes) -> list[Finding]:
    """A journal file as a whole: replay and `bkspark dump` end, and do not disagree about what is whole.

    The input is cut into records whose headers are made right where it says so.
    """
    text = _whole_journal(Draw(data))
    files = _files_with("/j", journal.file_name(2), text)
    applied: list[tuple[int, int, bytes]] = []
    try:
        replay_journal(files, "/j", JournalPosition(2, FILE_HEADER_BYTES), lambda *record: applied.append(record))
        is_refused = False
    except StorageDamaged:
        is_refused = True
    findings = list(read_journal(_files_with("/j", journal.file_name(2), text), f"/j/{journal.file_name(2)}", None))
    if not is_refused:
        # Replay stops at a torn tail; what it applied before, the dump shows too.
        assert len(applied) <= sum(isinstance(it, Fact) for it in findings)
    return findings


def _whole_journal(draw: Draw) -> bytes:
    text = bytearray(journal.encode_file_header(FileHeader(2, 1, 1000)))
    synced = FILE_HEADER_BYTES
    while not draw.is_empty and len(text) < 8192:
        kind, is_whole, body = draw.below(8), draw.below(4) > 0, draw.blob(96)
        if kind == RecordKind.ENTRIES and draw.flag():
            body = framed(stored_entry(7, draw.below(9), body))
        count = draw.choice((0, 1, 2, len(body) // 28, len(body) // 8))
        synced = draw.choice((0, synced, len(text), len(text) + 1))
        head = journal.encode_record_header(
            kind,  # type: ignore[arg-type]
            len(body),
            count,
            file_id=2,
            offset=len(text),
            synced=synced,
            body_crc=crc32c(body) if draw.below(8) else 0,
        )
        record = bytearray(head + body)
        if not is_whole:
            record[draw.below(len(record))] ^= 1 << draw.below(8)
        text += record
    return bytes(text)


def _files_with(directory: str, name: str, text: bytes) -> SimulatedFiles:
    files = SimulatedFiles(SimulatedDisk())
    files.create_directory(directory)
    file = files.create(f"{directory}/{name}")
    if text:
        file.write([text], 0)
    file.close()
    return files


def _findings_are_inside(findings: list[Finding]) -> None:
    for finding in findings:
        if isinstance(finding, FoundEntries):
            assert (finding.offsets >= 0).all()
            assert (finding.sizes > 0).all()
            lengths = {len(finding.offsets), len(finding.sizes), len(finding.entry_ids), len(finding.states)}
            assert len(lengths) == 1
        elif isinstance(finding, (Fact, Damage)):
            assert finding.offset is None or finding.offset >= 0


# ---- entry logs ----


def _log_parts(data: bytes) -> None:
    draw = Draw(data)
    kind, rest = draw.below(3), draw.rest()
    if kind == 0:
        text = _maybe_sealed(rest)
        header = entry_log.decode_header(text.ljust(entry_log.HEADER_BYTES, b"\0"), 5)
        if header is not None and header.checksum_ok:
            assert header.version >= -(1 << 31)
    elif kind == 1:
        header = entry_log.LogHeader(1, 1024, rest[0] if rest else 0, True, entry_log.map_checksum(rest[1:]))
        found = entry_log.decode_map(rest[1:], header)
        assert found is None or len(found[0]) == len(found[1]) == header.map_ledgers
    else:
        log_id = entry_log.decode_last_id(rest)
        assert log_id is None or 0 <= log_id < entry_log.LOG_ID_MAX


def _log_part_seeds() -> Iterator[bytes]:
    table = entry_log.encode_map(np.array([7, 8]), np.array([100, 200]))
    yield b"\0\0" + entry_log.encode_header(5, 2000, 2, entry_log.map_checksum(table))
    yield b"\0\0" + entry_log.encode_header(5)
    yield b"\1\2" + table
    yield b"\2" + entry_log.encode_last_id(17)


def _log_file(data: bytes) -> list[Finding]:
    """An entry log as a whole: the scan that collection and recovery use, and `bkspark dump`, end and stay inside."""
    draw = Draw(data)
    has_map, judged = draw.flag(), draw.choice(tuple(DigestType))
    items = bytearray()
    while not draw.is_empty and len(items) < 8192:
        kind, blob = draw.below(4), draw.blob(80)
        items += blob if kind == 0 else framed(blob if kind == 1 else stored_entry(7, draw.below(9), blob, judged))
    text = entry_log.encode_header(5) + items
    if has_map:
        table = entry_log.encode_map(np.array([7]), np.array([len(items)]))
        head = entry_log.encode_header(5, len(text), 1, entry_log.map_checksum(table))
        text = head + items + table
    files = _files_with("/l", entry_log.file_name(5), text)
    file = files.open(f"/l/{entry_log.file_name(5)}")
    scan = LogScan(file, 5)
    for window in scan:
        assert (window.sizes > 0).all()
        assert int((window.starts + window.sizes).max()) <= len(window.octets)
    assert entry_log.HEADER_BYTES <= scan.end <= len(text)
    file.close()
    return list(read_entry_log(files, f"/l/{entry_log.file_name(5)}", DigestVerifier(b"")))


def _log_findings_hold(findings: list[Finding]) -> None:
    _findings_are_inside(findings)
    starts = np.concatenate([it.offsets for it in findings if isinstance(it, FoundEntries)] or [np.empty(0, np.int64)])
    assert (np.diff(starts) > 0).all(), "entries out of order, or twice"


# ---- index ----


def _index_header(data: bytes) -> None:
    """The head of an index file in one of its layouts, a header in a key-value store, and a LAC packet by itself."""
    draw = Draw(data)
    kind = draw.below(3)
    if kind == 2:
        index.decode_lac(draw.rest())
        return
    seals, layout_of_file, content = draw.flag(), draw.choice(tuple(index.LAYOUTS.values())), draw.rest()
    slots = [content[at : at + _SLOT_FIELDS].ljust(_SLOT_FIELDS, b"\0") for at in (0, _SLOT_FIELDS)]
    slots = [_sealed(slot[:-_CRC_BYTES]) if seals else slot for slot in slots]
    if kind == 1:
        found = key_value_index.decode_stored_header(slots[0], 7)
    else:
        head = bytearray(index.HEAD_BYTES)
        for at, slot in zip(layout_of_file.slots_at, slots):
            head[at : at + _SLOT_FIELDS] = slot
        found = index.decode_header(bytes(head), 7)
        if found is not None:
            assert index.layout_of(bytes(head)) is not None
    if found is not None:
        assert len(found.explicit_lac) <= index.LAC_PACKET_BYTES_MAX
        assert index.decode_header(index.encode_head(found), 7) == found


def _index_seeds() -> Iterator[bytes]:
    slot = index.encode_slot(LedgerHeader(7, 3, True, _KEY, b"x" * 24))
    older = index.encode_slot(LedgerHeader(7, 2, False, _KEY), 2)
    yield b"\0\0\1" + slot[:184]
    yield b"\0\1\1" + slot[:184] * 2
    yield b"\0\0\0" + older[:184]
    yield b"\1\0\0" + slot[:184]
    yield b"\2" + bytes(16)


def _index_file_rows(data: bytes) -> tuple[bytes, tuple[np.ndarray, np.ndarray, int]]:
    """Records are cut off the input; those that it says get right checksums."""
    draw = Draw(data)
    text = index_files.encode_head(draw.below(3)) if draw.below(8) else draw.blob(30)
    while not draw.is_empty and len(text) < 8192:
        if draw.flag():
            count = 1 + draw.below(4)
            rows = np.array([[draw.int64(), draw.int64()] for _ in range(count)], np.int64)
            text += index_files.encode_rows(rows[:, 0], rows[:, 1])
        else:
            body = draw.blob(40)
            text += crc32c(body).to_bytes(4, "big") + body
    return text, index_files.decode(text)


def _rows_encode_again(found: tuple[bytes, tuple[np.ndarray, np.ndarray, int]]) -> None:
    text, (ledger_ids, file_bytes, end) = found
    assert 0 <= end <= len(text)
    assert len(ledger_ids) == len(file_bytes)
    if len(ledger_ids):
        ids, sizes, whole = index_files.decode(
            index_files.encode_head(1) + index_files.encode_rows(ledger_ids, file_bytes)
        )
        assert whole > 0
        assert (ids.tolist(), sizes.tolist()) == (ledger_ids.tolist(), file_bytes.tolist())


def _names(data: bytes) -> None:
    """Names of files: what is taken for one is written just so."""
    text = data.decode("utf-8", "replace")
    if (log_id := entry_log.parse_file_name(text)) is not None:
        assert entry_log.file_name(log_id) == text
    if (file_id := journal.parse_file_name(text)) is not None:
        assert journal.file_name(file_id) == text
    if (ledger_id := index.parse_file_name(text)) is not None:
        assert index.relative_path(ledger_id)[-1] == text
    journal.is_apaches(text)
    assert layout.encode_place(layout.decode_place(data)).removesuffix(b"\n") == data.removesuffix(b"\n")


def _block(data: bytes) -> None:
    positions = key_value_index.decode_block(data)
    held = np.trim_zeros(positions, "b")
    assert key_value_index.decode_block(key_value_index.encode_block(positions)).tolist() == held.tolist()


TARGETS = (
    Target("format-journal-parts", _journal_parts, (ValueError,), None, _journal_part_seeds),
    Target(
        "format-journal-file",
        _journal_file,
        (),
        _findings_are_inside,
        lambda: [bytes(range(1, 200)), b"\3\1\10" + bytes(8) + b"\1\1\1" + b"\5\1\0\0\2\1"],
    ),
    Target("format-entry-log-parts", _log_parts, (), None, _log_part_seeds),
    Target(
        "format-entry-log-file", _log_file, (), _log_findings_hold, lambda: [b"\1\2" + b"\2\20" + bytes(40), bytes(60)]
    ),
    Target("format-index-header", _index_header, (ValueError,), None, _index_seeds),
    Target(
        "format-index-files", _index_file_rows, (ValueError,), _rows_encode_again, lambda: [b"\1" + bytes(range(60))]
    ),
    Target("format-names", _names, (), None, lambda: [b"1f.log", b"000000000000000a.txn", b"7.idx", b"lastMark.1"]),
    Target("format-index-block", _block, (), None, lambda: [np.arange(5).astype(">i8").tobytes()]),
    _simple(
        "format-mark",
        marks.decode_mark,
        marks.encode_mark,
        lambda: [marks.encode_mark(NO_JOURNAL), marks.encode_mark(JournalPosition(3, 512))],
    ),
    _simple(
        "format-compaction",
        compaction.decode,
        compaction.encode,
        lambda: [compaction.encode(compaction.Intent(9, 4))],
    ),
    _simple(
        "format-commit",
        key_value_index.decode_commit,
        key_value_index.encode_commit,
        lambda: [key_value_index.encode_commit(17)],
    ),
    Target(
        "format-limbo",
        _limbo,
        (ValueError,),
        _limbo_encodes_again,
        lambda: [b"\0" + limbo.encode_limbo(np.array([3, 7]), 5)],
    ),
    Target(
        "format-tombstones",
        lambda data: tombstones.decode(_maybe_sealed(data)),
        (ValueError,),
        lambda found: _tombstones_encode_again(found),
        lambda: [b"\0" + tombstones.encode({7: 1000, 8: 1001})],
    ),
)


def _tombstones_encode_again(found: dict[int, int] | None) -> None:
    if found is not None:
        assert tombstones.decode(tombstones.encode(found)) == found
